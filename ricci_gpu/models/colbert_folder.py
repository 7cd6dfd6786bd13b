"""What the files of a multi-vector checkpoint say, in the three layouts in use.

Stanford ColBERT
    ``config.json`` names the architecture ``HF_ColBERT``; the projection lies among the weights as
    ``linear.weight``; ``artifact.metadata`` holds lengths and markers. Queries are always expanded.
PyLate
    ``modules.json`` with a Transformer and Dense modules; prefixes, lengths, expansion and skip
    list in ``config_sentence_transformers.json``, with PyLate's own defaults for what is absent.
sentence-transformers
    The same modules, and Normalize and MultiVectorMask; lengths and expansion in the Transformer's
    own settings, the skip list in those of MultiVectorMask, prefixes as ``prompts``.

Where the libraries differ on an older layout, sentence-transformers 6 is followed, which reads all
three.
"""

import json
import string
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ricci_gpu.errors import SettingError
from ricci_gpu.models.folder import Located, read_json, require_safetensors

_PYLATE_KEYS = (
    *("query_prefix", "document_prefix", "query_length", "document_length", "skiplist_words"),
    *("do_query_expansion", "attend_to_expansion_tokens"),
)


@dataclass(frozen=True)
class Expansion:
    """How queries are filled up with tokens that are scored like words.

    Args:
        length: fill up to this many tokens.
        fixed: longer queries are cut to it; otherwise they keep their length.
        attend: whether the words of the query see the added tokens. These see the words always.
        token: what is added; None for the mask token, or the end token where there is no mask.
    """

    length: int
    fixed: bool = True
    attend: bool = False
    token: str | None = None


@dataclass(frozen=True)
class Projection:
    """One linear layer between hidden states and token vectors: where its weights are.

    Args:
        folder: with safetensors that hold ``linear.weight`` and maybe ``linear.bias``.
        activation: a class of ``torch.nn``.
        residual: add the input, through ``residual.weight`` where the widths differ.
    """

    folder: Path
    activation: str = "Identity"
    residual: bool = False


@dataclass(frozen=True)
class ColbertFolder:
    """Where the parts of a multi-vector model are, and how texts become scored tokens.

    Args:
        path: folder of the transformer.
        source: where it came from, in words.
        projections: applied one after the other to the hidden states.
        normalize: whether token vectors are scaled to length 1.
        query_marker, document_marker: a token put behind the first one ([CLS]); None for none.
        query_prompt, document_prompt: text put in front.
        query_length, document_length: longest input; None for as much as the model reads.
        expansion: of queries; None for none.
        skip: tokens of documents that are not scored.
        skip_in_queries: nor in queries.
        lowercase: whether texts are lowercased first.
    """

    path: Path
    source: str
    projections: tuple[Projection, ...]
    normalize: bool = True
    query_marker: str | None = None
    document_marker: str | None = None
    query_prompt: str = ""
    document_prompt: str = ""
    query_length: int | None = None
    document_length: int | None = None
    expansion: Expansion | None = None
    skip: tuple[str, ...] = ()
    skip_in_queries: bool = False
    lowercase: bool = False


def read_colbert_folder(found: Located) -> ColbertFolder:
    """Read a multi-vector checkpoint in any of the layouts.

    Raises:
        SettingError: none of them, a module that is not supported, or weights that are no
            safetensors.
    """
    if (found.path / "modules.json").is_file():
        return _read_modules(found)
    architectures = read_json(found.path / "config.json").get("architectures") or []
    if "HF_ColBERT" not in architectures:
        raise SettingError(
            f"{found.path}: a late-interaction model must have `modules.json` (PyLate, "
            "sentence-transformers) or the architecture `HF_ColBERT` (Stanford); this is "
            f"{', '.join(map(repr, architectures)) or 'neither'}. Choose another model."
        )
    require_safetensors(found.path)
    file = found.path / "artifact.metadata"
    meta = read_json(file) if file.is_file() else {}
    attend = bool(meta.get("attend_to_mask_tokens"))
    return ColbertFolder(
        path=found.path,
        source=found.source,
        projections=(Projection(found.path),),
        query_marker=meta.get("query_token_id") or "[unused0]",
        document_marker=meta.get("doc_token_id") or "[unused1]",
        document_length=meta.get("doc_maxlen"),
        expansion=Expansion(meta.get("query_maxlen") or 32, attend=attend),
        skip=tuple(string.punctuation) if meta.get("mask_punctuation", True) else (),
    )


