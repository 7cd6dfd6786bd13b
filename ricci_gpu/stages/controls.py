"""Filters without geometry: what every other filter has to beat at the same number kept."""

import hashlib
import math
from dataclasses import dataclass
from typing import Literal

import torch

from ricci_gpu.batch import QueryGraphBatch, Reason
from ricci_gpu.errors import SettingError
from ricci_gpu.ops import cutoffs
from ricci_gpu.ops.adjacency import cosine_dissimilarity, percentile_threshold, threshold_graph
from ricci_gpu.ops.maxsim import maxsim_from_maxima
from ricci_gpu.shapes import Bool, Float, Tensor
from ricci_gpu.stages.interface import FILTERS, Filter, good_nodes, good_tokens


@FILTERS.register("none")
@dataclass(frozen=True)
class KeepAll(Filter):
    """Keep every candidate."""

    def needs(self) -> set[str]:
        return set()

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        return self.decide(batch, batch.keep, batch.prior, Reason.KEPT)


@dataclass(frozen=True)
class ScoreFilter(Filter):
    """A rule on one score per candidate.

    Args:
        on: the retrieval score (``prior``) or ``maxsim``.
    """

    on: Literal["prior", "maxsim"] = "prior"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.on not in ("prior", "maxsim"):
            raise SettingError(f"`on` must be prior or maxsim; got {self.on!r}.")

    def needs(self) -> set[str]:
        return {"tokens"} if self.on == "maxsim" else set()

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        """Which candidates the rule keeps."""
        raise NotImplementedError

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        score, judged = batch.prior, torch.ones_like(batch.keep[:, :1])
        if self.on == "maxsim":
            batch, maxima, token_mask, judged = good_tokens(batch)
            score = maxsim_from_maxima(maxima, token_mask)
        score = torch.where(batch.keep & judged, score, -torch.inf)
        batch = batch.with_(
            filter_value=torch.where(batch.keep & judged, score, torch.nan).to(
                batch.filter_value.dtype
            )
        )
        keep = torch.where(judged, self.rule(score, batch.keep), True)
        return self.decide(batch, keep, score, self.reason_for_dropping())

    def reason_for_dropping(self) -> Reason:
        return Reason.LOW_SCORE

    def describe(self, reason: Reason, value: float) -> str:
        if reason == Reason.LOW_SCORE:
            return f"low score: {value:.4g} under the {self.name} cut"
        return super().describe(reason, value)


@FILTERS.register("fixed_k")
@dataclass(frozen=True)
class FixedK(ScoreFilter):
    """The best ``k``."""

    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise SettingError(f"`k` must be at least 1; got {self.k}.")

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.fixed_k(score, mask, self.k)

    def reason_for_dropping(self) -> Reason:
        return Reason.OUTSIDE_BUDGET


@FILTERS.register("fraction")
@dataclass(frozen=True)
class Fraction(ScoreFilter):
    """The best ``ceil(share * n)`` of n."""

    share: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise SettingError(f"`share` must lie in (0, 1]; got {self.share}.")

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.fraction(score, mask, self.share)

    def reason_for_dropping(self) -> Reason:
        return Reason.OUTSIDE_BUDGET


@FILTERS.register("threshold")
@dataclass(frozen=True)
class Threshold(ScoreFilter):
    """Scores of at least ``at_least``; the same number for every query."""

    at_least: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_number("at_least", self.at_least)

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.threshold(score, mask, self.at_least)


@FILTERS.register("z_score")
@dataclass(frozen=True)
class ZScore(ScoreFilter):
    """Scores of at least ``at_least`` standard deviations above the mean of their own pool."""

    at_least: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_number("at_least", self.at_least)

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.z_threshold(score, mask, self.at_least)


@FILTERS.register("largest_gap")
@dataclass(frozen=True)
class LargestGap(ScoreFilter):
    """Everything before the largest drop within the first ``window`` of the list (Adaptive-k)."""

    window: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.window <= 1:
            raise SettingError(f"`window` must lie in (0, 1]; got {self.window}.")

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.largest_gap(score, mask, self.window)


@FILTERS.register("autocut")
@dataclass(frozen=True)
class Autocut(ScoreFilter):
    """Cut before the ``jumps``-th steep place of the sorted scores (Weaviate's rule)."""

    jumps: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.jumps < 1:
            raise SettingError(f"`jumps` must be at least 1; got {self.jumps}.")

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.autocut(score, mask, self.jumps)


