"""Exact Wasserstein-1 of every edge on the device: shortest augmenting paths, one warp per edge.

The method is the primal-dual one of Ford and Fulkerson with Dijkstra steps, as in Jonker and
Volgenant (1987) for the assignment problem. Common mass is cancelled first, so that about nine
nodes give and nine take. Lanes are nodes: a scan of the nearest column and the relaxation from all
rows that the scan newly reaches are vector operations; only the walk along a path is serial.

In float64 the answer is the linear programme's to 1e-12; in float32 rounding of the masses leaves
about 1e-6 of the longest distance. ``dual <= W1 <= primal`` up to that rounding.
"""

# Kernel arguments have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ricci_kernels.flow import device_limits
from ricci_kernels.flow_configs import MAX_EXACT_NODES, ExactLaunch, exact_launch

#: Augmenting paths after which an edge is given up; about 15 are usual.
_LIMIT = MAX_EXACT_NODES**2
#: Mass below this is rounding of measures that sum to 1, not mass to be moved.
_NO_MASS = {torch.float32: 2e-8, torch.float64: 1e-15}
_KIND = {torch.float32: tl.float32, torch.float64: tl.float64}


@triton.jit
def _at(values, lanes, lane):
    """One entry of a vector."""
    return tl.sum(tl.where(lanes == lane, values, 0), 0)


@triton.jit
def _first(flags, lanes, BLOCK_N: tl.constexpr):
    """The lowest lane with a flag; cheaper than carrying indices through a minimum."""
    return tl.min(tl.where(flags, lanes, BLOCK_N - 1), 0)


@triton.jit(do_not_specialize=["graphs", "nodes", "edges", "limit"])
def exact_kernel(
    distance,  # [B, N, N]
    measure,  # [B, N, N]
    source,  # [B, E]
    target,  # [B, E]
    counts,  # [B]
    primal,  # [B, E]
    dual,  # [B, E]
    scratch,  # [programs, BLOCK_N * BLOCK_N]
    graphs,
    nodes,
    edges,
    limit,
    no_mass,
    BLOCK_N: tl.constexpr,
    KIND: tl.constexpr,
):
    """Programs share the edges of all graphs in turn; any grid ``(programs,)``."""
    program = tl.program_id(0)
    lanes = tl.arange(0, BLOCK_N)
    row, column = lanes[:, None], lanes[None, :]
    flows = scratch + program.to(tl.int64) * (BLOCK_N * BLOCK_N)
    inf = tl.full([BLOCK_N], float("inf"), KIND)

    for problem in range(program, graphs * edges, tl.num_programs(0)):
        graph = problem // edges
        square = graph * nodes.to(tl.int64) * nodes
        # The padding of an edge list joins node 0 with itself, and moves nothing.
        real = problem % edges < tl.load(counts + graph)
        x = tl.load(source + problem, mask=real, other=0).to(tl.int32)
        y = tl.load(target + problem, mask=real, other=0).to(tl.int32)
        excess = tl.load(measure + square + x * nodes + lanes, mask=lanes < nodes, other=0.0)
        excess -= tl.load(measure + square + y * nodes + lanes, mask=lanes < nodes, other=0.0)
        supply = tl.where(excess > no_mass, excess, 0.0)
        demand = tl.where(-excess > no_mass, -excess, 0.0)
        used = (supply > 0.0)[:, None] & (demand > 0.0)[None, :]
        cost = tl.load(distance + square + row * nodes + column, mask=used, other=float("inf"))

        # Feasible duals, u_i + v_j <= c_ij; 0 where a node gives or takes nothing.
        v = tl.where(demand > 0.0, tl.min(cost, 0), 0.0)
        u = tl.where(supply > 0.0, tl.min(cost - v[None, :], 1), 0.0)
        tl.store(flows + row * BLOCK_N + column, tl.zeros([BLOCK_N, BLOCK_N], KIND))
        tl.debug_barrier()
        given, taken = supply, demand
        rounds = 0
        while (tl.max(supply, 0) > no_mass) & (rounds < limit):
            rounds += 1
            start = _first(supply == tl.max(supply, 0), lanes, BLOCK_N)
            at_start = tl.load(
                distance + square + start * nodes + lanes, mask=taken > 0.0, other=float("inf")
            )
            reach = at_start - _at(u, lanes, start) - v  # Dijkstra distance of a column
            came_from = tl.zeros([BLOCK_N], tl.int32) + start  # row before a column on the path
            scanned = lanes < 0
            entered_by = tl.where(lanes == start, BLOCK_N, -1)  # column before a row, -1: not seen
            row_reach = tl.zeros([BLOCK_N], KIND)
            nearest = tl.min(reach, 0)
            end = _first(reach == nearest, lanes, BLOCK_N)
            while (nearest < float("inf")) & (_at(demand, lanes, end) <= 0.0):
                scanned = scanned | (lanes == end)
                fresh = (tl.load(flows + lanes * BLOCK_N + end) > 0.0) & (entered_by < 0)
                entered_by = tl.where(fresh, end, entered_by)
                row_reach = tl.where(fresh, nearest, row_reach)
                through = tl.where(
                    fresh[:, None], nearest + cost - u[:, None] - v[None, :], float("inf")
                )
                shortest = tl.min(through, 0)
                better = (shortest < reach) & ~scanned
                reach = tl.where(better, shortest, reach)
                closest = tl.min(tl.where(through == shortest[None, :], row, BLOCK_N), 0)
                came_from = tl.where(better, closest, came_from)
                waiting = tl.where(scanned, inf, reach)
                nearest = tl.min(waiting, 0)
                end = _first(waiting == nearest, lanes, BLOCK_N)

            found = nearest < float("inf")
            # Where demand is used up, the supply that is left is rounding.
            moved = tl.where(found, _at(demand, lanes, end), float("inf"))
            moved = tl.minimum(moved, _at(supply, lanes, start))
            before = tl.where(found, _at(came_from, lanes, end), start)
            while before != start:
                entry = _at(entered_by, lanes, before)
                moved = tl.minimum(moved, tl.load(flows + before * BLOCK_N + entry))
                before = _at(came_from, lanes, entry)

            tl.debug_barrier()  # every warp has read the flows that are about to change
            entry = tl.where(found, end, -1)
            while entry >= 0:
                before = _at(came_from, lanes, entry)
                arc = flows + before * BLOCK_N + entry
                tl.store(arc, tl.load(arc) + moved)
                entry = tl.where(before == start, -1, _at(entered_by, lanes, before))
                arc = flows + before * BLOCK_N + tl.maximum(entry, 0)
                tl.store(arc, tl.load(arc) - moved, mask=entry >= 0)
                tl.debug_barrier()

            supply = tl.where(lanes == start, supply - moved, supply)
            demand = tl.where(lanes == tl.where(found, end, -1), demand - moved, demand)
            u += tl.where(found, tl.where(entered_by >= 0, nearest - row_reach, 0.0), 0.0)
            v -= tl.where(found, tl.where(scanned, nearest - reach, 0.0), 0.0)

        flow = tl.load(flows + row * BLOCK_N + column)
        paid = tl.sum(tl.sum(tl.where(flow > 0.0, flow * cost, 0.0), 1), 0)
        bound = tl.sum(given * u, 0) + tl.sum(taken * v, 0)
        solved = rounds < limit
        tl.store(primal + problem, tl.where(solved, paid, float("nan")))
        tl.store(dual + problem, tl.where(solved, bound, float("nan")))
        tl.debug_barrier()  # the next problem writes where this one reads


