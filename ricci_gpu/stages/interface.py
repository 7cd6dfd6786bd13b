"""What a stage is, and what all filters do alike."""

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch

from ricci_gpu.batch import QueryGraphBatch, Reason, Status
from ricci_gpu.errors import SettingError
from ricci_gpu.ops.maxsim import pool_maxima, query_token_mask
from ricci_gpu.ops.topk import rank_of
from ricci_gpu.registry import Registry
from ricci_gpu.shapes import Bool, Float, Tensor


class Stage:
    """Takes a batch and returns a new one. `Registry.register` gives each variant its name."""

    name: ClassVar[str]

    def needs(self) -> set[str]:
        """What the batch must carry: ``embeddings``, ``tokens``, ``texts``, or the mask alone."""
        raise NotImplementedError

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        raise NotImplementedError


@dataclass(frozen=True)
class Filter(Stage):
    """Decides which candidates stay. Subclasses say how; the bounds are common to all.

    Args:
        minimum: keep at least this many (the best by the filter's own measure); 0 by default, so
            that an empty answer is possible.
        maximum: keep at most this many; no limit by default.
    """

    minimum: int = 0
    maximum: int | None = None

    def __post_init__(self) -> None:
        if self.minimum < 0:
            raise SettingError(f"`minimum` must be at least 0; got {self.minimum}.")
        if self.maximum is not None and self.maximum < max(self.minimum, 1):
            raise SettingError(
                f"`maximum` must be at least `minimum` and at least 1; got {self.maximum} with "
                f"`minimum` {self.minimum}."
            )

    def describe(self, reason: Reason, value: float) -> str:
        """Short words for the user: why a candidate with this filter value stands where it does."""
        return REASON_WORDS[reason]

    def decide(
        self,
        batch: QueryGraphBatch,
        keep: Bool[Tensor, "B K"],
        preference: Float[Tensor, "B K"],
        reason: Reason,
    ) -> QueryGraphBatch:
        """Apply `minimum` and `maximum`, and record the decision.

        Args:
            keep: what the rule keeps.
            preference: larger is rather kept; orders candidates for the bounds.
            reason: why the others go.
        """
        allowed = batch.keep & (batch.reason != Reason.BAD_EMBEDDING)
        keep = keep & allowed
        place = rank_of(preference, allowed)
        keep = keep | (allowed & (place < self.minimum))
        dropped = batch.keep & ~keep
        codes = torch.where(dropped & allowed, int(reason), batch.reason)
        if self.maximum is not None:
            over = keep & (rank_of(preference, keep) >= self.maximum)
            keep = keep & ~over
            codes = torch.where(over, int(Reason.OUTSIDE_BUDGET), codes)
        return batch.with_(keep=keep, reason=codes)


REASON_WORDS = {
    Reason.KEPT: "kept",
    Reason.STRETCHED: "stretched",
    Reason.LOW_MASS: "low mass",
    Reason.LOW_SCORE: "low score",
    Reason.OUTSIDE_COMPONENT: "no edge to the query",
    Reason.OUTSIDE_BUDGET: "others came first",
    Reason.BAD_EMBEDDING: "bad embedding: NaN, infinite or zero",
    Reason.PADDING: "padding",
    Reason.UNSCORED: "kept; the reranker gave no score",
}

FILTERS: Registry[Filter] = Registry("filter")
RERANKERS: Registry[Stage] = Registry("reranker")


class TokenSimilarity(NamedTuple):
    """The batch with its maxima, those maxima, and which query tokens are real."""

    batch: QueryGraphBatch
    maxima: Float[Tensor, "B L K"]
    token_mask: Bool[Tensor, "B L"]


def token_similarity(batch: QueryGraphBatch) -> TokenSimilarity:
    """The per-token maxima, computed at most once per batch and only for what is still kept."""
    tokens, maxima = batch.tokens, batch.maxima
    assert tokens is not None  # `Pipeline` has checked that tokens come
    if maxima is None:
        kept = torch.where(batch.keep, tokens.document_of, -1)
        maxima = pool_maxima(replace(tokens, document_of=kept))
        batch = batch.with_(maxima=maxima)
    return TokenSimilarity(batch, maxima, query_token_mask(tokens, maxima.shape[1]))


class GoodTokens(NamedTuple):
    """`TokenSimilarity` without broken candidates, and which queries can be judged, ``[B 1]``."""

    batch: QueryGraphBatch
    maxima: Float[Tensor, "B L K"]
    token_mask: Bool[Tensor, "B L"]
    judged: Bool[Tensor, "B 1"]


def good_tokens(batch: QueryGraphBatch) -> GoodTokens:
    """Drop candidates with a NaN or infinite token vector, which would spread over the whole pool.

    Where a token of the query itself is bad no candidate can be judged: all stay, and the status
    says so.
    """
    batch, maxima, token_mask = token_similarity(batch)
    tokens = batch.tokens
    assert tokens is not None  # `token_similarity` has read them
    bad_token = ~torch.isfinite(tokens.query_tokens).all(dim=1)
    bad_before = torch.cat([bad_token.new_zeros(1, dtype=torch.int64), bad_token.cumsum(0)])
    judged = bad_before[tokens.query_offsets].diff()[:, None] == 0
    # Only an empty document has infinite maxima by right; row 0 stands for padding.
    has_tokens = torch.cat([bad_token.new_zeros(1), tokens.document_offsets.diff() > 0])
    broken = (~torch.isfinite(maxima) & token_mask[..., None]).any(dim=1)
    broken = broken & has_tokens[tokens.document_of + 1] & batch.keep & judged
    trouble = broken.any(dim=1) | ~judged[:, 0]
    batch = batch.with_(
        keep=batch.keep & ~broken,
        reason=torch.where(broken, int(Reason.BAD_EMBEDDING), batch.reason),
        status=torch.where(trouble, int(Status.BAD_EMBEDDING), batch.status),
    )
    return GoodTokens(batch, maxima, token_mask, judged)


def good_nodes(batch: QueryGraphBatch) -> tuple[QueryGraphBatch, Bool[Tensor, "B N"]]:
    """Set aside nodes whose vector is NaN, infinite or zero.

    Returns the batch with those candidates marked and dropped, and the mask of nodes to compute
    with. Where the query itself is bad no candidate can be judged: all stay, the status says so,
    and the mask is empty.
    """
    assert batch.node_emb is not None  # `Pipeline` has checked that embeddings come
    # Padding may hold NaN; `where` first, so that nothing of it reaches a comparison.
    vectors = torch.where(batch.node_mask[..., None], batch.node_emb, 1.0)
    good = torch.isfinite(vectors).all(dim=2) & (vectors != 0).any(dim=2)
    query_good = good[:, :1]
    candidate_bad = batch.candidate_mask & ~good[:, 1:] & query_good
    any_bad = (batch.node_mask & ~good).any(dim=1)
    batch = batch.with_(
        keep=batch.keep & ~candidate_bad,
        reason=torch.where(candidate_bad, int(Reason.BAD_EMBEDDING), batch.reason),
        status=torch.where(any_bad, int(Status.BAD_EMBEDDING), batch.status),
    )
    still_in = torch.cat([query_good, batch.keep], dim=1)
    return batch, batch.node_mask & good & query_good & still_in