@FILTERS.register("ratio")
@dataclass(frozen=True)
class Ratio(ScoreFilter):
    """Scores of at least ``share`` of the best of their pool."""

    share: float = 0.9

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise SettingError(f"`share` must lie in (0, 1]; got {self.share}.")

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.ratio_to_top(score, mask, self.share)


@FILTERS.register("knee")
@dataclass(frozen=True)
class Knee(ScoreFilter):
    """Everything before the knee of the sorted scores."""

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.knee(score, mask)


@FILTERS.register("otsu")
@dataclass(frozen=True)
class Otsu(ScoreFilter):
    """The upper of two groups of scores (Otsu's threshold, which is exact 2-means on a list)."""

    def rule(self, score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
        return cutoffs.otsu(score, mask)


@FILTERS.register("random")
@dataclass(frozen=True)
class Random(Filter):
    """``k`` candidates by lot: the floor for every filter.

    The lot of a candidate depends on the seed, the pool's prior scores and its place in the pool,
    and on nothing else of the batch.
    """

    k: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise SettingError(f"`k` must be at least 1; got {self.k}.")
        if not -(2**63) <= self.seed < 2**63:
            raise SettingError(f"`seed` must fit 64 bits; got {self.seed}.")

    def needs(self) -> set[str]:
        return set()

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        draw = torch.zeros(batch.keep.shape, dtype=torch.float64)
        for row in range(len(draw)):
            count = int(batch.candidate_mask[row].sum())
            pool = batch.prior[row, :count].double().cpu().numpy().tobytes()
            digest = hashlib.sha256(self.seed.to_bytes(8, "little", signed=True) + pool).digest()
            generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))
            draw[row, :count] = torch.rand(count, generator=generator, dtype=torch.float64)
        draw = draw.to(batch.device)
        keep = cutoffs.random_k(batch.keep, draw, self.k)
        return self.decide(batch, keep, draw, Reason.OUTSIDE_BUDGET)


@dataclass(frozen=True)
class GraphFilter(Filter):
    """A rule on the graph of similar candidates at a percentile of its dissimilarities."""

    percentile: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.percentile <= 100:
            raise SettingError(f"`percentile` must lie in [0, 100]; got {self.percentile}.")

    def needs(self) -> set[str]:
        return {"embeddings"}

    def adjacency(
        self, batch: QueryGraphBatch, nodes: Bool[Tensor, "B N"]
    ) -> Bool[Tensor, "B N N"]:
        """Similar nodes joined, the query among them; no edge is forced."""
        assert batch.node_emb is not None
        dissimilarity = cosine_dissimilarity(batch.node_emb, nodes)
        tau = percentile_threshold(dissimilarity, nodes, self.percentile)
        return threshold_graph(dissimilarity, nodes, tau, "le")


@FILTERS.register("connected_component")
@dataclass(frozen=True)
class ConnectedComponent(GraphFilter):
    """Candidates connected with the query: the null model of every flow on this graph."""

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        batch, nodes = good_nodes(batch)
        inside = cutoffs.query_component(self.adjacency(batch, nodes), nodes)
        inside = torch.where(nodes[:, :1], inside, True)  # a query without vector judges nothing
        return self.decide(batch, inside, batch.prior, Reason.OUTSIDE_COMPONENT)


@FILTERS.register("degree")
@dataclass(frozen=True)
class Degree(GraphFilter):
    """The ``k`` candidates joined to most others: the cheapest measure of centrality."""

    k: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.k < 1:
            raise SettingError(f"`k` must be at least 1; got {self.k}.")

    def __call__(self, batch: QueryGraphBatch) -> QueryGraphBatch:
        batch, nodes = good_nodes(batch)
        degree = cutoffs.candidate_degree(self.adjacency(batch, nodes))
        batch = batch.with_(filter_value=torch.where(batch.keep, degree, torch.nan))
        keep = cutoffs.fixed_k(degree, batch.keep, self.k)
        keep = torch.where(nodes[:, :1], keep, True)
        return self.decide(batch, keep, degree, Reason.OUTSIDE_BUDGET)


def _require_number(setting: str, received: float) -> None:
    if math.isnan(received):
        raise SettingError(f"`{setting}` must be a number; got {received}.")
