"""Exact Wasserstein-1: a small dense transport problem per edge, solved by shortest augmenting
paths, compiled with numba where it is installed.

The method is the primal-dual one of Ford and Fulkerson with Dijkstra steps, as in Jonker and
Volgenant (1987) for the assignment problem: dual potentials start feasible (from the last call on
the same edges, where there was one), mass moves along tight arcs as far as it goes, and each
remaining unit follows a shortest path in reduced costs. Supports are about 9 x 9 after common mass
has cancelled, so everything of one problem stays in the first-level cache.

Without numba the same function runs as plain Python: equal results, some hundred times slower, and
it says so once.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from inspect import unwrap
from typing import Any

import numpy as np
import torch

from ricci_gpu.errors import InputError
from ricci_gpu.ops.kernels import define_kernel, on_kernels
from ricci_gpu.ops.transport.interface import SOLVERS, TransportProblems, TransportSolution
from ricci_gpu.shapes import Float, Tensor

logger = logging.getLogger(__name__)

# Mass below this is rounding of measures that sum to 1, not mass to be moved.
_NO_MASS = 1e-15
# Nodes of a graph that the Triton kernel takes.
LARGEST_ON_DEVICE = 32


def _solve_graphs(
    distance: np.ndarray,  # (B, N, N)
    measure: np.ndarray,  # (B, N, N)
    source: np.ndarray,  # (B, E)
    target: np.ndarray,  # (B, E)
    count: np.ndarray,  # (B,) edges of each graph
    potential: np.ndarray,  # (B, E, N) in: warm start, inf where unknown; out: optimal duals
    primal: np.ndarray,  # (B, E) out
    dual: np.ndarray,  # (B, E) out
    first: int,
    last: int,
) -> None:
    """Solve the problems of graphs ``first`` to ``last - 1`` in place.

    One function, because a call costs as much as a step of the search; written for the compiler:
    inner loops without branches become vector instructions.
    """
    size = distance.shape[1]
    rows = np.empty(size, np.int64)  # nodes with supply
    columns = np.empty(size, np.int64)  # nodes with demand
    supply = np.empty(size)
    demand = np.empty(size)
    cost = np.empty((size, size))
    flow = np.empty((size, size))
    partner = np.empty((size, size), np.int64)  # rows whose flow into a column may be positive
    partners = np.empty(size, np.int64)
    u = np.empty(size)
    v = np.empty(size)
    reach = np.empty(size)  # Dijkstra distance of a column
    waiting = np.empty(size)  # the same, inf once scanned
    improvable = np.empty(size)  # the same, -inf once scanned
    came_from = np.empty(size, np.int64)  # row before a column on the path
    entered_by = np.empty(size, np.int64)  # column before a row on the path, -1: not reached
    row_reach = np.empty(size)

    for graph in range(first, last):
        for edge in range(count[graph]):
            x, y = source[graph, edge], target[graph, edge]
            n = m = 0
            for node in range(size):
                excess = measure[graph, x, node] - measure[graph, y, node]
                if excess > _NO_MASS:
                    rows[n] = node
                    supply[n] = excess
                    n += 1
                elif excess < -_NO_MASS:
                    columns[m] = node
                    demand[m] = -excess
                    m += 1
            primal[graph, edge] = 0.0
            dual[graph, edge] = 0.0
            if n == 0 or m == 0:
                continue

            # Feasible duals, u_i + v_j <= c_ij: u from the known v, v from that u, u again.
            known = False
            for j in range(m):
                v[j] = -potential[graph, edge, columns[j]]
                known = known or v[j] > -np.inf
                partners[j] = 0
            for i in range(n):
                for j in range(m):
                    cost[i, j] = distance[graph, rows[i], columns[j]]
                    flow[i, j] = 0.0
                u[i] = 0.0
                if known:
                    least = np.inf
                    for j in range(m):
                        slack = cost[i, j] - v[j]
                        least = slack if slack < least else least
                    u[i] = least
            for j in range(m):
                v[j] = np.inf
            for i in range(n):
                for j in range(m):
                    slack = cost[i, j] - u[i]
                    v[j] = slack if slack < v[j] else v[j]
            for i in range(n):
                least = np.inf
                for j in range(m):
                    slack = cost[i, j] - v[j]
                    least = slack if slack < least else least
                u[i] = least

            # Fill the arcs that are tight already.
            for i in range(n):
                for j in range(m):
                    if cost[i, j] - u[i] - v[j] <= 1e-15 * cost[i, j] and demand[j] > 0.0:
                        moved = min(supply[i], demand[j])
                        flow[i, j] = moved
                        partner[j, partners[j]] = i
                        partners[j] += 1
                        supply[i] -= moved
                        demand[j] -= moved
                        if supply[i] <= 0.0:
                            break

            for start in range(n):
                while supply[start] > _NO_MASS:
                    # One shortest-path tree from `start`; it serves every column it reaches until
                    # the supply is gone or an arc of a path runs empty.
                    for i in range(n):
                        entered_by[i] = -1
                    entered_by[start] = m  # reached, by no column
                    row_reach[start] = 0.0
                    for j in range(m):
                        reach[j] = cost[start, j] - u[start] - v[j]
                        waiting[j] = reach[j]
                        improvable[j] = reach[j]
                        came_from[j] = start
                    nearest = 0.0
                    growing = True
                    while growing:
                        best = np.inf
                        for j in range(m):
                            best = waiting[j] if waiting[j] < best else best
                        if best == np.inf:  # demand is used up: the supply left is rounding
                            supply[start] = 0.0
                            break
                        column = 0
                        while waiting[column] != best:
                            column += 1
                        nearest = best
                        reach[column] = best
                        waiting[column] = np.inf
                        improvable[column] = -np.inf

                        if demand[column] > 0.0:
                            moved = min(supply[start], demand[column])
                            i = came_from[column]
                            while i != start:
                                moved = min(moved, flow[i, entered_by[i]])
                                i = came_from[entered_by[i]]
                            demand[column] -= moved
                            supply[start] -= moved
                            j = column
                            while True:
                                i = came_from[j]
                                if flow[i, j] == 0.0:
                                    partner[j, partners[j]] = i
                                    partners[j] += 1
                                flow[i, j] += moved
                                if i == start:
                                    break
                                j = entered_by[i]
                                flow[i, j] -= moved
                                if flow[i, j] == 0.0:
                                    growing = False  # the tree has lost an arc
                                    for slot in range(partners[j]):
                                        if partner[j, slot] == i:
                                            partners[j] -= 1
                                            partner[j, slot] = partner[j, partners[j]]
                                            break
                            if supply[start] <= _NO_MASS:
                                growing = False

                        if growing:
                            for slot in range(partners[column]):
                                i = partner[column, slot]
                                if entered_by[i] < 0:
                                    entered_by[i] = column
                                    row_reach[i] = nearest
                                    offset = nearest - u[i]
                                    for j in range(m):
                                        through = offset + cost[i, j] - v[j]
                                        better = through < improvable[j]
                                        waiting[j] = through if better else waiting[j]
                                        improvable[j] = through if better else improvable[j]
                                        came_from[j] = i if better else came_from[j]

                    for i in range(n):
                        if entered_by[i] >= 0:
                            u[i] += nearest - row_reach[i]
                    for j in range(m):
                        if waiting[j] == np.inf:
                            v[j] -= nearest - reach[j]

            for node in range(size):
                potential[graph, edge, node] = np.inf
            total = 0.0
            bound = 0.0
            for i in range(n):
                for j in range(m):
                    total += flow[i, j] * cost[i, j]
                bound += (measure[graph, x, rows[i]] - measure[graph, y, rows[i]]) * u[i]
                potential[graph, edge, rows[i]] = u[i]
            for j in range(m):
                bound += (measure[graph, y, columns[j]] - measure[graph, x, columns[j]]) * v[j]
                potential[graph, edge, columns[j]] = -v[j]
            primal[graph, edge] = total
            dual[graph, edge] = bound


@cache
def _compiled() -> Callable[..., None]:
    try:
        import numba
    except ImportError:
        logger.warning(
            "exact transport runs as plain Python, some hundred times slower than compiled: "
            'numba is not installed. Install it with: pip install "ricci-gpu[exact]"'
        )
        return _solve_graphs
    logger.info("exact transport: compiled at its first use on a machine, in half a minute")
    # The shape checks of a test run wrap every function; the compiler needs the bare one.
    compiled: Callable[..., None] = numba.njit(
        cache=True, nogil=True, fastmath={"nnan", "nsz", "reassoc", "contract"}
    )(unwrap(_solve_graphs))
    return compiled


@SOLVERS.register("exact")
@dataclass(frozen=True)
class ExactTransport:
    """The linear programme itself, to 1e-9 relative, on the CPU in float64.

    Graphs are shared among torch's threads. On a CUDA device graphs of up to 32 nodes are solved
    there in the dtype of the problems (`solve_on_device`); larger ones are copied here and back.
    """

    def solve(self, problems: TransportProblems, state: Any = None) -> TransportSolution:
        """Solve all problems; ``state`` holds the dual potentials (B, E, N) of an earlier call.

        A given state is written over: it serves one trajectory.

        Raises:
            InputError: NaN in a distance or a measure, which no comparison here would notice.
        """
        if problems.measure.isnan().any() or problems.distance.isnan().any():
            raise InputError("distances and measures must be numbers; got NaN. Check the lengths.")
        if serves_on_device(problems.distance):
            return solve_on_device(problems)
        edges, device = problems.edges, problems.distance.device
        batch, edge_count = edges.mask.shape
        size = problems.distance.shape[1]
        if state is None:
            state = np.full((batch, edge_count, size), np.inf)
        primal, dual = np.zeros((batch, edge_count)), np.zeros((batch, edge_count))
        solve = _compiled()
        arguments = (
            np.ascontiguousarray(problems.distance.double().cpu().numpy()),
            np.ascontiguousarray(problems.measure.double().cpu().numpy()),
            edges.source.cpu().numpy(),
            edges.target.cpu().numpy(),
            edges.mask.sum(dim=1).cpu().numpy(),
            state,
            primal,
            dual,
        )
        threads = min(torch.get_num_threads(), batch)
        if threads <= 1:
            solve(*arguments, 0, batch)
        else:
            bounds = [batch * i // threads for i in range(threads + 1)]
            with ThreadPoolExecutor(threads) as pool:
                list(
                    pool.map(lambda i: solve(*arguments, bounds[i], bounds[i + 1]), range(threads))
                )
        dtype = problems.distance.dtype
        value = torch.from_numpy(primal).to(device, dtype)
        # Primal and dual are equal up to rounding; their order is not.
        lower = torch.minimum(torch.from_numpy(dual).to(device, dtype), value).clamp(min=0.0)
        converged = torch.ones(batch, dtype=torch.bool, device=device)
        return TransportSolution(value, lower, value, converged, state)


def serves_on_device(distance: Float[Tensor, "B N N"]) -> bool:
    """Whether `solve_on_device` takes these graphs."""
    return distance.shape[1] <= LARGEST_ON_DEVICE and on_kernels(distance)


def solve_on_device(problems: TransportProblems) -> TransportSolution:
    """The same programme by a Triton kernel, one problem per program; starts cold, keeps no state.

    An edge whose search does not end counts as not converged, and its value is NaN.
    """
    edges = problems.edges
    primal, dual = torch.ops.ricci_gpu.exact_kernel(
        problems.distance.contiguous(),
        problems.measure.contiguous(),
        edges.source,
        edges.target,
        edges.mask.sum(dim=1),
    )
    lower = torch.minimum(dual, primal).clamp(min=0.0)
    return TransportSolution(primal, lower, primal, ~primal.isnan().any(dim=1))


def _launch(*tensors: Tensor) -> tuple[Tensor, Tensor]:
    from ricci_kernels.exact import exact_transport

    result = exact_transport(*tensors)
    return result.primal, result.dual


def _launch_shapes(distance: Tensor, measure: Tensor, source: Tensor, *_: Tensor) -> Any:
    return distance.new_empty(source.shape), distance.new_empty(source.shape)


define_kernel(
    "exact_kernel",
    "(Tensor distance, Tensor measure, Tensor source, Tensor target, Tensor counts)"
    " -> (Tensor, Tensor)",
    _launch,
    _launch_shapes,
)
