"""From a configuration and ragged pools to rankings: check the chain, pad, run, order."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import torch

from ricci_gpu.batch import (
    QueryGraphBatch,
    Reason,
    Status,
    TextPool,
    TokenPool,
    bucket_size,
    pad_pools,
)
from ricci_gpu.config import Config
from ricci_gpu.errors import InputError, QueryError
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.output import Hit, Ranking
from ricci_gpu.shapes import Float, Tensor

PairScorer = Callable[[Sequence[tuple[str, str]]], Tensor]

_IN_WORDS = {"embeddings": "sentence embeddings", "tokens": "token vectors", "texts": "texts"}


@dataclass(frozen=True)
class Pools:
    """Queries with their candidates, ragged, before padding.

    Args:
        query_ids, queries: one per query; ``queries`` are the texts (empty for ready embeddings).
        candidate_ids: ids of the candidates of each query, in the order given.
        prior: retrieval scores of each pool; None keeps the order given.
        query_emb, candidate_emb: sentence vectors; None when there are none.
        tokens: packed token vectors, with ``document_of`` of shape (B, largest pool).
        texts: of the candidates; None when there are none.
    """

    query_ids: Sequence[str]
    queries: Sequence[str]
    candidate_ids: Sequence[Sequence[str]]
    prior: Sequence[Float[Tensor, "_"]] | None = None
    query_emb: Float[Tensor, "B D"] | None = None
    candidate_emb: Sequence[Float[Tensor, "_ D"]] | None = None
    tokens: TokenPool | None = None
    texts: Sequence[Sequence[str]] | None = None

    @property
    def carries(self) -> set[str]:
        have = set()
        if self.query_emb is not None:
            have.add("embeddings")
        if self.tokens is not None:
            have.add("tokens")
        if self.texts is not None:
            have.add("texts")
        return have


class Pipeline:
    """Filter, rerank and select, for one configuration.

    Args:
        scorer: scores (query, candidate) pairs of texts, for rerankers that read texts.

    Attributes:
        needs: what pools must carry: any of ``embeddings``, ``tokens``, ``texts``.
        seconds: time spent per stage so far.
    """

    def __init__(
        self,
        config: Config,
        device: torch.device | str = "cpu",
        scorer: PairScorer | None = None,
    ) -> None:
        self.config = config
        self.device = torch.device(device)
        self._scorer = scorer
        self.needs = config.filter.needs() | config.rerank.needs()
        self.seconds: dict[str, float] = defaultdict(float)

    def check(self, pools: Pools) -> None:
        """Refuse pools that lack what a stage reads, before any work."""
        for stage in (self.config.filter, self.config.rerank):
            for lacking in sorted(stage.needs() - pools.carries):
                raise InputError(
                    f"stage `{stage.name}` reads {_IN_WORDS[lacking]}, and these pools carry none. "
                    "Give texts, from which all else is made, or choose stages that do without."
                )
        if "texts" in self.needs and self._scorer is None:
            raise InputError(
                f"stage `{self.config.rerank.name}` needs a model that scores pairs of texts. Rank "
                "through `Reranker`, which loads it, or give `Pipeline` a `scorer`."
            )

    def run(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        """Filter and rerank one padded batch."""
        with self.timed("filter"):
            batch = self.config.filter(batch)
        with self.timed("rerank"):
            return self.config.rerank(batch)

    def rank(self, pools: Pools) -> list[Ranking]:
        """Rankings in the order of the queries, whatever sizes their pools have."""
        self.check(pools)
        rankings: dict[int, Ranking] = {}
        for nodes, rows in buckets(
            [len(ids) for ids in pools.candidate_ids], self.config.runtime.batch_size
        ):
            with self.timed("pad"):
                batch = self._pad(pools, rows, nodes)
            batch = self.run(batch)
            with self.timed("select"):
                made = self._rankings(batch, [pools.query_ids[r] for r in rows], rows, pools)
            rankings.update(zip(rows, made, strict=True))
        return [rankings[row] for row in range(len(pools.query_ids))]

    def _pad(self, pools: Pools, rows: list[int], nodes: int) -> QueryGraphBatch:
        counts = [len(pools.candidate_ids[row]) for row in rows]
        tokens = None if pools.tokens is None else _take_queries(pools.tokens, rows, nodes - 1)
        texts = None
        if pools.texts is not None and self._scorer is not None:
            candidates = [pools.texts[row] for row in rows]
            texts = TextPool([pools.queries[row] for row in rows], candidates, self._scorer)
        return pad_pools(
            counts,
            prior=None if pools.prior is None else [pools.prior[row] for row in rows],
            query_emb=None if pools.query_emb is None else pools.query_emb[rows],
            candidate_emb=None
            if pools.candidate_emb is None
            else [pools.candidate_emb[row] for row in rows],
            tokens=tokens,
            texts=texts,
            nodes=nodes,
            device=self.device,
        )

    def _rankings(
        self, batch: QueryGraphBatch, query_ids: list[str], rows: list[int], pools: Pools
    ) -> list[Ranking]:
        """Order on the device, then one copy to the host."""
        kept_order = descending_order(batch.score, batch.keep)
        dropped = batch.candidate_mask & ~batch.keep
        dropped_order = descending_order(batch.score, dropped)
        host: dict[str, list[Any]] = {
            "kept": kept_order.tolist(),
            "dropped": dropped_order.tolist(),
            "kept_count": batch.keep.sum(dim=1).tolist(),
            "dropped_count": dropped.sum(dim=1).tolist(),
            "score": batch.score.double().tolist(),
            "value": batch.filter_value.double().tolist(),
            "reason": batch.reason.tolist(),
            "status": batch.status.tolist(),
            "abstention": batch.abstention.double().tolist(),
        }
        if self.config.runtime.strict:
            _raise_if_troubled(query_ids, host["status"])
        top_k = self.config.select.top_k
        rankings = []
        for b, row in enumerate(rows):
            kept = [
                self._hit(host, b, c, pools.candidate_ids[row], kept=True)
                for c in host["kept"][b][: host["kept_count"][b]]
            ]
            out = [
                self._hit(host, b, c, pools.candidate_ids[row], kept=False)
                for c in host["dropped"][b][: host["dropped_count"][b]]
            ]
            cut = len(kept) if top_k is None else top_k
            beyond = [
                replace(hit, reason=f"{hit.reason}; beyond the top {cut}") for hit in kept[cut:]
            ]
            abstention = host["abstention"][b]
            rankings.append(
                Ranking(
                    query_id=pools.query_ids[row],
                    query=pools.queries[row],
                    hits=kept[:cut],
                    dropped=beyond + out,
                    status=Status(host["status"][b]).name.lower(),
                    abstention=abstention if abstention == abstention else None,
                )
            )
        return rankings

    def _hit(
        self, host: dict[str, list[Any]], b: int, c: int, ids: Sequence[str], kept: bool
    ) -> Hit:
        score, value = host["score"][b][c], host["value"][b][c]
        finite = score == score and abs(score) != float("inf")
        return Hit(
            position=c,
            id=ids[c],
            score=score if finite else None,
            kept=kept,
            reason=self.config.filter.describe(Reason(host["reason"][b][c]), value),
            filter_value=value if value == value else None,
        )

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time spent inside to `seconds`, device work included."""
        start = time.perf_counter()
        yield
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # others may prepare more work
        self.seconds[stage] += time.perf_counter() - start


