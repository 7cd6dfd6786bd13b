"""Ollivier-Ricci curvature of edges, and the normalised discrete Ricci flow.

Sources: Ollivier 2009 (curvature), Ni et al. 2019 (discrete flow and surgery), Ricci-Filtration
(arXiv 2606.15482; unit lengths, query edges, cutoff).

With unit lengths at the start and a step of at most 1, every edge stays a shortest path, so
``w <- w - step * kappa * w`` with ``kappa = 1 - W1 / d`` is ``w <- (1 - step) w + step W1``: no
division by a distance that tends to zero, and no negative weight.

On a CUDA device the flow of float32 lengths with Sinkhorn transport runs in one launch of the
Triton kernel of `ricci_kernels`, for graphs of up to 64 nodes, unless something is asked for that
only single steps can give: a trace, a stop by spread, the sharp bound.
"""

from typing import Any, NamedTuple

import torch

from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.ops.adjacency import EdgeList, to_matrix
from ricci_gpu.ops.distances import shortest_paths
from ricci_gpu.ops.kernels import define_kernel, on_kernels
from ricci_gpu.ops.measures import node_measures
from ricci_gpu.ops.transport import TransportProblems
from ricci_gpu.ops.transport.interface import TransportSolution, TransportSolver
from ricci_gpu.ops.transport.sinkhorn import SinkhornTransport
from ricci_gpu.shapes import Bool, Float, Tensor

# Nodes of a graph that the Triton kernel takes.
LARGEST_ON_DEVICE = 64


class Curvature(NamedTuple):
    """``kappa = 1 - W1 / d`` of every edge, with the bounds that follow from those of W1."""

    kappa: Float[Tensor, "B E"]
    lower: Float[Tensor, "B E"]
    upper: Float[Tensor, "B E"]


class FlowStep(NamedTuple):
    """What one step saw: weights before it, curvature at them."""

    weight: Float[Tensor, "B E"]
    curvature: Curvature


class FlowResult(NamedTuple):
    """Final weights (mean 1 per graph), and how well the steps were solved.

    ``gap`` is the largest ``upper - lower`` of W1 over all edges and steps, relative to the mean
    edge length of 1. ``resolved_share`` is the share of transports that a cheap solver left to an
    exact one. ``trace`` holds one `FlowStep` per iteration when asked for.
    """

    weight: Float[Tensor, "B E"]
    converged: Bool[Tensor, "B"]
    gap: Float[Tensor, "B"]
    resolved_share: Float[Tensor, "B"]
    trace: list[FlowStep]


def curvature(
    weight: Float[Tensor, "B E"],
    edges: EdgeList,
    adjacency: Bool[Tensor, "B N N"],
    solver: TransportSolver,
    alpha: float = 0.5,
    p: float = 2.0,
) -> Curvature:
    """Ollivier-Ricci curvature of every edge, at the shortest-path distance of its ends.

    Where that distance is 0 (duplicates) the quotient means nothing, and 1 is reported.

    Raises:
        InputError: a real edge has a negative, infinite or NaN length.
    """
    weight = _checked_lengths(weight, edges)
    solution, distance = _transport(weight, edges, adjacency, solver, alpha, p, None)
    return _curvature(solution, distance, edges)


