"""Readers of corpora, query logs and relevance judgements.

=============  =====================================================================
format         what it holds
=============  =====================================================================
BEIR folder    ``corpus.jsonl``, ``queries.jsonl``, ``qrels.tsv`` or
               ``qrels/test.tsv``; also as ``.jsonl.gz``, ``.tsv`` or ``.parquet``
``.jsonl``     one object per line: ``_id`` or ``id``, ``text``, optional ``title``
``.tsv``       corpus ``id<TAB>text`` or ``id<TAB>title<TAB>text``; queries
               ``id<TAB>text``; cells are stripped of blanks; a first line that holds
               only names of columns (``id``, ``title``, ``text``) sets their order
``.parquet``   columns ``_id`` or ``id``, ``text``, optional ``title``
=============  =====================================================================

JSONL and TSV files may be gzipped. Other fields are ignored. The rules that each record must
obey are in `ricci_gpu.corpus.records`. Judgements are read from BEIR files (``query-id corpus-id
score``, tabs, with or without that header) and from TREC files (``qid 0 docid grade``).
"""

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ricci_gpu.corpus.files import (
    as_path,
    file_format,
    find_file,
    json_rows,
    parquet_rows,
    text_lines,
)
from ricci_gpu.corpus.records import Passage, Query, as_id, as_text, field, require_unique
from ricci_gpu.errors import InputError

ID = ("_id", "id")
ENDINGS = (".jsonl", ".jsonl.gz", ".parquet", ".tsv", ".tsv.gz")
CORPUS_COLUMNS = (("id", "text"), ("id", "title", "text"))
QUERY_COLUMNS = (("id", "text"),)
Qrels = dict[str, dict[str, int]]


@dataclass(frozen=True)
class UnknownIds:
    """How many judgements concern a query or a passage that is not there."""

    queries: int
    passages: int


def read_corpus(path: str | os.PathLike[str]) -> list[Passage]:
    """All passages of a corpus, in file order.

    Raises:
        InputError: an unreadable file or row, an id that comes twice, or no passage at all.
    """
    source = _locate(as_path(path), "corpus")
    passages = [
        Passage(
            id=as_id(field(row, ID, place), place),
            title=as_text(row.get("title"), place, "title"),
            text=as_text(field(row, ("text",), place), place),
        )
        for place, row in _rows(source, CORPUS_COLUMNS)
    ]
    _require_rows(passages, "corpus", "passage", source)
    require_unique((passage.id for passage in passages), "passage", str(source))
    return passages


def read_queries(path: str | os.PathLike[str]) -> list[Query]:
    """All queries of a log, in file order, empty ones included.

    Raises:
        InputError: an unreadable file or row, an id that comes twice, or no query at all.
    """
    source = _locate(as_path(path), "queries")
    queries = [
        Query(
            id=as_id(field(row, ID, place), place),
            text=as_text(field(row, ("text",), place), place),
        )
        for place, row in _rows(source, QUERY_COLUMNS)
    ]
    _require_rows(queries, "query log", "query", source)
    require_unique((query.id for query in queries), "query", str(source))
    return queries


def read_qrels(path: str | os.PathLike[str]) -> Qrels:
    """Grades by query id and passage id; ids need not exist anywhere (see `count_unknown`).

    Raises:
        InputError: an unreadable file or row, a grade that is no integer, a pair with two grades.
    """
    source = as_path(path)
    if source.is_dir():
        source = find_file(source, ("qrels.tsv", "qrels/test.tsv"), "judgements")
    qrels: Qrels = {}
    for number, line in text_lines(source):
        cells = line.split("\t") if "\t" in line else line.split()
        if number == 1 and [cell.strip() for cell in cells] == ["query-id", "corpus-id", "score"]:
            continue
        place = f"{source}, line {number}"
        query, passage, grade = _judgement([cell.strip() for cell in cells], place)
        if qrels.setdefault(query, {}).setdefault(passage, grade) != grade:
            raise InputError(
                f"{place}: a passage has one grade per query; `{passage}` has grades "
                f"{qrels[query][passage]} and {grade} for query `{query}`. Remove one of the lines."
            )
    _require_rows(qrels, "file of judgements", "judgement", source)
    return qrels


def count_unknown(
    qrels: Mapping[str, Mapping[str, int]],
    query_ids: Collection[str],
    passage_ids: Iterable[str],
) -> UnknownIds:
    """Count the judgements whose query, and those whose passage, is unknown. Never an error:
    judgements of a full collection are often used with a part of it."""
    queries, passages = set(query_ids), set(passage_ids)
    return UnknownIds(
        queries=sum(len(grades) for query, grades in qrels.items() if query not in queries),
        passages=sum(passage not in passages for grades in qrels.values() for passage in grades),
    )


def _judgement(cells: list[str], place: str) -> tuple[str, str, int]:
    if len(cells) == 4:  # TREC: the second column is never used
        cells = [cells[0], cells[2], cells[3]]
    if len(cells) != 3 or not all(cells):
        raise InputError(
            f"{place}: a judgement is `query-id<TAB>corpus-id<TAB>score` or `qid 0 docid grade`; "
            f"got {cells}. Correct the line."
        )
    query, passage, grade = cells
    try:
        return query, passage, int(grade)
    except ValueError as error:
        raise InputError(
            f"{place}: a grade must be an integer; got {grade!r}. Correct the line."
        ) from error


def _locate(path: Path, stem: str) -> Path:
    """The file itself, or the one of that name in a folder."""
    return find_file(path, [stem + end for end in ENDINGS], stem) if path.is_dir() else path


def _rows(
    path: Path, columns: Collection[tuple[str, ...]]
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    kind = file_format(path)
    if kind == "jsonl":
        return json_rows(path)
    if kind == "parquet":
        return parquet_rows(path, {*ID, "title", "text"})
    return _tsv_rows(path, columns)


def _tsv_rows(
    path: Path, layouts: Collection[tuple[str, ...]]
) -> Iterator[tuple[str, dict[str, str]]]:
    layout: tuple[str, ...] | None = None
    expected = " or ".join("`" + "<TAB>".join(columns) + "`" for columns in layouts)
    for number, line in text_lines(path):
        cells = tuple(cell.strip() for cell in line.split("\t"))
        if layout is None:
            header = tuple("id" if cell in ID else cell for cell in cells)
            for columns in layouts:
                if set(header) == set(columns):
                    layout = header
            if layout is not None:
                continue
            layout = next((columns for columns in layouts if len(columns) == len(cells)), None)
        if layout is None or len(cells) != len(layout):
            raise InputError(
                f"{path}, line {number}: must be {expected}, the same on every line; got "
                f"{len(cells)} cell{'s' * (len(cells) != 1)}: {line[:60]!r}. Correct the line."
            )
        yield f"{path}, line {number}", dict(zip(layout, cells, strict=True))


def _require_rows(rows: Collection[Any], what: str, row: str, source: Path) -> None:
    if not rows:
        raise InputError(f"{source}: a {what} must hold at least one {row}; the file is empty.")
