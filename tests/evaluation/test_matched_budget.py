import numpy as np
import pytest

from ricci_gpu.config import Config
from ricci_gpu.evaluation.matched_budget import compare, cut_at
from ricci_gpu.evaluation.rules import catalogue


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


def test_smoke(pools_of):
    tune, test = pools_of("tune"), pools_of("test")
    result = compare("small", catalogue(Config()), tune, test)
    for r in result.rows:
        print(r.budget, r.rule, round(r.recall, 3), r.over_fixed_k.interval)
    for r in result.own:
        print(r.rule, r.kept, r.recall)
    print(result.verdicts)
