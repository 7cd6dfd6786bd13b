"""Attempts to do better than the configured filter, each measured as a difference to it.

Weights and settings of a variant are part of its name: every one tried is a row, so that nothing
is chosen in silence. A variant wins where its interval lies above zero on the tuning part and its
mean is not below zero on the test part.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch

from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.evaluation.bootstrap import Difference, mean_difference
from ricci_gpu.evaluation.first_stage import Bm25, best, finite, z_fusion
from ricci_gpu.evaluation.matched_budget import BUDGETS, cut_at
from ricci_gpu.evaluation.metrics import Judgements, per_query
from ricci_gpu.evaluation.pools import EncodedQueries, JudgedPools, pools_of_rows
from ricci_gpu.evaluation.rules import standardised
from ricci_gpu.evaluation.token_graph import (
    mean_profile_distance,
    profile_distance,
    profile_variation,
)
from ricci_gpu.evaluation.trained import with_head
from ricci_gpu.models.late_interaction import LateInteraction
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.shapes import Float, Tensor
from ricci_gpu.stages.token_filter import TokenTransportFilter

NDCG = "nDCG@10"
DENSE, HYBRID = "dense", "hybrid"
NULL_RECALL = "recall at 3, half of the pools null"
Statistic = Callable[[JudgedPools], Tensor]


@dataclass(frozen=True)
class Variant:
    """A statistic of candidates, larger is rather kept and comes first.

    Args:
        pool: candidates that it reads.
        source: ``dense`` pools, or ``hybrid`` ones of dense retrieval and BM25 together.
        trained: its weights were trained here, on the part ``fit``.
    """

    name: str
    statistic: Statistic
    pool: int
    source: str = DENSE
    trained: bool = False


@dataclass(frozen=True)
class VariantRow:
    """One variant by one measure, minus the configured filter, averaged over datasets."""

    variant: str
    measure: str
    tune: Difference
    test: Difference
    verdict: str


def variants(
    base: TokenTransportFilter,
    store: CorpusStore,
    head: LateInteraction | None,
    pool: int,
    deep: int,
    small: int,
) -> list[Variant]:
    """All attempts.

    Args:
        pool: candidates that the configured filter and most attempts read.
        deep, small: other sizes that are tried.
    """
    mass, idf = partial(mass_share, base), partial(mass_share, base, weighted=True)
    here: dict[str, Statistic] = {
        "idf token masses": idf,
        "steps until the mass settles": partial(settled_share, base),
        "cosine": _cosine,
        "MaxSim": _maxsim,
        "MaxSim idf": _maxsim_idf,
    }
    for alike in (0.95, 0.9, 0.8):
        here[f"near-duplicates grouped at {alike:g}"] = partial(grouped_share, base, alike)
    for scale in (0.5, 1.0, 2.0):
        here[f"T = {scale:g} x spread"] = partial(spread_share, base, scale)
    for temperature in (0.1, 0.15, 0.2, 0.3):
        for steps in (1, 2, 5, 10):
            if (temperature, steps) != (base.temperature, base.steps):
                changed = replace(base, temperature=temperature, steps=steps)
                here[f"T = {temperature:g}, {steps} steps"] = partial(mass_share, changed)
    for weight in (0.5, 1.0, 2.0):
        here[f"mass + {weight:g} MaxSim idf"] = partial(fusion, mass, weight, _maxsim_idf)
        here[f"idf mass + {weight:g} MaxSim idf"] = partial(fusion, idf, weight, _maxsim_idf)
        here[f"mass + {weight:g} cosine"] = partial(fusion, mass, weight, _cosine)
        here[f"mass and {weight:g} abstention"] = partial(with_abstention, base, weight)
    signals: dict[str, Statistic] = {
        "token curvature": _curvature,
        "W1 to the query's tokens": _nearness,
        "W1 to the other chunks": mean_profile_distance,
        "total variation to them (control)": _likeness,
    }
    for name, signal in signals.items():
        for weight in (-0.5, -0.25, 0.25, 0.5):
            here[f"mass {weight:+g} {name}"] = partial(fusion, mass, weight, signal)
    found = [Variant(name, statistic, pool) for name, statistic in here.items()]
    found += [Variant(f"pool {size}", mass, size) for size in sorted({small, deep} - {pool})]
    found += _larger_pools(base, deep)
    for size in dict.fromkeys([pool, deep]):
        found += [
            Variant(f"hybrid pool {size}", mass, size, HYBRID),
            Variant(f"hybrid pool {size}, its own order", _cosine, size, HYBRID),
            Variant(
                f"hybrid pool {size}, mass + 1 its score",
                partial(fusion, mass, 1.0, _cosine),
                size,
                HYBRID,
            ),
        ]
    if head is not None:
        of_head: dict[str, Statistic] = {
            f"vectors of {head.name}": mass,
            f"MaxSim idf of {head.name}": _maxsim_idf,
            f"mass + 1 MaxSim idf of {head.name}": partial(fusion, mass, 1.0, _maxsim_idf),
        }
        for name, statistic in of_head.items():
            projected = partial(_projected, statistic, head, store)
            found.append(Variant(name, projected, pool, trained=True))
            found.append(Variant(f"{name}, pool {deep}", projected, deep, trained=True))
    return found


def _larger_pools(base: TokenTransportFilter, deep: int) -> list[Variant]:
    found = [
        Variant(f"idf token masses, pool {deep}", partial(mass_share, base, weighted=True), deep),
        Variant(f"MaxSim, pool {deep}", _maxsim, deep),
        Variant(f"MaxSim idf, pool {deep}", _maxsim_idf, deep),
    ]
    for temperature, steps in ((0.1, 5), (0.15, 10), (0.2, 5), (0.2, 10)):
        changed = replace(base, temperature=temperature, steps=steps)
        name = f"T = {temperature:g}, {steps} steps, pool {deep}"
        found.append(Variant(name, partial(mass_share, changed), deep))
    return found


def hybrid_pools(store: CorpusStore, bm25: Bm25, queries: EncodedQueries, size: int) -> JudgedPools:
    """The best ``size`` by the sum of z-scored cosine and BM25; their score stands as prior."""
    dense = queries.vectors @ store.vectors.T
    score, rows = best(z_fusion([(1.0, dense), (1.0, bm25.scores(queries.texts))]), size)
    return pools_of_rows(store, queries, rows, finite(score).float())


def mass_share(
    base: TokenTransportFilter, pools: JudgedPools, weighted: bool = False
) -> Float[Tensor, "B K"]:
    """The share of the filter; ``weighted`` gives query tokens their corpus idf as mass."""
    return token_transport(
        pools.maxima,
        pools.token_mask,
        pools.batch.candidate_mask,
        temperature=base.temperature,
        steps=base.steps,
        token_mass=pools.token_mass if weighted else None,
    ).share.double()


def fusion(share: Statistic, weight: float, other: Statistic, pools: JudgedPools) -> Tensor:
    """The standardised logarithm of the share plus ``weight`` times another signal."""
    log_share = standardised(share(pools).clamp(min=1e-12).log())
    return log_share + weight * standardised(other(pools))


def _projected(
    statistic: Statistic, head: LateInteraction, store: CorpusStore, pools: JudgedPools
) -> Tensor:
    return statistic(with_head(pools, head, store))


def _maxsim(pools: JudgedPools) -> Tensor:
    return standardised(pools.maxsim)


def _maxsim_idf(pools: JudgedPools) -> Tensor:
    return standardised(pools.maxsim_idf)


def _cosine(pools: JudgedPools) -> Tensor:
    return pools.cosine.double()


def _curvature(pools: JudgedPools) -> Tensor:
    return -profile_distance(pools) / (1.0 - pools.cosine.double()).clamp(min=1e-3)


def _nearness(pools: JudgedPools) -> Tensor:
    return -profile_distance(pools)


def _likeness(pools: JudgedPools) -> Tensor:
    return -profile_variation(pools)


def grouped_share(
    base: TokenTransportFilter, alike: float, pools: JudgedPools
) -> Float[Tensor, "B K"]:
    """Chunks with a cosine of at least ``alike`` compete as one, and each gets what they win.

    A group is the chunks joined to its best-placed one (first fit); it takes the larger maximum
    for every token. Within a group the order is that of MaxSim.
    """
    node_emb = pools.batch.node_emb
    assert node_emb is not None
    unit = torch.nn.functional.normalize(node_emb[:, 1:].double(), dim=2)
    alike_pairs = unit @ unit.mT >= alike
    size = pools.size
    leader = torch.full(pools.rows.shape, -1, dtype=torch.int64)
    for place in range(size):
        free = (leader < 0) & alike_pairs[:, place]
        free[:, place] = leader[:, place] < 0
        leader = torch.where(free & (leader[:, place] < 0)[:, None], place, leader)
    member = torch.nn.functional.one_hot(leader, size).bool()  # (B, K chunk, K group)
    maxima = torch.where(
        member[:, None], pools.maxima[..., None].expand(-1, -1, -1, size), -torch.inf
    ).amax(dim=2)
    result = token_transport(
        maxima,
        pools.token_mask,
        member.any(dim=1),
        temperature=base.temperature,
        steps=base.steps,
    )
    share = result.share.double().gather(1, leader)
    return share + 1e-6 * standardised(pools.maxsim)


def spread_share(
    base: TokenTransportFilter, scale: float, pools: JudgedPools
) -> Float[Tensor, "B K"]:
    """The temperature of each query is ``scale`` times the spread of its maxima over the pool."""
    mask = pools.token_mask
    variance = torch.where(mask, pools.maxima.var(dim=2, correction=0), 0.0)
    spread = (variance.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sqrt().clamp(min=1e-3)
    # A / T at temperature 1 is what the operator needs.
    scaled = pools.maxima / (scale * spread)[:, None, None]
    return token_transport(
        scaled, mask, pools.batch.candidate_mask, temperature=1.0, steps=base.steps
    ).share.double()


def settled_share(
    base: TokenTransportFilter, pools: JudgedPools, moved: float = 0.1, most: int = 20
) -> Float[Tensor, "B K"]:
    """As many steps per query as it takes until a step moves less than ``moved`` of the mass."""
    before = torch.full(pools.rows.shape, 1.0, dtype=torch.float64)
    result = before
    going = torch.ones(len(pools), 1, dtype=torch.bool)
    for steps in range(1, most + 1):
        now = mass_share(replace(base, steps=steps), pools)
        result = torch.where(going, now, result)
        distance = 0.5 * (now - before).abs().sum(dim=1, keepdim=True) / pools.size
        going = going & (distance >= moved)
        before = now
    return result


def with_abstention(
    base: TokenTransportFilter, weight: float, pools: JudgedPools
) -> Float[Tensor, "B K"]:
    """The logarithm of the share plus the query's free-energy contrast: a poor pool keeps less."""
    result = token_transport(
        pools.maxima,
        pools.token_mask,
        pools.batch.candidate_mask,
        temperature=base.temperature,
        steps=base.steps,
    )
    contrast = result.abstention.double()[:, None] / base.temperature
    return result.share.double().clamp(min=1e-12).log() + weight * contrast


