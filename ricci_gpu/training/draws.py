"""What each step reads: questions, each with its positive passage and hard negatives.

Negatives are mined in the pool of a question, its nearest passages: those that are not relevant
to it. Only passages whose id falls into the part ``fit`` serve as negatives, so that some passages
of every dataset are never read in training and can show what was learnt. An epoch is a function of
seed and number alone: a resumed training reads what an uninterrupted one would have read.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ricci_gpu.corpus.judged import part_of_passage
from ricci_gpu.shapes import Int, Tensor
from ricci_gpu.training.collection import Collection


@dataclass(frozen=True)
class Draw:
    """One question with the passages it is scored against.

    Args:
        question: its place in `Collection.asked`.
        passages: rows in the store; in training the positive one comes first.
        relevant: rows of all passages that answer it, whether scored or not.
    """

    question: int
    passages: tuple[int, ...]
    relevant: frozenset[int]


@dataclass(frozen=True)
class Batch:
    """Questions of one collection that are scored together."""

    collection: int
    draws: tuple[Draw, ...]


@dataclass(frozen=True)
class Example:
    """A question that is trained on, with what its passages are drawn from, as rows."""

    question: int
    relevant: tuple[int, ...]
    negatives: tuple[int, ...]


class Draws:
    """The batches of every epoch, and those of the dev part.

    Args:
        pools: for each collection, the pools of its `Collection.asked`.
    """

    def __init__(
        self, collections: Sequence[Collection], pools: Sequence[Int[Tensor, "q K"]]
    ) -> None:
        self._examples: list[list[Example]] = []
        self._dev: list[list[Draw]] = []
        for collection, rows in zip(collections, pools, strict=True):
            may_serve = [part_of_passage(each.id) == "fit" for each in collection.store.passages]
            examples, dev = [], []
            for place, (question, pool) in enumerate(
                zip(collection.asked, rows.tolist(), strict=True)
            ):
                relevant = collection.relevant_rows(question)
                if place < len(collection.questions.train):
                    negatives = [row for row in pool if row not in relevant and may_serve[row]]
                    examples.append(Example(place, tuple(sorted(relevant)), tuple(negatives)))
                else:
                    dev.append(Draw(place, tuple(pool), frozenset(relevant)))
            self._examples.append(examples)
            self._dev.append(dev)

    def epoch(self, seed: int, epoch: int, batch: int, negatives: int) -> list[Batch]:
        """The batches of one epoch: every question once, with fresh negatives."""
        rng = np.random.default_rng((seed, epoch))
        batches = []
        for place, examples in enumerate(self._examples):
            drawn = []
            for row in rng.permutation(len(examples)):
                example = examples[row]
                positive = int(rng.choice(example.relevant))
                count = min(negatives, len(example.negatives))
                hard = rng.choice(example.negatives, count, replace=False).tolist() if count else []
                drawn.append(Draw(example.question, (positive, *hard), frozenset(example.relevant)))
            batches += _cut(place, drawn, batch)
        return [batches[row] for row in rng.permutation(len(batches))]

    def dev(self, batch: int) -> list[Batch]:
        """The dev questions with their pools, in a fixed order."""
        return [each for place, dev in enumerate(self._dev) for each in _cut(place, dev, batch)]

    def read_rows(self, collection: int) -> set[int]:
        """Rows of the passages that the training may read, or was told are relevant."""
        rows: set[int] = set()
        for example in self._examples[collection]:
            rows.update(example.relevant, example.negatives)
        for draw in self._dev[collection]:
            rows.update(draw.relevant)
        return rows


def _cut(collection: int, draws: Sequence[Draw], size: int) -> list[Batch]:
    return [
        Batch(collection, tuple(draws[start : start + size]))
        for start in range(0, len(draws), size)
    ]
