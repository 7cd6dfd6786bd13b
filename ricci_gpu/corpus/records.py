"""The records of the field, and the rules that each record read from a file must obey.

Ids become strings: ``1`` and ``"1"`` are the same id. A text may be empty, and null counts as
empty: such a passage or query is kept and carries no words. Lone surrogates are accepted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ricci_gpu.errors import InputError


@dataclass(frozen=True)
class Passage:
    """A chunk of text that can be retrieved."""

    id: str
    title: str
    text: str

    @property
    def full_text(self) -> str:
        """Title and text, separated by a blank: what models read."""
        return f"{self.title} {self.text}" if self.title else self.text


@dataclass(frozen=True)
class Query:
    """One row of a query log."""

    id: str
    text: str


def field(row: Mapping[str, Any], names: Sequence[str], place: str) -> Any:
    """The value under the first of ``names`` that the row has."""
    for name in names:
        if name in row:
            return row[name]
    wanted = " or ".join(f"`{name}`" for name in names)
    present = ", ".join(f"`{name}`" for name in row) or "nothing"
    raise InputError(f"{place}: needs a field {wanted}; found {present}. Add or rename the field.")


def as_id(value: Any, place: str) -> str:
    """The id as a string."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value
    raise InputError(
        f"{place}: an id must be a non-empty string or an integer; got {value!r}. "
        "Give every row an id."
    )


def as_text(value: Any, place: str, name: str = "text") -> str:
    """The text; null counts as empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise InputError(
        f"{place}: `{name}` must be a string; got {value!r}. Convert the field to a string."
    )


def require_unique(ids: Iterable[str], what: str, source: str) -> None:
    """Refuse ids that come more than once, naming the first few."""
    repeated = [name for name, count in Counter(ids).items() if count > 1]
    if repeated:
        shown = ", ".join(f"`{name}`" for name in repeated[:5])
        more = f" and {len(repeated) - 5} more" if len(repeated) > 5 else ""
        raise InputError(
            f"{source}: every {what} id must be unique (the number 1 and the string `1` are the "
            f"same id); these come more than once: {shown}{more}. Remove or rename the copies."
        )
