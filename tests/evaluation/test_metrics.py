"""Measures against values computed by hand."""

import math

import pytest

from ricci_gpu.evaluation.metrics import evaluate, ndcg, per_query
from ricci_gpu.output import Hit, Ranking

JUDGEMENTS = {"one": {"a": 1, "b": 2, "x": 0}, "two": {"c": 1}}


def test_measures_of_ordered_ids():
    runs = {"one": ["x", "a", "b"], "two": ["y"] * 0}
    found = per_query(runs, JUDGEMENTS, ["nDCG@10", "R@2", "P@2", "RR@10", "Success@1"])
    gain = 1 / math.log2(3) + 2 / math.log2(4)
    ideal = 2 + 1 / math.log2(3)
    assert found["nDCG@10"].tolist() == pytest.approx([gain / ideal, 0])
    assert found["R@2"].tolist() == [0.5, 0]
    assert found["P@2"].tolist() == [0.5, 0]
    assert found["RR@10"].tolist() == [0.5, 0]
    assert found["Success@1"].tolist() == [0, 0]
    assert ndcg(runs, JUDGEMENTS) == pytest.approx(gain / ideal / 2)


def _hit(name: str, kept: bool) -> Hit:
    return Hit(0, name, score=None, kept=kept, reason="", filter_value=None)


def test_sets_and_both_orders():
    rankings = [
        Ranking("one", "", [_hit("x", True), _hit("a", True)], [_hit("b", False)], "ok", None),
        Ranking("two", "", [], [_hit("c", False)], "ok", None),
        Ranking("unjudged", "", [_hit("a", True)], [], "ok", None),
    ]
    quality = evaluate(rankings, JUDGEMENTS)
    assert quality.queries == 2
    assert quality.gold_recall == pytest.approx((0.5 + 0) / 2)
    assert quality.gold_precision == pytest.approx((0.5 + 0) / 2)
    assert quality.mean_kept == 1
    assert quality.empty_rate == 0.5
    ideal = 2 + 1 / math.log2(3)
    kept_only = (1 / math.log2(3)) / ideal
    full = (1 / math.log2(3) + 2 / math.log2(4)) / ideal
    assert quality.ndcg_survivors == pytest.approx(kept_only / 2)
    assert quality.ndcg_full == pytest.approx((full + 1) / 2)


def test_nothing_judged_is_an_error():
    with pytest.raises(ValueError, match="none of the ranked queries has a relevant passage"):
        evaluate([Ranking("unjudged", "", [], [], "ok", None)], JUDGEMENTS)
