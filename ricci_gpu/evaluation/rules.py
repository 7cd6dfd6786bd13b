"""The catalogue of filters and controls that are compared.

A rule either has a knob (it gives every candidate a number, and keeps those above a cut that may
be set to any budget) or decides by itself what it keeps; some do both. Numbers are larger for
what is rather kept, and ``-inf`` for what is kept last.

============== ==============================================================================
kind           what it reads
============== ==============================================================================
``filter``     the filters that this library is about
``score``      one score per candidate: the cosine, MaxSim, or a fusion of both
``structure``  the graph of the pool's sentence vectors
``floor``      nothing: by lot
============== ==============================================================================
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from ricci_gpu.config import Config
from ricci_gpu.evaluation import structure
from ricci_gpu.evaluation.clusters import CLUSTERINGS, query_cluster
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.ops.cutoffs import relative_drop, z_scores
from ricci_gpu.ops.topk import rank_of
from ricci_gpu.shapes import Bool, Float, Tensor
from ricci_gpu.stages import FILTERS, Filter
from ricci_gpu.stages.ricci_filter import RicciFilter

Kind = Literal["filter", "score", "structure", "floor"]
CONTROLS: tuple[Kind, ...] = ("score", "structure")
FUSION_WEIGHTS = (1.0, 2.0, 4.0)  # of MaxSim beside the cosine
KNOBLESS_SCORE_FILTERS = ("largest_gap", "autocut", "knee", "otsu")


@dataclass(frozen=True)
class Decision:
    """What a rule says about pools.

    Args:
        statistic: a number per candidate, or None for a rule without a knob.
        keep: what the rule keeps on its own terms, or None for a rule that only has a knob.
    """

    statistic: Float[Tensor, "B K"] | None = None
    keep: Bool[Tensor, "B K"] | None = None


@dataclass(frozen=True)
class Rule:
    """A named filter or control.

    Args:
        pool: candidates that it reads.
    """

    name: str
    kind: Kind
    decide: Callable[[JudgedPools], Decision]
    pool: int


def catalogue(config: Config, pool: int, deep: int, seed: int = 0) -> list[Rule]:
    """Every rule that is compared.

    ``default`` is the configured filter on pools of the configured size. All others read pools of
    ``pool``; token filters and score rules also read pools of ``deep``, and say so in their name.
    """
    rules = [default_rule(config), *published_rules(pool), *score_rules(pool)]
    rules += [*structure_rules(pool), random_rule(pool, seed)]
    sizes = dict.fromkeys([pool, deep])
    rules += [
        filter_rule(f"default filter, pool {size}", config.filter, size)
        for size in sizes
        if size != config.retrieve.k
    ]
    if deep != pool:
        rules += [replace(rule, name=f"{rule.name}, pool {deep}") for rule in score_rules(deep)]
    return rules


def default_rule(config: Config) -> Rule:
    """The configured filter on pools of the configured size."""
    return filter_rule("default", config.filter, config.retrieve.k)


def published_rules(pool: int) -> list[Rule]:
    """The published filter under both edge rules."""
    published = Config.load("ricci_filtration").filter
    assert isinstance(published, RicciFilter)
    return [
        filter_rule(f"ricci {rule}", replace(published, rule=rule), pool) for rule in ("ge", "le")
    ]


def filter_rule(name: str, filter_: Filter, pool: int) -> Rule:
    """A filter of the product as a rule; its cut is the knob."""
    return Rule(name, "filter", partial(_run, filter_), pool)


def _run(filter_: Filter, pools: JudgedPools) -> Decision:
    result = pools.run(filter_)
    value = result.filter_value.double()
    if isinstance(filter_, RicciFilter):
        value = -value  # short edges stay
    return Decision(torch.where(torch.isnan(value), -torch.inf, value), result.keep)


def score_rules(pool: int) -> list[Rule]:
    """Every score under every cut."""
    scores: dict[str, Callable[[JudgedPools], Tensor]] = {
        "cosine": lambda pools: pools.cosine,
        "MaxSim": lambda pools: pools.maxsim,
        "MaxSim idf": lambda pools: pools.maxsim_idf,
    }
    rules = [
        Rule(f"{cut} {name}", "score", partial(_cut, score, transform), pool)
        for name, score in scores.items()
        for cut, transform in CUTS.items()
    ]
    rules += [
        Rule(
            f"{cut} cosine + {weight:g} MaxSim idf", "score", partial(_cut, score, transform), pool
        )
        for weight in FUSION_WEIGHTS
        for score in [partial(fused, weight=weight)]
        for cut, transform in CUTS.items()
        if cut != "ratio"  # a sum of z-scores has no origin
    ]
    rules += [
        Rule(
            f"{name.replace('_', ' ')} {on}",
            "score",
            partial(_keep, FILTERS.build(name, {"on": of})),
            pool,
        )
        for name in KNOBLESS_SCORE_FILTERS
        for on, of in (("cosine", "prior"), ("MaxSim", "maxsim"))
    ]
    return rules


def fused(pools: JudgedPools, weight: float) -> Float[Tensor, "B K"]:
    """z-scored cosine plus ``weight`` times z-scored MaxSim with corpus idf."""
    return standardised(pools.cosine) + weight * standardised(pools.maxsim_idf)


def standardised(score: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """z-scores within each pool; zeros where all are equal."""
    z = z_scores(score.double(), torch.ones_like(score, dtype=torch.bool))
    return torch.where(torch.isinf(z), 0.0, z)


def _rank(score: Tensor) -> Tensor:
    return -rank_of(score, torch.ones_like(score, dtype=torch.bool)).double()


def _ratio(score: Tensor) -> Tensor:
    return relative_drop(score.double(), torch.ones_like(score, dtype=torch.bool))


# With pools of one size, a fraction of the pool is a fixed k: one row stands for both.
CUTS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "fixed k or fraction": _rank,
    "threshold": lambda score: score.double(),
    "z-score": standardised,
    "ratio": _ratio,
    "drop from the top": lambda score: score.double() - score.double().amax(dim=1, keepdim=True),
}
FIXED_K = "fixed k or fraction cosine"


def _cut(
    score: Callable[[JudgedPools], Tensor],
    transform: Callable[[Tensor], Tensor],
    pools: JudgedPools,
) -> Decision:
    return Decision(statistic=transform(score(pools)))


def _keep(filter_: Filter, pools: JudgedPools) -> Decision:
    return Decision(keep=pools.run(filter_).keep)


def structure_rules(pool: int) -> list[Rule]:
    """Statistics of the pool graph, and clusterings of the pool."""
    statistics = {
        "connected component": structure.component_rank,
        "degree": structure.degree,
        "mean similarity": structure.mean_similarity,
        "PageRank mass": structure.pagerank_mass,
    }
    rules = [
        Rule(name, "structure", partial(_graph, statistic), pool)
        for name, statistic in statistics.items()
    ]
    rules += [
        Rule(name, "structure", partial(_clustered, cluster), pool)
        for name, cluster in CLUSTERINGS.items()
    ]
    return rules


def _graph(statistic: Callable[[Tensor, Tensor], Tensor], pools: JudgedPools) -> Decision:
    node_emb = pools.batch.node_emb
    assert node_emb is not None
    parts = [
        statistic(vectors, mask)
        for vectors, mask in zip(node_emb.split(256), pools.batch.node_mask.split(256), strict=True)
    ]
    return Decision(statistic=torch.cat(parts).double())


def _clustered(cluster: Callable[[np.ndarray], np.ndarray], pools: JudgedPools) -> Decision:
    assert pools.batch.node_emb is not None
    return Decision(keep=query_cluster(pools.batch.node_emb, cluster))


def random_rule(pool: int, seed: int) -> Rule:
    """Candidates by lot."""
    return Rule("random", "floor", partial(_lots, seed), pool)


def _lots(seed: int, pools: JudgedPools) -> Decision:
    generator = torch.Generator().manual_seed(seed)
    return Decision(torch.rand(pools.rows.shape, generator=generator, dtype=torch.float64))