class Specialization(NamedTuple):
    """What one compiled variant of the kernel is made of."""

    constants: dict[str, object]
    launch: ExactLaunch


class ExactResult(NamedTuple):
    """Value of the plan and of its duals for every edge, equal up to rounding; 0 in the padding.

    NaN marks an edge that was given up after 1,024 augmenting paths.
    """

    primal: Tensor  # [B, E]
    dual: Tensor  # [B, E]


def specialize(capability: int, nodes: int, kind: torch.dtype) -> Specialization:
    """Compile-time arguments and launch settings for a chip, a padded size and a type.

    Args:
        capability: compute capability, for example 90.
        nodes: of the largest graph.
        kind: float32 or float64.
    """
    launch = exact_launch(capability, nodes, kind.itemsize)
    return Specialization({"BLOCK_N": launch.block_n, "KIND": _KIND[kind]}, launch)


def exact_transport(
    distance: Tensor, measure: Tensor, source: Tensor, target: Tensor, counts: Tensor
) -> ExactResult:
    """Least cost of moving the measure of each edge's source to that of its target.

    Args:
        distance: ``[B, N, N]`` float32 or float64 metric; infinite between components. N <= 32.
        measure: ``[B, N, N]`` of the same type; row x is the probability measure of node x.
        source: ``[B, E]`` int64 node indices below N.
        target: ``[B, E]`` int64 node indices below N.
        counts: ``[B]`` int64: a graph's edges are the first ``counts[b]`` columns.

    Raises:
        ValueError: tensors that do not fit together, or a chip older than compute capability 8.0.
    """
    _check(distance, measure, source, target, counts)
    graphs, nodes = distance.shape[:2]
    edges = source.shape[1]
    result = ExactResult(*(distance.new_empty(source.shape) for _ in range(2)))
    if source.numel() == 0:
        return result
    capability, processors = device_limits(distance.device)
    constants, launch = specialize(capability, nodes, distance.dtype)
    programs = min(source.numel(), launch.programs * processors)
    with torch.cuda.device_of(distance):
        exact_kernel[(programs,)](
            distance,
            measure,
            source,
            target,
            counts,
            *result,
            distance.new_empty((programs, launch.block_n**2)),
            graphs,
            nodes,
            edges,
            _LIMIT,
            _NO_MASS[distance.dtype],
            **constants,
            **launch.options,
        )
    return result


def _check(
    distance: Tensor, measure: Tensor, source: Tensor, target: Tensor, counts: Tensor
) -> None:
    if distance.dtype not in _NO_MASS or distance.dim() != 3 or not distance.is_contiguous():
        raise ValueError(
            "`distance` must be contiguous float32 or float64 of shape [graphs, nodes, nodes]; "
            f"got {distance.dtype} of shape {tuple(distance.shape)}."
        )
    graphs, nodes = distance.shape[:2]
    if not 1 <= nodes <= MAX_EXACT_NODES or distance.shape[2] != nodes:
        raise ValueError(
            f"the exact kernel treats square matrices of 1 to {MAX_EXACT_NODES} nodes; got "
            f"{tuple(distance.shape[1:])}. Use the exact solver of the torch backend."
        )
    edges = source.shape[1:] if source.dim() == 2 else source.shape
    for name, tensor, dtype, shape in (
        ("measure", measure, distance.dtype, distance.shape),
        ("source", source, torch.int64, (graphs, *edges)),
        ("target", target, torch.int64, (graphs, *edges)),
        ("counts", counts, torch.int64, (graphs,)),
    ):
        found = (tensor.dtype, tuple(tensor.shape), tensor.device)
        if found != (dtype, tuple(shape), distance.device) or not tensor.is_contiguous():
            raise ValueError(
                f"`{name}` must be contiguous {dtype} of shape {tuple(shape)} on "
                f"{distance.device}; got {tensor.dtype} of shape {tuple(tensor.shape)} on "
                f"{tensor.device}."
            )