def buckets(counts: Sequence[int], batch_size: int) -> Iterator[tuple[int, list[int]]]:
    """Group queries by padded size, smallest first, in batches: (nodes, query rows)."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for row, count in enumerate(counts):
        by_size[bucket_size(count)].append(row)
    for nodes in sorted(by_size):
        rows = by_size[nodes]
        for first in range(0, len(rows), batch_size):
            yield nodes, rows[first : first + batch_size]


def _take_queries(tokens: TokenPool, rows: list[int], candidates: int) -> TokenPool:
    """The token vectors of some queries; documents stay shared."""
    offsets = tokens.query_offsets
    spans = [slice(int(offsets[row]), int(offsets[row + 1])) for row in rows]
    lengths = torch.tensor([0, *(span.stop - span.start for span in spans)], device=offsets.device)
    document_of = tokens.document_of.new_full((len(rows), candidates), -1)
    width = min(candidates, tokens.document_of.shape[1])
    document_of[:, :width] = tokens.document_of[rows, :width]
    return TokenPool(
        query_tokens=torch.cat([tokens.query_tokens[span] for span in spans]),
        query_offsets=lengths.cumsum(0),
        document_tokens=tokens.document_tokens,
        document_offsets=tokens.document_offsets,
        document_of=document_of,
    )


def pack_documents(documents: Sequence[Sequence[int]]) -> Tensor:
    """Rows of documents per query as a padded (B, largest pool) table, -1 for padding."""
    most = max(map(len, documents), default=0)
    table = torch.full((len(documents), most), -1, dtype=torch.int64)
    mask = torch.arange(most)[None, :] < torch.tensor([len(d) for d in documents])[:, None]
    table[mask] = torch.tensor(list(chain.from_iterable(documents)), dtype=torch.int64)
    return table


def _raise_if_troubled(query_ids: Sequence[str], status: Sequence[int]) -> None:
    for code in (Status.BAD_EMBEDDING, Status.NOT_CONVERGED):
        named = [name for name, value in zip(query_ids, status, strict=True) if value == code]
        if named:
            more = f" and {len(named) - 5} more" if len(named) > 5 else ""
            raise QueryError(
                f"strict mode: {len(named)} queries ended as {code.name.lower()}: "
                f"{', '.join(named[:5])}{more}. Mend the input, or set runtime.strict=false to go "
                "on with the status in the output."
            )
