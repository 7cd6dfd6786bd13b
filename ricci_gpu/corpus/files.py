"""Rows of text files and Parquet files, with errors that name the file and the line.

A text file may be gzipped, whatever its name says. It must be UTF-8; lines end at a line feed
only, because other separators (U+2028, a lone carriage return) occur inside real texts.
"""

import gzip
import json
import os
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import nullcontext
from io import BufferedIOBase
from pathlib import Path
from typing import Any

from ricci_gpu.corpus.columns import batch_rows
from ricci_gpu.errors import InputError, missing

GZIP_MAGIC = b"\x1f\x8b"
FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".trec": "trec",
    ".run": "trec",
}


def file_format(path: Path, known: Collection[str] = ("jsonl", "tsv", "parquet")) -> str:
    """``jsonl``, ``tsv``, ``parquet`` or ``trec``, from the end of the name; ``.gz`` may follow."""
    ending = Path(path.name.lower().removesuffix(".gz")).suffix
    found = FORMATS.get(ending, "")
    if found not in known:
        endings = ", ".join(f"`{name}`" for name, kind in FORMATS.items() if kind in known)
        raise InputError(
            f"{path}: the name of the file must end in one of {endings} (`.gz` may follow); "
            f"got `{ending}`. Rename or convert it."
        )
    return found


def find_file(folder: Path, names: Collection[str], what: str) -> Path:
    """The first of ``names`` that exists in ``folder``."""
    for name in names:
        if (folder / name).is_file():
            return folder / name
    listed = ", ".join(f"`{name}`" for name in names)
    raise InputError(
        f"{folder}: a folder of {what} must hold one of {listed}; it holds none of them. "
        "Give the path of the file itself, or rename it."
    )


def text_lines(path: str | Path, file: Iterable[bytes] | None = None) -> Iterator[tuple[int, str]]:
    """Line numbers, from 1, and lines that are not blank, without their line end.

    Args:
        file: the lines, where something else has opened ``path``, which then names them in errors.

    Raises:
        InputError: no such file, unreadable, a damaged or cut gzip file, or not UTF-8.
    """
    number = 0
    try:
        with _open_binary(Path(path)) if file is None else nullcontext(file) as lines:
            for raw in lines:
                number += 1
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
                if line.strip():
                    yield number, line
    except UnicodeDecodeError as error:
        byte = error.object[error.start]
        raise InputError(
            f"{path}, line {number}: text must be UTF-8; found byte 0x{byte:02x} at place "
            f"{error.start}. Convert the file, for example with iconv."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise InputError(
            f"{path}, after line {number}: the gzip file is damaged or cut off ({error}). "
            "Copy or download it again."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def json_rows(
    path: str | Path, file: Iterable[bytes] | None = None
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place (``file, line 3``) and object of each line of a JSONL file; `text_lines` reads it."""
    for number, line in text_lines(path, file):
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{place}: each line must be one JSON object; this one cannot be read ({error}): "
                f"{line[-60:]!r}. If it is the last line, the file was probably cut off: write it "
                "again."
            ) from error
        if not isinstance(row, dict):
            raise InputError(
                f"{place}: each line must be one JSON object; got {type(row).__name__}. "
                'Write it as {"id": ..., "text": ...}.'
            )
        yield place, row


def parquet_rows(path: Path, columns: Collection[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place (``file, row 3``) and the values of those ``columns`` that the file has."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing("pyarrow", "reading Parquet", "io") from error
    number = 0
    try:
        with pq.ParquetFile(path) as file:
            present = [name for name in file.schema_arrow.names if name in columns]
            for batch in file.iter_batches(batch_size=1024, columns=present):
                for row in batch_rows(batch):
                    number += 1
                    yield f"{path}, row {number}", row
    except pa.ArrowException as error:
        raise InputError(
            f"{path}, after row {number}: not a readable Parquet file ({error}). Write it again."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: str | Path, error: OSError) -> InputError:
    """The error for a path that the system cannot read."""
    reason = error.strerror or str(error)
    return InputError(f"{path}: cannot be read ({reason}). Check the path and its permissions.")


def _open_binary(path: Path) -> BufferedIOBase:
    with path.open("rb") as file:
        magic = file.read(len(GZIP_MAGIC))
    if magic == GZIP_MAGIC:
        return gzip.open(path, "rb")
    return path.open("rb")


def as_path(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` expanded."""
    return Path(path).expanduser()
