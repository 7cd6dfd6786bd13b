"""Metrics of ranked lists (by ir-measures) and of filtered sets (their definitions are here)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ricci_gpu.errors import missing
from ricci_gpu.output import Hit, Ranking

Judgements = Mapping[str, Mapping[str, int]]  # query id -> passage id -> grade


@dataclass(frozen=True)
class Quality:
    """Means over the judged queries that were ranked.

    Args:
        ndcg_full: nDCG@10 of the full order: survivors first, then what was dropped.
        ndcg_survivors: nDCG@10 of the survivors alone: a dropped gold passage counts as missed.
        gold_recall: share of a query's relevant passages that survive the filter; those that were
            never retrieved count as missed.
        gold_precision: share of the survivors that are relevant; 0 for an empty set.
        mean_kept: survivors per query.
        empty_rate: share of queries without a survivor.
        queries: how many were judged.
    """

    ndcg_full: float
    ndcg_survivors: float
    gold_recall: float
    gold_precision: float
    mean_kept: float
    empty_rate: float
    queries: int


def survivors(ranking: Ranking) -> list[Hit]:
    """What the filter kept, best first, whatever `select.top_k` is."""
    return ranking.hits + [hit for hit in ranking.dropped if hit.kept]


def evaluate(rankings: Sequence[Ranking], judgements: Judgements) -> Quality:
    """Quality of rankings; queries without a relevant passage are left out.

    Raises:
        ValueError: no ranked query has a judgement.
    """
    judged = [r for r in rankings if _relevant(judgements, r.query_id)]
    if not judged:
        raise ValueError("none of the ranked queries has a relevant passage in the judgements.")
    full = {r.query_id: [hit.id for hit in (*r.hits, *r.dropped)] for r in judged}
    alive = {r.query_id: [hit.id for hit in survivors(r)] for r in judged}
    recall, precision = [], []
    for query, kept in alive.items():
        relevant = _relevant(judgements, query)
        found = len(relevant.intersection(kept))
        recall.append(found / len(relevant))
        precision.append(found / len(kept) if kept else 0.0)
    count = len(judged)
    return Quality(
        ndcg_full=ndcg(full, judgements),
        ndcg_survivors=ndcg(alive, judgements),
        gold_recall=sum(recall) / count,
        gold_precision=sum(precision) / count,
        mean_kept=sum(map(len, alive.values())) / count,
        empty_rate=sum(not kept for kept in alive.values()) / count,
        queries=count,
    )


def ndcg(runs: Mapping[str, Sequence[str]], judgements: Judgements, cutoff: int = 10) -> float:
    """Mean nDCG (linear gain, as trec_eval) of ordered passage ids; an empty run scores 0."""
    return float(per_query(runs, judgements, [f"nDCG@{cutoff}"])[f"nDCG@{cutoff}"].mean())


def per_query(
    runs: Mapping[str, Sequence[str]], judgements: Judgements, measures: Sequence[str]
) -> dict[str, np.ndarray]:
    """Measures of ordered passage ids, one value per run in the order of ``runs``.

    Args:
        measures: as ir-measures writes them: ``nDCG@10``, ``R@100``, ``P@5``, ``RR@10``,
            ``Success@5``. An empty run scores 0.
    """
    ir_measures = _ir_measures()
    wanted = [ir_measures.parse_measure(measure) for measure in measures]
    # trec_eval sorts by score: descending ranks keep the order given.
    run = {q: {doc: float(-i) for i, doc in enumerate(docs)} for q, docs in runs.items() if docs}
    truth = {q: dict(judgements[q]) for q in runs}
    place = {query: row for row, query in enumerate(runs)}
    values = {str(measure): np.zeros(len(runs)) for measure in wanted}
    for each in ir_measures.iter_calc(wanted, truth, run):
        values[str(each.measure)][place[each.query_id]] = each.value
    return {measure: values[str(parsed)] for measure, parsed in zip(measures, wanted, strict=True)}


def _ir_measures() -> Any:
    try:
        import ir_measures
    except ImportError as error:
        raise missing("ir-measures", "a ranking measure", "eval") from error
    return ir_measures


def _relevant(judgements: Judgements, query: str) -> set[str]:
    return {doc for doc, grade in judgements.get(query, {}).items() if grade > 0}
