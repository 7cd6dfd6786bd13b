"""Settings: one YAML tree, frozen once read.

A preset in ``configs/`` lists only what differs from the defaults, which are the defaults of the
dataclasses here and of the stages. ``type`` names the variant of a stage; its other keys are the
fields of that variant.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import yaml

from ricci_gpu.corpus.index import KINDS
from ricci_gpu.errors import SettingError, suggest
from ricci_gpu.registry import Registry, build_settings
from ricci_gpu.stages import FILTERS, RERANKERS, Filter, Stage
from ricci_gpu.stages.rerank import KeepOrder
from ricci_gpu.stages.token_filter import TokenTransportFilter


@dataclass(frozen=True)
class ModelSettings:
    """The models that make vectors.

    Args:
        name: the dense encoder: a packaged model, a folder, or a name on the hub.
        dtype: of the weights of all models, those of rerankers included.
        late_interaction: makes the token vectors: a folder, ``minilm-128`` or a name on the hub;
            null takes those of the dense encoder.
        cache: folder that keeps the vectors of texts between runs; null for none.
    """

    name: str = "all-MiniLM-L6-v2"
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    late_interaction: str | None = None
    cache: str | None = None

    def __post_init__(self) -> None:
        if self.dtype not in ("float32", "float16", "bfloat16"):
            raise SettingError(
                f"`model.dtype` must be float32, float16 or bfloat16; got {self.dtype!r}."
            )


@dataclass(frozen=True)
class RetrieveSettings:
    """First stage over a corpus: the ``k`` nearest passages by cosine. Unused for ready pools.

    ``index`` is ``flat`` (exact), ``hnsw`` or ``ivf``.
    """

    k: int = 50
    index: str = "flat"

    def __post_init__(self) -> None:
        if self.k < 1:
            raise SettingError(f"`retrieve.k` must be at least 1; got {self.k}.")
        if self.index not in KINDS:
            raise SettingError(
                f"unknown `retrieve.index` `{self.index}`. {suggest(self.index, KINDS)}"
            )


@dataclass(frozen=True)
class SelectSettings:
    """How many of the kept candidates come out: ``top_k``, or all where it is null."""

    top_k: int | None = 10

    def __post_init__(self) -> None:
        if self.top_k is not None and self.top_k < 1:
            raise SettingError(f"`select.top_k` must be at least 1 or null; got {self.top_k}.")


@dataclass(frozen=True)
class RuntimeSettings:
    """Where and how it runs; none of it changes a result.

    Args:
        device: ``auto`` (CUDA where there is one), ``cpu``, ``cuda``, ``cuda:1``, ...
        batch_size: queries per padded batch.
        strict: raise when a query has a bad embedding or a solver did not converge.
    """

    device: str = "auto"
    batch_size: int = 256
    strict: bool = False

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise SettingError(f"`runtime.batch_size` must be at least 1; got {self.batch_size}.")


@dataclass(frozen=True)
class Config:
    """All settings of a run."""

    model: ModelSettings = field(default_factory=ModelSettings)
    retrieve: RetrieveSettings = field(default_factory=RetrieveSettings)
    filter: Filter = field(default_factory=TokenTransportFilter)
    rerank: Stage = field(default_factory=KeepOrder)
    select: SelectSettings = field(default_factory=SelectSettings)
    runtime: RuntimeSettings = field(default_factory=RuntimeSettings)

    @classmethod
    def load(cls, source: str | Path = "default", overrides: Sequence[str] = ()) -> "Config":
        """A preset by name, or a YAML file by path; then ``key.path=value`` overrides.

        Overrides apply in order, those of a stage's ``type`` first: a new type starts from its own
        defaults.
        """
        tree = _read(source)
        parsed = [_parse(override) for override in overrides]
        for path, value in sorted(parsed, key=lambda each: not _names_variant(each[0])):
            _apply(tree, path, value)
        return cls.from_tree(tree)

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "Config":
        """From nested mappings, as YAML gives them."""
        known = [each.name for each in fields(cls)]
        parts: dict[str, Any] = {}
        for key, value in tree.items():
            if key not in known:
                raise SettingError(f"unknown section `{key}`. {suggest(str(key), known)}")
            if not isinstance(value, Mapping):
                raise SettingError(f"section `{key}` must be a mapping of settings; got {value!r}.")
            if key in _VARIANTS:
                settings = dict(value)
                name = settings.pop("type", getattr(cls(), key).name)
                parts[key] = _VARIANTS[key].build(name, settings)
            else:
                parts[key] = build_settings(_SECTIONS[key], f"section `{key}`", value)
        return cls(**parts)

    def to_tree(self) -> dict[str, Any]:
        """Nested mappings with every setting, defaults included."""
        tree: dict[str, Any] = {}
        for each in fields(self):
            part = getattr(self, each.name)
            head = {"type": part.name} if each.name in _VARIANTS else {}
            tree[each.name] = head | asdict(part)
        return tree

    def to_yaml(self) -> str:
        """The tree as YAML, which `load` reads back to an equal configuration."""
        return yaml.safe_dump(self.to_tree(), sort_keys=False, allow_unicode=True)


_VARIANTS: dict[str, Registry[Any]] = {"filter": FILTERS, "rerank": RERANKERS}
_SECTIONS: dict[str, type] = {
    "model": ModelSettings,
    "retrieve": RetrieveSettings,
    "select": SelectSettings,
    "runtime": RuntimeSettings,
}


def preset_folder() -> Path:
    """Where the presets lie: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "configs"
    return installed if installed.is_dir() else package.parent / "configs"


def preset_names() -> list[str]:
    """Names that `Config.load` knows."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


def _read(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if path.suffix not in (".yaml", ".yml"):
        names = preset_names()
        if str(source) not in names:
            raise SettingError(
                f"unknown preset `{source}`. {suggest(str(source), names)} "
                "A file of your own must end in .yaml."
            )
        path = preset_folder() / f"{source}.yaml"
    try:
        tree = _load_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise SettingError(f"cannot read the settings file {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise SettingError(f"{path} must be UTF-8 text ({error.reason}). Convert it.") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise SettingError(f"{path} must hold a mapping of sections; got {type(tree).__name__}.")
    return tree


class _Loader(yaml.SafeLoader):
    """Safe YAML in which ``1e-3`` is a number, as in YAML 1.2; PyYAML takes it for text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
)


def _load_yaml(text: str, source: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date such as 2001-99-99
        raise SettingError(
            f"{source} is not valid YAML: {' '.join(str(error).split())}."
        ) from error


def _parse(override: str) -> tuple[list[str], Any]:
    key, equals, text = override.partition("=")
    path = key.strip().split(".")
    if not equals or len(path) < 2 or not all(path):
        raise SettingError(
            "an override must read section.setting=value, such as filter.eta=0.9; got "
            f"`{override}`."
        )
    return path, _load_yaml(text, f"override `{override}`: the value")


def _names_variant(path: list[str]) -> bool:
    return len(path) == 2 and path[0] in _VARIANTS and path[1] == "type"


def _apply(tree: dict[str, Any], path: list[str], value: Any) -> None:
    branch = tree
    for name in path[:-1]:
        branch = branch.setdefault(name, {})
        if not isinstance(branch, dict):
            raise SettingError(f"override of `{'.'.join(path)}`: `{name}` is not a section.")
    if _names_variant(path) and value != branch.get("type", getattr(Config(), path[0]).name):
        branch.clear()  # settings of another variant would not fit this one
    branch[path[-1]] = value
