"""What a run hands back, `Ranking` and its `Hit` rows, and the files it can be written to.

``rankings.jsonl``
    One `Ranking.to_dict` per line, queries in the order given. Raw scores; nothing is left out.

``rankings.parquet``
    One row per candidate: the hits of a query best first, then its dropped candidates. A query
    without candidates has no row here (it has a line in the JSONL file).

    ================  ========  ==========================================================
    column            type      meaning
    ================  ========  ==========================================================
    ``query_id``      string
    ``rank``          int32     1 for the best hit; null for what is not among the hits
    ``id``            string    id of the candidate
    ``score``         float64   raw score, larger is better; null when there is none
    ``kept``          bool      the filter kept it (true without rank: beyond ``top_k``)
    ``reason``        string    why it was kept or dropped
    ``filter_value``  float64   the quantity that the filter compared; null when none
    ``position``      int64     index in the candidate list as given, from 0
    ``status``        string    how the treatment of the query went
    ================  ========  ==========================================================

``run.trec``
    ``qid Q0 docid rank score tag``, hits only. Evaluation tools sort by score, in single precision
    and with a tie rule of their own, so the written scores decrease strictly in float32: a score
    that is not below the one before it becomes the next smaller float32. When a raw score of the
    query is missing, or a later hit has a larger one, the query is written with ``1 / rank``.

Numbers that are not finite are written as null, and lone surrogates (half a character, left by a
cut or a faulty export) as U+FFFD, because neither exists in JSON or UTF-8.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from ricci_gpu.errors import InputError, SettingError, missing, suggest

ROWS_PER_GROUP = 1 << 16  # of a Parquet file; what is held in memory while writing it


@dataclass(frozen=True)
class Hit:
    """One candidate of one query after the run.

    Args:
        position: index in the candidate list as given.
        id: id of the passage.
        score: what orders the hits, larger is better; None when there is none.
        kept: whether the filter kept it.
        reason: short words for the user, such as ``stretched: edge 1.27 > 1``.
        filter_value: the quantity that the filter compared; None when there is none.
    """

    position: int
    id: str
    score: float | None
    kept: bool
    reason: str
    filter_value: float | None

    def to_dict(self) -> dict[str, Any]:
        return {
            "position": self.position,
            "id": printable(self.id),
            "score": finite(self.score),
            "kept": self.kept,
            "reason": printable(self.reason),
            "filter_value": finite(self.filter_value),
        }


@dataclass(frozen=True)
class Ranking:
    """The answer for one query.

    Args:
        hits: kept candidates, best first, at most ``top_k``.
        dropped: all other candidates, in order.
        status: how the treatment of the query went.
        abstention: higher means that something relevant is more likely in the pool; None when
            the filter has no such score.
    """

    query_id: str
    query: str
    hits: list[Hit]
    dropped: list[Hit]
    status: str
    abstention: float | None

    def to_dict(self) -> dict[str, Any]:
        """Plain data that every JSON writer accepts: no NaN, no lone surrogates."""
        return {
            "query_id": printable(self.query_id),
            "query": printable(self.query),
            "status": self.status,
            "abstention": finite(self.abstention),
            "hits": [hit.to_dict() for hit in self.hits],
            "dropped": [hit.to_dict() for hit in self.dropped],
        }


def write_rankings(
    rankings: Iterable[Ranking],
    folder: str | os.PathLike[str],
    formats: Sequence[str] = ("parquet", "jsonl", "trec"),
    tag: str = "ricci_gpu",
) -> dict[str, Path]:
    """Write the rankings in each format (module docstring); the path of each file.

    All files are written whole under temporary names before the first gets its final name, and
    each is flushed to disk before it does: no name ever stands for a partial file.

    Args:
        rankings: gone through once, and not kept; only ``trec`` remembers the query ids, to refuse
            one that comes twice.
        folder: made when it does not exist.
        tag: the last column of the TREC run.

    Raises:
        SettingError: an unknown format.
        InputError: an id that a TREC run cannot hold: empty, with whitespace, or given twice.
        MissingDependencyError: Parquet without pyarrow.
    """
    for name in formats:
        if name not in _WRITERS:
            raise SettingError(f"unknown output format `{name}`. {suggest(name, _WRITERS)}")
    paths = {name: Path(folder) / _WRITERS[name][0] for name in formats}
    Path(folder).mkdir(parents=True, exist_ok=True)
    with ExitStack() as files:
        temporary = [files.enter_context(atomic_file(path)) for path in paths.values()]
        with ExitStack() as writers:  # closed before the files get their names
            write = [
                writers.enter_context(_WRITERS[name][1](path, tag))
                for name, path in zip(paths, temporary, strict=True)
            ]
            for ranking in rankings:
                for each in write:
                    each(ranking)
    return paths


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """A temporary path beside ``path`` that replaces it, on disk, when the block succeeds."""
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        yield temporary
        flush_to_disk(temporary)
        os.replace(temporary, path)
    except BaseException:  # an interrupt must not leave half a file either
        temporary.unlink(missing_ok=True)
        raise


def flush_to_disk(path: Path) -> None:
    """Make the file survive a power cut; renaming alone does not."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


Writer = Callable[[Ranking], None]


