"""Settings as small frozen dataclasses, and registries of the variants of one role."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ricci_gpu.errors import SettingError, suggest

T = TypeVar("T")


def build_settings(cls: type[T], what: str, settings: Mapping[str, Any]) -> T:
    """An instance of the dataclass; unknown keys and wrong types are refused, with the fix."""
    known = [field.name for field in fields(cls) if field.init]  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    given: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in known:
            hint = suggest(str(key), known) if known else "It takes no settings."
            raise SettingError(f"{what} has no setting `{key}`. {hint}")
        if not _matches(value, hints[key]):
            wanted = getattr(hints[key], "__name__", None) or str(hints[key])
            raise SettingError(f"{what}: `{key}` must be {wanted}; got {value!r}.")
        given[key] = float(value) if hints[key] is float else value  # YAML's 1 means 1.0
    return cls(**given)


def _matches(value: Any, hint: Any) -> bool:
    """Whether a value read from YAML may stand for the annotated type."""
    if hint is Any:
        return True
    if get_origin(hint) in (Union, UnionType):
        return any(_matches(value, option) for option in get_args(hint))
    if get_origin(hint) is Literal:
        return isinstance(value, str)  # the variant itself names its choices
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, get_origin(hint) or hint)


class Registry(Generic[T]):
    """Names for the variants of one role (``filter``, ``rerank``, ...).

    A variant is a frozen dataclass: its fields are its settings and their defaults, and its
    ``__post_init__`` refuses impossible ones.
    """

    def __init__(self, role: str) -> None:
        self.role = role
        self._variants: dict[str, type[T]] = {}

    def register(self, name: str) -> Callable[[type[T]], type[T]]:
        """A class decorator that files the variant under ``name``."""

        def add(variant: type[T]) -> type[T]:
            if name in self._variants:
                raise SettingError(f"{self.role} `{name}` is registered twice; rename one.")
            if not is_dataclass(variant):
                raise SettingError(f"{self.role} `{name}` must be a dataclass; got {variant!r}.")
            variant.name = name  # type: ignore[attr-defined]
            self._variants[name] = variant
            return variant

        return add

    def names(self) -> list[str]:
        return sorted(self._variants)

    def variant(self, name: str) -> type[T]:
        if not isinstance(name, str) or name not in self._variants:
            hint = suggest(str(name), self._variants)
            raise SettingError(f"unknown {self.role} `{name}`. {hint}")
        return self._variants[name]

    def build(self, name: str, settings: Mapping[str, Any]) -> T:
        """The variant ``name`` with ``settings``."""
        return build_settings(self.variant(name), f"{self.role} `{name}`", settings)
