import numpy as np
import pytest

from ricci_gpu.config import Config
from ricci_gpu.evaluation.matched_budget import compare
from ricci_gpu.evaluation.overall import best_control_overall, overall
from ricci_gpu.evaluation.rules import FIXED_K, catalogue

NAMES = (
    "no reranker",
    "MaxSim",
    "Ricci-Filtration, then MaxSim",
    "default",
    "default filter, then MaxSim",
)


def test_every_dataset_has_the_same_weight(pools_of):
    every = catalogue(Config.load("default", ["retrieve.k=20"]), 20, 20)
    rules = [rule for rule in every if rule.name not in ("HDBSCAN", "2-means")]
    tune, test = pools_of("tune"), pools_of("test")
    one = compare("one", rules, tune, test)
    other = compare("other", rules, test.some(range(10)), tune)
    ndcg = [{name: np.full(4, float(i)) for i, name in enumerate(NAMES)} for _ in range(2)]
    rows = {(r.measure, r.ours, r.theirs, r.part): r for r in overall([one, other], ndcg)}

    row = rows["recall at 3 kept", "default", FIXED_K, "test"]
    each = [
        float((c.decided["default"].test.recall(3.0) - c.decided[FIXED_K].test.recall(3.0)).mean())
        for c in (one, other)
    ]
    assert row.difference.mean == pytest.approx(sum(each) / 2)
    assert row.difference.queries == len(test) + len(tune)

    own = rows["recall at the number it keeps by itself", "ricci ge", FIXED_K, "test"]
    gaps = [
        r.recall - r.fixed_k_recall for c in (one, other) for r in c.own if r.rule == "ricci ge"
    ]
    assert own.difference.mean == pytest.approx(sum(gaps) / 2)

    survivors = "nDCG@10 of the survivors"
    assert rows[survivors, "default", "MaxSim", "test"].difference.mean == 2
    assert rows[survivors, "Ricci-Filtration, then MaxSim", "MaxSim", "test"].difference.mean == 1
    assert rows[survivors, "MaxSim", "no reranker", "test"].difference.mean == 1

    best = best_control_overall([one, other], 3.0)
    assert one.decided[best].rule.kind in ("score", "structure")