def ricci_flow(
    weight: Float[Tensor, "B E"],
    edges: EdgeList,
    adjacency: Bool[Tensor, "B N N"],
    solver: TransportSolver,
    *,
    alpha: float = 0.5,
    p: float = 2.0,
    step: float = 1.0,
    iterations: int = 20,
    stop_at_spread: float = 0.0,
    trace: bool = False,
) -> FlowResult:
    """Run the normalised flow; after every step the edges of a graph have mean length 1.

    Args:
        weight: edge lengths at the start; need not be shortest paths. Read where ``edges.mask``.
        step: in (0, 1].
        iterations: number of steps, at least 0.
        stop_at_spread: a graph stops once its largest and smallest curvature differ by less; 0
            never stops.
        trace: keep the weights and curvature of every step.

    A graph whose weights all vanish (a single edge at ``alpha = 0.5``) ends with weight 0.

    Raises:
        SettingError: ``step``, ``iterations``, ``alpha`` or ``p`` out of range.
        InputError: a real edge has a negative, infinite or NaN length.
    """
    if not 0.0 < step <= 1.0:
        raise SettingError(f"`step` must lie in (0, 1]; got {step}.")
    if iterations < 0:
        raise SettingError(f"`iterations` must be at least 0; got {iterations}.")
    weight = _checked_lengths(weight, edges)
    batch = weight.shape[0]
    active = torch.ones(batch, dtype=torch.bool, device=weight.device)
    converged = torch.ones_like(active)
    gap, resolved = weight.new_zeros(batch), weight.new_zeros(batch)
    steps: list[FlowStep] = []
    state = None
    if weight.shape[1] == 0:
        return FlowResult(weight, converged, gap, resolved, steps)
    if not trace and stop_at_spread == 0.0 and _kernel_serves(weight, adjacency, solver):
        flowed = _by_kernel(weight, edges, adjacency, solver, alpha, p, step, iterations)
        return FlowResult(*flowed, resolved, steps)
    for _ in range(iterations):
        solution, distance = _transport(weight, edges, adjacency, solver, alpha, p, state)
        state = solution.state
        converged &= solution.converged | ~active
        width = (solution.upper - solution.lower).amax(dim=1)
        gap = torch.where(active, torch.maximum(gap, width), gap)
        if solution.resolved is not None:
            resolved = resolved + solution.resolved.sum(dim=1)
        if trace or stop_at_spread > 0.0:
            kappa = _curvature(solution, distance, edges)
            if trace:
                steps.append(FlowStep(weight, kappa))
            if stop_at_spread > 0.0:
                active = active & (_spread(kappa.kappa, edges) >= stop_at_spread)
        # w - step kappa w with kappa = 1 - W1/d. The factor w/d is 1 for a shortest path; only
        # lengths given by the user can be longer than the distance of their ends. At distance 0
        # it has no value, and W1 is 0 unless the ends have different neighbours.
        stretched = (weight > distance) & (distance > 0)
        ratio = torch.where(stretched, weight / torch.where(stretched, distance, 1.0), 1.0)
        moved = (1.0 - step) * weight + step * ratio * solution.value
        moved = _rescale(torch.where(edges.mask, moved, 0.0), edges)
        weight = torch.where(active[:, None], moved, weight)
    transports = (edges.mask.sum(dim=1) * max(iterations, 1)).clamp(min=1)
    return FlowResult(weight, converged, gap, resolved / transports, steps)


def _kernel_serves(
    weight: Float[Tensor, "B E"], adjacency: Bool[Tensor, "B N N"], solver: TransportSolver
) -> bool:
    fits = weight.dtype is torch.float32 and adjacency.shape[1] <= LARGEST_ON_DEVICE
    by_sinkhorn = isinstance(solver, SinkhornTransport) and not solver.sharp
    return fits and by_sinkhorn and on_kernels(weight)


def _by_kernel(
    weight: Float[Tensor, "B E"],
    edges: EdgeList,
    adjacency: Bool[Tensor, "B N N"],
    solver: TransportSolver,
    alpha: float,
    p: float,
    step: float,
    iterations: int,
) -> tuple[Float[Tensor, "B E"], Bool[Tensor, "B"], Float[Tensor, "B"]]:
    """All steps of all graphs in one launch: weights, converged and gap, as the loop gives them."""
    assert isinstance(solver, SinkhornTransport)  # `_kernel_serves` has said so
    return torch.ops.ricci_gpu.flow_kernel(
        weight.contiguous(),
        edges.source,
        edges.target,
        edges.mask.sum(dim=1),
        adjacency.shape[1],
        alpha,
        p,
        step,
        iterations,
        solver.epsilon,
        solver.iterations,
        solver.tolerance,
    )


