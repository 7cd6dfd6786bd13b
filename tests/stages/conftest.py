"""Random pools with everything that a stage may read, and padded batches of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn.functional import normalize

from ricci_gpu.batch import QueryGraphBatch, TokenPool, pad_pools

WIDTH = 8


@dataclass(frozen=True)
class Pool:
    """One query with its candidates, without padding."""

    query: torch.Tensor
    candidates: torch.Tensor
    prior: torch.Tensor
    query_tokens: torch.Tensor
    documents: list[torch.Tensor]

    def at(self, rows: Sequence[int]) -> "Pool":
        """Some candidates, in the order given; a row may come twice."""
        rows = list(rows)
        return replace(
            self,
            candidates=self.candidates[rows],
            prior=self.prior[rows],
            documents=[self.documents[row] for row in rows],
        )

    def without(self, row: int) -> "Pool":
        return self.at([each for each in range(len(self.prior)) if each != row])


@dataclass(frozen=True)
class Answer:
    """What a stage says about one query, padding cut off."""

    keep: list[bool]
    reason: list[int]
    status: int
    score: torch.Tensor
    value: torch.Tensor
    abstention: torch.Tensor

    def at(self, rows: Sequence[int]) -> "Answer":
        rows = list(rows)
        return replace(
            self,
            keep=[self.keep[row] for row in rows],
            reason=[self.reason[row] for row in rows],
            score=self.score[rows],
            value=self.value[rows],
        )

    def without(self, row: int) -> "Answer":
        return self.at([each for each in range(len(self.keep)) if each != row])

    def require_same(self, other: "Answer", status: bool = True) -> None:
        """Masks equal bit for bit, numbers within 1e-5."""
        assert self.keep == other.keep
        assert self.reason == other.reason
        assert not status or self.status == other.status
        for mine, theirs in (
            (self.score, other.score),
            (self.value, other.value),
            (self.abstention, other.abstention),
        ):
            torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5, equal_nan=True)


@pytest.fixture(scope="session")
def random_pool() -> Callable[..., Pool]:
    def build(seed: int, count: int) -> Pool:
        generator = torch.Generator().manual_seed(seed)

        def draw(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator)

        def near(centre: torch.Tensor, rows: int) -> torch.Tensor:
            return normalize(centre + 0.8 * draw(rows, WIDTH), dim=1)

        query = normalize(draw(WIDTH), dim=0)
        candidates = near(query, count)
        lengths = torch.randint(1, 5, (count,), generator=generator).tolist()
        return Pool(
            query=query,
            candidates=candidates,
            prior=candidates @ query,
            query_tokens=near(query, 4),
            documents=[near(row, n) for row, n in zip(candidates, lengths, strict=True)],
        )

    return build


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., QueryGraphBatch]:
    """Pads pools into one batch; NaN stands in the padding of everything that is a number."""

    def build(
        pools: Sequence[Pool], nodes: int | None = None, poison: bool = True
    ) -> QueryGraphBatch:
        counts = [len(pool.prior) for pool in pools]
        size = max(counts, default=0) + 1 if nodes is None else nodes
        document_of = torch.full((len(pools), size - 1), -1)
        first = 0
        for row, count in enumerate(counts):
            document_of[row, :count] = torch.arange(first, first + count)
            first += count
        documents = [each for pool in pools for each in pool.documents]
        nothing = torch.empty((0, WIDTH))
        batch = pad_pools(
            counts,
            prior=[pool.prior for pool in pools],
            query_emb=torch.stack([pool.query for pool in pools]),
            candidate_emb=[pool.candidates for pool in pools],
            tokens=TokenPool(
                query_tokens=torch.cat([nothing, *(pool.query_tokens for pool in pools)]),
                query_offsets=_offsets([pool.query_tokens for pool in pools]),
                document_tokens=torch.cat([nothing, *documents]),
                document_offsets=_offsets(documents),
                document_of=document_of,
            ),
            nodes=size,
        )
        if not poison:
            return batch
        assert batch.node_emb is not None
        real = batch.candidate_mask
        return batch.with_(
            node_emb=torch.where(batch.node_mask[..., None], batch.node_emb, torch.nan),
            prior=torch.where(real, batch.prior, torch.nan),
            score=torch.where(real, batch.score, torch.nan),
        )

    return build


@pytest.fixture(scope="session")
def answers() -> Callable[[QueryGraphBatch], list[Answer]]:
    def read(batch: QueryGraphBatch) -> list[Answer]:
        return [
            Answer(
                keep=batch.keep[row, :count].tolist(),
                reason=batch.reason[row, :count].tolist(),
                status=int(batch.status[row]),
                score=batch.score[row, :count],
                value=batch.filter_value[row, :count],
                abstention=batch.abstention[row],
            )
            for row, count in enumerate(batch.candidate_mask.sum(dim=1).tolist())
        ]

    return read


@pytest.fixture(scope="session")
def answer_of(
    batch_of: Callable[..., QueryGraphBatch], answers: Callable[[QueryGraphBatch], list[Answer]]
) -> Callable[[Any, Pool], Answer]:
    """What a stage says about one pool on its own."""
    return lambda stage, pool: answers(stage(batch_of([pool])))[0]


def _offsets(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.tensor([0, *map(len, parts)]).cumsum(0)
