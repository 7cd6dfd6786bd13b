"""A dataset made ready for training: passages with their vectors, and pools of questions."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.errors import InputError
from ricci_gpu.evaluation.datasets import Dataset, open_store
from ricci_gpu.models.encoder import Encoder
from ricci_gpu.shapes import Float, Int, Tensor
from ricci_gpu.training.questions import Question, Questions, training_questions
from ricci_gpu.training.settings import POOL


@dataclass(frozen=True)
class Collection:
    """One dataset: its passages with their vectors, and its questions."""

    dataset: Dataset
    store: CorpusStore
    questions: Questions

    @cached_property
    def asked(self) -> list[Question]:
        """All questions, those that are trained on first."""
        return self.questions.train + self.questions.dev

    @cached_property
    def row_of(self) -> dict[str, int]:
        """The row of a passage in the store, by its id."""
        return {passage.id: row for row, passage in enumerate(self.store.passages)}

    @property
    def token_vectors(self) -> np.ndarray:
        """Those of all passages, ``[T D]``, which the store must have."""
        if self.store.tokens is None:
            raise InputError(
                f"the cache holds `{self.dataset.name}` without token vectors. Delete it there."
            )
        return self.store.tokens

    def relevant_rows(self, question: Question) -> set[int]:
        """Rows of the passages that answer the question and are in the corpus."""
        return {self.row_of[each] for each in question.relevant if each in self.row_of}

    def pools(self, vectors: Float[Tensor, "q D"]) -> Int[Tensor, "q K"]:
        """Rows of the passages nearest to each question, best first."""
        return self.store.search(vectors, POOL)[1]


def open_collection(
    dataset: Dataset,
    encoder: Encoder,
    cache: Path,
    progress: Callable[[int, int], None] | None = None,
) -> Collection:
    """Read a dataset; its passages are encoded once, with their tokens, and kept in ``cache``.

    Args:
        progress: called with the number of passages encoded and their total.

    Raises:
        InputError: unreadable files, or no question to train on.
    """
    store = open_store(dataset, encoder, cache, progress)
    questions = training_questions(dataset.folder, [passage.id for passage in store.passages])
    return Collection(dataset, store, questions)
