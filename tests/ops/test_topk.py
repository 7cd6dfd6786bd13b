"""Order and top-k: stable, ties by the lower index, masked entries last and never read."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from ricci_gpu.ops.topk import descending_order, rank_of, top_k

INF, NAN = float("inf"), float("nan")

rows = st.lists(
    st.tuples(st.sampled_from([-INF, -1.0, 0.0, -0.0, 2.5, 2.5, INF, NAN]), st.booleans()),
    min_size=1,
    max_size=8,
)


def _row(entries: list[tuple[float, bool]]):
    score = torch.tensor([[value for value, _ in entries]])
    mask = torch.tensor([[real for _, real in entries]])
    return score, mask


@given(rows)
def test_order_is_that_of_a_sort_by_mask_score_and_index(entries):
    def key(i: int) -> tuple[bool, float, int]:
        value, real = entries[i]
        return not real, INF if np.isnan(value) else -value, i

    score, mask = _row([(v, r) if r else (NAN, r) for v, r in entries])
    order = descending_order(score, mask)[0].tolist()
    real = sum(r for _, r in entries)
    assert order[:real] == sorted(range(len(entries)), key=key)[:real]
    assert sorted(order) == list(range(len(entries)))


@given(rows)
def test_ranks_invert_the_order(entries):
    score, mask = _row(entries)
    order, rank = descending_order(score, mask), rank_of(score, mask)
    assert rank.gather(1, order)[0].tolist() == list(range(len(entries)))


def test_equal_scores_go_by_the_lower_index():
    score = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0]])
    assert descending_order(score, torch.ones(1, 5, dtype=torch.bool)).tolist() == [[1, 2, 4, 0, 3]]


def test_top_k_says_which_places_are_filled():
    score = torch.tensor([[1.0, NAN, 3.0, 2.0], [5.0, 4.0, NAN, NAN]])
    mask = torch.tensor([[True, False, True, True], [False, True, False, False]])
    index, filled = top_k(score, mask, 2)
    assert index.tolist()[0] == [2, 3]
    assert index.tolist()[1][0] == 1
    assert filled.tolist() == [[True, True], [True, False]]
    index, filled = top_k(score, mask, 9)
    assert index.shape == (2, 4)
    assert filled.sum(dim=1).tolist() == [3, 1]


def test_padding_does_not_change_the_order():
    score = torch.from_numpy(np.random.default_rng(0).integers(5, size=(6, 9)).astype(np.float32))
    mask = torch.ones(6, 9, dtype=torch.bool)
    padded = torch.cat([score, torch.full((6, 4), NAN)], dim=1)
    wide = torch.cat([mask, torch.zeros(6, 4, dtype=torch.bool)], dim=1)
    assert torch.equal(descending_order(padded, wide)[:, :9], descending_order(score, mask))


def test_empty_lists_have_an_empty_order():
    empty = torch.zeros(3, 0)
    assert descending_order(empty, empty.bool()).shape == (3, 0)
    assert top_k(empty, empty.bool(), 5)[0].shape == (3, 0)
