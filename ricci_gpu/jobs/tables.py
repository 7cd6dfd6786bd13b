"""Flat tables: one record per row, by path or URL, under the names that people give its fields.

==============  ==========================================================================
table           fields, each under any of its names
==============  ==========================================================================
queries         id (``query_id``, ``qid``, ``_id``, ``id``), text (``query``, ``text``) or
                ``query_embedding``, ``query_tokens``; TSV ``id<TAB>text``
candidates      query id (``query_id``, ``qid``, ``query-id``), id (``id``, ``_id``, ``pid``,
                ``docid``, ``doc_id``, ``docno``, ``corpus-id``), text (``text``, ``passage``),
                ``title``, ``score``, ``embedding``, ``tokens``, ``query``; TREC run
                ``qid Q0 docno rank score tag``; TSV ``qid<TAB>pid<TAB>query<TAB>passage``
corpus          id (as of candidates), ``title``, ``text``; TSV ``id<TAB>text`` or
                ``id<TAB>title<TAB>text``
==============  ==========================================================================

Parquet, JSONL, TSV (with a first line of names, in any order) and, for candidates, TREC runs; text
files may be gzipped. A row that breaks a rule stops the reading: the error names its line.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ricci_gpu.corpus.columns import CANDIDATES, batch_rows
from ricci_gpu.corpus.files import file_format, json_rows, text_lines
from ricci_gpu.errors import InputError
from ricci_gpu.jobs.files import open_parquet, open_text

RUN_COLUMNS = ("query_id", "Q0", "id", "rank", "score", "tag")
PARQUET_ROWS = 1024  # read at once


@dataclass(frozen=True)
class Table:
    """What a kind of table may hold.

    Args:
        names: of each field, the first that a file has is read.
        required: fields that every row has.
        layouts: columns of a TSV file without a line of names; told apart by their number.
        formats: which may hold it.
    """

    what: str
    names: Mapping[str, tuple[str, ...]]
    required: tuple[str, ...]
    layouts: tuple[tuple[str, ...], ...]
    formats: tuple[str, ...] = ("jsonl", "tsv", "parquet")


PASSAGE_ID = ("id", "_id", "pid", "docid", "doc_id", "docno", "corpus-id")
QUERIES = Table(
    "queries",
    {
        "query_id": ("query_id", "qid", "_id", "id"),
        "query": ("query", "text"),
        "query_embedding": ("query_embedding",),
        "query_tokens": ("query_tokens",),
    },
    required=("query_id",),
    layouts=(("query_id", "query"),),
)
FLAT_CANDIDATES = Table(
    "candidates",
    {
        "query_id": ("query_id", "qid", "query-id"),
        "id": PASSAGE_ID,
        "query": ("query",),
        "title": ("title",),
        "text": ("text", "passage"),
        "score": ("score",),
        "embedding": ("embedding",),
        "tokens": ("tokens",),
    },
    required=("query_id", "id"),
    layouts=(("query_id", "id", "query", "text"),),
    formats=("jsonl", "tsv", "parquet", "trec"),
)
CORPUS = Table(
    "a corpus",
    {"id": PASSAGE_ID, "title": ("title",), "text": ("text",)},
    required=("id", "text"),
    layouts=(("id", "text"), ("id", "title", "text")),
)


def is_flat(path: str) -> bool:
    """Whether a file of candidates has one candidate per row, and not a query with its list."""
    format_ = file_format(Path(path), FLAT_CANDIDATES.formats)
    if format_ == "parquet":
        with open_parquet(path) as file:
            return CANDIDATES not in file.schema_arrow.names
    if format_ == "jsonl":
        with open_text(path) as lines:
            try:
                first = next(json_rows(path, lines), None)
            except InputError:
                return False  # a bad row of a nested file carries its error to the output
        return first is not None and CANDIDATES not in first[1]
    return True


def table_rows(path: str, table: Table) -> Iterator[tuple[str, dict[str, Any]]]:
    """Place (``file, line 3``) and fields of each row, under the first of their names.

    Raises:
        InputError: an unreadable file, or a row without a required field.
    """
    format_ = file_format(Path(path), table.formats)
    if format_ == "parquet":
        yield from _named(_parquet_rows(path, table), table)
        return
    with open_text(path) as lines:
        if format_ == "jsonl":
            yield from _named(json_rows(path, lines), table)
        elif format_ == "trec":
            yield from _run_rows(path, lines)
        else:
            yield from _tsv_rows(path, lines, table)


def _named(
    rows: Iterable[tuple[str, Mapping[str, Any]]], table: Table
) -> Iterator[tuple[str, dict[str, Any]]]:
    for place, row in rows:
        named = {}
        for field, names in table.names.items():
            found = next((name for name in names if name in row), None)
            if found is not None:
                named[field] = row[found]
            elif field in table.required:
                raise _lacks(place, table, field, row)
        yield place, named


def _parquet_rows(path: str, table: Table) -> Iterator[tuple[str, dict[str, Any]]]:
    known = {name for names in table.names.values() for name in names}
    with open_parquet(path) as file:
        present = file.schema_arrow.names
        for field in table.required:
            if not set(table.names[field]).intersection(present):
                raise _lacks(path, table, field, present)
        columns = [name for name in present if name in known]
        number = 0
        for batch in file.iter_batches(batch_size=PARQUET_ROWS, columns=columns):
            for row in batch_rows(batch):
                number += 1
                yield f"{path}, row {number}", row


def _run_rows(path: str, lines: Iterable[bytes]) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, line in text_lines(path, lines):
        place, cells = f"{path}, line {number}", line.split()
        if len(cells) != len(RUN_COLUMNS):
            raise InputError(
                f"{place}: a line of a TREC run is `qid Q0 docno rank score tag`; got {len(cells)} "
                f"words: {line[:60]!r}. Correct the line."
            )
        row = dict(zip(RUN_COLUMNS, cells, strict=True))
        yield place, {"query_id": row["query_id"], "id": row["id"], "score": row["score"]}


def _tsv_rows(
    path: str, lines: Iterable[bytes], table: Table
) -> Iterator[tuple[str, dict[str, Any]]]:
    layout: tuple[str, ...] | None = None
    for number, line in text_lines(path, lines):
        cells = [cell.strip() for cell in line.split("\t")]
        if layout is None:
            layout = _header(cells, table)
            if layout is not None:
                continue
            layout = next((each for each in table.layouts if len(each) == len(cells)), ())
        if len(cells) != len(layout):
            expected = " or ".join(f"`{'<TAB>'.join(each)}`" for each in table.layouts)
            raise InputError(
                f"{path}, line {number}: a TSV file of {table.what} must be {expected}, or begin "
                f"with a line of names, and be the same on every line; got {len(cells)} "
                f"cell{'s' * (len(cells) != 1)}: {line[:60]!r}. Correct the line."
            )
        yield f"{path}, line {number}", dict(zip(layout, cells, strict=True))


def _header(cells: list[str], table: Table) -> tuple[str, ...] | None:
    """The fields of a line that holds nothing but their names, or None."""
    found = tuple(
        next((field for field, names in table.names.items() if cell in names), "") for cell in cells
    )
    complete = set(table.required) <= set(found) and "" not in found
    return found if complete and len(set(found)) == len(found) else None


def _lacks(place: str, table: Table, field: str, present: Iterable[str]) -> InputError:
    wanted = " or ".join(f"`{name}`" for name in table.names[field])
    found = ", ".join(f"`{name}`" for name in present) or "nothing"
    return InputError(
        f"{place}: {table.what} need a field {wanted}; found {found}. Add or rename the field."
    )
