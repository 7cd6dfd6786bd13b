"""A growing array of token vectors, on disk or in memory.

How many tokens a corpus has is known only after the last text, and they may not fit in memory.
numpy pads the header of its files so that the first axis can grow in place: the header is written
once with zero rows and again, with the true number, at the end.
"""

from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy


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
            self._parts.append(rows)
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
