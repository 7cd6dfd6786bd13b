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
from ricci_gpu.evaluation.rules import CONTROLS, FIXED_K, Rule

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
class Side:
    """What a rule decided about the pools of one part, with what they hold.

    Args:
        statistic, keep: as in `Decision`.
        gain: recall that each candidate adds.
        gold: which candidates are relevant.
    """

    statistic: np.ndarray | None
    keep: np.ndarray | None
    gain: np.ndarray
    gold: np.ndarray

    @classmethod
    def of(cls, rule: Rule, pools: JudgedPools) -> "Side":
        decision = rule.decide(pools)
        return cls(
            None if decision.statistic is None else decision.statistic.numpy(),
            None if decision.keep is None else decision.keep.numpy(),
            pools.gain,
            pools.gold.numpy(),
        )

    def cut(self, budget: float) -> Cut:
        """The cut that meets the budget here."""
        assert self.statistic is not None  # asked of rules with a knob only
        return cut_at(self.statistic, budget)

    def kept(self, cut: Cut) -> np.ndarray:
        """Probability that each candidate is kept."""
        assert self.statistic is not None
        return cut.kept(self.statistic)

    def recall(self, budget: float) -> np.ndarray:
        """Expected gold recall of each query at the budget."""
        found: np.ndarray = (self.kept(self.cut(budget)) * self.gain).sum(axis=1)
        return found


@dataclass(frozen=True)
class Decided:
    """A rule with its decisions on the tuning part and on the reported part."""

    rule: Rule
    tune: Side
    test: Side

    @property
    def has_knob(self) -> bool:
        return self.test.statistic is not None


@dataclass(frozen=True)
class BudgetRow:
    """One rule at one budget. Recall is of all relevant passages, retrieved or not.

    Args:
        pool: candidates that the rule reads.
        recall_tune, recall: on the tuning and on the reported part, at exactly the budget.
        over_fixed_k: against the best k by cosine at the same budget.
        default_over: the configured filter minus this rule.
        tuned_cut_kept, tuned_cut_recall: with the cut that meets the budget on the tuning part.
    """

    dataset: str
    budget: float
    rule: str
    kind: str
    pool: int
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
    pool: int
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


def compare(
    dataset: str,
    rules: Sequence[Rule],
    tune: JudgedPools,
    test: JudgedPools,
    seed: int = 0,
) -> Comparison:
    """All rules on one dataset, among them ``default`` and `FIXED_K`.

    Args:
        tune, test: pools of the tuning part and of the part that is reported, deep enough for the
            rule that reads most.
    """
    decided = {
        rule.name: Decided(
            rule, Side.of(rule, tune.top(rule.pool)), Side.of(rule, test.top(rule.pool))
        )
        for rule in rules
    }
    rows, verdicts = [], []
    for budget in BUDGETS:
        if all(budget < rule.pool for rule in rules):
            here = budget_rows(dataset, decided, budget, seed)
            rows += here
            verdicts.append(_verdict(dataset, decided, budget, here, seed))
    own = [
        own_row(dataset, each, decided, seed)
        for each in decided.values()
        if each.test.keep is not None
    ]
    return Comparison(dataset, rows, own, verdicts, decided)


def budget_rows(
    dataset: str, decided: Mapping[str, Decided], budget: float, seed: int
) -> list[BudgetRow]:
    """Every rule that has a knob, at one budget."""
    default = decided["default"].test.recall(budget)
    fixed = decided[FIXED_K].test.recall(budget)
    rows = []
    for name, each in decided.items():
        if not each.has_knob:
            continue
        test = each.test
        kept = test.kept(test.cut(budget))
        tuned = test.kept(each.tune.cut(budget))
        recall = test.recall(budget)
        rows.append(
            BudgetRow(
                dataset=dataset,
                budget=budget,
                rule=name,
                kind=each.rule.kind,
                pool=each.rule.pool,
                recall_tune=float(each.tune.recall(budget).mean()),
                recall=float(recall.mean()),
                precision=float((kept * test.gold).sum() / kept.sum()),
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
    budget: float,
    rows: Sequence[BudgetRow],
    seed: int,
) -> Verdict:
    control = best_control(rows)
    ours, theirs = decided["default"], decided[control.rule]
    default = next(row for row in rows if row.rule == "default")
    return Verdict(
        dataset=dataset,
        budget=budget,
        control=control.rule,
        default=default.recall,
        best_control=control.recall,
        difference=paired_difference(ours.test.recall(budget), theirs.test.recall(budget), seed),
        difference_tune=paired_difference(
            ours.tune.recall(budget), theirs.tune.recall(budget), seed
        ),
    )


def own_row(dataset: str, each: Decided, decided: Mapping[str, Decided], seed: int) -> OwnRow:
    """A rule at the number that it keeps by itself, with fixed k and the default at that number."""
    test = each.test
    assert test.keep is not None
    recall = (test.keep * test.gain).sum(axis=1)
    count = test.keep.sum(axis=1)
    precision = (test.keep * test.gold).sum(axis=1) / np.maximum(count, 1)
    f1 = 2 * precision * recall / np.maximum(precision + recall, 1e-12)
    budget = float(count.mean())
    fixed = decided[FIXED_K].test.recall(budget)
    default = decided["default"].test.recall(budget)
    return OwnRow(
        dataset=dataset,
        rule=each.rule.name,
        kind=each.rule.kind,
        pool=each.rule.pool,
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


def curve(each: Decided, points: Sequence[float]) -> list[tuple[float, float]]:
    """(mean kept, gold recall) of a rule with a knob."""
    return [(k, float(each.test.recall(k).mean())) for k in points]
