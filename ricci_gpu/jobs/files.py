"""Input files by path or URL: which there are, how large, and their bytes.

A path with a scheme (``s3://``, ``gs://``, ``https://``, ``file://``) is read through fsspec, which
finds the driver for it; a plain path needs no package.
"""

import glob
import gzip
import hashlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import IOBase
from pathlib import Path
from typing import Any

from ricci_gpu.corpus.files import GZIP_MAGIC, unreadable
from ricci_gpu.errors import InputError, missing

READ_BYTES = 1 << 20
FOOTER_TAIL = 8  # bytes at the end of a Parquet file: length of the footer and `PAR1`


def expand(patterns: Sequence[str]) -> list[str]:
    """Absolute paths and URLs of all files, in the order of the patterns, each sorted.

    Raises:
        InputError: a pattern that finds nothing, or a file that is found twice.
    """
    found: list[str] = []
    for pattern in patterns:
        if is_url(pattern):
            system, path = _file_system(pattern)
            names = [system.unstrip_protocol(name) for name in sorted(system.glob(path))]
        else:
            plain = os.path.abspath(os.path.expanduser(pattern))
            names = [plain] if os.path.exists(plain) else sorted(glob.glob(plain, recursive=True))
        if not names:
            raise InputError(f"{pattern}: no such file. Check the path, or quote the pattern.")
        found += names
    twice = sorted({name for name in found if found.count(name) > 1})
    if twice:
        raise InputError(
            f"every input file is read once, because (file, row) names a query; {twice[0]} was "
            "given more than once. Leave out the repetition."
        )
    return found


def is_url(path: str) -> bool:
    """Whether fsspec reads it."""
    return "://" in path


def open_file(path: str) -> IOBase:
    """The raw bytes, seekable.

    Raises:
        InputError: not there, or not readable.
    """
    try:
        if is_url(path):
            system, name = _file_system(path)
            file: IOBase = system.open(name, "rb")
            return file
        return Path(path).open("rb")
    except OSError as error:
        raise unreadable(Path(path), error) from error


@contextmanager
def open_text(path: str) -> Iterator[IOBase]:
    """The bytes after decompression, for a file that may be gzipped; seekable."""
    with open_file(path) as file:
        magic = file.read(len(GZIP_MAGIC))
        file.seek(0)
        if magic != GZIP_MAGIC:
            yield file
            return
        with gzip.open(file, "rb") as plain:
            yield plain


@contextmanager
def open_parquet(path: str) -> Iterator[Any]:
    """A `pyarrow.parquet.ParquetFile`, read piece by piece.

    Raises:
        InputError: not there, or not Parquet.
        MissingDependencyError: without pyarrow.
    """
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing("pyarrow", "reading Parquet", "io") from error
    with open_file(path) as raw:
        try:
            # Without a buffer size, the whole row group is held while a part of it is read.
            file = pq.ParquetFile(raw, buffer_size=READ_BYTES)
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{path}: not a readable Parquet file ({error}). Write or copy it again."
            ) from error
        with file:
            yield file


def file_size(path: str) -> int:
    """Size in bytes, as stored."""
    try:
        if is_url(path):
            system, name = _file_system(path)
            return int(system.size(name))
        return os.path.getsize(path)
    except OSError as error:
        raise unreadable(Path(path), error) from error


def footer_sha256(path: str) -> str:
    """Digest of the footer of a Parquet file.

    Raises:
        InputError: a file that does not end as Parquet does, so one that was cut off.
    """
    size = file_size(path)
    with open_file(path) as file:
        file.seek(max(0, size - FOOTER_TAIL))
        tail = file.read(FOOTER_TAIL)
        length = int.from_bytes(tail[:4], "little") + FOOTER_TAIL
        if tail[4:] != b"PAR1" or length > size:
            raise InputError(
                f"{path}: not a complete Parquet file: it does not end in a footer. It was probably"
                " cut off; write or copy it again."
            )
        file.seek(size - length)
        return hashlib.sha256(file.read(length)).hexdigest()


def _file_system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise missing("fsspec", f"reading {url}", "io") from error
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:  # the driver of this scheme, or no such scheme
        raise InputError(f"{url}: cannot be opened ({error}).") from error
    return system, path
