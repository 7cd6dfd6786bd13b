"""Table 1: the protocol of Ricci-Filtration (arXiv 2606.15482), from one pool to five passages.

Every system takes the same dense top 20 and hands out its best 5. A filter that leaves fewer hands
out fewer. The ablations change one setting of the published filter at a time, or replace it by a
clustering of the pool, and rerank what is left in the same way.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ricci_gpu.config import Config
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.evaluation.bootstrap import Difference, paired_difference
from ricci_gpu.evaluation.clusters import CLUSTERINGS, query_cluster
from ricci_gpu.evaluation.matched_budget import cut_at
from ricci_gpu.evaluation.metrics import Judgements, per_query
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.evaluation.rerankers import PoolScorer, cosine_order
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.shapes import Bool, Float, Tensor
from ricci_gpu.stages import Filter
from ricci_gpu.stages.ricci_filter import RicciFilter

TOP = 5
NO_RERANKER = "no reranker"
# Mean number kept of 20, as published for the paper's own embeddings.
PUBLISHED_KEPT = {
    "preset": 16.7,
    "p=5": 15.9,
    "p=1": 13.5,
    "percentile=25": 17.0,
    "percentile=75": 16.0,
    "iterations=10": 14.8,
    "iterations=1": 10.4,
    "pool 10": 7.0,
}
# Answer accuracy in percent, about 100 questions, as published with a commercial generator.
PUBLISHED_ACCURACY = {
    "preset": 74.0,
    "iterations=10": 71.0,
    "iterations=1": 65.0,
    "percentile=25": 69.0,
    "percentile=75": 64.0,
}


@dataclass(frozen=True)
class SystemRow:
    """One system on one dataset, means over queries.

    Args:
        ndcg_full: nDCG@10 of the full order, survivors first.
        ndcg_survivors: nDCG@10 of the survivors alone.
        recall_5, precision_5, success_5: of the five passages handed out.
        mrr: reciprocal rank of the first relevant survivor within ten.
        over_plain: ``ndcg_survivors`` minus that of the pool without filter and reranker.
    """

    dataset: str
    system: str
    queries: int
    kept: float
    empty_rate: float
    gold_recall: float
    ndcg_full: float
    ndcg_survivors: float
    recall_5: float
    precision_5: float
    success_5: float
    mrr: float
    over_plain: Difference


@dataclass(frozen=True)
class AblationRow:
    """The published filter with one change, then one reranker.

    Args:
        fixed_k_recall: gold recall of the same number of passages by cosine.
    """

    dataset: str
    change: str
    reranker: str
    queries: int
    kept: float
    gold_recall: float
    fixed_k_recall: float
    ndcg_survivors: float
    recall_5: float
    published_kept: float | None
    published_accuracy: float | None


@dataclass(frozen=True)
class System:
    """A filter and what orders its survivors; ``reranker`` None means the filter's own score."""

    name: str
    filter: Filter | None
    reranker: PoolScorer | None


def systems(config: Config, rerankers: Mapping[str, PoolScorer]) -> list[System]:
    """The systems of the protocol: every reranker alone, and after both filters."""
    published = Config.load("ricci_filtration").filter
    rows = [System(NO_RERANKER, None, cosine_order)]
    rows += [System(name, None, order) for name, order in rerankers.items()]
    for name, order in rerankers.items():
        rows.append(System(f"Ricci-Filtration, then {name}", published, order))
    rows.append(System("default", config.filter, None))
    for name, order in rerankers.items():
        rows.append(System(f"default filter, then {name}", config.filter, order))
    return rows


@dataclass(frozen=True)
class Outcome:
    """Order and survivors of one system."""

    score: Float[Tensor, "B K"]
    keep: Bool[Tensor, "B K"]


def run_system(system: System, pools: JudgedPools) -> Outcome:
    """What a system makes of pools."""
    keep = torch.ones_like(pools.batch.keep)
    own = pools.cosine.double()
    if system.filter is not None:
        result = pools.run(system.filter)
        keep, own = result.keep, result.score.double()
    return Outcome(own if system.reranker is None else system.reranker(pools, keep), keep)


def ranked_ids(
    store: CorpusStore, pools: JudgedPools, outcome: Outcome, survivors_only: bool
) -> dict[str, list[str]]:
    """Ordered passage ids by query: survivors first, then the dropped by the same score."""
    order = descending_order(outcome.score, outcome.keep)
    if not survivors_only:
        # What is not kept has the place after all that is, and may lack a score.
        dropped = torch.where(torch.isfinite(outcome.score), outcome.score, pools.cosine.double())
        later = descending_order(dropped, ~outcome.keep)
    runs = {}
    for place, query in enumerate(pools.queries):
        kept = int(outcome.keep[place].sum())
        columns = order[place, :kept].tolist()
        if not survivors_only:
            columns += later[place, : pools.size - kept].tolist()
        runs[query.id] = [store.passages[int(pools.rows[place, c])].id for c in columns]
    return runs


