"""The one data structure that flows through the stages: a padded batch of query graphs.

Also how ragged pools become padded batches (`pad_pools`) and in which sizes (`bucket_size`):
padding is decided here and nowhere else.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import torch

from ricci_gpu.errors import InputError
from ricci_gpu.shapes import Bool, Float, Int, Tensor


class Status(IntEnum):
    """How the treatment of one query went. Trouble is data, per query."""

    OK = 0
    NOT_CONVERGED = 1  # a solver ran out of iterations; bounds are valid, the value is less exact
    TOO_FEW_NODES = 2  # no candidate, or one: filters that compare candidates keep all that came
    BAD_EMBEDDING = 3  # a NaN, infinite or zero vector; the candidates concerned are dropped, named


class Reason(IntEnum):
    """Why a candidate was kept or dropped."""

    KEPT = 0
    STRETCHED = 1  # its edge to the query ended longer than the cutoff
    LOW_MASS = 2  # it received less than its share of the query's token mass
    LOW_SCORE = 3  # its score is under the filter's score threshold
    OUTSIDE_COMPONENT = 4  # not connected with the query at the threshold
    OUTSIDE_BUDGET = 5  # the filter keeps a fixed number, and others came first
    BAD_EMBEDDING = 6  # its vector is NaN, infinite or zero
    PADDING = 7  # no candidate at all: never shown to a user
    UNSCORED = 8  # kept, and the reranker could not score it: it comes after the scored ones


@dataclass(frozen=True)
class TokenPool:
    """Token vectors of a batch, packed end to end without padding.

    ``query_tokens[query_offsets[b]:query_offsets[b + 1]]`` are the vectors of query ``b``, and
    likewise for documents. ``document_of[b, c]`` is the document row of candidate ``c`` of query
    ``b`` (-1 for padding), so that queries may share documents. int8 documents bring the factor
    of each token in ``document_scales``.
    """

    query_tokens: Float[Tensor, "Tq D"]
    query_offsets: Int[Tensor, "Bplus1"]
    document_tokens: Float[Tensor, "Td D"] | Int[Tensor, "Td D"]
    document_offsets: Int[Tensor, "Mplus1"]
    document_of: Int[Tensor, "B K"]
    document_scales: Float[Tensor, "Td"] | None = None


@dataclass(frozen=True)
class TextPool:
    """The texts of a batch, and the model that scores pairs of them.

    Args:
        queries: one per query.
        candidates: texts of the candidates of each query, in the order of the pool.
        score: a number per (query, candidate) pair, larger is better, NaN where there is none.
    """

    queries: Sequence[str]
    candidates: Sequence[Sequence[str]]
    score: Callable[[Sequence[tuple[str, str]]], Float[Tensor, "P"]]


@dataclass(frozen=True)
class QueryGraphBatch:
    """``B`` queries with their candidates, padded to ``K`` candidates, ``N = K + 1`` nodes.

    A stage takes a batch and returns a new one. Masks only shrink and shapes never change.
    Padded entries may hold anything (tests fill them with NaN) and are never read.

    Args:
        node_mask: true for real nodes; column 0 is the query.
        prior: retrieval scores of the candidates, larger is better.
        node_emb: sentence vectors, row 0 the query; None when the chain does not need them.
        tokens: packed token vectors; None when the chain does not need them.
        texts: the texts themselves; None when the chain does not need them.
        maxima: ``A[b, i, c]``, the largest similarity of query token i with a token of candidate
            c; -inf outside real tokens and candidates. Computed once, shared by the token
            filter and MaxSim.
        keep: candidates that are still in.
        score: the current score that orders the candidates, larger is better.
        filter_value: the quantity that the filter compared (final edge weight, mass, score).
        reason: a `Reason` per candidate.
        status: a `Status` per query.
        abstention: per query, higher means that something relevant is more likely in the pool;
            NaN when the filter has no such score.
        details: what a filter recorded on request, for explanations.
    """

    node_mask: Bool[Tensor, "B N"]
    prior: Float[Tensor, "B K"]
    keep: Bool[Tensor, "B K"]
    score: Float[Tensor, "B K"]
    filter_value: Float[Tensor, "B K"]
    reason: Int[Tensor, "B K"]
    status: Int[Tensor, "B"]
    abstention: Float[Tensor, "B"]
    node_emb: Float[Tensor, "B N D"] | None = None
    tokens: TokenPool | None = None
    texts: TextPool | None = None
    maxima: Float[Tensor, "B L K"] | None = None
    details: dict[str, Any] | None = None

    @property
    def candidate_mask(self) -> Bool[Tensor, "B K"]:
        return self.node_mask[:, 1:]

    @property
    def device(self) -> torch.device:
        return self.node_mask.device

    def with_(self, **changes: Any) -> "QueryGraphBatch":
        """A copy with some fields replaced."""
        return replace(self, **changes)


BUCKETS = (16, 32, 64, 128)


def bucket_size(candidates: int) -> int:
    """Padded number of nodes for a pool: 16, 32, 64, 128, then multiples of 128."""
    nodes = candidates + 1
    for size in BUCKETS:
        if nodes <= size:
            return size
    return -(-nodes // 128) * 128


def pad_pools(
    counts: Sequence[int],
    prior: Sequence[Float[Tensor, "_"]] | None = None,
    query_emb: Float[Tensor, "B D"] | None = None,
    candidate_emb: Sequence[Float[Tensor, "_ D"]] | None = None,
    tokens: TokenPool | None = None,
    texts: TextPool | None = None,
    nodes: int | None = None,
    device: torch.device | str = "cpu",
) -> QueryGraphBatch:
    """Pad ragged pools into one batch.

    Args:
        counts: candidates per query; may hold zeros.
        prior: retrieval scores per query, each of length ``counts[b]``; by default descending
            ranks, so that the given order stands.
        query_emb, candidate_emb: sentence vectors, both or neither.
        tokens: packed token vectors.
        texts: the texts, and who scores them.
        nodes: padded size ``N``; by default the largest pool plus the query.

    Raises:
        InputError: lengths that do not fit together.
    """
    batch_size, most = len(counts), max(counts, default=0)
    padded_nodes = most + 1 if nodes is None else nodes
    if padded_nodes < most + 1:
        raise InputError(
            f"`nodes` must be at least {most + 1} (largest pool + query); got {nodes}."
        )
    if (query_emb is None) != (candidate_emb is None):
        raise InputError("give both `query_emb` and `candidate_emb`, or neither.")
    for name, given in (
        ("prior", prior),
        ("query_emb", query_emb),
        ("candidate_emb", candidate_emb),
    ):
        if given is not None and len(given) != batch_size:
            raise InputError(
                f"`{name}` must have one entry per query; got {len(given)} for {batch_size} "
                "queries."
            )
    padded = padded_nodes - 1
    count = torch.tensor(list(counts), dtype=torch.int64)
    mask = torch.arange(padded_nodes)[None, :] < (count + 1)[:, None]

    if prior is None:
        prior_rows = -torch.arange(padded, dtype=torch.float32).expand(batch_size, padded)
    else:
        prior_rows = torch.full((batch_size, padded), float("-inf"))
        for row, (values, n) in enumerate(zip(prior, counts, strict=True)):
            if len(values) != n:
                raise InputError(f"query {row}: {n} candidates but {len(values)} prior scores.")
            prior_rows[row, :n] = torch.as_tensor(values, dtype=torch.float32)

    node_emb = None
    if query_emb is not None and candidate_emb is not None:
        node_emb = query_emb.new_zeros((batch_size, padded_nodes, query_emb.shape[1]))
        node_emb[:, 0] = query_emb
        for row, (vectors, n) in enumerate(zip(candidate_emb, counts, strict=True)):
            if tuple(vectors.shape) != (n, query_emb.shape[1]):
                raise InputError(
                    f"query {row}: candidate vectors must have shape ({n}, {query_emb.shape[1]}); "
                    f"got {tuple(vectors.shape)}."
                )
            node_emb[row, 1 : n + 1] = vectors

    candidate_mask = mask[:, 1:]
    return QueryGraphBatch(
        node_mask=mask.to(device),
        prior=prior_rows.to(device),
        keep=candidate_mask.to(device),
        score=torch.where(candidate_mask, prior_rows, -torch.inf).to(device),
        filter_value=torch.full((batch_size, padded), torch.nan, device=device),
        reason=torch.where(candidate_mask, int(Reason.KEPT), int(Reason.PADDING)).to(device),
        status=torch.where(count >= 2, int(Status.OK), int(Status.TOO_FEW_NODES)).to(device),
        abstention=torch.full((batch_size,), torch.nan, device=device),
        node_emb=None if node_emb is None else node_emb.to(device),
        tokens=tokens,
        texts=texts,
    )
