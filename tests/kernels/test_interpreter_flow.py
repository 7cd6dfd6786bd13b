"""The flow kernel in Triton's interpreter, against the torch path in float32 and exact transport.

Run with ``TRITON_INTERPRET=1 python -m pytest tests/kernels/test_interpreter_flow.py
-m interpreter``.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from oracles import graphs
from oracles.graphs import Edge, clustered_vectors
from torch import Tensor

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1 python -m pytest -m interpreter", allow_module_level=True)
pytest.importorskip("triton", reason="needs triton")

from ricci_kernels.exact import exact_transport
from ricci_kernels.flow import FlowResult as KernelFlow
from ricci_kernels.flow import ricci_flow as kernel_flow

from ricci_gpu.ops.adjacency import (
    EdgeList,
    cosine_dissimilarity,
    edge_list,
    join_query,
    percentile_threshold,
    threshold_graph,
    to_matrix,
)
from ricci_gpu.ops.distances import shortest_paths
from ricci_gpu.ops.flow import FlowResult, ricci_flow
from ricci_gpu.ops.measures import node_measures
from ricci_gpu.ops.transport import SOLVERS, TransportProblems

pytestmark = [
    pytest.mark.interpreter,
    # numpy, which plays the GPU here, warns of log(0) and inf - inf; the hardware does not
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

NAN, INF = math.nan, math.inf
# Rounding differs (order of sums, exponentials to base 2), and the flow amplifies it.
TOLERANCE = 2e-6


@dataclass(frozen=True)
class Batch:
    """Padded graphs; NaN and indices out of range stand in the padding."""

    weight: Tensor
    edges: EdgeList
    adjacency: Tensor

    @property
    def poisoned(self) -> dict[str, Any]:
        mask = self.edges.mask
        return {
            "weight": torch.where(mask, self.weight, NAN),
            "source": torch.where(mask, self.edges.source, 2**40),
            "target": torch.where(mask, self.edges.target, -7),
            "counts": mask.sum(dim=1),
            "nodes": self.adjacency.shape[1],
        }

    def kernel(self, sinkhorn: int = 5, **settings: Any) -> KernelFlow:
        return kernel_flow(**self.poisoned, sinkhorn_iterations=sinkhorn, **settings)

    def problems(self) -> TransportProblems:
        """Those of the first step, in float64."""
        lengths = to_matrix(self.edges, self.weight.double(), self.adjacency.shape[1], INF)
        measure = node_measures(lengths, self.adjacency)
        return TransportProblems(shortest_paths(lengths), measure, self.edges)

    def torch(self, sinkhorn: int = 5, epsilon: float = 0.05, **settings: Any) -> FlowResult:
        solver = SOLVERS.build("sinkhorn", {"epsilon": epsilon, "iterations": sinkhorn})
        return ricci_flow(self.weight, self.edges, self.adjacency, solver, **settings)


def batch_of(*cases: tuple[Sequence[Edge], Any], nodes: int | None = None) -> Batch:
    """``(edges, lengths)`` pairs; a graph without edges is ``([], [])``."""
    largest = 1 + max((y for edges, _ in cases for _, y in edges), default=0)
    size = nodes or largest
    adjacency = torch.zeros((len(cases), size, size), dtype=torch.bool)
    for row, (edges, _) in enumerate(cases):
        for x, y in edges:
            adjacency[row, x, y] = adjacency[row, y, x] = True
    padded = edge_list(adjacency)
    weight = torch.zeros(padded.mask.shape)
    for row, (edges, lengths) in enumerate(cases):
        assert list(edges) == sorted(edges)
        full = np.broadcast_to(np.asarray(lengths, dtype=np.float32), (len(edges),))
        weight[row, : len(edges)] = torch.tensor(full)
    return Batch(weight, padded, adjacency)


def pools(*vectors: np.ndarray, rule: Any = "ge", query_edges: bool = True) -> Batch:
    """Query graphs as the filter builds them."""
    size = max(len(rows) for rows in vectors)
    node_emb = torch.zeros((len(vectors), size, vectors[0].shape[1]))
    mask = torch.zeros((len(vectors), size), dtype=torch.bool)
    for row, rows in enumerate(vectors):
        node_emb[row, : len(rows)] = torch.as_tensor(rows)
        mask[row, : len(rows)] = True
    dissimilarity = cosine_dissimilarity(node_emb, mask)
    limit = percentile_threshold(dissimilarity, mask, 50.0)
    adjacency = threshold_graph(dissimilarity, mask, limit, rule)
    if query_edges:
        adjacency = join_query(adjacency, mask)
    edges = edge_list(adjacency)
    return Batch(edges.mask.float(), edges, adjacency)


def pool(seed: int, rows: int) -> np.ndarray:
    return clustered_vectors(np.random.default_rng(seed), rows)


def random_graph(seed: int, nodes: int, decades: tuple[float, float]) -> tuple[list[Edge], Any]:
    return graphs.random_connected(np.random.default_rng(seed), nodes, 0.3, decades)


def assert_same_flow(batch: Batch, *, atol: float = TOLERANCE, **settings: Any) -> None:
    kernel, expected = batch.kernel(**settings), batch.torch(**settings)
    torch.testing.assert_close(kernel.weight, expected.weight, atol=atol, rtol=0)
    torch.testing.assert_close(kernel.gap, expected.gap, atol=atol, rtol=1e-5)
    assert torch.equal(kernel.converged, expected.converged)


# -- the torch path in float32 ---------------------------------------------------------------


@pytest.mark.parametrize("rule", ["ge", "le"])
@pytest.mark.parametrize("iterations", [1, 2, 3])
def test_few_steps_equal_the_torch_path(rule: str, iterations: int) -> None:
    batch = pools(pool(0, 21), pool(1, 9), pool(2, 2), rule=rule)
    assert_same_flow(batch, iterations=iterations)


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_decisions_after_twenty_steps_equal_the_torch_path(rule: str) -> None:
    batch = pools(pool(3, 21), rule=rule)
    kernel, expected = batch.kernel(), batch.torch()
    torch.testing.assert_close(kernel.weight, expected.weight, atol=1e-4, rtol=0)
    assert torch.equal(kernel.weight <= 1 + 1e-5, expected.weight <= 1 + 1e-5)


@pytest.mark.parametrize("nodes", [2, 15, 16, 17, 33, 40])
def test_every_padded_size(nodes: int) -> None:
    """40 nodes have about 400 edges: several blocks of them."""
    assert_same_flow(pools(pool(5, nodes)), iterations=2, sinkhorn=2)


@pytest.mark.parametrize("nodes", [9, 40])
def test_every_precision_runs(nodes: int) -> None:
    """The interpreter multiplies exactly: this shows the tiles of the precision, not its error."""
    batch = pools(pool(6, nodes))
    kernel = batch.kernel(iterations=2, sinkhorn=2, precision="tf32x3")
    expected = batch.torch(iterations=2, sinkhorn=2)
    torch.testing.assert_close(kernel.weight, expected.weight, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [
        {"alpha": 0.0, "p": 0.0},
        {"alpha": 0.3, "p": 1.0},
        {"p": 5.0, "step": 0.4},
        {"epsilon": 0.5, "sinkhorn": 1},
        {"epsilon": 0.01},  # the blur has to be raised
        {"iterations": 0},
    ],
    ids=str,
)
def test_settings(settings: dict[str, Any]) -> None:
    """Lengths that are not shortest paths, over several orders of magnitude."""
    batch = batch_of(random_graph(7, 12, (-2, 1)), random_graph(8, 8, (-0.3, 0.3)))
    assert_same_flow(batch, atol=1e-5, **({"iterations": 3} | settings))


def test_warm_starts_are_those_of_the_torch_path() -> None:
    """One Sinkhorn iteration per step: without the scalings of the last step it would differ."""
    batch = pools(pool(9, 12), pool(10, 12))
    assert_same_flow(batch, iterations=4, sinkhorn=1)
    cold = batch.torch(iterations=1, sinkhorn=1)
    for _ in range(3):
        cold = replace(batch, weight=cold.weight).torch(iterations=1, sinkhorn=1)
    assert (batch.kernel(iterations=4, sinkhorn=1).weight - cold.weight).abs().max() > 1e-3


# -- bounds ------------------------------------------------------------------------------------


@pytest.mark.parametrize("decades", [(0.0, 0.0), (-1.0, 0.5), (-4.0, 1.5)])
@pytest.mark.parametrize("epsilon", [0.02, 0.2])
def test_bounds_bracket_exact_transport(decades: tuple[float, float], epsilon: float) -> None:
    batch = batch_of(*(random_graph(seed, 14, decades) for seed in (11, 12)))
    kernel = batch.kernel(iterations=1, epsilon=epsilon, bounds=True)
    w1 = SOLVERS.build("exact", {}).solve(batch.problems()).value
    slack = 2e-6 * float(batch.problems().distance.amax())
    assert kernel.lower is not None
    assert kernel.upper is not None
    assert (kernel.lower <= w1 + slack).all()
    assert (kernel.upper >= w1 - slack).all()
    torch.testing.assert_close(kernel.gap, (kernel.upper - kernel.lower).amax(dim=1))


def test_bounds_are_those_of_the_last_step() -> None:
    batch = pools(pool(13, 10))
    before = batch.kernel(iterations=2, bounds=True)
    last = batch.kernel(iterations=3, bounds=True)
    assert last.upper is not None
    assert before.upper is not None
    assert not torch.equal(before.upper, last.upper)
    moved = last.upper * batch.edges.mask.sum() / last.upper.sum()
    torch.testing.assert_close(last.weight, moved, atol=TOLERANCE, rtol=0)  # at step 1


# -- the inputs that any implementation should handle ----------------------------------------


def test_one_node_and_graphs_without_edges() -> None:
    flow = batch_of(([], []), ([(0, 1)], 1.0), ([], [])).kernel()
    assert torch.equal(flow.weight, torch.zeros(3, 1))  # a single edge vanishes at alpha = 0.5
    assert torch.equal(flow.gap, torch.zeros(3))
    assert flow.converged.all()


def test_no_graph_and_no_edge() -> None:
    nothing = torch.zeros((0, 4), dtype=torch.int64)
    flow = kernel_flow(nothing.float(), nothing, nothing, nothing[:, 0], nodes=5)
    assert flow.weight.shape == (0, 4)
    ends = torch.zeros((2, 0), dtype=torch.int64)
    flow = kernel_flow(ends.float(), ends, ends, torch.zeros(2, dtype=torch.int64), nodes=5)
    assert flow.weight.shape == (2, 0)
    assert torch.equal(flow.gap, torch.zeros(2))
    assert flow.converged.all()


def test_a_single_candidate_keeps_its_edge_without_laziness() -> None:
    flow = batch_of(([(0, 1)], 1.0)).kernel(alpha=0.0)
    assert flow.weight.item() == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", ["Star_15leaves", "K_10"])
def test_star_and_complete_graph_end_with_all_weights_one(name: str) -> None:
    flow = batch_of((graphs.named(name), 1.0)).kernel(iterations=8)
    torch.testing.assert_close(flow.weight, torch.ones_like(flow.weight), atol=1e-5, rtol=0)


@pytest.mark.parametrize("rule", ["ge", "le"])
def test_duplicates_get_equal_weights(rule: str) -> None:
    """Exactly after one step; later as far as the bounds are tight, as on the torch path.

    Sinkhorn's value depends on the direction of an edge until it has converged.
    """
    vectors = pool(14, 12)
    vectors[[4, 9, 11]] = vectors[2]
    batch = pools(vectors, rule=rule)
    ends = list(zip(batch.edges.source[0].tolist(), batch.edges.target[0].tolist(), strict=True))
    query = torch.tensor([ends.index((0, node)) for node in (2, 4, 9, 11)])
    equal = batch.kernel(iterations=1).weight[0, query]
    assert equal.max() - equal.min() <= 1e-6
    flow = batch.kernel(iterations=5)
    equal = flow.weight[0, query]
    assert equal.max() - equal.min() <= flow.gap[0]
    assert (equal <= 1).all() or (equal > 1).all()


def test_components_do_not_disturb_each_other() -> None:
    """Distances between them are infinite; a third graph is a node alone beside a triangle."""
    triangle, square = graphs.complete(3), graphs.cycle(4)
    apart = [*triangle, *((x + 3, y + 3) for x, y in square)]
    batch = batch_of((apart, np.linspace(0.5, 1.5, 7)), (triangle, [1.0, 2.0, 0.5]), nodes=9)
    assert_same_flow(batch, iterations=4)
    flow = batch.kernel(iterations=4)
    assert torch.isfinite(flow.weight).all()


def test_pools_whose_query_is_not_joined() -> None:
    assert_same_flow(pools(pool(15, 14), pool(16, 8), query_edges=False), iterations=3)


def test_lengths_of_zero_and_far_apart() -> None:
    edges = graphs.complete(6)
    lengths = np.resize([0.0, 1e-9, 0.3, 1.0, 52.0, 7.0, 0.0], len(edges))
    batch = batch_of((edges, lengths), (graphs.path(4), 0.0))
    assert_same_flow(batch, iterations=3, atol=1e-5)
    assert torch.isfinite(batch.kernel().weight).all()


# -- independence ------------------------------------------------------------------------------


def test_padding_and_batching_change_nothing_at_all() -> None:
    """Equal bit for bit, whatever else is in the batch and however far it is padded."""
    cases = [random_graph(seed, nodes, (-0.5, 0.5)) for seed, nodes in ((17, 9), (18, 3), (19, 12))]
    together = batch_of(*cases).kernel(iterations=3)
    padded = batch_of(*cases, nodes=16).kernel(iterations=3)
    assert torch.equal(together.weight, padded.weight)
    for row, case in enumerate(cases):
        alone = batch_of(case).kernel(iterations=3)
        assert torch.equal(together.weight[row, : len(case[0])], alone.weight[0])
        assert (together.weight[row, len(case[0]) :] == 0).all()
        assert torch.equal(together.gap[row], alone.gap[0])


def test_graphs_of_one_program_do_not_read_what_the_last_one_left() -> None:
    """Seven graphs share five programs: the first one's second graph finds a used scratch."""
    case, other = random_graph(20, 10, (-0.5, 0.5)), (graphs.complete(15), 2.0)
    crowd = batch_of(other, other, other, other, other, case, other).kernel(iterations=2)
    alone = batch_of(case).kernel(iterations=2)
    assert torch.equal(crowd.weight[5, : len(case[0])], alone.weight[0])


