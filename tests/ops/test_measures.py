"""Node measures: mass 1 on the node and its neighbours, whatever the lengths."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles import graphs
from oracles.linear_programme import measures

from ricci_gpu.errors import SettingError
from ricci_gpu.ops.adjacency import to_matrix
from ricci_gpu.ops.measures import node_measures


def _measures(batch, alpha: float, p: float) -> torch.Tensor:
    lengths = to_matrix(batch.edges, batch.weight, batch.adjacency.shape[1], torch.inf)
    return node_measures(lengths, batch.adjacency, alpha, p)


@pytest.mark.parametrize(("alpha", "p"), [(0.0, 0.0), (0.5, 1.0), (0.5, 2.0), (0.9, 5.0)])
def test_measures_follow_the_formula(alpha, p, batch_of):
    rng = np.random.default_rng(0)
    edges, lengths = graphs.random_connected(rng, 12, 0.3, (-1, 0.5))
    got = _measures(batch_of([(edges, lengths)]), alpha, p)[0]
    expected = measures(graphs.length_matrix(edges, lengths, 12), alpha, p)
    np.testing.assert_allclose(got, expected, rtol=1e-13, atol=0)


@given(
    st.lists(st.floats(0, 1e6), min_size=3, max_size=3),
    st.floats(0, 0.99),
    st.sampled_from([0.0, 0.5, 1.0, 2.0, 5.0]),
    st.sampled_from([torch.float64, torch.float32]),
)
def test_measures_sum_to_one_and_are_not_negative(lengths, alpha, p, dtype):
    matrix = torch.full((1, 4, 4), torch.inf, dtype=dtype)
    for leaf, length in enumerate(lengths, start=1):
        matrix[0, 0, leaf] = matrix[0, leaf, 0] = length
    got = node_measures(matrix, torch.isfinite(matrix), alpha, p)
    assert (got >= 0).all()
    torch.testing.assert_close(got.sum(dim=2), torch.ones(1, 4, dtype=dtype))
    nearest = int(np.argmin(lengths)) + 1
    assert got[0, 0, nearest] == got[0, 0, 1:].max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("length", [30.0, 52.0, 1e30])
def test_long_edges_do_not_lose_the_mass(length, dtype, batch_of):
    """GraphRicciCurvature issue 25: exp(-30^2) is zero; the walk is uniform all the same."""
    got = _measures(batch_of([(graphs.star(4), length)], dtype=dtype), 0.5, 2.0)[0]
    torch.testing.assert_close(got[0], torch.tensor([0.5, *[0.125] * 4], dtype=dtype))


def test_a_node_without_neighbour_keeps_its_mass(batch_of):
    got = _measures(batch_of([(graphs.path(2), 1.0)], nodes=4), 0.25, 2.0)[0]
    assert got[2:, 2:].tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert got[0].tolist() == [0.25, 0.75, 0.0, 0.0]


def test_exponent_zero_is_the_uniform_walk_even_along_edges_of_length_zero(batch_of):
    got = _measures(batch_of([(graphs.star(4), [0.0, 1e-9, 1.0, 50.0])]), 0.0, 0.0)[0]
    assert got[0].tolist() == [0.0, 0.25, 0.25, 0.25, 0.25]


def test_lengths_outside_the_graph_are_never_read(batch_of):
    batch = batch_of([(graphs.cycle(5), 1.0)], nodes=8)
    lengths = torch.where(batch.adjacency, 1.0, torch.nan).double()
    got = node_measures(lengths, batch.adjacency, 0.5, 2.0)
    assert torch.equal(got, _measures(batch, 0.5, 2.0))


@pytest.mark.parametrize("alpha", [-0.1, 1.0, 1.5, float("nan")])
def test_alpha_outside_its_range_is_refused(alpha, batch_of):
    with pytest.raises(SettingError, match=rf"`alpha` must lie in \[0, 1\); got {alpha}"):
        _measures(batch_of([(graphs.path(2), 1.0)]), alpha, 2.0)


@pytest.mark.parametrize("p", [-1.0, float("nan")])
def test_p_outside_its_range_is_refused(p, batch_of):
    with pytest.raises(SettingError, match=rf"`p` must be at least 0; got {p}"):
        _measures(batch_of([(graphs.path(2), 1.0)]), 0.5, p)
