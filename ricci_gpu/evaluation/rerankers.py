"""Rerankers as scores of pools: each scores a (query, passage) pair once, whoever asks again."""

from collections.abc import Callable, Sequence

import torch

from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.shapes import Bool, Float, Tensor

Pairs = Sequence[tuple[str, str]]
PairScorer = Callable[[Pairs], Sequence[float | None]]


class PairReranker:
    """A model that scores (query, passage) texts, such as a cross-encoder or an LLM.

    Args:
        name: for tables.
        score: scores pairs; None for a pair that it could not score.
        store: the corpus of the pools, for the texts.
    """

    def __init__(self, name: str, score: PairScorer, store: CorpusStore) -> None:
        self.name = name
        self._score = score
        self._store = store
        self._known: dict[tuple[str, int], float | None] = {}

    def __call__(
        self, pools: JudgedPools, keep: Bool[Tensor, "B K"] | None = None
    ) -> Float[Tensor, "B K"]:
        """Scores of the kept candidates; ``-inf`` for the others and for what has no score."""
        wanted = [
            (place, column, query.text, int(pools.rows[place, column]))
            for place, query in enumerate(pools.queries)
            for column in range(pools.size)
            if keep is None or bool(keep[place, column])
        ]
        new = list(
            dict.fromkeys(
                (text, row) for _, _, text, row in wanted if (text, row) not in self._known
            )
        )
        passages = self._store.passages
        scores = self._score([(text, passages[row].full_text) for text, row in new])
        self._known |= dict(zip(new, scores, strict=True))
        result = torch.full(pools.rows.shape, -torch.inf, dtype=torch.float64)
        for place, column, text, row in wanted:
            value = self._known[text, row]
            if value is not None:
                result[place, column] = value
        return result


def cosine_order(pools: JudgedPools, keep: Bool[Tensor, "B K"] | None = None) -> Tensor:
    """No reranker: the order of the retrieval."""
    return pools.cosine.double()


def maxsim_order(pools: JudgedPools, keep: Bool[Tensor, "B K"] | None = None) -> Tensor:
    """MaxSim over the token vectors of the encoder."""
    return pools.maxsim.double()


PoolScorer = Callable[[JudgedPools, Tensor | None], Tensor]
