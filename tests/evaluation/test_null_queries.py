import gzip
import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from ricci_gpu.config import Config
from ricci_gpu.corpus.judged import part_of_passage
from ricci_gpu.errors import InputError
from ricci_gpu.evaluation.null_queries import (
    abstention_curve,
    abstention_features,
    auc,
    gold_removed,
    impossible,
    impossible_questions,
)


def test_auc_counts_ties_half():
    assert auc(np.array([1.0, 2.0]), np.array([1.0, 0.0])) == (0.5 + 1 + 1 + 1) / 4
    rng = np.random.default_rng(0)
    a, b = rng.integers(0, 9, 50).astype(float), rng.integers(0, 7, 70).astype(float)
    truth = roc_auc_score(np.r_[np.ones(50), np.zeros(70)], np.r_[a, b])
    assert auc(a, b) == pytest.approx(truth)


def test_the_curve_goes_from_answering_all_to_turning_null_queries_away():
    curve = abstention_curve(np.arange(5.0) + 3, np.arange(5.0), points=5)
    assert curve[0] == (0.0, 1.0)
    assert curve[-1] == (0.8, 0.8)


def test_null_pools_hold_no_gold_and_are_filled_up(pools_of):
    pools = pools_of(size=30)
    null = pools.without_gold(20)
    assert null.size == 20
    assert not null.gold.any()
    first = pools.rows[0][~pools.gold[0]][:20]
    assert null.rows[0].tolist() == first.tolist()


def test_pools_that_are_too_small_are_refused(pools_of):
    with pytest.raises(InputError, match="holds too few irrelevant passages for null pools of 20"):
        pools_of(size=20).without_gold(20)
    with pytest.raises(InputError, match="pools of 5 candidates cannot be cut to 6"):
        pools_of(size=5).top(6)
    with pytest.raises(InputError, match="pools of 500 need a corpus of at least as many"):
        pools_of(size=500)


def test_gold_removed(pools_of):
    pools = pools_of(size=30)
    table = gold_removed("small", Config(), pools, 20)
    rows = {row.feature: row for row in table.rows}
    holds = pools.top(20).gold.any(dim=1).nonzero()[:, 0].tolist()
    full, null = pools.top(20).some(holds), pools.some(holds).without_gold(20)
    best = full.cosine[:, 0].numpy(), null.cosine[:, 0].numpy()
    assert rows["max_cosine"].auc.mean == pytest.approx(auc(*best))
    assert rows["max_cosine"].over_max_cosine.interval == [0, 0]
    assert rows["maxsim_contrast"].auc.mean > 0.7  # the words of the answer are missing
    for row in table.rows:
        assert row.auc.low <= row.auc.mean <= row.auc.high
        over = rows[row.feature].auc.mean - rows["max_cosine"].auc.mean
        assert row.over_max_cosine.mean == pytest.approx(over)
    assert {"default", "ricci_ge_dropped", "ricci_le_first", "cosine_gap"} <= set(rows)


def test_the_default_offers_what_its_filter_reports(pools_of):
    pools = pools_of()
    config = Config()
    features = abstention_features(config, pools)
    assert np.array_equal(features["default"], pools.run(config.filter).abstention.numpy())
    silent = Config.load("default", ["filter.type=fixed_k"])
    assert "default" not in abstention_features(silent, pools)


def test_impossible_questions_of_a_part(tmp_path, pools_of):
    assert impossible_questions(tmp_path, "test", None) is None
    rows = [
        {"_id": f"i{i}", "text": "which topic1", "source": f"p{i}", "impossible": i % 2 == 0}
        for i in range(40)
    ]
    with gzip.open(tmp_path / "queries_all.jsonl.gz", "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    found = impossible_questions(tmp_path, "test", None)
    wanted = {f"i{i}" for i in range(0, 40, 2) if part_of_passage(f"p{i}") == "test"}
    assert {query.id for query in found.queries} == wanted
    assert len(impossible_questions(tmp_path, "test", 3).queries) == 3
    test, tune = pools_of("test"), pools_of("tune")
    table = impossible("small", Config(), test, tune)
    assert {row.kind for row in table.rows} == {"impossible"}
