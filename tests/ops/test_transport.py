"""Every transport solver against a general linear programme, and its bounds against the truth."""

import logging
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs
from oracles.linear_programme import shortest_paths, wasserstein1

from ricci_gpu.errors import SettingError
from ricci_gpu.ops.adjacency import edge_list
from ricci_gpu.ops.transport import SOLVERS, TransportProblems, exact

EXACT = SOLVERS.build("exact", {})
APPROXIMATE = {
    "sinkhorn": SOLVERS.build("sinkhorn", {}),
    "sinkhorn-sharp": SOLVERS.build("sinkhorn", {"sharp": True}),
    "sinkhorn-fine": SOLVERS.build("sinkhorn", {"sharp": True, "epsilon": 0.02, "iterations": 100}),
    "geomloss": SOLVERS.build("geomloss", {}),
}
# Rounding of a bound, as a share of the longest distance or the blur, whichever is larger (masses
# sum to 1): a graph shorter than the blur adds and subtracts potentials of its size.
BLUR = 0.05
ROUNDING = {torch.float64: 1e-14, torch.float32: 5e-7}
WALKS = [(0.0, 0.0), (0.5, 2.0), (0.3, 1.0)]


@pytest.fixture(params=list(APPROXIMATE))
def approximate(request):
    if request.param == "geomloss":
        pytest.importorskip("geomloss")
    return APPROXIMATE[request.param]


def _by_linear_programme(problems: TransportProblems) -> np.ndarray:
    """W1 of every edge; 0 on padding."""
    w1 = np.zeros(problems.edges.mask.shape)
    measure, distance = problems.measure.double().numpy(), problems.distance.double().numpy()
    for graph, edge in problems.edges.mask.nonzero().tolist():
        x, y = problems.edges.source[graph, edge], problems.edges.target[graph, edge]
        finite = np.isfinite(distance[graph, x])  # another component takes no part
        between = distance[graph][np.ix_(finite, finite)]
        w1[graph, edge] = wasserstein1(
            measure[graph, x, finite], measure[graph, y, finite], between
        )
    return w1


def _longest(problems: TransportProblems) -> torch.Tensor:
    finite = torch.where(torch.isfinite(problems.distance), problems.distance, 0.0)
    return finite.amax(dim=(1, 2)).double()[:, None]


def _assert_brackets(solution, truth: torch.Tensor, problems: TransportProblems) -> None:
    slack = ROUNDING[problems.distance.dtype] * _longest(problems).clamp(min=BLUR)
    for part in (solution.value, solution.lower, solution.upper):
        assert torch.isfinite(part).all()
        assert (part[~problems.edges.mask] == 0).all()
    assert (solution.lower >= 0).all()
    assert (solution.lower <= solution.value).all()
    assert (solution.value <= solution.upper).all()
    assert (solution.lower.double() <= truth + slack).all()
    assert (solution.upper.double() >= truth - slack).all()


def _random_batch(batch_of, seed: int, decades: tuple[float, float], dtype=torch.float64):
    rng = np.random.default_rng(seed)
    sizes = ((2, 0.5), (5, 0.4), (9, 0.3), (16, 0.15), (21, 0.1), (32, 0.05))
    return batch_of(
        [graphs.random_connected(rng, nodes, density, decades) for nodes, density in sizes],
        dtype=dtype,
    )


@st.composite
def masses_on_a_metric(draw, masses: tuple[float, ...] = (0, 1, 2, 3)) -> TransportProblems:
    """Few nodes, few lengths and masses: many ties, where simplex-like methods go wrong."""
    nodes = draw(st.integers(2, 6))
    pairs = graphs.complete(nodes)
    some = st.sampled_from([0.0, 1.0, 1.0, 2.0, 3.0, 1e-6, 50.0])
    lengths = np.array(draw(st.lists(some, min_size=len(pairs), max_size=len(pairs))))
    some = st.sampled_from(masses)
    one_row = st.lists(some, min_size=nodes, max_size=nodes).filter(any)
    rows = np.array(draw(st.lists(one_row, min_size=nodes, max_size=nodes)), dtype=float)
    distance = shortest_paths(graphs.length_matrix(pairs, lengths, nodes))
    edges = edge_list(~torch.eye(nodes, dtype=torch.bool)[None])
    measure = torch.from_numpy(rows / rows.sum(axis=1, keepdims=True))
    return TransportProblems(torch.from_numpy(distance)[None], measure[None], edges)


