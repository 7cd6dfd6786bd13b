"""The controls: plain rules that cut a scored list."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricci_gpu.ops.cutoffs import (
    autocut,
    candidate_degree,
    fixed_k,
    fraction,
    knee,
    largest_gap,
    otsu,
    query_component,
    random_k,
    ratio_to_top,
    relative_drop,
    threshold,
    z_scores,
    z_threshold,
)

INF, NAN = float("inf"), float("nan")
RULES = {
    "fixed_k": lambda s, m: fixed_k(s, m, 3),
    "fraction": lambda s, m: fraction(s, m, 0.4),
    "threshold": lambda s, m: threshold(s, m, 0.5),
    "z_threshold": lambda s, m: z_threshold(s, m, 0.3),
    "largest_gap": largest_gap,
    "autocut": autocut,
    "ratio_to_top": lambda s, m: ratio_to_top(s, m, 0.8),
    "knee": knee,
    "otsu": otsu,
}


@pytest.fixture(params=list(RULES))
def rule(request):
    return RULES[request.param]


def _kept(cut, scores: list[float], **settings) -> list[int]:
    score = torch.tensor([scores])
    return (
        cut(score, torch.ones_like(score, dtype=torch.bool), **settings)[0].nonzero()[:, 0].tolist()
    )


# -- what every rule has in common -----------------------------------------------------------


def test_padding_is_never_read_or_kept(rule):
    rng = np.random.default_rng(0)
    score = torch.from_numpy(rng.normal(size=(20, 9)))
    mask = torch.from_numpy(rng.random((20, 9)) < 0.7)
    mask[0] = False
    expected = rule(torch.where(mask, score, 0.0), mask)
    for poison in (NAN, INF, -INF):
        assert torch.equal(rule(torch.where(mask, score, poison), mask), expected)
    assert not (expected & ~mask).any()
    for i in range(20):  # the same list without padding
        alone = rule(score[i, mask[i]][None], torch.ones(1, int(mask[i].sum()), dtype=torch.bool))
        assert alone[0].tolist() == expected[i, mask[i]].tolist()


def test_permuting_distinct_scores_permutes_the_mask(rule):
    rng = np.random.default_rng(1)
    score = torch.from_numpy(rng.normal(size=(20, 9)))
    mask = torch.ones(20, 9, dtype=torch.bool)
    order = torch.from_numpy(rng.permutation(9))
    assert torch.equal(rule(score[:, order], mask), rule(score, mask)[:, order])


@given(
    st.lists(st.sampled_from([-INF, -2.0, 0.0, 0.5, 0.5, 1.0, 3.0]), min_size=0, max_size=8),
    st.sampled_from(sorted(RULES)),
)
def test_what_is_kept_is_a_head_of_the_sorted_list(scores, name):
    score = torch.tensor([scores], dtype=torch.float32).reshape(1, len(scores))
    kept = RULES[name](score, torch.ones_like(score, dtype=torch.bool))[0]
    if kept.any() and not kept.all():
        assert score[0, kept].min() >= score[0, ~kept].max()


def test_a_score_of_minus_infinity_is_the_worst_and_moves_no_cut(rule):
    """An empty document scores -inf; differences with it are infinite or NaN."""
    scores = [9.0, 8.8, 8.7, 5.0, 4.9, 4.8]
    for extra in (1, 2, 4):
        with_empty = _kept(rule, [*scores, *[-INF] * extra])
        if rule in (RULES["fraction"],):  # a share of all candidates, whatever they score
            assert set(with_empty) <= set(range(6))
        else:
            assert with_empty == _kept(rule, scores)


# -- one by one --------------------------------------------------------------------------------


def test_fixed_k_keeps_the_best_and_breaks_ties_by_the_lower_index():
    assert _kept(fixed_k, [1.0, 3.0, 2.0, 3.0, 2.0], k=3) == [1, 2, 3]
    assert _kept(fixed_k, [1.0, 2.0], k=5) == [0, 1]
    assert _kept(fixed_k, [1.0, 2.0], k=0) == []


def test_fraction_keeps_the_ceiling_of_the_share():
    """Exactly, for every whole percent and list of up to 300: 30 % of 50 is 15, never 16."""
    mask = torch.ones(300, 300, dtype=torch.bool).tril()
    count = torch.arange(1, 301)
    for percent in range(101):
        kept = fraction(torch.zeros(300, 300), mask, percent / 100).sum(dim=1)
        assert torch.equal(kept, -(-percent * count // 100))


def test_threshold_is_inclusive_and_may_keep_nothing():
    assert _kept(threshold, [0.4, 0.5, 0.6], at_least=0.5) == [1, 2]
    assert _kept(threshold, [0.1, NAN], at_least=0.5) == []


def test_z_scores_are_standardised_within_their_pool():
    score = torch.from_numpy(np.random.default_rng(2).normal(3.0, 5.0, size=(4, 12)))
    z = z_scores(score, torch.ones(4, 12, dtype=torch.bool)).numpy()
    values = score.numpy()
    expected = (values - values.mean(axis=1, keepdims=True)) / values.std(axis=1, keepdims=True)
    np.testing.assert_allclose(z, expected, rtol=1e-12)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.3, 1e6])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_scores_are_all_kept_by_a_z_threshold(value, dtype):
    """Their deviation is rounding, not spread."""
    score = torch.full((1, 7), value, dtype=dtype)
    assert z_threshold(score, torch.ones(1, 7, dtype=torch.bool), 1.0).all()


def test_largest_gap_cuts_at_the_largest_drop_within_its_window():
    assert _kept(largest_gap, [0.9, 0.2, 0.85, 0.25]) == [0, 2]
    # The tail drop of the last place lies outside 90 % of ten.
    scores = [1.0, 0.95, 0.5, 0.48, 0.46, 0.44, 0.42, 0.40, 0.38, -5.0]
    assert _kept(largest_gap, scores, window=0.5) == [0, 1]
    assert _kept(largest_gap, scores, window=1.0) == list(range(9))


def test_largest_gap_of_short_or_even_lists():
    assert _kept(largest_gap, [0.3]) == [0]
    assert _kept(largest_gap, []) == []
    assert _kept(largest_gap, [3.0, 2.0, 1.0, 0.0]) == [0]  # equal drops: the first


@pytest.mark.parametrize(("count", "percent"), [(10, 90), (50, 30), (50, 60), (25, 60), (7, 50)])
def test_largest_gap_looks_at_the_ceiling_of_its_window(count, percent):
    """The one steep drop after ``place`` items counts if it lies inside, exactly."""
    place = -(-percent * count // 100)
    for at, expected in ((place, place), (place + 1, 1)):
        score = -torch.arange(count, dtype=torch.float64)[None]
        score[0, at:] -= 1000
        kept = largest_gap(score, torch.ones(1, count, dtype=torch.bool), percent / 100)
        assert int(kept.sum()) == (expected if at < count else 1)


def test_autocut_cuts_before_the_jth_steep_place():
    """Distances 0.1 0.12 0.13 | 0.5 0.51 0.52 | 0.9 0.91: two jumps."""
    scores = [1 - d for d in (0.1, 0.12, 0.13, 0.5, 0.51, 0.52, 0.9, 0.91)]
    assert _kept(autocut, scores, jumps=1) == [0, 1, 2]
    assert _kept(autocut, scores, jumps=2) == [0, 1, 2, 3, 4, 5]
    assert _kept(autocut, scores, jumps=3) == list(range(8))


def test_autocut_keeps_all_where_nothing_can_be_said():
    assert _kept(autocut, [1.0, 0.5]) == [0, 1]
    assert _kept(autocut, [0.5] * 6) == list(range(6))
    assert _kept(autocut, [3.0, 2.0, 1.0, 0.0]) == [0, 1, 2, 3]  # a straight line
    assert _kept(autocut, []) == []


def test_ratio_to_top_compares_with_the_best_of_the_pool():
    assert _kept(ratio_to_top, [0.5, 0.45, 0.39], share=0.8) == [0, 1]
    assert _kept(ratio_to_top, [-1.0, -1.1, -1.3], share=0.8) == [0, 1]
    assert _kept(ratio_to_top, [0.0, 0.0, -0.1], share=0.1) == [0, 1]
    assert _kept(ratio_to_top, [], share=0.8) == []
    drop = relative_drop(torch.tensor([[2.0, 1.0, -INF]]), torch.ones(1, 3, dtype=torch.bool))
    assert drop.tolist() == [[0.0, -0.5, -INF]]


def test_knee_is_the_place_farthest_below_the_chord():
    """Heights above the chord from (0, 1) to (4, 0): 0, -.65, -.45, -.22, 0."""
    assert _kept(knee, [1.0, 0.1, 0.05, 0.03, 0.0]) == [0]
    assert _kept(knee, [1.0, 0.9, 0.1, 0.05, 0.0]) == [0, 1]


def test_knee_keeps_all_where_there_is_none():
    assert _kept(knee, [1.0, 0.5]) == [0, 1]
    assert _kept(knee, [0.3] * 5) == list(range(5))
    assert _kept(knee, [4.0, 3.0, 2.0, 1.0]) == list(range(4))  # a straight line
    assert _kept(knee, [1.0, 0.9, 0.7, 0.0]) == list(range(4))  # nowhere below its chord
    assert _kept(knee, []) == []


def test_otsu_is_exact_two_means():
    scores = torch.from_numpy(np.random.default_rng(4).normal(size=(40, 7)))
    kept = otsu(scores, torch.ones(40, 7, dtype=torch.bool))
    for row, chosen in zip(scores.numpy(), kept.numpy(), strict=True):
        order = np.argsort(-row)

        def within(cut, row=row, order=order):
            parts = row[order[:cut]], row[order[cut:]]
            return sum(((part - part.mean()) ** 2).sum() for part in parts)

        best = min(range(1, 7), key=within)
        assert set(np.flatnonzero(chosen)) == set(order[:best])


def test_otsu_never_parts_equals():
    assert _kept(otsu, [1.0, 1.0, 0.0, 0.0]) == [0, 1]
    assert _kept(otsu, [0.5] * 4) == list(range(4))
    assert _kept(otsu, [0.5]) == [0]
    assert _kept(otsu, []) == []


def test_random_k_keeps_k_of_the_real_candidates():
    draw = torch.from_numpy(np.random.default_rng(3).random((50, 8)))
    mask = torch.ones(50, 8, dtype=torch.bool)
    mask[:, 6:] = False
    kept = random_k(mask, draw, 3)
    assert (kept.sum(dim=1) == 3).all()
    assert not kept[:, 6:].any()
    assert len({tuple(row) for row in kept.tolist()}) > 5


def test_component_and_degree_of_the_query_graph():
    adjacency = torch.zeros(1, 7, 7, dtype=torch.bool)
    for x, y in ((0, 1), (1, 2), (2, 3), (4, 5)):
        adjacency[0, x, y] = adjacency[0, y, x] = True
    mask = torch.tensor([[True] * 6 + [False]])
    assert query_component(adjacency, mask).tolist() == [[True, True, True, False, False, False]]
    assert candidate_degree(adjacency).tolist() == [[1.0, 2.0, 1.0, 1.0, 1.0, 0.0]]
    poisoned = adjacency.clone()
    poisoned[0, 0, 6] = poisoned[0, 6, 0] = True
    assert torch.equal(query_component(poisoned, mask), query_component(adjacency, mask))
