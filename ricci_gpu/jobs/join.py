"""Pools from flat tables: candidates one per row, queries and passages apart, joined on disk.

`plan` does it once. The result is a Parquet file of nested pools in the folder of the job, in the
order of the query table (without one, in the order in which queries first come), and candidates in
the order of their own table, which may be sorted by query or not. A database file in the same
folder does the joining, so memory stays flat: some hundred MiB for any number of rows. Candidates
that are already sorted are read from it in sequence; others by random access.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ricci_gpu.corpus.records import as_id, as_text
from ricci_gpu.errors import InputError, missing
from ricci_gpu.jobs.tables import CORPUS, FLAT_CANDIDATES, QUERIES, table_rows
from ricci_gpu.output import atomic_file, printable

CACHE_KIB = 1 << 16  # of the database
GROUP_BYTES = 1 << 26  # a row group of pools ends here

TABLES = """
CREATE TABLE queries (number INTEGER PRIMARY KEY, id TEXT, text TEXT, embedding BLOB, tokens BLOB);
CREATE TABLE candidates (number INTEGER PRIMARY KEY, query TEXT, id TEXT, title TEXT, text TEXT,
                         score REAL, embedding BLOB, tokens BLOB);
CREATE TABLE corpus (id TEXT PRIMARY KEY, title TEXT, text TEXT) WITHOUT ROWID;
"""
POOLS = """
SELECT q.number, q.id, q.text, q.embedding, q.tokens,
       c.id, {source}.title, {source}.text, c.score, c.embedding, c.tokens
