"""Which nodes are joined: dissimilarity, percentile, rules, ties, padding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracles.graphs import clustered_vectors

from ricci_gpu.errors import SettingError
from ricci_gpu.ops.adjacency import (
    cosine_dissimilarity,
    edge_list,
    join_query,
    mutual_knn_graph,
    percentile_threshold,
    threshold_graph,
    to_matrix,
)


def _dissimilarity(vectors: np.ndarray, nodes: int | None = None):
    """One pool padded with NaN, its dissimilarities and mask."""
    size = len(vectors) if nodes is None else nodes
    node_emb = torch.full((1, size, vectors.shape[1]), torch.nan)
    node_emb[0, : len(vectors)] = torch.as_tensor(vectors, dtype=torch.float32)
    mask = torch.arange(size)[None] < len(vectors)
    return cosine_dissimilarity(node_emb, mask), mask


def _pairs(matrix: torch.Tensor, nodes: int) -> np.ndarray:
    return matrix[0, :nodes, :nodes].numpy()[np.triu_indices(nodes, 1)]


def test_dissimilarity_is_one_minus_cosine():
    vectors = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    unit = vectors.astype(float) / np.linalg.norm(vectors.astype(float), axis=1, keepdims=True)
    got, _ = _dissimilarity(vectors)
    assert got.dtype == torch.float64
    np.testing.assert_allclose(_pairs(got, 6), _pairs(torch.tensor(1 - unit @ unit.T)[None], 6))


def test_dissimilarity_is_symmetric_within_its_range_and_exactly_zero_for_duplicates():
    one = np.random.default_rng(1).normal(size=(1, 384))
    got, _ = _dissimilarity(np.concatenate([one, one, 3 * one, -one]), nodes=6)
    assert torch.equal(got, got.mT)
    assert got[0, 0, :4].tolist() == [0.0, 0.0, 0.0, 2.0]
    assert (got[0, 4:] == 0).all()


def test_duplicates_have_equal_dissimilarities_to_everything_else():
    vectors = clustered_vectors(np.random.default_rng(2), 21, width=384)
    vectors[7] = vectors[20] = vectors[3]
    got, _ = _dissimilarity(vectors, nodes=32)
    assert torch.equal(got[0, 3], got[0, 7])
    assert torch.equal(got[0, 3], got[0, 20])


@pytest.mark.parametrize("nodes", [22, 32, 64])
def test_padding_does_not_change_the_graph(nodes):
    for seed in range(20):
        vectors = clustered_vectors(np.random.default_rng(seed), 21, width=384)
        graphs = []
        for size in (21, nodes):
            dissimilarity, mask = _dissimilarity(vectors, size)
            limit = percentile_threshold(dissimilarity, mask, 50.0)
            graphs.append(threshold_graph(dissimilarity, mask, limit, "ge"))
        assert torch.equal(graphs[0][0], graphs[1][0, :21, :21])
        assert not graphs[1][0, 21:].any()


@given(st.integers(2, 12), st.floats(0, 100), st.integers(0, 5), st.booleans(), st.integers(0))
def test_percentile_is_numpy_s_over_the_upper_triangle(nodes, percentile, padding, tied, seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(4, size=(nodes, nodes)) / 4 if tied else rng.random((nodes, nodes))
    padded = torch.full((1, nodes + padding, nodes + padding), torch.nan, dtype=torch.float64)
    padded[0, :nodes, :nodes] = torch.from_numpy(np.triu(values, 1) + np.triu(values, 1).T)
    mask = torch.arange(nodes + padding)[None] < nodes
    got = percentile_threshold(padded, mask, percentile)
    expected = np.percentile(values[np.triu_indices(nodes, 1)], percentile)
    assert float(got) == pytest.approx(expected, rel=1e-15, abs=1e-15)
    if nodes > 2:
        inner = values[1:, 1:][np.triu_indices(nodes - 1, 1)]
        got = percentile_threshold(padded, mask, percentile, over="candidates")
        assert float(got) == pytest.approx(np.percentile(inner, percentile), rel=1e-15, abs=1e-15)


@pytest.mark.parametrize("percentile", [25.0, 75.0])
def test_each_pair_counts_once(percentile):
    """Over both triangles the percentile differs at 25 and 75, by one edge or more."""
    values = np.random.default_rng(3).random((21, 21))
    symmetric = np.triu(values, 1) + np.triu(values, 1).T
    got = percentile_threshold(
        torch.from_numpy(symmetric)[None], torch.ones(1, 21, dtype=torch.bool), percentile
    )
    both = symmetric[~np.eye(21, dtype=bool)]
    assert float(got) == np.percentile(symmetric[np.triu_indices(21, 1)], percentile)
    assert float(got) != np.percentile(both, percentile)


def test_a_graph_without_pairs_has_no_threshold_and_no_edge():
    for nodes in (1, 4):
        dissimilarity, mask = _dissimilarity(np.ones((1, 3)), nodes)
        limit = percentile_threshold(dissimilarity, mask, 50.0)
        assert torch.isnan(limit).all()
        assert not threshold_graph(dissimilarity, mask, limit, "le").any()
    pair, mask = _dissimilarity(np.eye(2), 2)
    assert torch.isnan(percentile_threshold(pair, mask, 50.0, over="candidates")).all()


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_rules_join_the_stated_side_of_the_threshold(rule):
    dissimilarity, mask = _dissimilarity(clustered_vectors(np.random.default_rng(4), 21), 32)
    limit = percentile_threshold(dissimilarity, mask, 25.0)
    graph = threshold_graph(dissimilarity, mask, limit, rule)
    pairs = _pairs(dissimilarity, 21)
    expected = pairs >= float(limit) if rule == "ge" else pairs <= float(limit)
    assert (_pairs(graph, 21) == expected).all()
    assert expected.sum() == (157 if rule == "ge" else 53)  # of 210
    assert torch.equal(graph, graph.mT)
    assert not graph.diagonal(dim1=1, dim2=2).any()
    assert not graph[0, 21:].any()


@pytest.mark.parametrize("rule", ["ge", "le"])
@pytest.mark.parametrize("nodes", [6, 9])
def test_identical_chunks_form_a_complete_graph_under_both_rules(rule, nodes):
    """Not strict: all dissimilarities tie at the threshold; a strict rule would join none."""
    row = np.random.default_rng(5).normal(size=(1, 384))
    dissimilarity, mask = _dissimilarity(row.repeat(6, axis=0), nodes)
    limit = percentile_threshold(dissimilarity, mask, 50.0)
    graph = threshold_graph(dissimilarity, mask, limit, rule)
    assert _pairs(graph, 6).sum() == 15


def test_mutual_neighbours_are_near_in_both_directions():
    points = torch.tensor([0.0, 1.0, 3.0, 7.0], dtype=torch.float64)
    dissimilarity = (points[:, None] - points[None, :]).abs()[None]
    mask = torch.ones(1, 4, dtype=torch.bool)
    one = mutual_knn_graph(dissimilarity, mask, 1)
    assert one[0].triu().nonzero().tolist() == [[0, 1]]
    two = mutual_knn_graph(dissimilarity, mask, 2)
    assert two[0].triu().nonzero().tolist() == [[0, 1], [0, 2], [1, 2]]
    assert mutual_knn_graph(dissimilarity, mask, 9).sum() == 12


def test_mutual_neighbours_ignore_padding_and_break_ties_by_the_lower_index():
    poisoned = torch.full((1, 5, 5), torch.nan, dtype=torch.float64)
    poisoned[0, :3, :3] = 1.0
    mask = torch.tensor([[True, True, True, False, False]])
    graph = mutual_knn_graph(poisoned, mask, 1)
    # Node 2 prefers node 0, which prefers node 1.
    assert graph[0].triu().nonzero().tolist() == [[0, 1]]


def test_query_edges_join_the_query_to_every_candidate_and_nothing_else():
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    joined = join_query(torch.zeros(2, 4, 4, dtype=torch.bool), mask)
    assert joined[0].triu().nonzero().tolist() == [[0, 1], [0, 2]]
    assert torch.equal(joined, joined.mT)
    assert not joined[1].any()


def test_edges_and_matrices_are_inverse_to_each_other():
    rng = np.random.default_rng(6)
    upper = torch.from_numpy(rng.random((5, 7, 7)) < 0.3).triu(1)
    upper[2] = False
    adjacency = upper | upper.mT
    edges = edge_list(adjacency)
    assert edges.mask.sum(dim=1).tolist() == upper.sum(dim=(1, 2)).tolist()
    for graph, (source, target, mask) in enumerate(zip(*edges, strict=True)):
        listed = torch.stack([source[mask], target[mask]], dim=1)
        assert listed.tolist() == upper[graph].nonzero().tolist()
    values = torch.where(edges.mask, torch.from_numpy(rng.random(edges.mask.shape)), torch.nan)
    matrix = to_matrix(edges, values, 7, torch.inf)
    assert torch.equal(torch.isfinite(matrix), adjacency | torch.eye(7, dtype=torch.bool))
    assert torch.equal(matrix, matrix.mT)
    assert torch.equal(matrix[upper], values[edges.mask])


def test_an_empty_batch_and_an_edgeless_batch_have_edge_lists():
    for batch in (0, 2):
        edges = edge_list(torch.zeros(batch, 4, 4, dtype=torch.bool))
        assert edges.mask.shape == (batch, 0)


@pytest.mark.parametrize("percentile", [-1.0, 100.5, float("nan")])
def test_a_percentile_outside_its_range_is_refused(percentile):
    dissimilarity, mask = _dissimilarity(np.eye(3))
    with pytest.raises(
        SettingError, match=rf"`percentile` must lie in \[0, 100\]; got {percentile}"
    ):
        percentile_threshold(dissimilarity, mask, percentile)


def test_no_neighbours_are_refused():
    dissimilarity, mask = _dissimilarity(np.eye(3))
    with pytest.raises(SettingError, match="`neighbours` must be at least 1; got 0"):
        mutual_knn_graph(dissimilarity, mask, 0)
