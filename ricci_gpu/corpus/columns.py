"""Rows of an Arrow batch in which vectors are numpy arrays.

`RecordBatch.to_pylist` makes a Python object of every number, some 30 bytes where the file has
four. Here columns of numbers stay numpy arrays, as slices of the batch, and all else becomes plain
Python. The vectors of a query are columns of their own, those of its candidates fields of the
column ``candidates``.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

CANDIDATES = "candidates"


def batch_rows(batch: Any) -> Iterator[dict[str, Any]]:
    """The rows of a `pyarrow.RecordBatch`, each with its columns by name."""
    columns = {name: _values(batch.column(name), name) for name in batch.schema.names}
    for row in range(batch.num_rows):
        yield {name: values[row] for name, values in columns.items()}


def _values(column: Any, name: str) -> list[Any]:
    import pyarrow.types as types

    if _holds_numbers(column.type):
        return _arrays(column)
    is_list = types.is_list(column.type) or types.is_large_list(column.type)
    if name == CANDIDATES and is_list and types.is_struct(column.type.value_type):
        return _nested(column)
    plain: list[Any] = column.to_pylist()
    return plain


def _nested(column: Any) -> list[Any]:
    """A list of structs, field by field."""
    present = column.is_valid().to_pylist()
    offsets = column.offsets.to_pylist()
    inside = column.values.slice(offsets[0], offsets[-1] - offsets[0])
    names = [field.name for field in column.type.value_type]
    fields = [_values(inside.field(at), name) for at, name in enumerate(names)]
    exists = inside.is_valid().to_pylist()
    structs = [
        dict(zip(names, values, strict=True)) if there else None
        for there, *values in zip(exists, *fields, strict=True)
    ]
    return [
        structs[first - offsets[0] : last - offsets[0]] if there else None
        for there, first, last in zip(present, offsets[:-1], offsets[1:], strict=True)
    ]


def _holds_numbers(type_: Any) -> bool:
    """Whether the type is a list of numbers, or of lists of numbers."""
    import pyarrow.types as types

    if not _is_list(type_):
        return False
    inner = type_.value_type
    if _is_list(inner):
        inner = inner.value_type
    return bool(types.is_floating(inner) or types.is_integer(inner))


def _is_list(type_: Any) -> bool:
    import pyarrow.types as types

    return bool(
        types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_)
    )


def _arrays(column: Any) -> list[Any]:
    """A vector, or a matrix where every inner list has one length, per row; None for null."""
    offsets, inner, present = _unpacked(column)
    if not _is_list(inner.type):
        numbers = inner.to_numpy(zero_copy_only=False)
        return [
            numbers[first:last] if there else None
            for there, first, last in zip(present, offsets[:-1], offsets[1:], strict=True)
        ]
    starts, numbers, _ = _unpacked(inner)
    numbers = numbers.to_numpy(zero_copy_only=False)
    return [
        _matrix(numbers, starts[first : last + 1]) if there else None
        for there, first, last in zip(present, offsets[:-1], offsets[1:], strict=True)
    ]


def _unpacked(column: Any) -> tuple[Any, Any, list[bool]]:
    """Offsets of the lists, what they hold, and which are not null."""
    import pyarrow as pa
    import pyarrow.types as types

    if types.is_fixed_size_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    offsets = column.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    return offsets - first, column.values.slice(first, last - first), column.is_valid().to_pylist()


def _matrix(numbers: Any, starts: Any) -> Any:
    """The inner lists as rows of a matrix; as they are, to be refused, where lengths differ."""
    widths = np.diff(starts)
    if len(widths) == 0:
        return numbers[:0].reshape(0, 0)
    if (widths == widths[0]).all():
        return numbers[starts[0] : starts[-1]].reshape(len(widths), widths[0])
    return [numbers[first:last] for first, last in pairwise(starts)]