@dataclass
class Attempts:
    """Gathers the differences of every variant over datasets."""

    seed: int = 0
    _parts: dict[tuple[str, str], dict[str, list[np.ndarray]]] = field(default_factory=dict)

    def add(
        self,
        tried: Sequence[Variant],
        default: Variant,
        parts: Mapping[str, Mapping[str, JudgedPools]],
        judgements: Judgements,
        unseen: slice,
    ) -> None:
        """One dataset.

        Args:
            parts: pools of ``tune`` and ``test`` by their source; variants that want larger ones
                than there are, are left out.
            unseen: queries of the tuning part that no weights were trained on.
        """
        for part, pools in parts.items():
            cuts = {source: Cuts(deep) for source, deep in pools.items()}
            ours = figures(default, cuts[default.source], judgements)
            for variant in tried:
                if variant.pool > pools[variant.source].size:
                    continue
                theirs = figures(variant, cuts[variant.source], judgements)
                rows = unseen if variant.trained and part == "tune" else slice(None)
                for measure in [name for name in ours if name in theirs]:
                    key = (variant.name, measure)
                    gathered = self._parts.setdefault(key, {"tune": [], "test": []})
                    gathered[part].append((theirs[measure] - ours[measure])[rows])

    def rows(self) -> list[VariantRow]:
        """A row per variant and measure."""
        found = []
        for (variant, measure), parts in self._parts.items():
            tune = mean_difference(parts["tune"], self.seed)
            test = mean_difference(parts["test"], self.seed)
            wins = tune.low > 0 and test.mean >= 0
            loses = tune.high < 0
            verdict = "wins" if wins else "loses" if loses else "no difference shown"
            found.append(VariantRow(variant, measure, tune, test, verdict))
        return found


