"""Vectors of texts that were encoded before, on disk, by content and model.

One SQLite file in write-ahead mode: a crash loses at most the slice being written, several
processes may read and write at once, and what is there is complete. A key is the SHA-256 of the
model's fingerprint, its precision, what was asked for, and the text: another model or another text
never meets it. The folder must not lie on a network drive, where SQLite cannot lock.
"""

import hashlib
import os
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ricci_gpu.errors import InputError, missing

FILE = "embeddings.sqlite"
SLICE = 1024  # texts encoded before they are kept
WAIT_S = 60.0  # for another process that is writing
KEYS_AT_ONCE = 500  # SQLite takes a limited number of values per query

Record = tuple[np.ndarray, ...]  # of one text: the caller's arrays, in the caller's order


class EmbeddingCache:
    """Arrays by key in ``<folder>/embeddings.sqlite``; made on first use.

    Raises:
        InputError: the folder cannot be written, or holds a damaged file.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.path = Path(folder).expanduser() / FILE
        self._process = -1
        self._connection: sqlite3.Connection | None = None

    def recall(
        self,
        space: str,
        texts: Sequence[str],
        make: Callable[[list[str]], Sequence[Record]],
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Record]:
        """The record of each text, in order; those that are not there yet are made and kept.

        Args:
            space: what else decides the record: fingerprint, precision, side, what was asked for.
            make: the records of some texts, each distinct one once.
            progress: called with the number of texts done and their total.
        """
        records: list[Record] = []
        for start in range(0, len(texts), SLICE):
            part = texts[start : start + SLICE]
            key_of = {text: _key(space, text) for text in part}
            known = self._read(list(key_of.values()))
            new = [text for text, key in key_of.items() if key not in known]
            if new:
                made = dict(zip((key_of[text] for text in new), make(new), strict=True))
                self._write(made)
                known |= made
            records += [known[key_of[text]] for text in part]
            if progress is not None:
                progress(len(records), len(texts))
        return records

    def _read(self, keys: list[bytes]) -> dict[bytes, Record]:
        found: dict[bytes, Record] = {}
        for start in range(0, len(keys), KEYS_AT_ONCE):
            part = keys[start : start + KEYS_AT_ONCE]
            places = ", ".join("?" * len(part))
            query = f"SELECT key, arrays FROM embeddings WHERE key IN ({places})"
            found |= {key: _unpack(data) for key, data in self._run(query, part)}
        return found

    def _write(self, records: dict[bytes, Record]) -> None:
        rows = [(key, _pack(record)) for key, record in records.items()]
        statement = "INSERT OR IGNORE INTO embeddings VALUES (?, ?)"  # a rival was quicker
        try:
            with self._open() as connection:  # one transaction
                connection.executemany(statement, rows)
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def _run(self, query: str, values: list[bytes]) -> list[tuple[bytes, bytes]]:
        try:
            return self._open().execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise self._trouble(error) from error

    def _open(self) -> sqlite3.Connection:
        """The connection of this process: a forked child must not use that of its parent."""
        if self._connection is None or self._process != os.getpid():
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise self._trouble(error) from error
            connection = sqlite3.connect(self.path, timeout=WAIT_S, check_same_thread=False)
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.execute(
                "CREATE TABLE IF NOT EXISTS embeddings (key BLOB PRIMARY KEY, arrays BLOB) "
                "WITHOUT ROWID"
            )
            connection.commit()
            self._connection, self._process = connection, os.getpid()
        return self._connection

    def _trouble(self, error: Exception) -> InputError:
        return InputError(
            f"{self.path}: the embedding cache cannot be used ({error}). Delete it, name another "
            "folder in `model.cache`, or set `model.cache` to null."
        )


def _key(space: str, text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(space.encode() + b"\0" + content).digest()


def _pack(record: Record) -> bytes:
    try:
        from safetensors.numpy import save
    except ImportError as error:
        raise missing("safetensors", "the embedding cache", "models") from error
    return save({str(place): np.ascontiguousarray(array) for place, array in enumerate(record)})


def _unpack(data: bytes) -> Record:
    from safetensors.numpy import load  # `_pack` has been here

    arrays = load(data)
    return tuple(arrays[str(place)] for place in range(len(arrays)))