@pytest.mark.parametrize("bad", [-1.0, INF, NAN])
def test_a_length_that_is_none_flags_its_graph_and_no_other(bad: float) -> None:
    triangle = graphs.complete(3)
    batch = batch_of((triangle, [1.0, bad, 1.0]), (triangle, [1.0, 2.0, 1.5]))
    flow = batch.kernel(iterations=2, bounds=True)
    assert flow.lower is not None
    assert flow.upper is not None
    for values in (flow.weight, flow.lower, flow.upper):
        assert values[0].isnan().all()
        assert torch.isfinite(values[1]).all()
    assert flow.gap.isnan().tolist() == [True, False]
    assert not flow.converged[0]


@pytest.mark.parametrize(("x", "y"), [(0, 3), (-1, 1), (2, 2), (2**40 + 2, 0)])
def test_an_edge_that_joins_no_two_nodes_flags_its_graph(x: int, y: int) -> None:
    flow = kernel_flow(
        torch.ones(1, 2),
        torch.tensor([[0, x]]),
        torch.tensor([[1, y]]),
        torch.tensor([2]),
        nodes=3,
        iterations=1,
    )
    assert flow.weight.isnan().all()


# -- refusals ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"weight": torch.ones(1, 3).double()}, r"contiguous float32 .*; got torch.float64 .*Conv"),
        ({"weight": torch.ones(3, 2).T}, r"`weight` must be contiguous .* with strides \(1, 2\)"),
        ({"source": torch.zeros(1, 3).int()}, r"`source` must be .* int64 .*; got torch.int32"),
        ({"target": torch.zeros(1, 4).long()}, r"`target` .* shape \(1, 3\) .* shape \(1, 4\)"),
        ({"counts": torch.zeros(2).long()}, r"`counts` .* shape \(1,\) on cpu; got .* \(2,\)"),
        ({"nodes": 65}, r"graphs of 1 to 64 nodes; got 65. Take fewer candidates, or use the"),
        ({"nodes": 0}, r"graphs of 1 to 64 nodes; got 0"),
        ({"alpha": 1.0}, r"`alpha` must lie in \[0, 1\); got 1.0"),
        ({"p": -1.0}, r"`p` must be at least 0 and finite; got -1.0"),
        ({"step": 0.0}, r"`step` must lie in \(0, 1\]; got 0.0"),
        ({"iterations": -1}, r"`iterations` must be at least 0; got -1"),
        ({"epsilon": 0.0}, r"`epsilon` must be greater than 0 and finite; got 0.0"),
        ({"sinkhorn_iterations": 0}, r"`sinkhorn_iterations` must be at least 1; got 0"),
        ({"tolerance": 0.0}, r"`tolerance` must be greater than 0; got 0.0"),
        ({"precision": "tf32"}, r"`precision` must be one of ieee, tf32x3; got 'tf32'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    arguments = batch_of((graphs.complete(3), 1.0)).poisoned
    with pytest.raises(ValueError, match=message):
        kernel_flow(**(arguments | change))


# -- exact transport ---------------------------------------------------------------------------


def assert_exact(batch: Batch, kind: torch.dtype = torch.float64, atol: float = 1e-12) -> None:
    problems = batch.problems()
    mask = batch.edges.mask
    result = exact_transport(
        problems.distance.to(kind),
        problems.measure.to(kind),
        torch.where(mask, batch.edges.source, 2**40),
        torch.where(mask, batch.edges.target, -7),
        mask.sum(dim=1),
    )
    expected = SOLVERS.build("exact", {}).solve(problems).value
    finite = problems.distance[torch.isfinite(problems.distance)]
    atol *= float(finite.amax())
    torch.testing.assert_close(result.primal.double(), expected, atol=atol, rtol=0)
    torch.testing.assert_close(result.dual.double(), expected, atol=atol, rtol=0)


@pytest.mark.parametrize(("kind", "atol"), [(torch.float64, 1e-12), (torch.float32, 1e-6)], ids=str)
def test_exact_transport_equals_the_compiled_solver(kind: torch.dtype, atol: float) -> None:
    """Two graphs of unequal size, lengths over orders of magnitude, and a pool as it comes."""
    assert_exact(batch_of(random_graph(21, 9, (-2, 1)), random_graph(22, 5, (0, 0))), kind, atol)
    assert_exact(pools(pool(23, 8)), kind, atol)


def test_exact_transport_where_many_plans_tie() -> None:
    assert_exact(batch_of((graphs.hypercube(3), 1.0)))


def test_exact_transport_on_more_than_sixteen_nodes() -> None:
    assert_exact(batch_of((graphs.cycle(18), np.linspace(0.5, 2.0, 18))))


def test_exact_transport_between_components_and_at_no_distance() -> None:
    apart = [*graphs.complete(3), *((x + 3, y + 3) for x, y in graphs.path(4))]
    assert_exact(batch_of((apart, [1.0, 0.0, 2.0, 0.5, 0.0, 1.0]), ([(0, 1)], 1.0), nodes=8))


def test_exact_transport_of_nothing() -> None:
    nothing = torch.zeros((2, 0), dtype=torch.int64)
    square = torch.zeros(2, 3, 3)
    assert exact_transport(square, square, nothing, nothing, nothing.sum(1)).primal.shape == (2, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"distance": torch.zeros(1, 3, 3).half()}, r"`distance` must be .* got torch.float16"),
        ({"distance": torch.zeros(1, 33, 33)}, r"matrices of 1 to 32 nodes; got \(33, 33\). Use"),
        (
            {"measure": torch.zeros(1, 3, 3).double()},
            r"`measure` must be .*float32.*got torch.float64",
        ),
        ({"source": torch.zeros(1, 2).int()}, r"`source` must be .*int64 .*; got torch.int32"),
        ({"target": torch.zeros(1, 4).long()}, r"`target` must be .* \(1, 2\) .* \(1, 4\)"),
        (
            {"counts": torch.zeros(2).long()},
            r"`counts` must be .* shape \(1,\) on cpu; got .* \(2,\)",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_the_exact_kernel_cannot_treat_is_refused(
    change: dict[str, Any], message: str
) -> None:
    arguments = {
        "distance": torch.zeros(1, 3, 3),
        "measure": torch.zeros(1, 3, 3),
        "source": torch.zeros(1, 2).long(),
        "target": torch.zeros(1, 2).long(),
        "counts": torch.zeros(1).long(),
    }
    with pytest.raises(ValueError, match=message):
        exact_transport(**(arguments | change))
