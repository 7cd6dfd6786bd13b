"""Curvature and flow: against the curvature form by linear programme, and every known trap."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs
from oracles.linear_programme import curvature as curvature_by_lp
from oracles.linear_programme import ricci_flow as flow_by_lp

from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.ops.adjacency import to_matrix
from ricci_gpu.ops.flow import curvature, ricci_flow
from ricci_gpu.ops.transport import SOLVERS

EXACT = SOLVERS.build("exact", {})
SINKHORN = SOLVERS.build("sinkhorn", {})
# Stars and complete graphs end exactly on the cutoff of 1: it is compared with this slack.
ON_THE_CUTOFF = 1e-9


def _kept(weight: torch.Tensor, batch) -> list[list[bool]]:
    """Decisions at cutoff 1 for the edges of the query, which come first in each graph."""
    query = batch.edges.mask & (batch.edges.source == 0)
    kept = weight <= 1.0 + ON_THE_CUTOFF
    return [row[mask].tolist() for row, mask in zip(kept, query, strict=True)]


# -- the two forms of the flow ---------------------------------------------------------------


@pytest.mark.parametrize("step", [1.0, 0.5, 0.1])
@pytest.mark.parametrize(("alpha", "p"), [(0.0, 0.0), (0.5, 2.0), (0.5, 5.0)])
def test_transport_form_equals_the_curvature_form(step, alpha, p, batch_of):
    rng = np.random.default_rng(0)
    cases = [graphs.random_connected(rng, nodes, 0.35, (0, 0))[0] for nodes in (5, 9)]
    batch = batch_of([(edges, 1.0) for edges in cases])
    result = ricci_flow(*batch, EXACT, alpha=alpha, p=p, step=step, iterations=3)
    for edges, weight in zip(cases, batch.rows(result.weight), strict=True):
        nodes = 1 + max(y for _, y in edges)
        expected = flow_by_lp(edges, np.ones(len(edges)), nodes, alpha, p, 3, step)[-1]
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-9)  # mean weight is 1


@pytest.mark.parametrize("step", [1.0, 0.3])
def test_lengths_that_are_not_shortest_paths_follow_the_curvature_form(step, batch_of):
    """The triangle 10, 1, 1: the long edge is five times the distance of its ends."""
    edges, lengths = graphs.complete(3), np.array([10.0, 1.0, 1.0])
    result = ricci_flow(*batch_of([(edges, lengths)]), EXACT, step=step, iterations=5)
    expected = flow_by_lp(edges, lengths, 3, 0.5, 2.0, 5, step)[-1]
    np.testing.assert_allclose(result.weight[0], expected, rtol=1e-9)


@st.composite
def weighted_graphs(draw):
    nodes = draw(st.integers(2, 6))
    tree = {(draw(st.integers(0, y - 1)), y) for y in range(1, nodes)}
    extra = draw(st.sets(st.sampled_from(graphs.complete(nodes))))
    edges = sorted(tree | extra)
    length = st.sampled_from([0.0, 1e-9, 0.3, 1.0, 1.0, 1.0, 2.0, 7.0, 52.0])
    return edges, np.array(draw(st.lists(length, min_size=len(edges), max_size=len(edges)))), nodes


@settings(max_examples=20)
@given(weighted_graphs(), st.sampled_from([(0.0, 0.0), (0.5, 2.0), (0.3, 1.0)]))
def test_curvature_of_any_weighted_graph_equals_the_linear_programme(batch_of, graph, walk):
    edges, lengths, nodes = graph
    kappa = curvature(*batch_of([(edges, lengths)]), EXACT, *walk).kappa[0]
    w1, expected = curvature_by_lp(edges, lengths, nodes, *walk)
    # An error of 1e-10 of the longest path in W1 is one of 1e-10 max(d) / d in kappa.
    apart = w1 / np.where(expected < 1, 1 - expected, 1)
    slack = 1e-9 + 1e-9 * lengths.sum() / np.where(apart > 0, apart, np.inf)
    assert (np.abs(kappa.numpy() - expected) <= slack).all()
    assert (kappa <= 1.0).all()


@settings(max_examples=25)
@given(weighted_graphs(), st.sampled_from([1.0, 0.4]), st.sampled_from([EXACT, SINKHORN]))
def test_flow_of_any_weighted_graph_stays_finite_and_not_negative(batch_of, graph, step, solver):
    edges, lengths, _ = graph
    for dtype in (torch.float64, torch.float32):
        batch = batch_of([(edges, lengths), (graphs.path(2), 1.0)], dtype=dtype)
        result = ricci_flow(*batch, solver, step=step, iterations=5)
        weight = result.weight[0, : len(edges)]
        assert torch.isfinite(result.weight).all()
        assert (weight >= 0).all()
        if weight.any():
            assert float(weight.mean()) == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_unit_edges_stay_shortest_paths(rule, pool_graphs):
    """Which is why the flow needs no division by the distance."""
    batch = pool_graphs(8, rule)
    result = ricci_flow(*batch, EXACT, iterations=20, trace=True)
    for step in result.trace:
        problems = batch._replace(weight=step.weight).problems()
        size = batch.adjacency.shape[1]
        lengths = to_matrix(batch.edges, step.weight, size, torch.inf)
        assert ((lengths - problems.distance)[batch.adjacency] <= 1e-14).all()


# -- invariances -----------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_permuting_the_candidates_permutes_the_answer(rule, pool_graphs):
    rng = np.random.default_rng(1)
    vectors = [graphs.clustered_vectors(rng, 21) for _ in range(6)]
    order = np.concatenate([[0], 1 + rng.permutation(20)])
    matrices = []
    for pools in (vectors, [rows[order] for rows in vectors]):
        batch = pool_graphs(pools, rule)
        weight = ricci_flow(*batch, EXACT).weight
        matrices.append(to_matrix(batch.edges, weight, 21, torch.inf))
    expected = matrices[0][:, order][:, :, order]
    torch.testing.assert_close(matrices[1], expected, rtol=0, atol=1e-9)
    assert torch.equal(matrices[1][:, 0] <= 1 + 1e-9, expected[:, 0] <= 1 + 1e-9)


@pytest.mark.parametrize("rule", ["ge", "le"])
@pytest.mark.parametrize("solver", [EXACT, SINKHORN], ids=["exact", "sinkhorn"])
def test_padding_and_batching_change_no_decision(rule, solver, pool_graphs):
    """Decisions equal bit for bit and weights within 1e-9, NaN in the padding throughout."""
    rng = np.random.default_rng(2)
    vectors = [graphs.clustered_vectors(rng, n) for n in (21, 3, 12, 21, 8, 2)]
    together = pool_graphs(vectors, rule)
    padded = pool_graphs(vectors, rule, nodes=40)
    outcomes = [(batch, ricci_flow(*batch, solver).weight) for batch in (together, padded)]
    alone = [pool_graphs([rows], rule) for rows in vectors]
    singles = [ricci_flow(*batch, solver).weight for batch in alone]
    for batch, weight in outcomes:
        assert (weight[~batch.edges.mask] == 0).all()
        kept, rows = _kept(weight, batch), batch.rows(weight)
        for i, (one, single) in enumerate(zip(alone, singles, strict=True)):
            assert kept[i] == _kept(single, one)[0]
            np.testing.assert_allclose(rows[i], one.rows(single)[0], rtol=0, atol=1e-9)


def test_padding_is_never_read_by_curvature_either(pool_graphs):
    small, large = pool_graphs(3), pool_graphs(3, nodes=30)
    for a, b in zip(
        small.rows(curvature(*small, EXACT).kappa),
        large.rows(curvature(*large, EXACT).kappa),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.parametrize("factor", [1e-6, 3.0, 1e6])
def test_scaling_all_lengths_leaves_curvature_at_p_0(factor, batch_of):
    edges, lengths = graphs.random_connected(np.random.default_rng(3), 12, 0.3, (-1, 1))
    for alpha in (0.0, 0.5):
        kappa = curvature(*batch_of([(edges, lengths)]), EXACT, alpha, 0.0).kappa
        scaled = curvature(*batch_of([(edges, factor * lengths)]), EXACT, alpha, 0.0).kappa
        torch.testing.assert_close(kappa, scaled, rtol=0, atol=1e-12)


@pytest.mark.parametrize("solver", [EXACT, SINKHORN], ids=["exact", "sinkhorn"])
def test_curvature_is_at_most_one_and_inside_its_bounds(solver, batch_of, pool_graphs):
    rng = np.random.default_rng(4)
    weighted = batch_of([graphs.random_connected(rng, 15, 0.2, (-4, 1)) for _ in range(4)])
    for batch in (weighted, pool_graphs(4)):
        truth = curvature(*batch, EXACT).kappa
        result = curvature(*batch, solver)
        assert (result.upper <= 1.0).all()  # so W1 was never below 0
        assert (result.lower <= result.upper).all()
        near = 1e-9 * truth.abs().clamp(min=1.0)
        assert (result.lower <= truth + near).all()
        assert (truth - near <= result.upper).all()
        assert (result.kappa[~batch.edges.mask] == 0).all()


# -- the six inputs that any implementation should handle --------------------------------------


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_duplicates_get_equal_weights(rule, pool_graphs):
    """Five equal chunks and fifteen others. Under `le` the equal ones are joined, and vanish."""
    vectors = []
    for seed in range(10):
        rows = graphs.clustered_vectors(np.random.default_rng(seed), 21)
        rows[[4, 9, 15, 20]] = rows[2]
        vectors.append(rows)
    batch = pool_graphs(vectors, rule)
    weight = ricci_flow(*batch, EXACT).weight
    assert torch.isfinite(weight).all()
    matrix = to_matrix(batch.edges, weight, 21, torch.inf)
    equal = matrix[:, 0, [2, 4, 9, 15, 20]]
    torch.testing.assert_close(equal, equal[:, :1].expand_as(equal), rtol=0, atol=1e-9)
    kept = equal <= 1 + ON_THE_CUTOFF
    assert torch.equal(kept, kept[:, :1].expand_as(kept))


@pytest.mark.parametrize("rule", ["ge", "le"])
@pytest.mark.parametrize("solver", [EXACT, SINKHORN], ids=["exact", "sinkhorn"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_all_chunks_identical_to_the_query_are_all_kept(rule, solver, dtype, pool_graphs):
    row = np.random.default_rng(5).normal(size=(1, 384))
    batch = pool_graphs([row.repeat(21, axis=0)], rule, dtype=dtype)
    weight = ricci_flow(*batch, solver).weight[0]
    assert len(weight) == 210
    np.testing.assert_allclose(weight, 1.0, rtol=0, atol=1e-12 if dtype == torch.float64 else 1e-5)


@pytest.mark.parametrize("name", ["Star_20leaves", "K_21"])
@pytest.mark.parametrize(("alpha", "p"), [(0.5, 2.0), (0.5, 5.0), (0.3, 1.0)])
def test_star_and_complete_graph_end_with_all_weights_one(name, alpha, p, batch_of):
    """On the cutoff exactly, so only the slack of the comparison keeps them."""
    batch = batch_of([(graphs.named(name), 1.0)])
    weight = ricci_flow(*batch, EXACT, alpha=alpha, p=p, iterations=20).weight[0]
    np.testing.assert_allclose(weight, 1.0, rtol=0, atol=1e-12)
    assert _kept(weight[None], batch) == [[True] * 20]


def test_a_star_of_unequal_leaves_becomes_constant(batch_of):
    """Bai et al. (arXiv 2010.01802): a star with at least three leaves converges so."""
    batch = batch_of([(graphs.star(5), [0.2, 0.5, 1.0, 1.5, 3.0])])
    spreads = [
        float(np.ptp(ricci_flow(*batch, EXACT, alpha=0.5, p=0.0, iterations=m).weight[0]))
        for m in (0, 5, 20, 60)
    ]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] < 1e-9


@pytest.mark.parametrize("solver", [EXACT, SINKHORN], ids=["exact", "sinkhorn"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_single_candidate_ends_with_weight_zero(solver, dtype, batch_of):
    """K_2 at alpha = 1/2: both measures agree, W1 = 0, and 0 / 0 waits at the rescaling."""
    batch = batch_of([(graphs.path(2), 1.0), (graphs.star(4), 1.0)], dtype=dtype)
    result = ricci_flow(*batch, solver, iterations=20, trace=True)
    assert result.weight[0].tolist() == [0.0] * 4
    assert result.trace[0].curvature.kappa[0, 0] == 1.0
    assert result.trace[-1].curvature.kappa[0, 0] == 1.0
    assert result.gap[0] == 0
    np.testing.assert_allclose(result.weight[1], 1.0, atol=1e-5)
    lazier = ricci_flow(*batch_of([(graphs.path(2), 1.0)]), EXACT, alpha=0.3)
    assert lazier.weight.tolist() == [[1.0]]


@pytest.mark.parametrize("rule", ["ge", "le"])
@pytest.mark.parametrize("solver", [EXACT, SINKHORN], ids=["exact", "sinkhorn"])
def test_disconnected_graphs_are_finite(rule, solver, pool_graphs, batch_of):
    """Each component flows on its own metric; they share the rescaling of the graph."""
    for percentile in (5.0, 95.0):
        batch = pool_graphs(6, rule, percentile, query_edges=False)
        result = ricci_flow(*batch, solver)
        assert torch.isfinite(result.weight).all()
        assert torch.isfinite(curvature(*batch, solver).kappa).all()
    edges = graphs.petersen() + [(x + 11, y + 11) for x, y in graphs.cycle(5)]  # node 10 is alone
    batch = batch_of([(edges, 1.0)])
    kappa = curvature(*batch, EXACT, 0.5).kappa[0]
    np.testing.assert_allclose(kappa, [0.0] * 15 + [0.25] * 5, rtol=0, atol=1e-12)
    assert torch.isfinite(ricci_flow(*batch, solver).weight).all()


def test_edges_of_length_30_around_a_node(batch_of):
    """GraphRicciCurvature issue 25, through the whole flow."""
    batch = batch_of([(graphs.star(6), 30.0), (graphs.complete(6), 30.0)])
    weight = ricci_flow(*batch, EXACT, iterations=3).weight
    for row in batch.rows(weight):
        np.testing.assert_allclose(row, 1.0, rtol=0, atol=1e-12)


# -- zero and vanishing lengths ----------------------------------------------------------------


@pytest.mark.parametrize("step", [1.0, 0.5])
def test_an_edge_longer_than_a_distance_of_zero_stays_finite(step, batch_of):
    """Rounded dissimilarities do this: x to y and y to z are 0, x to z is not."""
    batch = batch_of([([(0, 1), (0, 2), (1, 2), (2, 3)], [0.0, 1e-12, 0.0, 1.0])])
    result = ricci_flow(*batch, EXACT, step=step, iterations=5)
    assert torch.isfinite(result.weight).all()
    assert float(result.weight.mean()) == pytest.approx(1.0)
    assert torch.isfinite(curvature(*batch, EXACT).kappa).all()


@pytest.mark.parametrize("rule", ["ge", "le"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sharp", [False, True])
def test_entropic_flows_stay_finite_while_edges_vanish(rule, dtype, sharp, pool_graphs):
    """Weights run from 0 or nearly so to 8 and more; a log domain gives NaN on such inputs."""
    batch = pool_graphs(15, rule, dtype=dtype)
    solver = SOLVERS.build("sinkhorn", {"epsilon": 0.02, "sharp": sharp})
    result = ricci_flow(*batch, solver, iterations=20)
    assert torch.isfinite(result.weight).all()
    assert torch.isfinite(result.gap).all()
    assert (result.weight >= 0).all()
    assert result.weight.max() > 2.0


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_float32_decides_like_float64_with_the_exact_solver(rule, pool_graphs):
    double, single = pool_graphs(20, rule), pool_graphs(20, rule, dtype=torch.float32)
    a = np.concatenate(_kept(ricci_flow(*double, EXACT).weight, double))
    b = np.concatenate(_kept(ricci_flow(*single, EXACT).weight - 1e-5, single))
    assert (a == b).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -1.0])
def test_lengths_that_are_no_lengths_are_refused(bad, batch_of):
    batch = batch_of([(graphs.path(3), 1.0), (graphs.path(4), [1.0, bad, 1.0])])
    rule = rf"finite and at least 0; got {bad} at edge 1 of graph 1 \(1 such lengths\)"
    with pytest.raises(InputError, match=rule):
        ricci_flow(*batch, EXACT)
    with pytest.raises(InputError, match=rule):
        curvature(*batch, EXACT)


def test_a_solver_that_fails_is_not_taken_for_a_graph_that_vanished(batch_of):
    """NaN compares False: unnoticed, it would drop or keep every chunk of the pool."""
    batch = batch_of([(graphs.cycle(5), 1.0), (graphs.cycle(4), 1.0)])
    weight = ricci_flow(*batch, _Failing(EXACT), iterations=1).weight
    assert torch.isnan(weight[0]).all()
    assert weight[1, :4].tolist() == [1.0] * 4


# -- steps, trace, early stop, settings -----------------------------------------------------------


def test_trace_has_one_entry_per_step_and_no_extra_curvature_pass(pool_graphs):
    batch = pool_graphs(3)
    solver = _Counting(EXACT)
    result = ricci_flow(*batch, solver, iterations=7, trace=True)
    assert solver.calls == 7
    assert len(result.trace) == 7
    first = result.trace[0]
    assert torch.equal(first.weight, batch.edges.mask.double())
    torch.testing.assert_close(first.curvature.kappa, curvature(*batch, EXACT).kappa)
    # Each step follows from the one before: w - kappa w, rescaled to mean 1.
    later = [step.weight for step in result.trace[1:]] + [result.weight]
    for step, after in zip(result.trace, later, strict=True):
        moved = step.weight * (1 - step.curvature.kappa)
        mean = moved.sum(dim=1, keepdim=True) / batch.edges.mask.sum(dim=1, keepdim=True)
        torch.testing.assert_close(moved / mean, after, rtol=1e-9, atol=1e-12)
    assert ricci_flow(*batch, EXACT, iterations=7).trace == []


def test_no_iteration_returns_the_lengths_and_zero_padding(batch_of):
    batch = batch_of([(graphs.path(3), [2.0, 3.0]), (graphs.path(2), 5.0)])
    result = ricci_flow(*batch, EXACT, iterations=0)
    assert result.weight.tolist() == [[2.0, 3.0], [5.0, 0.0]]


def test_early_stop_freezes_a_graph_once_its_curvature_is_even(batch_of):
    uneven = graphs.communities(3, 2)[0]
    batch = batch_of([(graphs.cycle(7), 1.0), (uneven, 1.0)])
    stopped = ricci_flow(*batch, EXACT, iterations=6, stop_at_spread=1e-4)
    assert stopped.weight[0, :7].tolist() == [1.0] * 7
    free = ricci_flow(*batch, EXACT, iterations=6)
    assert torch.equal(stopped.weight[1], free.weight[1])
    early = ricci_flow(*batch, EXACT, iterations=6, stop_at_spread=5.0)
    assert torch.equal(early.weight, batch.edges.mask.double())


def test_early_stop_is_per_graph_and_depends_on_nothing_else(pool_graphs):
    batch = pool_graphs(4)
    together = ricci_flow(*batch, EXACT, iterations=12, stop_at_spread=1.0)
    for i in range(4):
        rng = np.random.default_rng(i)
        one = pool_graphs([graphs.clustered_vectors(rng, 21)])
        single = ricci_flow(*one, EXACT, iterations=12, stop_at_spread=1.0)
        np.testing.assert_allclose(
            batch.rows(together.weight)[i], one.rows(single.weight)[0], rtol=0, atol=1e-9
        )


def test_graphs_without_edges_flow_to_nothing(batch_of):
    empty = batch_of([([], 1.0), ([], 1.0)], nodes=3)
    result = ricci_flow(*empty, EXACT)
    assert result.weight.shape == (2, 0)
    assert curvature(*empty, EXACT).kappa.shape == (2, 0)
    mixed = batch_of([([], 1.0), (graphs.path(3), 1.0)])
    for solver in (EXACT, SINKHORN):
        result = ricci_flow(*mixed, solver, iterations=3, stop_at_spread=1e-9)
        assert result.weight[0].tolist() == [0.0, 0.0]
        assert torch.isfinite(result.weight).all()


def test_gap_and_convergence_are_reported_per_query(pool_graphs):
    batch = pool_graphs(3)
    exact = ricci_flow(*batch, EXACT, iterations=5)
    assert (exact.gap < 1e-13).all()
    assert exact.converged.all()
    coarse = SOLVERS.build("sinkhorn", {"iterations": 1, "tolerance": 1e-6})
    result = ricci_flow(*batch, coarse, iterations=5)
    assert (result.gap > 1e-3).all()
    assert not result.converged.any()


@pytest.mark.parametrize(
    ("setting", "value", "rule"),
    [
        ("step", 0.0, r"`step` must lie in \(0, 1\]; got 0.0"),
        ("step", 1.5, r"`step` must lie in \(0, 1\]; got 1.5"),
        ("step", float("nan"), r"`step` must lie in \(0, 1\]; got nan"),
        ("iterations", -1, r"`iterations` must be at least 0; got -1"),
        ("alpha", 1.0, r"`alpha` must lie in \[0, 1\); got 1.0"),
        ("p", -2.0, r"`p` must be at least 0; got -2.0"),
    ],
)
def test_impossible_settings_are_refused(setting, value, rule, batch_of):
    with pytest.raises(SettingError, match=rule):
        ricci_flow(*batch_of([(graphs.path(3), 1.0)]), EXACT, **{setting: value})


class _Failing:
    """Loses the first graph."""

    def __init__(self, solver):
        self.solver = solver

    def solve(self, problems, state=None):
        solution = self.solver.solve(problems, state)
        solution.value[0] = torch.nan
        return solution


class _Counting:
    def __init__(self, solver):
        self.solver, self.calls = solver, 0

    def solve(self, problems, state=None):
        self.calls += 1
        return self.solver.solve(problems, state)
