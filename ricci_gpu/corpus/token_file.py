"""A growing array of token vectors, on disk or in memory.

How many tokens a corpus has is known only after the last text, and they may not fit in memory.
numpy pads the header of its files so that the first axis can grow in place: the header is written
once with zero rows and again, with the true number, at the end.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from ricci_gpu.errors import InputError
from ricci_gpu.shapes import Float, Int


class TokenFile:
    """Collects float16 rows. A context manager; the array is there after the block.

    Args:
        path: file to write; None keeps the rows in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._parts: list[np.ndarray] = []
        self._file: BinaryIO | None = None
        self._shape = (0, 0)

    def __enter__(self) -> "TokenFile":
        return self

    def append(self, rows: np.ndarray) -> None:
        if self._path is None:
            self._parts.append(rows.astype(np.float16, copy=False))
            return
        if self._file is None:
            self._shape = (0, rows.shape[1])
            self._file = self._path.open("wb")
            self._write_header(self._file)
        self._shape = (self._shape[0] + len(rows), rows.shape[1])
        self._file.write(np.ascontiguousarray(rows, dtype=np.float16).tobytes())

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.seek(0)
            self._write_header(self._file)
            self._file.close()

    def array(self) -> np.ndarray:
        """All rows; those of a file are mapped, not read."""
        if self._path is None:
            return np.concatenate(self._parts)
        return np.load(self._path, mmap_mode="r")

    def _write_header(self, file: BinaryIO) -> None:
        header = {"descr": "<f2", "fortran_order": False, "shape": self._shape}
        npy.write_array_header_1_0(file, header)


def read_spans(
    array: Float[np.ndarray, "M D"], starts: Int[np.ndarray, "R"], stops: Int[np.ndarray, "R"]
) -> Float[np.ndarray, "T D"]:
    """The rows of some spans end to end, in memory.

    Those of a mapped file are read, not looked at through the map: that takes a third of the time,
    and the pages do not count as memory of this process for ever after.

    Raises:
        InputError: the file is gone, or is no longer the one that was mapped.
    """
    lengths = stops - starts
    packed = np.empty((int(lengths.sum()), array.shape[1]), dtype=array.dtype)
    ends = np.cumsum(lengths)
    with _reader(array) as read:
        for end, length, start in zip(ends, lengths, starts, strict=True):
            read(packed[end - length : end], int(start))
    return packed


@contextmanager
def _reader(array: np.ndarray) -> Iterator[Callable[[np.ndarray, int], None]]:
    """A function that fills an array with the rows from a certain one on."""
    if not isinstance(array, MappedRows):

        def copy(target: np.ndarray, start: int) -> None:
            target[:] = array[start : start + len(target)]

        yield copy
        return
    path, first, row_bytes = Path(str(array.filename)), array.offset, array.strides[0]
    try:
        file = path.open("rb")
    except OSError as error:
        raise InputError(f"{path}: can no longer be read ({error}). Restore it.") from error
    changed = InputError(f"{path}: was replaced while it was in use. Open the store again.")
    with file:
        if array.identity != _identity(file.fileno()):
            raise changed

        def read(target: np.ndarray, start: int) -> None:
            file.seek(first + start * row_bytes)
            if file.readinto(target.data) != target.nbytes:
                raise changed

        yield read


class MappedRows(np.memmap):
    """A mapped array that knows which file it is of, whatever takes its name later."""

    identity: tuple[int, int, int] | None = None


def map_rows(path: Path) -> MappedRows:
    """The array mapped from disk, copy-on-write: torch takes no read-only memory, and what is
    written to it never reaches the file.

    Raises:
        OSError, EOFError, ValueError: the file cannot be read.
    """
    identity = _identity(path)
    array: MappedRows = np.load(path, mmap_mode="c", allow_pickle=False).view(MappedRows)
    array.identity = identity
    return array


def _identity(file: Path | int) -> tuple[int, int, int]:
    found = os.stat(file)
    return found.st_dev, found.st_ino, found.st_mtime_ns
