"""Which questions of a dataset are trained on, and which decide when to stop.

Only the part ``fit`` of a dataset is read (`ricci_gpu.corpus.judged`); ``tune`` and ``test`` are
for those who choose settings and report figures. A tenth of ``fit``, by a hash of the relevant
passage, is the dev part of the training: no passage that answers a dev question answers one that
is trained on.

A dataset may hold more questions than judged ones in ``queries_all.jsonl.gz``: ``text``, the
passage ``source`` they were asked about, and whether they are ``impossible`` to answer from it.
Those known to be answerable, from passages of ``fit``, are trained on too.
"""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ricci_gpu.corpus.files import json_rows
from ricci_gpu.corpus.judged import judged_queries, part_of_passage
from ricci_gpu.corpus.records import as_id, as_text, field
from ricci_gpu.errors import InputError

MORE_QUESTIONS = "queries_all.jsonl.gz"
DEV_AT_MOST = 100  # questions of a dataset, so that no dataset decides alone when to stop


@dataclass(frozen=True)
class Question:
    """A query with the passages that answer it."""

    id: str
    text: str
    relevant: frozenset[str]


@dataclass(frozen=True)
class Questions:
    """The questions of one dataset, by what is done with them."""

    train: list[Question]
    dev: list[Question]


def training_questions(folder: Path, passages: Collection[str]) -> Questions:
    """The questions of the part ``fit`` whose relevant passages are all among ``passages``.

    Raises:
        InputError: unreadable files, or no question at all.
    """
    judged = judged_queries(folder, "fit")
    found: dict[str, Question] = {}
    for query in judged.queries:
        grades = judged.qrels[query.id]
        relevant = frozenset(passage for passage, grade in grades.items() if grade > 0)
        found[query.id] = Question(query.id, query.text, relevant)
    more = folder / MORE_QUESTIONS
    if more.exists():
        found |= {each.id: each for each in _answerable(more) if each.id not in found}
    known = set(passages)
    usable = [each for each in found.values() if each.relevant <= known]
    dev = sorted((each for each in usable if _is_dev(each)), key=lambda each: _hash(each.id))
    train = [each for each in usable if not _is_dev(each)]
    if not train:
        raise InputError(
            f"{folder}: a training needs questions of the part `fit` whose relevant passages are "
            f"in the corpus; found none among {len(found)}. Choose another dataset."
        )
    return Questions(train, dev[:DEV_AT_MOST])


def _answerable(path: Path) -> list[Question]:
    questions = []
    for place, row in json_rows(path):
        source = as_id(field(row, ("source",), place), place)
        if row.get("impossible") is False and part_of_passage(source) == "fit":
            name = as_id(field(row, ("_id", "id"), place), place)
            text = as_text(field(row, ("text",), place), place)
            questions.append(Question(name, text, frozenset([source])))
    return questions


def _is_dev(question: Question) -> bool:
    return any(_hash(f"dev {passage}") % 10 == 0 for passage in question.relevant)


def _hash(name: str) -> int:
    return int(hashlib.sha1(name.encode("utf-8", "surrogatepass")).hexdigest(), 16)