@pytest.mark.parametrize(
    ("decades", "walk"), [((0, 0), 0), ((-1, 1), 1), ((-3, 3), 2), ((-8, 2), 1)]
)
def test_exact_equals_the_linear_programme_on_random_graphs(decades, walk, batch_of):
    """Within 1e-9 of W1; the oracle's own tolerance of 1e-10 of the longest distance is allowed."""
    problems = _random_batch(batch_of, 1, decades).problems(*WALKS[walk])
    expected = torch.from_numpy(_by_linear_programme(problems))
    error = (EXACT.solve(problems).value - expected).abs()
    assert (error <= 1e-9 * expected + 1e-10 * _longest(problems)).all()


@settings(max_examples=30)
@given(masses_on_a_metric())
def test_exact_equals_the_linear_programme_where_many_plans_tie(problems):
    expected = torch.from_numpy(_by_linear_programme(problems))
    error = (EXACT.solve(problems).value - expected).abs()
    assert (error <= 1e-9 * expected + 1e-10 * _longest(problems)).all()


@settings(max_examples=80)
@given(masses_on_a_metric())
def test_exact_returns_duals_that_prove_its_value_on_tied_masses(problems):
    _assert_certified(problems, EXACT.solve(problems))


@pytest.mark.parametrize("decades", [(-1, 1), (-8, 2), (-30, 3)])
@pytest.mark.parametrize(("alpha", "p"), WALKS)
def test_exact_returns_duals_that_prove_its_value_on_random_graphs(decades, alpha, p, batch_of):
    problems = _random_batch(batch_of, 2, decades).problems(alpha, p)
    _assert_certified(problems, EXACT.solve(problems))


def _assert_certified(problems: TransportProblems, solution) -> None:
    """Potentials with ``u_i - u_j <= d_ij`` between supplies and demands that attain the cost.

    No oracle: by weak duality, W1 is at least what any such potentials give.
    """
    supply, demand = problems.excess()
    potential = torch.from_numpy(solution.state)
    longest = _longest(problems)
    u, v = (torch.where(mass > 1e-15, potential, 0.0) for mass in (supply, demand))
    excess = u[..., :, None] - v[..., None, :] - problems.distance[:, None]
    both = (supply > 1e-15)[..., :, None] & (demand > 1e-15)[..., None, :]
    violation = torch.where(both, excess, -torch.inf).amax(dim=(2, 3))
    assert (violation <= 1e-14 * longest).all()
    attained = (supply * u - demand * v).sum(dim=2)
    assert ((solution.value - attained).abs() <= 1e-14 * longest).all()
    assert ((solution.upper - solution.lower) <= 1e-14 * longest).all()
    assert solution.converged.all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("decades", [(0, 0), (-1, 1), (-8, 2)])
def test_bounds_of_every_solver_bracket_the_truth(approximate, decades, dtype, batch_of):
    for alpha, p in WALKS:
        problems = _random_batch(batch_of, 3, decades, dtype).problems(alpha, p)
        _assert_brackets(approximate.solve(problems), _truth(problems), problems)


@settings(max_examples=30)
@given(masses_on_a_metric((0.0, 0.0, 1.0, 1.0, 2.0, 1e-3, 1e-9, 1e-30)))
def test_bounds_of_sinkhorn_bracket_the_truth_whatever_the_masses(problems):
    for dtype in (torch.float64, torch.float32):
        cast = replace(
            problems, distance=problems.distance.to(dtype), measure=problems.measure.to(dtype)
        )
        truth = _truth(cast)
        for name, solver in APPROXIMATE.items():
            if name != "geomloss":
                _assert_brackets(solver.solve(cast), truth, cast)


def test_exact_value_lies_between_its_own_bounds_in_both_precisions(batch_of):
    for dtype in (torch.float64, torch.float32):
        problems = _random_batch(batch_of, 4, (-2, 1), dtype).problems()
        solution = EXACT.solve(problems)
        assert solution.value.dtype == dtype
        _assert_brackets(solution, _truth(problems), problems)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize(("longest", "epsilon"), [(52.0, 0.02), (4.0, 0.05), (1e4, 0.001)])
