"""What the tables say over all datasets together, every dataset with the same weight."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from ricci_gpu.evaluation.bootstrap import Difference, mean_difference
from ricci_gpu.evaluation.matched_budget import BUDGETS, Comparison
from ricci_gpu.evaluation.paper_protocol import NO_RERANKER
from ricci_gpu.evaluation.rules import CONTROLS, FIXED_K

REFERENCES = (FIXED_K, "fixed k or fraction MaxSim", "ricci ge", "ricci le", "random")
PUBLISHED = ("ricci ge", "ricci le")
Part = Literal["tune", "test"]


@dataclass(frozen=True)
class OverallRow:
    """``ours`` minus ``theirs``, averaged over datasets."""

    measure: str
    ours: str
    theirs: str
    part: Part
    difference: Difference


def overall(
    comparisons: Sequence[Comparison],
    ndcg: Sequence[Mapping[str, np.ndarray]],
    seed: int = 0,
) -> list[OverallRow]:
    """The configured filter and the published one, over all datasets.

    Args:
        ndcg: nDCG@10 of the survivors by system and query, of every dataset.
    """
    rows = []
    for budget in BUDGETS:
        if not all(any(row.budget == budget for row in each.rows) for each in comparisons):
            continue  # pools of some dataset are too small
        control = best_control_overall(comparisons, budget)
        for theirs in dict.fromkeys([control, *REFERENCES]):
            for part in _PARTS:
                measure = f"recall at {budget:g} kept"
                gap = [_gap(each, "default", theirs, part, budget) for each in comparisons]
                rows.append(_row(measure, "default", theirs, part, gap, seed))
    for ours in PUBLISHED:
        gap = [_own_gap(each, ours) for each in comparisons]
        measure = "recall at the number it keeps by itself"
        rows.append(_row(measure, ours, FIXED_K, "test", gap, seed))
    for ours, theirs in _system_pairs(list(ndcg[0])):
        gap = [each[ours] - each[theirs] for each in ndcg]
        rows.append(_row("nDCG@10 of the survivors", ours, theirs, "test", gap, seed))
    return rows


def best_control_overall(comparisons: Sequence[Comparison], budget: float) -> str:
    """The control with the highest mean recall over the tuning parts."""

    def recall(name: str) -> float:
        found = [each.decided[name].tune.recall(budget).mean() for each in comparisons]
        return float(np.mean(found))

    decided = comparisons[0].decided
    names = [name for name, each in decided.items() if each.rule.kind in CONTROLS and each.has_knob]
    return max(names, key=recall)


_PARTS: tuple[Part, ...] = ("tune", "test")


def _row(
    measure: str, ours: str, theirs: str, part: Part, gap: list[np.ndarray], seed: int
) -> OverallRow:
    return OverallRow(measure, ours, theirs, part, mean_difference(gap, seed))


def _gap(each: Comparison, ours: str, theirs: str, part: Part, budget: float) -> np.ndarray:
    a, b = each.decided[ours], each.decided[theirs]
    if part == "tune":
        return a.tune.recall(budget) - b.tune.recall(budget)
    return a.test.recall(budget) - b.test.recall(budget)


def _own_gap(each: Comparison, name: str) -> np.ndarray:
    """A rule on its own terms minus the best k by cosine at the same mean number."""
    side = each.decided[name].test
    assert side.keep is not None  # filters decide by themselves
    recall: np.ndarray = (side.keep * side.gain).sum(axis=1)
    budget = float(side.keep.sum(axis=1).mean())
    return recall - each.decided[FIXED_K].test.recall(budget)


def _system_pairs(names: list[str]) -> list[tuple[str, str]]:
    """What each system is compared with: itself without the filter, or no reranker."""
    pairs = [("default", NO_RERANKER), ("default", "MaxSim")]
    for name in names:
        head, _, reranker = name.partition(", then ")
        if reranker:
            pairs.append((name, reranker))
        elif head not in ("default", NO_RERANKER):
            pairs.append((head, NO_RERANKER))
    return pairs