FROM queries q LEFT JOIN candidates c ON c.query = q.id LEFT JOIN corpus p ON p.id = c.id
ORDER BY q.number, c.number
"""


@dataclass(frozen=True)
class Joined:
    """What came of the tables.

    Args:
        pairs: candidates of these queries.
        unasked: rows of candidates whose query is not in the query table; they are left out.
        ids_only: no candidate brings a text or an embedding.
    """

    path: Path
    queries: int
    pairs: int
    unasked: int
    ids_only: bool


def join_tables(
    out: Path,
    candidates: Sequence[str],
    queries: Sequence[str] = (),
    corpus: Sequence[str] = (),
    group_rows: int = 1024,
) -> Joined:
    """Write the pools of all queries to ``out``, a Parquet file of nested candidates.

    Args:
        candidates, queries, corpus: paths or URLs, as `ricci_gpu.jobs.tables` says. Without
            queries, the rows of candidates bring the texts of theirs. With a corpus, it has the
            texts and titles of the candidates.
        group_rows: most queries per row group.

    Raises:
        InputError: a row that breaks a rule; candidates that are not in the corpus; no candidate
            for any query; a query without a text, or with two.
        OSError: a full disk.
    """
    base = out.with_name(f".{out.name}.{uuid4().hex}.sqlite")
    try:
        with closing(_Database(base)) as database:
            database.read(candidates, queries, corpus)
            joined = database.count(out)
            with atomic_file(out) as temporary:
                _write(temporary, database, group_rows)
    except sqlite3.OperationalError as error:
        raise OSError(f"{base}: the tables cannot be joined on disk ({error})") from error
    finally:
        base.unlink(missing_ok=True)
    return joined


class _Database:
    """The tables in a file. Nothing in it outlives the join, so nothing is made safe for it."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        self._widths: dict[str, int] = {}
        self._with_corpus = False
        self._connection.executescript(
            f"PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; PRAGMA cache_size=-{CACHE_KIB};"
            + TABLES
        )

    @property
    def token_width(self) -> int:
        return self._widths.get("tokens", 1)

    def close(self) -> None:
        self._connection.close()

    def read(
        self, candidates: Sequence[str], queries: Sequence[str], corpus: Sequence[str]
    ) -> None:
        """Fill the tables and check that they belong together."""
        run = self._connection.executemany
        self._with_corpus = bool(corpus)
        self._connection.execute("BEGIN")
        for path in queries:
            run("INSERT INTO queries VALUES (NULL, ?, ?, ?, ?)", self._queries(path))
        if not queries:
            self._connection.execute("CREATE UNIQUE INDEX query_texts ON queries (id, text)")
        for path in candidates:
            run(
                "INSERT INTO candidates VALUES (NULL, ?, ?, ?, ?, ?, ?, ?)",
                self._candidates(path, own_queries=not queries),
            )
        for path in corpus:
            self._read_corpus(path)
        self._connection.execute("CREATE INDEX candidates_of ON candidates (query)")
        self._connection.execute("CREATE INDEX queries_named ON queries (id)")
        self._connection.execute("COMMIT")
        if not queries:
            self._require_one_text()
        if corpus:
            self._require_passages(candidates)

    def count(self, out: Path) -> Joined:
        """Sizes of the join."""
        [(queries,)] = self._connection.execute("SELECT count(*) FROM queries")
        [(pairs, texts, vectors, asked)] = self._connection.execute(
            "SELECT count(*), count(text), count(embedding), "
            "total(query IN (SELECT id FROM queries)) FROM candidates"
        )
        if asked == 0:
            raise InputError(
                f"the tables of queries and candidates must share query ids; of {queries} queries "
                f"and {pairs} rows of candidates none do. Check the columns of ids."
            )
        ids_only = not (texts or vectors or self._with_corpus)
        return Joined(out, queries, int(asked), pairs - int(asked), ids_only)

    def pools(self) -> Iterator[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]:
        """Each query with its candidates: id, text, embedding, tokens; and those of each."""
        source = "p" if self._with_corpus else "c"
        rows = self._connection.execute(POOLS.format(source=source))
        for _, group in groupby(rows, key=lambda row: row[0]):
            pool = list(group)
            yield pool[0][1:5], [row[5:] for row in pool if row[5] is not None]

    def _queries(self, path: str) -> Iterator[tuple[Any, ...]]:
        for place, row in table_rows(path, QUERIES):
            if "query" not in row and row.get("query_embedding") is None:
                raise InputError(
                    f"{place}: a query needs a text (`query` or `text`) or a `query_embedding`; "
                    "got neither. Add or rename the field."
                )
            yield (
                printable(as_id(row["query_id"], place)),
                printable(as_text(row.get("query"), place, "query")),
                self._vectors(row.get("query_embedding"), "embedding", place),
                self._vectors(row.get("query_tokens"), "tokens", place),
            )

    def _candidates(self, path: str, own_queries: bool) -> Iterator[tuple[Any, ...]]:
        last: tuple[str, str] | None = None
        for place, row in table_rows(path, FLAT_CANDIDATES):
            query_id = printable(as_id(row["query_id"], place))
            if own_queries:
                query = (query_id, self._own_query(row, place))
                if query != last:
                    self._connection.execute(
                        "INSERT OR IGNORE INTO queries VALUES (NULL, ?, ?, NULL, NULL)", query
                    )
                    last = query
            yield (
                query_id,
                printable(as_id(row["id"], place)),
                _optional_text(row, "title", place),
                _optional_text(row, "text", place),
                _score(row.get("score"), place),
                self._vectors(row.get("embedding"), "embedding", place),
                self._vectors(row.get("tokens"), "tokens", place),
            )

    def _own_query(self, row: Mapping[str, Any], place: str) -> str:
        if row.get("query") is None:
            raise InputError(
                f"{place}: without a table of queries, every row of candidates brings the text of "
                "its query as `query`; this one has none. Give the table with --queries."
            )
        return printable(as_text(row["query"], place, "query"))

    def _read_corpus(self, path: str) -> None:
        for place, row in table_rows(path, CORPUS):
            values = (
                printable(as_id(row["id"], place)),
                _optional_text(row, "title", place),
                printable(as_text(row["text"], place)),
            )
            try:
                self._connection.execute("INSERT INTO corpus VALUES (?, ?, ?)", values)
            except sqlite3.IntegrityError as error:
                raise InputError(
                    f"{place}: every passage id must be unique in a corpus; `{values[0]}` comes "
                    "twice. Remove or rename one of them."
                ) from error

    def _vectors(self, value: Any, what: str, place: str) -> bytes | None:
        """A vector, or a matrix of token vectors, as float32; all of one width."""
        if value is None:
            return None
        dimensions = 1 if what == "embedding" else 2
        try:
            with np.errstate(over="ignore"):
                array = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            array = np.zeros(1, dtype=np.float32).reshape(())
        if array.size == 0 and dimensions == 2:
            return b""
        width = self._widths.setdefault(what, array.shape[-1] if array.ndim else 0)
        if array.ndim != dimensions or array.size == 0 or array.shape[-1] != width:
            kind = "a list of numbers" if dimensions == 1 else "a list of lists of numbers"
            raise InputError(
                f"{place}: `{what}` must be {kind}, of one length in all tables (here {width}); "
                f"got {str(value)[:60]}. Encode queries and candidates with one model."
            )
        return array.tobytes()

    def _require_one_text(self) -> None:
        for (name,) in self._connection.execute(
            "SELECT id FROM queries GROUP BY id HAVING count(*) > 1 LIMIT 1"
        ):
            raise InputError(
                f"all rows of candidates of a query bring the same `query` text; query `{name}` "
                "comes with two. Correct it, or give a table of queries with --queries."
            )

    def _require_passages(self, candidates: Sequence[str]) -> None:
        rows = self._connection.execute(
            "SELECT id FROM candidates WHERE id NOT IN (SELECT id FROM corpus)"
        ).fetchmany(4)
        if rows:
            names = ", ".join(f"`{name}`" for (name,) in rows[:3])
            raise InputError(
                f"{', '.join(candidates)}: every candidate must be a passage of the corpus; "
                f"{names}{' and others' * (len(rows) > 3)} are not. Give the corpus that the "
                "candidates were retrieved from."
            )


