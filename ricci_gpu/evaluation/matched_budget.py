"""Table 2: every filter and control by gold recall at the same mean number kept.

A rule with a knob is cut so that it keeps exactly the budget on average. The cut between two
neighbouring values of the knob is a mixture of both, which is linear in the budget, as a threshold
that falls between two values in a share of the runs would be. Setting the knob reads no judgement,
so it is done on the pools that are reported; what reads judgements (which control is the best) is
chosen on the tuning part. The same table also applies the cut of the tuning part unchanged, with
the number kept that results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ricci_gpu.evaluation.bootstrap import Difference, paired_difference
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.evaluation.rules import CONTROLS, FIXED_K, Decision, Rule

BUDGETS = (2.0, 3.0, 5.0, 8.0)


@dataclass(frozen=True)
class Cut:
    """Keep what lies above ``value``, and in a share ``mixed`` of the runs also what equals it."""

    value: float
    mixed: float

    def kept(self, statistic: np.ndarray) -> np.ndarray:
        """Probability that each candidate is kept, ``[B K]``."""
        return np.where(
            statistic > self.value, 1.0, np.where(statistic == self.value, self.mixed, 0.0)
        )


def cut_at(statistic: np.ndarray, budget: float) -> Cut:
    """The cut that keeps ``budget`` candidates per query on average, exactly."""
    wanted = budget * len(statistic)
    ordered = np.sort(statistic, axis=None)[::-1]
    if wanted >= len(ordered):
        return Cut(-np.inf, 1.0)
    value = ordered[int(wanted)]
    above = np.count_nonzero(statistic > value)
    equal = np.count_nonzero(statistic == value)
    return Cut(float(value), (wanted - above) / equal)


@dataclass(frozen=True)
class Decided:
    """A rule with its decisions, as arrays, on the tuning and the reported part."""

    rule: Rule
    tune: Decision
    test: Decision

    def recall(self, part: str, gain: np.ndarray, budget: float) -> np.ndarray:
        """Expected gold recall of each query at the budget."""
        statistic = self.statistic(part)
        return (cut_at(statistic, budget).kept(statistic) * gain).sum(axis=1)

    def statistic(self, part: str) -> np.ndarray:
        statistic = getattr(self, part).statistic
        assert statistic is not None  # asked of rules with a knob only
        return np.asarray(statistic.numpy())

    @property
    def has_knob(self) -> bool:
        return self.test.statistic is not None


@dataclass(frozen=True)
class BudgetRow:
    """One rule at one budget. Recall is of all relevant passages, retrieved or not.

    Args:
        recall_tune, recall: on the tuning and on the reported part, at exactly the budget.
        over_fixed_k: against the best k by cosine at the same budget.
        default_over: the configured filter minus this rule.
        tuned_cut_kept, tuned_cut_recall: with the cut that meets the budget on the tuning part.
    """

    dataset: str
    budget: float
    rule: str
    kind: str
    recall_tune: float
    recall: float
    precision: float
    over_fixed_k: Difference
    default_over: Difference
    tuned_cut_kept: float
    tuned_cut_recall: float


@dataclass(frozen=True)
class OwnRow:
    """A rule on its own terms, beside others at the number that it keeps."""

    dataset: str
    rule: str
    kind: str
    kept: float
    recall: float
    precision: float
    f1: float
    empty_rate: float
    fixed_k_recall: float
    over_fixed_k: Difference
    default_recall: float
    default_over: Difference


@dataclass(frozen=True)
class Verdict:
    """The configured filter against the control that was best on the tuning part."""

    dataset: str
    budget: float
    control: str
    default: float
    best_control: float
    difference: Difference
    difference_tune: Difference


@dataclass(frozen=True)
class Comparison:
    """Everything that table 2 says about one dataset."""

    dataset: str
    rows: list[BudgetRow]
    own: list[OwnRow]
    verdicts: list[Verdict]
    decided: Mapping[str, Decided]
    tune: JudgedPools
    test: JudgedPools


def compare(
    dataset: str,
    rules: Sequence[Rule],
    tune: JudgedPools,
    test: JudgedPools,
    budgets: Sequence[float] = BUDGETS,
    seed: int = 0,
) -> Comparison:
    """All rules on one dataset.

    Args:
        tune, test: pools of the tuning part and of the part that is reported.
    """
    decided = {rule.name: Decided(rule, rule.decide(tune), rule.decide(test)) for rule in rules}
    rows, verdicts = [], []
    for budget in budgets:
        if budget >= test.size:
            continue
        here = budget_rows(dataset, decided, tune, test, budget, seed)
        rows += here
        verdicts.append(_verdict(dataset, decided, tune, test, budget, here, seed))
    own = [
        own_row(dataset, each, decided, test, seed)
        for each in decided.values()
        if each.test.keep is not None
    ]
    return Comparison(dataset, rows, own, verdicts, decided, tune, test)


def budget_rows(
    dataset: str,
    decided: Mapping[str, Decided],
    tune: JudgedPools,
    test: JudgedPools,
    budget: float,
    seed: int,
) -> list[BudgetRow]:
    """Every rule that has a knob, at one budget."""
    default = decided["default"].recall("test", test.gain, budget)
    fixed = decided[FIXED_K].recall("test", test.gain, budget)
    gold = test.gold.numpy()
    rows = []
    for name, each in decided.items():
        if not each.has_knob:
            continue
        statistic = each.statistic("test")
        kept = cut_at(statistic, budget).kept(statistic)
        recall = (kept * test.gain).sum(axis=1)
        tuned = cut_at(each.statistic("tune"), budget).kept(statistic)
        rows.append(
            BudgetRow(
                dataset=dataset,
                budget=budget,
                rule=name,
                kind=each.rule.kind,
                recall_tune=float(each.recall("tune", tune.gain, budget).mean()),
                recall=float(recall.mean()),
                precision=float((kept * gold).sum() / kept.sum()),
                over_fixed_k=paired_difference(recall, fixed, seed),
                default_over=paired_difference(default, recall, seed),
                tuned_cut_kept=float(tuned.sum(axis=1).mean()),
                tuned_cut_recall=float((tuned * test.gain).sum(axis=1).mean()),
            )
        )
    return rows


def best_control(rows: Sequence[BudgetRow]) -> BudgetRow:
    """The control with the highest recall on the tuning part."""
    return max((row for row in rows if row.kind in CONTROLS), key=lambda row: row.recall_tune)


def _verdict(
    dataset: str,
    decided: Mapping[str, Decided],
    tune: JudgedPools,
    test: JudgedPools,
    budget: float,
    rows: Sequence[BudgetRow],
    seed: int,
) -> Verdict:
    control = best_control(rows)

    def difference(part: str, pools: JudgedPools) -> Difference:
        ours = decided["default"].recall(part, pools.gain, budget)
        return paired_difference(ours, decided[control.rule].recall(part, pools.gain, budget), seed)

    default = next(row for row in rows if row.rule == "default")
    return Verdict(
        dataset=dataset,
        budget=budget,
        control=control.rule,
        default=default.recall,
        best_control=control.recall,
        difference=difference("test", test),
        difference_tune=difference("tune", tune),
    )


def own_row(
    dataset: str,
    each: Decided,
    decided: Mapping[str, Decided],
    test: JudgedPools,
    seed: int,
) -> OwnRow:
    """A rule at the number that it keeps by itself, with fixed k and the default at that number."""
    assert each.test.keep is not None
    keep = each.test.keep.numpy()
    recall = (keep * test.gain).sum(axis=1)
    count = keep.sum(axis=1)
    precision = (keep * test.gold.numpy()).sum(axis=1) / np.maximum(count, 1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    budget = float(count.mean())
    fixed = decided[FIXED_K].recall("test", test.gain, budget)
    default = decided["default"].recall("test", test.gain, budget)
    return OwnRow(
        dataset=dataset,
        rule=each.rule.name,
        kind=each.rule.kind,
        kept=budget,
        recall=float(recall.mean()),
        precision=float(precision.mean()),
        f1=float(f1.mean()),
        empty_rate=float((count == 0).mean()),
        fixed_k_recall=float(fixed.mean()),
        over_fixed_k=paired_difference(recall, fixed, seed),
        default_recall=float(default.mean()),
        default_over=paired_difference(default, recall, seed),
    )


def curve(each: Decided, test: JudgedPools, points: Sequence[float]) -> list[tuple[float, float]]:
    """(mean kept, gold recall) of a rule with a knob."""
    return [(k, float(each.recall("test", test.gain, k).mean())) for k in points]