def test_kernel_underflow_widens_the_bounds_and_keeps_them_true(
    dtype, sharp, longest, epsilon, batch_of
):
    """``d / epsilon`` of 2600 and more: ``exp(-d / epsilon)`` is zero in any precision."""
    rng = np.random.default_rng(5)
    edges, lengths = graphs.random_connected(rng, 21, 0.2, (-6, 0))
    lengths[rng.random(len(lengths)) < 0.2] *= longest
    problems = batch_of([(edges, lengths), (graphs.complete(4), 1.0)], dtype=dtype).problems()
    solver = SOLVERS.build("sinkhorn", {"epsilon": epsilon, "iterations": 50, "sharp": sharp})
    solution = solver.solve(problems)
    _assert_brackets(solution, _truth(problems), problems)
    # The short graph of the batch is solved as well as ever.
    assert (solution.upper - solution.lower)[1].max() < 0.01


def test_sinkhorn_tends_to_the_exact_value(batch_of):
    problems = batch_of([(graphs.petersen(), 1.0), (graphs.tree(2, 3), 1.0)]).problems()
    truth = EXACT.solve(problems).value
    errors = []
    for epsilon in (0.5, 0.1, 0.02):
        solver = SOLVERS.build("sinkhorn", {"epsilon": epsilon, "iterations": 1000})
        errors.append(float((solver.solve(problems).value - truth).abs().max()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3


def test_sinkhorn_says_which_queries_did_not_converge(batch_of):
    rng = np.random.default_rng(6)
    hard = graphs.random_connected(rng, 21, 0.3, (-1, 1))
    problems = batch_of([hard, (graphs.complete(4), 1.0)]).problems()
    solver = SOLVERS.build("sinkhorn", {"iterations": 1, "tolerance": 1e-3})
    assert solver.solve(problems).converged.tolist() == [False, True]


def test_warm_starts_change_nothing_for_the_exact_solver(batch_of):
    cold = _random_batch(batch_of, 7, (-1, 1))
    state = EXACT.solve(cold.problems()).state
    for seed in (8, 9):
        noise = np.random.default_rng(seed).lognormal(sigma=0.5, size=cold.weight.shape)
        moved = cold._replace(weight=cold.weight * torch.from_numpy(noise)).problems()
        warm = EXACT.solve(moved, state)
        fresh = EXACT.solve(moved)
        torch.testing.assert_close(warm.value, fresh.value, rtol=1e-12, atol=1e-14)
        state = warm.state
        _assert_certified(moved, warm)


def test_warm_starts_keep_the_bounds_of_sinkhorn_true(approximate, batch_of):
    cold = _random_batch(batch_of, 7, (-1, 1))
    state = approximate.solve(cold.problems()).state
    noise = np.random.default_rng(8).lognormal(sigma=0.5, size=cold.weight.shape)
    moved = cold._replace(weight=cold.weight * torch.from_numpy(noise)).problems()
    _assert_brackets(approximate.solve(moved, state), _truth(moved), moved)


@pytest.mark.parametrize("name", ["exact", *APPROXIMATE])
def test_identical_measures_are_exactly_zero_apart(name):
    if name == "geomloss":
        pytest.importorskip("geomloss")
    solver = EXACT if name == "exact" else APPROXIMATE[name]
    distance = torch.from_numpy(
        shortest_paths(graphs.length_matrix(graphs.path(4), np.ones(3), 4))
    )[None]
    row = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    measure = row.repeat(4, 1)[None]
    problems = TransportProblems(distance, measure, edge_list(distance == 1))
    for problem in (problems, replace(problems, distance=torch.zeros_like(distance))):
        solution = solver.solve(problem)
        for part in (solution.value, solution.lower, solution.upper):
            assert (part == 0).all()
        assert solution.converged.all()


def test_zero_distances_cost_nothing(batch_of):
    problems = batch_of([(graphs.cycle(5), 0.0)]).problems(0.0, 0.0)
    for solver in (EXACT, APPROXIMATE["sinkhorn"], APPROXIMATE["sinkhorn-sharp"]):
        solution = solver.solve(problems)
        assert solution.upper.tolist() == [[0.0] * 5]


def test_common_mass_cancels(batch_of):
    """Mass that both measures share may be taken from both: W1 shrinks by the share that is left.

    The linear programme of the tests above never cancels, and agrees.
    """
    problems = _random_batch(batch_of, 10, (-1, 1)).problems()
    common = torch.full_like(problems.measure, 1.0 / problems.measure.shape[2])
    mixed = replace(problems, measure=0.25 * problems.measure + 0.75 * common)
    # Uniform mass also lies on padded nodes, which are at an infinite distance and never move.
    error = EXACT.solve(mixed).value - 0.25 * EXACT.solve(problems).value
    assert (error.abs() <= 1e-14 * _longest(problems)).all()


def test_components_do_not_disturb_each_other(approximate, batch_of):
    edges = graphs.cycle(5) + [(x + 5, y + 5) for x, y in graphs.tree(2, 2)]
    problems = batch_of([(edges, 1.0)]).problems()
    apart = batch_of([(graphs.cycle(5), 1.0), (graphs.tree(2, 2), 1.0)])
    expected = np.concatenate(apart.rows(EXACT.solve(apart.problems()).value))
    np.testing.assert_allclose(EXACT.solve(problems).value[0], expected, rtol=1e-12)
    _assert_brackets(approximate.solve(problems), _truth(problems), problems)


def test_plain_and_compiled_exact_solvers_agree(batch_of, monkeypatch):
    pytest.importorskip("numba")
    rng = np.random.default_rng(11)
    shapes = ((4, 0.5), (8, 0.3), (12, 0.2))
    batch = batch_of([graphs.random_connected(rng, n, d, (-2, 1)) for n, d in shapes])
    compiled = EXACT.solve(batch.problems())
    monkeypatch.setattr(exact, "_compiled", lambda: exact._solve_graphs)
    plain = EXACT.solve(batch.problems())
    torch.testing.assert_close(plain.value, compiled.value, rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(plain.lower, compiled.lower, rtol=1e-13, atol=1e-15)


def test_missing_numba_is_said_once_and_not_hidden(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "numba", None)
    with caplog.at_level(logging.WARNING):
        exact._compiled.__wrapped__()
    assert "numba is not installed" in caplog.text
    assert "ricci-gpu[exact]" in caplog.text


def test_missing_geomloss_is_an_error_that_names_the_extra(monkeypatch, batch_of):
    monkeypatch.setitem(sys.modules, "geomloss", None)
    with pytest.raises(ImportError, match=r"pip install \"ricci-gpu\[geomloss\]\""):
        APPROXIMATE["geomloss"].solve(batch_of([(graphs.cycle(5), 1.0)]).problems())


def test_threads_do_not_change_the_exact_answer(batch_of):
    problems = _random_batch(batch_of, 12, (-1, 1)).problems()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = EXACT.solve(problems).value
        torch.set_num_threads(4)
        shared = EXACT.solve(problems).value
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, shared)


@pytest.mark.parametrize(
    ("solver", "setting", "value", "rule"),
    [
        ("sinkhorn", "epsilon", 0.0, "`epsilon` must be greater than 0; got 0.0"),
        ("sinkhorn", "iterations", 0, "`iterations` must be at least 1; got 0"),
        ("sinkhorn", "tolerance", -1.0, "`tolerance` must be greater than 0; got -1.0"),
        ("geomloss", "epsilon", float("nan"), "`epsilon` must be greater than 0; got nan"),
        ("geomloss", "iterations", 0, "`iterations` must be at least 1; got 0"),
    ],
)
def test_impossible_settings_are_refused(solver, setting, value, rule):
    with pytest.raises(SettingError, match=rule):
        SOLVERS.build(solver, {setting: value})


def test_unknown_solvers_and_settings_are_refused_with_a_suggestion():
    with pytest.raises(SettingError, match="Did you mean `sinkhorn`"):
        SOLVERS.build("sinkhorm", {})
    with pytest.raises(SettingError, match=r"has no setting `epsilom`\. Did you mean `epsilon`"):
        SOLVERS.build("sinkhorn", {"epsilom": 0.1})


def _truth(problems: TransportProblems) -> torch.Tensor:
    """The exact W1 of the problems as they stand, in float64; proved above."""
    return EXACT.solve(
        replace(problems, distance=problems.distance.double(), measure=problems.measure.double())
    ).value