def protocol(
    dataset: str,
    store: CorpusStore,
    pools: JudgedPools,
    judgements: Judgements,
    compared: Sequence[System],
    seed: int = 0,
) -> tuple[list[SystemRow], dict[str, np.ndarray]]:
    """Every system on the same pools, and the nDCG@10 of its survivors for each query."""
    ndcg: dict[str, np.ndarray] = {}
    rows = []
    for system in compared:
        outcome = run_system(system, pools)
        survivors = ranked_ids(store, pools, outcome, survivors_only=True)
        figures = per_query(
            survivors,
            judgements,
            ["nDCG@10", f"R@{TOP}", f"P@{TOP}", f"Success@{TOP}", "RR@10"],
        )
        full = per_query(
            ranked_ids(store, pools, outcome, survivors_only=False), judgements, ["nDCG@10"]
        )
        ndcg[system.name] = figures["nDCG@10"]
        plain = next(iter(ndcg.values()))
        count = outcome.keep.sum(dim=1).double()
        rows.append(
            SystemRow(
                dataset=dataset,
                system=system.name,
                queries=len(pools),
                kept=float(count.mean()),
                empty_rate=float((count == 0).double().mean()),
                gold_recall=float((outcome.keep.numpy() * pools.gain).sum(axis=1).mean()),
                ndcg_full=float(full["nDCG@10"].mean()),
                ndcg_survivors=float(figures["nDCG@10"].mean()),
                recall_5=float(figures[f"R@{TOP}"].mean()),
                precision_5=float(figures[f"P@{TOP}"].mean()),
                success_5=float(figures[f"Success@{TOP}"].mean()),
                mrr=float(figures["RR@10"].mean()),
                over_plain=paired_difference(figures["nDCG@10"], plain, seed),
            )
        )
    return rows, ndcg


def ablations(
    dataset: str,
    store: CorpusStore,
    pools: JudgedPools,
    judgements: Judgements,
    rerankers: Mapping[str, PoolScorer],
    pool_sizes: Sequence[int],
    size: int,
) -> list[AblationRow]:
    """The published filter with one change at a time, then each reranker.

    Args:
        pools: deep enough for the largest of ``pool_sizes``.
        size: pool of all changes but those of the pool size.
    """
    published = Config.load("ricci_filtration").filter
    assert isinstance(published, RicciFilter)
    changes: dict[str, RicciFilter] = {
        "preset": published,
        "rule=le": replace(published, rule="le"),
    }
    for percentile in (25.0, 75.0):
        changes[f"percentile={percentile:g}"] = replace(published, percentile=percentile)
    for p in (1.0, 5.0):
        changes[f"p={p:g}"] = replace(published, p=p)
    for iterations in (1, 10):
        changes[f"iterations={iterations}"] = replace(published, iterations=iterations)
    top = pools.top(size)
    rows = []
    for change, filter_ in changes.items():
        keep = top.run(filter_).keep
        rows += _ablation_rows(dataset, change, store, top, judgements, keep, rerankers)
    for other in pool_sizes:
        if other != size and other <= pools.size:
            cut = pools.top(other)
            keep = cut.run(published).keep
            rows += _ablation_rows(
                dataset, f"pool {other}", store, cut, judgements, keep, rerankers
            )
    for name, cluster in CLUSTERINGS.items():
        assert top.batch.node_emb is not None
        keep = query_cluster(top.batch.node_emb, cluster)
        rows += _ablation_rows(dataset, name, store, top, judgements, keep, rerankers)
    return rows


def _ablation_rows(
    dataset: str,
    change: str,
    store: CorpusStore,
    pools: JudgedPools,
    judgements: Judgements,
    keep: Bool[Tensor, "B K"],
    rerankers: Mapping[str, PoolScorer],
) -> list[AblationRow]:
    kept = float(keep.sum(dim=1).double().mean())
    by_rank = np.broadcast_to(-np.arange(pools.size, dtype=float), keep.shape)
    fixed = (cut_at(by_rank, kept).kept(by_rank) * pools.gain).sum(axis=1)
    rows = []
    for name, order in rerankers.items():
        outcome = Outcome(order(pools, keep), keep)
        survivors = ranked_ids(store, pools, outcome, survivors_only=True)
        figures = per_query(survivors, judgements, ["nDCG@10", f"R@{TOP}"])
        rows.append(
            AblationRow(
                dataset=dataset,
                change=change,
                reranker=name,
                queries=len(pools),
                kept=kept,
                gold_recall=float((keep.numpy() * pools.gain).sum(axis=1).mean()),
                fixed_k_recall=float(fixed.mean()),
                ndcg_survivors=float(figures["nDCG@10"].mean()),
                recall_5=float(figures[f"R@{TOP}"].mean()),
                published_kept=PUBLISHED_KEPT.get(change),
                published_accuracy=PUBLISHED_ACCURACY.get(change),
            )
        )
    return rows
