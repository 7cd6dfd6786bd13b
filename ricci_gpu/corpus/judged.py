"""Judged datasets in BEIR layout, and the parts that keep an evaluation honest.

========  ====================================================================================
part      what may be done with it
========  ====================================================================================
``fit``   weights are trained on it
``tune``  settings, thresholds and defaults are chosen on it
``test``  figures are reported on it; nothing else
========  ====================================================================================

A dataset says itself what may be trained on: a file ``train_queries.jsonl`` beside
``queries.jsonl``, or a field ``split`` whose value is ``train``. Those queries are divided into
``fit`` and ``tune``, the others are ``test``. A dataset that says nothing is divided by its
relevant passages, so that no passage that answers a question of one part answers one of another;
queries whose relevant passages lie in different parts are left out. Division is by a hash of the
id: the same on every machine, for any order of the files.
"""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ricci_gpu.corpus.files import find_file, json_rows
from ricci_gpu.corpus.readers import Qrels, read_qrels, read_queries
from ricci_gpu.corpus.records import Query
from ricci_gpu.errors import InputError

Part = Literal["fit", "tune", "test"]
PARTS: tuple[Part, ...] = ("fit", "tune", "test")
# Tenths of a dataset that is divided by passages; a marked training set is halved.
FIT_TENTHS, TUNE_TENTHS, MARKED_FIT_TENTHS = 4, 3, 5


@dataclass(frozen=True)
class JudgedQueries:
    """The queries of one part that have a relevant passage, with their judgements.

    Args:
        rows: place of each query in ``queries.jsonl``, where ready embeddings lie in file order;
            -1 for a query of ``train_queries.jsonl``.
    """

    queries: list[Query]
    qrels: Qrels
    rows: list[int]


def data_folder() -> Path:
    """The folder that RICCI_GPU_DATA names, ``data`` by default; it holds a folder per dataset."""
    folder = Path(os.environ.get("RICCI_GPU_DATA", "data"))
    if not folder.is_dir():
        raise InputError(
            f"the datasets are read from the folder RICCI_GPU_DATA; `{folder}` does not exist. "
            "Put BEIR folders there, or set the variable."
        )
    return folder


def judged_queries(folder: Path, part: Part) -> JudgedQueries:
    """The judged queries of one part, in file order; see the module for the division.

    Raises:
        InputError: unreadable files.
    """
    marked = folder / "train_queries.jsonl"
    queries = read_queries(folder)
    qrels = read_qrels(folder)
    if marked.exists():
        if part == "test":
            return _select(queries, qrels, {query.id: "test" for query in queries}, part)
        queries, qrels = read_queries(marked), read_qrels(folder / "train_qrels.tsv")
        of: dict[str, str] = {query.id: _of_marked(query.id) for query in queries}
        chosen = _select(queries, qrels, of, part)
        return JudgedQueries(chosen.queries, chosen.qrels, [-1] * len(chosen.queries))
    splits = _split_field(folder)
    if "train" in splits.values():
        of = {q.id: _of_marked(q.id) if splits[q.id] == "train" else "test" for q in queries}
        return _select(queries, qrels, of, part)
    of = {}
    for query in queries:
        homes = {part_of_passage(passage) for passage in _relevant(qrels, query.id)}
        of[query.id] = homes.pop() if len(homes) == 1 else "none"
    return _select(queries, qrels, of, part)


def part_of_passage(passage_id: str) -> Part:
    """The part of a passage in a dataset that is divided by passages."""
    tenth = _tenth(passage_id)
    if tenth < FIT_TENTHS:
        return "fit"
    return "tune" if tenth < FIT_TENTHS + TUNE_TENTHS else "test"


def _of_marked(query_id: str) -> Part:
    return "fit" if _tenth(query_id) < MARKED_FIT_TENTHS else "tune"


def _tenth(name: str) -> int:
    return int(hashlib.sha1(name.encode()).hexdigest(), 16) % 10


def _select(queries: list[Query], qrels: Qrels, of: Mapping[str, str], part: Part) -> JudgedQueries:
    rows = [
        row
        for row, query in enumerate(queries)
        if of[query.id] == part and _relevant(qrels, query.id)
    ]
    chosen = [queries[row] for row in rows]
    return JudgedQueries(chosen, {query.id: qrels[query.id] for query in chosen}, rows)


def _split_field(folder: Path) -> dict[str, str | None]:
    """The field ``split`` by query id; no field where the queries are no JSONL."""
    source = find_file(
        folder, ("queries.jsonl", "queries.jsonl.gz", "queries.tsv", "queries.parquet"), "queries"
    )
    if ".jsonl" not in source.name:
        return {}
    return {str(row.get("_id", row.get("id"))): row.get("split") for _, row in json_rows(source)}


def _relevant(qrels: Qrels, query_id: str) -> set[str]:
    return {passage for passage, grade in qrels.get(query_id, {}).items() if grade > 0}