def _optional_text(row: Mapping[str, Any], name: str, place: str) -> str | None:
    return None if row.get(name) is None else printable(as_text(row[name], place, name))


def _score(value: Any, place: str) -> float | None:
    """A number, also one that was written as text; whether it is finite is asked later."""
    if value is None:
        return None
    try:
        if not isinstance(value, bool):
            return float(value)
    except (TypeError, ValueError):
        pass
    raise InputError(f"{place}: a `score` must be a number; got {value!r}. Correct it.")


def _write(path: Path, database: _Database, group_rows: int) -> None:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing("pyarrow", "joining tables", "io") from error
    with pq.ParquetWriter(path, _schema(pa), compression="zstd") as writer:
        for group in _groups(database.pools(), group_rows):
            writer.write_table(_table(pa, group, database.token_width))


def _groups(
    pools: Iterable[tuple[tuple[Any, ...], list[tuple[Any, ...]]]], most: int
) -> Iterator[list[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]]:
    """Pools together, up to a number of queries and of bytes."""
    group, size = [], 0
    for query, candidates in pools:
        group.append((query, candidates))
        size += sum(len(cell) for row in (query, *candidates) for cell in row if _sized(cell))
        if len(group) >= most or size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group


def _sized(cell: Any) -> bool:
    return isinstance(cell, bytes | str)


def _schema(pa: Any) -> Any:
    vector = pa.list_(pa.float32())
    candidate = pa.struct(
        [
            ("id", pa.string()),
            ("title", pa.string()),
            ("text", pa.string()),
            ("score", pa.float64()),
            ("embedding", vector),
            ("tokens", pa.list_(vector)),
        ]
    )
    return pa.schema(
        [
            ("query_id", pa.string()),
            ("query", pa.string()),
            ("query_embedding", vector),
            ("query_tokens", pa.list_(vector)),
            ("candidates", pa.list_(candidate)),
        ]
    )


def _table(
    pa: Any, group: list[tuple[tuple[Any, ...], list[tuple[Any, ...]]]], token_width: int
) -> Any:
    schema = _schema(pa)
    flat = [candidate for _, pool in group for candidate in pool]
    candidate = schema.field("candidates").type.value_type
    structs = pa.StructArray.from_arrays(
        [
            _column(pa, [row[at] for row in flat], candidate.field(at), token_width)
            for at in range(candidate.num_fields)
        ],
        fields=list(candidate),
    )
    offsets = np.cumsum([0, *(len(pool) for _, pool in group)], dtype=np.int32)
    queries = [
        _column(pa, [query[at] for query, _ in group], schema.field(at), token_width)
        for at in range(4)
    ]
    return pa.Table.from_arrays(
        [*queries, pa.ListArray.from_arrays(offsets, structs)], schema=schema
    )


def _column(pa: Any, values: list[Any], field: Any, token_width: int) -> Any:
    if not pa.types.is_list(field.type):
        return pa.array(values, field.type)
    if all(value is None for value in values):
        return pa.nulls(len(values), field.type)
    numbers = pa.array(np.frombuffer(b"".join(value or b"" for value in values), np.float32))
    counts = np.array([0, *(len(value or b"") // 4 for value in values)])
    if pa.types.is_list(field.type.value_type):
        counts //= token_width
        ends = np.arange(len(numbers) // token_width + 1, dtype=np.int32) * token_width
        numbers = pa.ListArray.from_arrays(ends.astype(np.int32), numbers)
    absent = pa.array([value is None for value in values])
    return pa.ListArray.from_arrays(counts.cumsum().astype(np.int32), numbers, mask=absent)
