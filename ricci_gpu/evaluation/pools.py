"""Pools of judged queries: everything that filters and rerankers read, computed once per part.

All pools of a part have the same size, so they are one unpadded `QueryGraphBatch`. The per-token
maxima are computed from the cached token vectors once; every filter after that is cheap.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, runtime_checkable

import numpy as np
import torch

from ricci_gpu.batch import QueryGraphBatch, TokenPool, pad_pools
from ricci_gpu.corpus.judged import JudgedQueries
from ricci_gpu.corpus.records import Query
from ricci_gpu.corpus.store import CorpusStore, TextEncoder
from ricci_gpu.errors import InputError
from ricci_gpu.ops.maxsim import maxsim_from_maxima, pool_maxima, query_token_mask
from ricci_gpu.shapes import Bool, Float, Int, Tensor
from ricci_gpu.stages import Filter


@runtime_checkable
class WordEncoder(TextEncoder, Protocol):
    """An encoder that also names the tokens of a text; `Encoder` and `SideEncoder` are."""

    def words(self, text: str) -> list[str]: ...


@dataclass(frozen=True)
class JudgedPools:
    """The dense top ``K`` of some judged queries.

    Args:
        rows: corpus rows of the candidates, best first by cosine.
        grades: judged relevance of each candidate, 0 where there is none.
        relevant: number of relevant passages of each query, retrieved or not.
        batch: prior (cosine), sentence vectors, query tokens and maxima.
        token_mass: mass of each query token by corpus idf, rows sum to 1.
    """

    queries: Sequence[Query]
    rows: Int[Tensor, "B K"]
    grades: Int[Tensor, "B K"]
    relevant: Int[Tensor, "B"]
    batch: QueryGraphBatch
    token_mass: Float[Tensor, "B L"]

    def __len__(self) -> int:
        return len(self.queries)

    @property
    def size(self) -> int:
        """Candidates per pool, ``K``."""
        return self.rows.shape[1]

    @property
    def gold(self) -> Bool[Tensor, "B K"]:
        return self.grades > 0

    @cached_property
    def gain(self) -> np.ndarray:
        """Recall that keeping each candidate adds, ``[B K]``; never retrieved ones are missed."""
        return (self.gold.double() / self.relevant[:, None]).numpy()

    @property
    def maxima(self) -> Float[Tensor, "B L K"]:
        assert self.batch.maxima is not None  # `judged_pools` computes them
        return self.batch.maxima

    @cached_property
    def token_mask(self) -> Bool[Tensor, "B L"]:
        assert self.batch.tokens is not None
        return query_token_mask(self.batch.tokens, self.maxima.shape[1])

    @property
    def cosine(self) -> Float[Tensor, "B K"]:
        return self.batch.prior

    @cached_property
    def maxsim(self) -> Float[Tensor, "B K"]:
        """MaxSim divided by the number of query tokens, so that queries compare."""
        count = self.token_mask.sum(dim=1, keepdim=True).clamp(min=1)
        return maxsim_from_maxima(self.maxima, self.token_mask) / count

    @cached_property
    def maxsim_idf(self) -> Float[Tensor, "B K"]:
        """The per-token maxima averaged by corpus idf."""
        maxima = torch.where(self.token_mask[..., None], self.maxima, 0.0)
        return (self.token_mass[..., None] * maxima).sum(dim=1)

    def top(self, size: int) -> "JudgedPools":
        """The pools cut to their best ``size``.

        Raises:
            InputError: they hold fewer.
        """
        if size > self.size:
            raise InputError(
                f"pools of {self.size} candidates cannot be cut to {size}. Retrieve more, or lower "
                "`retrieve.k`."
            )
        return self.columns(torch.arange(size).expand(len(self), size))

    def without_gold(self, size: int) -> "JudgedPools":
        """Pools of the best ``size`` passages that are not relevant: nothing there answers."""
        irrelevant_first = self.gold.to(torch.int8).argsort(dim=1, stable=True)
        chosen = self.columns(irrelevant_first[:, :size])
        if bool(chosen.gold.any()):
            raise InputError(
                f"a pool of {self.size} holds too few irrelevant passages for null pools of {size}."
                " Retrieve more."
            )
        return chosen

    def columns(self, column: Int[Tensor, "B S"]) -> "JudgedPools":
        """Pools of the candidates in the given places."""
        batch = self.batch
        assert batch.node_emb is not None
        assert batch.tokens is not None
        nodes = torch.cat([torch.zeros_like(column[:, :1]), column + 1], dim=1)

        def take(values: Tensor) -> Tensor:
            return values.gather(1, column)

        return replace(
            self,
            rows=take(self.rows),
            grades=take(self.grades),
            batch=batch.with_(
                node_mask=batch.node_mask.gather(1, nodes),
                node_emb=batch.node_emb[torch.arange(len(self))[:, None], nodes],
                maxima=self.maxima.gather(
                    2, column[:, None, :].expand(-1, self.maxima.shape[1], -1)
                ),
                tokens=replace(batch.tokens, document_of=take(batch.tokens.document_of)),
                **{
                    name: take(getattr(batch, name))
                    for name in ("prior", "keep", "score", "filter_value", "reason")
                },
            ),
        )

    def some(self, places: Sequence[int]) -> "JudgedPools":
        """The pools of some queries."""
        row = torch.tensor(list(places), dtype=torch.int64)
        batch = self.batch
        assert batch.tokens is not None
        offsets = batch.tokens.query_offsets
        spans = [slice(int(offsets[place]), int(offsets[place + 1])) for place in places]
        tokens = replace(
            batch.tokens,
            query_tokens=torch.cat(
                [batch.tokens.query_tokens[:0], *(batch.tokens.query_tokens[s] for s in spans)]
            ),
            query_offsets=torch.tensor([0, *(s.stop - s.start for s in spans)]).cumsum(0),
            document_of=batch.tokens.document_of[row],
        )
        names = ["node_mask", "node_emb", "maxima", "status", "abstention"]
        names += ["prior", "keep", "score", "filter_value", "reason"]
        taken = {name: getattr(batch, name)[row] for name in names}
        return replace(
            self,
            queries=[self.queries[place] for place in places],
            rows=self.rows[row],
            grades=self.grades[row],
            relevant=self.relevant[row],
            token_mass=self.token_mass[row],
            batch=batch.with_(tokens=tokens, **taken),
        )

    def run(self, filter_: Filter, at_once: int = 256) -> QueryGraphBatch:
        """What a filter of the product makes of these pools, its bounds included."""
        parts = [
            filter_(self.some(range(first, min(first + at_once, len(self)))).batch)
            for first in range(0, len(self), at_once)
        ]
        fields = ("keep", "score", "filter_value", "reason", "status", "abstention")
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in fields}
        return self.batch.with_(**joined)


@dataclass(frozen=True)
class EncodedQueries:
    """Judged queries with their sentence and token vectors."""

    judged: JudgedQueries
    vectors: Float[Tensor, "B D"]
    tokens: Float[Tensor, "T D"]
    offsets: Int[Tensor, "Bplus1"]
    token_mass: Float[Tensor, "B L"]

    @property
    def texts(self) -> list[str]:
        return [query.text for query in self.judged.queries]


def encode_queries(
    judged: JudgedQueries, encoder: WordEncoder, idf: Mapping[str, float]
) -> EncodedQueries:
    """Encode the queries, and weigh their tokens by ``idf``."""
    texts = [query.text for query in judged.queries]
    encoded = encoder.encode(texts, tokens=True)
    tokens, offsets = encoded.packed_tokens()
    mass = torch.zeros(len(texts), int(offsets.diff().max()))
    for place, text in enumerate(texts):
        words = encoder.words(text)
        mass[place, : len(words)] = torch.tensor([idf[word] for word in words])
    mass = mass / mass.sum(dim=1, keepdim=True).clamp(min=1e-12)
    return EncodedQueries(judged, encoded.vectors, tokens, offsets, mass)


def dense_pools(store: CorpusStore, queries: EncodedQueries, size: int) -> JudgedPools:
    """The dense top ``size`` of every query.

    Raises:
        InputError: fewer passages than ``size``.
    """
    if len(store.passages) < size:
        raise InputError(
            f"pools of {size} need a corpus of at least as many passages; got "
            f"{len(store.passages)}. Ask for smaller pools."
        )
    scores, rows = store.search(queries.vectors, size)
    return pools_of_rows(store, queries, rows, scores)


def pools_of_rows(
    store: CorpusStore,
    queries: EncodedQueries,
    rows: Int[Tensor, "B K"],
    prior: Float[Tensor, "B K"],
) -> JudgedPools:
    """Pools of given corpus rows: grades are looked up, the maxima computed."""
    assert store.tokens is not None
    assert store.token_offsets is not None
    tokens = TokenPool(
        query_tokens=queries.tokens,
        query_offsets=queries.offsets,
        document_tokens=torch.from_numpy(store.tokens),  # float16, mapped from disk
        document_offsets=torch.from_numpy(store.token_offsets),
        document_of=rows,
    )
    maxima = pool_maxima(tokens)
    batch = pad_pools(
        [rows.shape[1]] * len(rows),
        prior=list(prior),
        query_emb=queries.vectors,
        candidate_emb=list(store.vectors[rows]),
        # The maxima stand for the document vectors, which nothing reads any more.
        tokens=replace(tokens, document_tokens=queries.tokens[:0]),
    ).with_(maxima=maxima)
    row_of = {passage.id: row for row, passage in enumerate(store.passages)}
    judged = queries.judged
    grades = torch.zeros_like(rows)
    relevant = torch.zeros(len(rows), dtype=torch.int64)
    for place, query in enumerate(judged.queries):
        graded = judged.qrels.get(query.id, {})
        relevant[place] = sum(grade > 0 for grade in graded.values())
        for passage, grade in graded.items():
            if passage in row_of:
                grades[place] = torch.where(rows[place] == row_of[passage], grade, grades[place])
    return JudgedPools(judged.queries, rows, grades, relevant, batch, queries.token_mass)


class CorpusIdf(dict[str, float]):
    """``log(1 + (M - df + 1/2) / (df + 1/2))`` of every token of a corpus (Robertson and Zaragoza
    2009, as Lucene smooths it); a token that the corpus lacks has the largest."""

    def __init__(self, store: CorpusStore, encoder: WordEncoder) -> None:
        count: dict[str, int] = {}
        for passage in store.passages:
            for word in set(encoder.words(passage.full_text)):
                count[word] = count.get(word, 0) + 1
        passages = len(store.passages)
        super().__init__(
            {word: np.log1p((passages - df + 0.5) / (df + 0.5)) for word, df in count.items()}
        )
        self._unseen = float(np.log1p((passages + 0.5) / 0.5))

    def __missing__(self, word: str) -> float:
        return self._unseen
