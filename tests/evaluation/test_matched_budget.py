import numpy as np
import pytest

from ricci_gpu.config import Config
from ricci_gpu.evaluation.matched_budget import compare, cut_at
from ricci_gpu.evaluation.rules import FIXED_K, catalogue


def test_a_cut_keeps_exactly_the_budget():
    rng = np.random.default_rng(0)
    for statistic in (rng.normal(size=(30, 8)), rng.integers(0, 3, size=(30, 8)).astype(float)):
        for budget in (0.01, 1.0, 2.5, 7.99, 8.0, 20.0):
            kept = cut_at(statistic, budget).kept(statistic)
            assert kept.sum() == pytest.approx(min(budget, 8) * 30, abs=1e-9)
            assert statistic[kept == 1].min(initial=np.inf) >= statistic[kept == 0].max(
                initial=-np.inf
            )


def test_between_two_values_of_the_knob_the_recall_is_linear():
    """Ranks 1, 2, 3 for two queries; the gold is second for one and third for the other."""
    statistic = -np.array([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]])
    gain = np.array([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])

    def recall(budget):
        return (cut_at(statistic, budget).kept(statistic) * gain).sum(axis=1).tolist()

    assert recall(1.0) == [0, 0]
    assert recall(1.25) == [0.25, 0]
    assert recall(2.0) == [1, 0]
    assert recall(2.5) == [1, 0.5]
    assert recall(3.0) == [1, 1]


def test_rows_of_one_dataset(pools_of):
    tune, test = pools_of("tune", 30), pools_of("test", 30)
    result = compare(
        "small", catalogue(Config.load("default", ["retrieve.k=20"]), 20, 30), tune, test
    )
    rows = {(row.rule, row.budget): row for row in result.rows}
    assert {row.budget for row in result.rows} == {2, 3, 5, 8}
    fixed = rows[FIXED_K, 3.0]
    assert fixed.recall == pytest.approx(test.gain[:, :3].sum(axis=1).mean())
    assert fixed.precision == pytest.approx(float(test.gold[:, :3].double().mean()))
    assert fixed.over_fixed_k.interval == [0, 0]
    assert (fixed.tuned_cut_kept, fixed.tuned_cut_recall) == (3, pytest.approx(fixed.recall))
    default = rows["default", 3.0]
    assert default.default_over.interval == [0, 0]
    assert fixed.default_over.mean == pytest.approx(default.recall - fixed.recall)
    assert abs(default.tuned_cut_kept - 3) < 1
    deep = rows["default filter, pool 30", 3.0]
    assert deep.pool == 30
    # the cut of the share: what it keeps is a head of the pooled order
    top = test.top(20)
    share = top.run(Config().filter).filter_value.double().numpy()
    cut = np.sort(share, axis=None)[::-1][3 * len(test)]
    assert default.recall == pytest.approx(((share > cut) * top.gain).sum(axis=1).mean())

    verdict = next(each for each in result.verdicts if each.budget == 3)
    controls = [
        row for row in result.rows if row.budget == 3 and row.kind in ("score", "structure")
    ]
    assert verdict.best_control == rows[verdict.control, 3.0].recall
    assert max(row.recall_tune for row in controls) == rows[verdict.control, 3.0].recall_tune
    assert verdict.difference.mean == pytest.approx(verdict.default - verdict.best_control)

    own = {row.rule: row for row in result.own}
    keep = top.run(Config().filter).keep
    assert own["default"].kept == pytest.approx(float(keep.sum(dim=1).double().mean()))
    assert own["default"].default_over.mean == pytest.approx(0, abs=1e-9)
    found = (keep & top.gold).sum(dim=1).double() / keep.sum(dim=1)
    assert own["default"].precision == pytest.approx(float(found.mean()))
    assert "DBSCAN" in own
    assert "z-score cosine" not in own


def test_small_pools_have_no_large_budgets(pools_of):
    result = compare(
        "small",
        catalogue(Config.load("default", ["retrieve.k=4"]), 4, 4),
        pools_of("tune", 4),
        pools_of("test", 4),
    )
    assert {row.budget for row in result.rows} == {2, 3}