def _read_modules(found: Located) -> ColbertFolder:
    path = found.path
    folder = ColbertFolder(path, found.source, (), normalize=False)
    masked = False
    for module in read_json(path / "modules.json"):
        kind, part = module["type"].rsplit(".", 1)[-1], path / module["path"]
        if kind == "Transformer":
            folder = _with_transformer(folder, part)
        elif kind == "Dense":
            projection = _projection(part, pylate=module["type"].startswith("pylate."))
            folder = replace(folder, projections=(*folder.projections, projection))
        elif kind == "Normalize":
            folder = replace(folder, normalize=True)
        elif kind == "MultiVectorMask":
            folder, masked = _with_mask(folder, part), True
        else:
            raise SettingError(
                f"{path}: a late-interaction model may consist of the modules Transformer, Dense, "
                f"Normalize and MultiVectorMask; this one has `{kind}`. Choose a model without it."
            )
    require_safetensors(folder.path)
    file = path / "config_sentence_transformers.json"
    config = read_json(file) if file.is_file() else {}
    if config.get("model_type") == "ColBERT" or any(key in config for key in _PYLATE_KEYS):
        folder = _with_pylate(folder, config)
    else:
        prompts = config.get("prompts") or {}
        folder = replace(
            folder,
            query_prompt=prompts.get("query") or "",
            document_prompt=prompts.get("document") or "",
        )
        if folder.expansion is not None and not masked:
            raise SettingError(
                f"{path}: a model with query expansion needs a MultiVectorMask module, which "
                "says what is scored; `modules.json` names none. Save it again with "
                "sentence-transformers."
            )
        if config.get("model_type") != "MultiVectorEncoder":
            folder = replace(folder, normalize=True)  # a bare pair of Transformer and Dense
    return folder


def _with_transformer(folder: ColbertFolder, part: Path) -> ColbertFolder:
    file = part / "sentence_bert_config.json"
    settings = read_json(file) if file.is_file() else {}
    longest = settings.get("max_seq_length")
    expansion = settings.get("query_expansion")
    if expansion is not None:
        expansion = Expansion(
            length=expansion["length"],
            fixed=expansion["strategy"] == "fixed",
            attend=expansion.get("attend", False),
            token=expansion.get("token"),
        )
    return replace(
        folder,
        path=part,
        query_length=settings.get("query_length") or longest,
        document_length=settings.get("document_length") or longest,
        expansion=expansion,
        lowercase=bool(settings.get("do_lower_case", False)),
    )


def _with_mask(folder: ColbertFolder, part: Path) -> ColbertFolder:
    settings = read_json(part / "config.json")
    if settings.get("keep_only_token_ids"):
        raise SettingError(
            f"{part}: a model that scores image tokens alone (`keep_only_token_ids`) is not "
            "supported. Choose a model of texts."
        )
    tasks = settings.get("skiplist_tasks") or ["document"]
    return replace(
        folder, skip=tuple(settings.get("skiplist_words") or ()), skip_in_queries="query" in tasks
    )


def _with_pylate(folder: ColbertFolder, config: dict[str, Any]) -> ColbertFolder:
    prompts = config.get("prompts") or {}
    skip = config.get("skiplist_words")
    query_length = config.get("query_length") or 32
    expansion = None
    if config.get("do_query_expansion") is not False:
        attend = bool(config.get("attend_to_expansion_tokens"))
        expansion = Expansion(query_length, attend=attend)
    query, document = config.get("query_prefix"), config.get("document_prefix")
    return replace(
        folder,
        normalize=True,
        query_marker="[Q] " if query is None else query or None,
        document_marker="[D] " if document is None else document or None,
        query_prompt=prompts.get("query") or "",
        document_prompt=prompts.get("document") or "",
        query_length=query_length,
        document_length=config.get("document_length") or 180,
        expansion=expansion,
        skip=tuple(string.punctuation if skip is None else skip),
    )


def _projection(part: Path, pylate: bool) -> Projection:
    require_safetensors(part)
    config = read_json(part / "config.json")
    if config.get("module_input_name", "token_embeddings") != "token_embeddings":
        raise SettingError(
            f"{part}: the projection of a late-interaction model must read token embeddings; this "
            f"one reads `{config['module_input_name']}`. Choose another model."
        )
    # the constructors' defaults, which older files leave out
    named = config.get("activation_function") or f"torch.nn.{'Identity' if pylate else 'Tanh'}"
    activation = named.rsplit(".", 1)[-1]
    if not named.startswith("torch.nn.") or activation not in ("Identity", "Tanh", "GELU", "ReLU"):
        raise SettingError(
            f"{part}: the activation of a projection must be Identity, Tanh, GELU or ReLU of "
            f"torch.nn; got {json.dumps(named)}. Choose another model."
        )
    return Projection(part, activation, bool(config.get("use_residual")))