@contextmanager
def _jsonl_writer(path: Path, tag: str) -> Iterator[Writer]:
    with path.open("w", encoding="utf-8", newline="\n") as file:

        def write(ranking: Ranking) -> None:
            text = json.dumps(ranking.to_dict(), ensure_ascii=False, allow_nan=False)
            file.write(text + "\n")

        yield write


@contextmanager
def _parquet_writer(path: Path, tag: str) -> Iterator[Writer]:
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise missing("pyarrow", "writing Parquet", "io") from error
    schema = pa.schema(
        [
            pa.field("query_id", pa.string(), nullable=False),
            pa.field("rank", pa.int32()),
            pa.field("id", pa.string(), nullable=False),
            pa.field("score", pa.float64()),
            pa.field("kept", pa.bool_(), nullable=False),
            pa.field("reason", pa.string(), nullable=False),
            pa.field("filter_value", pa.float64()),
            pa.field("position", pa.int64(), nullable=False),
            pa.field("status", pa.string(), nullable=False),
        ]
    )
    columns: dict[str, list[Any]] = {name: [] for name in schema.names}
    with pq.ParquetWriter(path, schema) as writer:

        def flush() -> None:
            writer.write_table(pa.table(columns, schema=schema))
            for values in columns.values():
                values.clear()

        def write(ranking: Ranking) -> None:
            hits = [*ranking.hits, *ranking.dropped]
            rank = [*range(1, len(ranking.hits) + 1), *[None] * len(ranking.dropped)]
            columns["query_id"] += [printable(ranking.query_id)] * len(hits)
            columns["status"] += [ranking.status] * len(hits)
            columns["rank"] += rank
            for name, values in candidate_columns(hits).items():
                columns[name] += values
            if len(columns["id"]) >= ROWS_PER_GROUP:
                flush()

        yield write
        if columns["id"]:
            flush()


def candidate_columns(hits: Sequence[Hit]) -> dict[str, list[Any]]:
    """The fields of `Hit` as columns, with values that any file format can hold."""
    return {
        "position": [hit.position for hit in hits],
        "id": [printable(hit.id) for hit in hits],
        "score": [finite(hit.score) for hit in hits],
        "kept": [hit.kept for hit in hits],
        "reason": [printable(hit.reason) for hit in hits],
        "filter_value": [finite(hit.filter_value) for hit in hits],
    }


@contextmanager
def _trec_writer(path: Path, tag: str) -> Iterator[Writer]:
    _require_trec_name(tag, "the tag")
    queries: set[str] = set()
    with path.open("w", encoding="utf-8", newline="\n") as file:

        def write(ranking: Ranking) -> None:
            query_id = printable(ranking.query_id)
            _require_trec_name(query_id, "query id")
            _require_new(query_id, queries, "query id")
            documents: set[str] = set()
            scores = _decreasing([hit.score for hit in ranking.hits])
            for rank, (hit, score) in enumerate(zip(ranking.hits, scores, strict=True), start=1):
                document = printable(hit.id)
                _require_trec_name(document, f"query `{query_id}`, passage id")
                _require_new(document, documents, f"query `{query_id}`, passage id")
                # nine significant digits tell every two float32 numbers apart
                file.write(f"{query_id} Q0 {document} {rank} {score:.9g} {tag}\n")

        yield write


def _decreasing(scores: Sequence[float | None]) -> list[float]:
    """Scores that decrease strictly in float32 (module docstring)."""
    with np.errstate(over="ignore"):
        raw = np.array([math.nan if score is None else score for score in scores], dtype=np.float64)
        written = raw.astype(np.float32)
    if not np.isfinite(written).all() or (raw[1:] > raw[:-1]).any():
        return [1 / rank for rank in range(1, len(scores) + 1)]
    for rank in range(1, len(written)):
        below = np.nextafter(written[rank - 1], np.float32(-np.inf))
        written[rank] = min(written[rank], below)
    return written.tolist()


def require_trec_names(query_ids: Iterable[str], passage_ids: Iterable[str]) -> None:
    """Refuse ids that a TREC run cannot hold, before a long run rather than after it."""
    for query_id in query_ids:
        _require_trec_name(printable(query_id), "query id")
    for passage_id in passage_ids:
        _require_trec_name(printable(passage_id), "passage id")


def _require_trec_name(name: str, what: str) -> None:
    if name.split() != [name]:
        raise InputError(
            f"a TREC run separates its columns by blanks, so {what} must be non-empty and without "
            f"whitespace; got {name!r}. Rename it, or leave `trec` out of the formats."
        )


def _require_new(name: str, seen: set[str], what: str) -> None:
    if name in seen:
        raise InputError(
            f"a TREC run holds each query once and each passage once per query; {what} {name!r} "
            "comes twice. Make the ids unique, or leave `trec` out of the formats."
        )
    seen.add(name)


def finite(value: float | None) -> float | None:
    """The number, or None for one that JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def printable(text: str) -> str:
    """The text with each lone surrogate replaced by U+FFFD, so that UTF-8 can hold it."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "".join("\ufffd" if "\ud800" <= char <= "\udfff" else char for char in text)
    return text


_WRITERS: dict[str, tuple[str, Callable[[Path, str], AbstractContextManager[Writer]]]] = {
    "parquet": ("rankings.parquet", _parquet_writer),
    "jsonl": ("rankings.jsonl", _jsonl_writer),
    "trec": ("run.trec", _trec_writer),
}