class Cuts:
    """Deep pools cut to the sizes that variants want; each cut is made once."""

    def __init__(self, deep: JudgedPools) -> None:
        self._deep = deep
        self._made: dict[int, tuple[JudgedPools, JudgedPools | None]] = {}

    def __call__(self, size: int) -> tuple[JudgedPools, JudgedPools | None]:
        """The pools of that size, and null pools where there is enough to fill them up."""
        if size not in self._made:
            enough = size + int(self._deep.gold.sum(dim=1).max()) <= self._deep.size
            null = self._deep.without_gold(size) if enough else None
            self._made[size] = self._deep.top(size), null
        return self._made[size]


def figures(variant: Variant, cuts: Cuts, judgements: Judgements) -> dict[str, np.ndarray]:
    """Per query: recall at every budget, nDCG@10, and recall where null pools share the budget.

    The last only where there are null pools.
    """
    pools, null = cuts(variant.pool)
    values = variant.statistic(pools).double()
    array = values.numpy()
    found = {
        f"recall at {budget:g}": (cut_at(array, budget).kept(array) * pools.gain).sum(axis=1)
        for budget in BUDGETS
    }
    order = descending_order(values, torch.ones_like(values, dtype=torch.bool))
    rows = pools.rows.gather(1, order)
    runs = {
        query.id: [str(row) for row in ordered]
        for query, ordered in zip(pools.queries, rows.tolist(), strict=True)
    }
    found[NDCG] = per_query(runs, by_row(pools, judgements), [NDCG])[NDCG]
    if null is not None:
        both = np.concatenate([array, variant.statistic(null).double().numpy()])
        kept = cut_at(both, 3.0).kept(both)[: len(array)]
        found[NULL_RECALL] = (kept * pools.gain).sum(axis=1)
    return found


def by_row(pools: JudgedPools, judgements: Judgements) -> dict[str, dict[str, int]]:
    """Judgements by corpus row; relevant passages outside the pool keep their id and count."""
    found: dict[str, dict[str, int]] = {}
    for place, query in enumerate(pools.queries):
        graded = dict(
            zip(map(str, pools.rows[place].tolist()), pools.grades[place].tolist(), strict=True)
        )
        inside = [grade for grade in graded.values() if grade > 0]
        missed = sorted((g for g in judgements[query.id].values() if g > 0), reverse=True)
        for grade in inside:
            missed.remove(grade)
        found[query.id] = {row: grade for row, grade in graded.items() if grade > 0}
        found[query.id] |= {f"missed {i}": grade for i, grade in enumerate(missed)}
    return found
