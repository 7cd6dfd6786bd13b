"""Judged datasets to evaluate on, and their corpora with cached vectors.

A dataset is a BEIR folder, or an id of the package ir_datasets, which is written to a BEIR folder
in the cache first. A corpus is encoded once per model: sentence vectors and float16 token vectors
lie in the cache as a `CorpusStore`, under a name that holds the digests of model and passages.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from ricci_gpu.corpus.judged import JudgedQueries, Part, judged_queries
from ricci_gpu.corpus.readers import read_corpus
from ricci_gpu.corpus.records import Passage
from ricci_gpu.corpus.store import VERSION, CorpusStore, TextEncoder
from ricci_gpu.errors import InputError, missing

IR_DATASETS = "irds:"


@dataclass(frozen=True)
class Dataset:
    """A judged dataset by name.

    Args:
        folder: its files, in BEIR layout.
        passages: at most so many, the judged ones first; None for all.
        queries: at most so many of each part; None for all.
    """

    name: str
    folder: Path
    passages: int | None = None
    queries: int | None = None

    def part(self, part: Part) -> JudgedQueries:
        """The judged queries of one part: see `ricci_gpu.corpus.judged`."""
        chosen = judged_queries(self.folder, part)
        return JudgedQueries(
            chosen.queries[: self.queries], chosen.qrels, chosen.rows[: self.queries]
        )

    def corpus(self) -> list[Passage]:
        """The passages, in file order."""
        passages = read_corpus(self.folder)
        if self.passages is None or self.passages >= len(passages):
            return passages
        parts = [self.part(part) for part in ("fit", "tune", "test")]
        judged = {
            passage for part in parts for query in part.queries for passage in part.qrels[query.id]
        }
        others = [passage.id for passage in passages if passage.id not in judged]
        chosen = judged.union(others[: max(self.passages - len(judged), 0)])
        return [passage for passage in passages if passage.id in chosen]


def find_datasets(data: Path, names: list[str] | None, cache: Path) -> list[Dataset]:
    """The datasets to evaluate on.

    Args:
        data: folder that holds a folder per dataset.
        names: folders in ``data``, paths of folders, or ``irds:`` and an id of ir_datasets; by
            default every folder in ``data`` that holds a corpus and queries.
        cache: where an ir_datasets collection is written.

    Raises:
        InputError: a name that is nowhere, or nothing to evaluate on.
    """
    if names is None:
        found = [
            Dataset(folder.name, folder)
            for folder in sorted(data.glob("*"))
            if any(folder.glob("corpus.*")) and any(folder.glob("queries.*"))
        ]
        if not found:
            raise InputError(
                f"an evaluation needs judged datasets; `{data}` holds no BEIR folder. Put some "
                "there, or name another folder with --data."
            )
        return found
    return [_named(name, data, cache) for name in names]


def _named(name: str, data: Path, cache: Path) -> Dataset:
    if name.startswith(IR_DATASETS):
        return _from_ir_datasets(name.removeprefix(IR_DATASETS), cache)
    for folder in (data / name, Path(name)):
        if folder.is_dir():
            return Dataset(folder.name, folder)
    raise InputError(
        f"dataset `{name}`: neither a folder in `{data}` nor a folder itself. Give the path of a "
        f"BEIR folder, or `{IR_DATASETS}` and an id of ir_datasets."
    )


def _from_ir_datasets(name: str, cache: Path) -> Dataset:
    """The collection as a BEIR folder in the cache, written once."""
    folder = cache / "datasets" / name.replace("/", "-")
    if not folder.is_dir():
        try:
            import ir_datasets
        except ImportError as error:
            raise missing("ir_datasets", f"the dataset `{name}`", "irds") from error
        try:
            source = ir_datasets.load(name)
        except KeyError as error:
            raise InputError(
                f"ir_datasets knows no dataset `{name}`. See ir-datasets.com."
            ) from error
        with _complete(folder) as temporary:
            _write_beir(source, temporary)
    return Dataset(folder.name, folder)


def _write_beir(source: Any, folder: Path) -> None:
    def write(file_name: str, rows: Iterator[Mapping[str, str]]) -> None:
        with (folder / file_name).open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)

    write(
        "corpus.jsonl",
        (
            {"_id": doc.doc_id, "title": getattr(doc, "title", ""), "text": _text(doc)}
            for doc in source.docs_iter()
        ),
    )
    write(
        "queries.jsonl",
        ({"_id": query.query_id, "text": _text(query)} for query in source.queries_iter()),
    )
    with (folder / "qrels.tsv").open("w", encoding="utf-8") as file:
        file.write("query-id\tcorpus-id\tscore\n")
        for qrel in source.qrels_iter():
            file.write(f"{qrel.query_id}\t{qrel.doc_id}\t{qrel.relevance}\n")


def _text(record: Any) -> str:
    """What a system would read; records of ir_datasets differ in their fields."""
    return str(record.text if hasattr(record, "text") else record.default_text())


@contextmanager
def _complete(folder: Path) -> Iterator[Path]:
    """A temporary folder that gets its name when the block succeeds."""
    temporary = folder.with_name(f".{folder.name}.{uuid4().hex}.tmp")
    temporary.mkdir(parents=True)
    yield temporary
    os.rename(temporary, folder)


def open_store(
    dataset: Dataset,
    encoder: TextEncoder,
    cache: Path,
    progress: Callable[[int, int], None] | None = None,
) -> CorpusStore:
    """The encoded corpus, from the cache or made and put there.

    Args:
        encoder: of passages, such as `Reranker.passage_encoder`.
    """
    passages = dataset.corpus()
    digest = hashlib.sha256(f"{VERSION} {encoder.fingerprint}".encode())
    token_model = getattr(encoder, "token_model", None)
    if token_model is not None and token_model.fingerprint != encoder.fingerprint:
        digest.update(token_model.fingerprint.encode())
    for passage in passages:
        digest.update(repr((passage.id, passage.full_text)).encode("utf-8", "replace"))
    folder = cache / f"{dataset.name}-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        CorpusStore.build(passages, encoder, folder, progress=progress)
    return CorpusStore.open(folder)