def _launch(
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    counts: Tensor,
    nodes: int,
    alpha: float,
    p: float,
    step: float,
    iterations: int,
    epsilon: float,
    sinkhorn_iterations: int,
    tolerance: float,
) -> tuple[Tensor, Tensor, Tensor]:
    from ricci_kernels.flow import ricci_flow as kernel

    flowed = kernel(
        weight,
        source,
        target,
        counts,
        nodes,
        alpha=alpha,
        p=p,
        step=step,
        iterations=iterations,
        epsilon=epsilon,
        sinkhorn_iterations=sinkhorn_iterations,
        tolerance=tolerance,
    )
    return flowed.weight, flowed.converged, flowed.gap


def _launch_shapes(weight: Tensor, *_: Any) -> tuple[Tensor, Tensor, Tensor]:
    per_graph = weight.new_empty(weight.shape[:1])
    return torch.empty_like(weight), per_graph.bool(), per_graph


define_kernel(
    "flow_kernel",
    "(Tensor weight, Tensor source, Tensor target, Tensor counts, int nodes, float alpha, float p,"
    " float step, int iterations, float epsilon, int sinkhorn_iterations, float tolerance)"
    " -> (Tensor, Tensor, Tensor)",
    _launch,
    _launch_shapes,
)


def _checked_lengths(weight: Float[Tensor, "B E"], edges: EdgeList) -> Float[Tensor, "B E"]:
    """The lengths with 0 in the padding."""
    weight = torch.where(edges.mask, weight, 0.0)
    wrong = ~(torch.isfinite(weight) & (weight >= 0))
    if wrong.any():
        graph, edge = (int(i) for i in wrong.nonzero()[0])
        raise InputError(
            "edge lengths must be finite and at least 0; "
            f"got {float(weight[graph, edge])} at edge {edge} of graph {graph} "
            f"({int(wrong.sum())} such lengths). Drop the edge, or give it a length."
        )
    return weight


def _transport(
    weight: Float[Tensor, "B E"],
    edges: EdgeList,
    adjacency: Bool[Tensor, "B N N"],
    solver: TransportSolver,
    alpha: float,
    p: float,
    state: object,
) -> tuple[TransportSolution, Float[Tensor, "B E"]]:
    """W1 of every edge, and the distance of its ends."""
    size = adjacency.shape[1]
    lengths = to_matrix(edges, weight, size, torch.inf)
    distance = shortest_paths(lengths)
    measure = node_measures(lengths, adjacency, alpha, p)
    solution = solver.solve(TransportProblems(distance, measure, edges), state)
    graph = torch.arange(len(weight), device=weight.device)[:, None]
    between = torch.where(edges.mask, distance[graph, edges.source, edges.target], 0.0)
    return solution, between


def _curvature(
    solution: TransportSolution, distance: Float[Tensor, "B E"], edges: EdgeList
) -> Curvature:
    def kappa(w1: Float[Tensor, "B E"]) -> Float[Tensor, "B E"]:
        apart = distance > 0
        value = torch.where(apart, 1.0 - w1 / torch.where(apart, distance, 1.0), 1.0)
        return torch.where(edges.mask, value, 0.0)

    return Curvature(kappa(solution.value), kappa(solution.upper), kappa(solution.lower))


def _spread(kappa: Float[Tensor, "B E"], edges: EdgeList) -> Float[Tensor, "B"]:
    most = torch.where(edges.mask, kappa, -torch.inf).amax(dim=1)
    least = torch.where(edges.mask, kappa, torch.inf).amin(dim=1)
    return most - least


def _rescale(weight: Float[Tensor, "B E"], edges: EdgeList) -> Float[Tensor, "B E"]:
    """Bring the mean edge of each graph back to 1; all-zero weights stay zero, NaN stays NaN."""
    total = weight.sum(dim=1, keepdim=True)
    count = edges.mask.sum(dim=1, keepdim=True)
    vanished = total == 0
    return torch.where(vanished, 0.0, weight * (count / torch.where(vanished, 1.0, total)))
