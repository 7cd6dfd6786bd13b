"""What goes to a worker and what comes back. Plain data: it crosses a process boundary."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from ricci_gpu.config import Config
from ricci_gpu.output import Ranking
from ricci_gpu.stages.ricci_filter import RicciFilter

CHARS_PER_TOKEN = 4  # of English, roughly; only for the size of batches
FLOW_TOKENS = 3.5e-5  # per step and fourth power of the pool; from figures on one core
LONGEST_READ = 512  # tokens of a text that a usual encoder reads


@dataclass(frozen=True)
class Vectors:
    """Vectors of a query and its documents, in place of their texts; float16 or float32.

    Args:
        query_embedding, embeddings: of shape ``[D]`` and ``[K D]``, both or neither.
        query_tokens, tokens: of shape ``[L D]`` and, packed, ``[T D]``, both or neither.
        token_counts: tokens of each document, of shape ``[K]``; with ``tokens``.
    """

    documents: int
    query_embedding: np.ndarray | None = None
    embeddings: np.ndarray | None = None
    query_tokens: np.ndarray | None = None
    tokens: np.ndarray | None = None
    token_counts: np.ndarray | None = None

    @property
    def carries(self) -> frozenset[str]:
        given = {"embeddings": self.embeddings, "tokens": self.tokens}
        return frozenset(name for name, array in given.items() if array is not None)

    @property
    def signature(self) -> tuple[int | None, int | None]:
        """Widths: vectors of equal ones fit into one batch."""
        embeddings, tokens = self.embeddings, self.tokens
        return (
            None if embeddings is None else embeddings.shape[1],
            None if tokens is None else tokens.shape[1],
        )


@dataclass(frozen=True)
class Task:
    """One query with its documents, as texts or as vectors, and how to rank them.

    Args:
        key: of the configuration: equal ones have equal keys.
    """

    config: Config
    key: str
    query: str
    documents: tuple[str, ...] = ()
    vectors: Vectors | None = None

    @property
    def kind(self) -> Literal["texts", "vectors"]:
        return "texts" if self.vectors is None else "vectors"

    @property
    def pairs(self) -> int:
        return len(self.documents) if self.vectors is None else self.vectors.documents

    @property
    def flow_cost(self) -> int:
        """Work of a Ricci flow, in tokens that a small encoder reads in the same time."""
        stage = self.config.filter
        if not isinstance(stage, RicciFilter):
            return 0
        return round(FLOW_TOKENS * self.pairs**4 * stage.iterations)

    @property
    def cost(self) -> int:
        """Work, in tokens to read: estimated, at least 1. Decides how batches are filled."""
        return self.flow_cost + self._tokens

    @property
    def _tokens(self) -> int:
        if self.vectors is not None:
            return self.pairs + (0 if self.vectors.tokens is None else len(self.vectors.tokens)) + 1
        texts = (self.query, *self.documents)
        return sum(min(len(text) // CHARS_PER_TOKEN + 2, LONGEST_READ) for text in texts)


@dataclass(frozen=True)
class Answer:
    """A ranking, and what was read for it.

    Args:
        query_tokens: that MaxSim sums over.
        tokens: of the query and of the documents together.
        cut: documents that reached the longest input of the model; what lies beyond is not read.
        query_cut: likewise for the query.
        cut_at: that longest input, in tokens; None when nothing was cut.
    """

    ranking: Ranking
    query_tokens: int
    tokens: int
    cut: tuple[int, ...] = ()
    query_cut: bool = False
    cut_at: int | None = None


@dataclass(frozen=True)
class Failure:
    """Why a task has no answer: its own input, or trouble of the server."""

    message: str
    fault: Literal["input", "server"]


Outcome = Answer | Failure
