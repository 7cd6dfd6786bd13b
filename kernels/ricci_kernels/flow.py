"""The normalised Ricci flow of small graphs, one graph per program, all steps in one launch.

Every step: shortest paths, the measure of each node, entropic transport of every edge against the
one kernel matrix ``K = exp(-d / eps)`` of its graph, and rescaling to mean length 1. Semantics are
those of the flow with Sinkhorn transport in float32 (warm-started, without the sharp bound):

* after the last iteration the plan is rounded to one that meets both marginals; its cost is W1's
  upper bound and the value the flow uses. The soft c-transform bounds W1 from below;
* a graph so long that ``exp(-d / eps)`` would underflow gets the smallest blur that does not: its
  bounds are wider and still hold;
* nodes in different components are infinitely apart, and no mass moves between them;
* a graph whose weights all vanish ends with weight 0; a graph without edges has gap 0;
* a length that is negative, infinite or NaN, or an edge that does not join two different nodes,
  makes the whole graph NaN and not converged: flagged, never a silent answer;
* padding may hold anything.

Lengths, distances and the kernel matrix never leave the chip's caches: what the edges of a graph
gather (measures) or scatter (W1), and the scalings V that warm-start the next step, pass through a
scratch buffer that belongs to the program, not to the graph. Its size does not grow with the batch.
"""

# Kernel arguments have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import math
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ricci_kernels.flow_configs import MAX_NODES, FlowLaunch, flow_launch

PRECISIONS = ("ieee", "tf32x3")

_TINY = tl.constexpr(torch.finfo(torch.float32).tiny)
_LN2 = tl.constexpr(math.log(2.0))
_LARGEST = tl.constexpr(torch.finfo(torch.float32).max)
# exp(-x) is a normal number for x below 87. The margin leaves room for the scalings.
_LARGEST_EXPONENT = tl.constexpr(75.0)


@triton.jit
def _quotient(mass, reached, INTERPRETED: tl.constexpr):
    """``mass / reached``. The plain division spends six more instructions on subnormal results."""
    reached = tl.maximum(reached, _TINY)
    if INTERPRETED:
        return mass / reached
    return mass * tl.inline_asm_elementwise(
        "rcp.approx.ftz.f32 $0, $1;", "=f,f", [reached], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _log2(x, INTERPRETED: tl.constexpr):
    """Logarithm of a normal number, with an error of 2^-22; the plain one is a long polynomial."""
    if INTERPRETED:
        return tl.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def _shortest_paths(lengths, nodes, row):
    """Floyd-Warshall on a symmetric tile: the row of a node is its column."""
    distance = lengths
    for via in range(nodes):
        leg = tl.sum(tl.where(row == via, distance, 0.0), 0)
        distance = tl.minimum(distance, leg[:, None] + leg[None, :])
    return distance


@triton.jit
def _node_measures(lengths, row, column, alpha, p, SQUARE: tl.constexpr):
    """Row x: ``alpha`` at x, the rest on its neighbours as ``exp(-w^p)``, largest exponent off."""
    adjacent = (lengths < float("inf")) & (row != column)
    power = lengths * lengths
    if not SQUARE:
        power = tl.where(p == 0.0, 1.0, tl.exp2(p * tl.log2(lengths)))
    exponent = tl.where(adjacent, -tl.minimum(power, _LARGEST), float("-inf"))
    top = tl.max(exponent, 1)
    alone = top == float("-inf")
    share = tl.where(adjacent, tl.exp(exponent - tl.where(alone, 0.0, top)[:, None]), 0.0)
    total = tl.where(alone, 1.0, tl.sum(share, 1))
    at_home = tl.where(alone, 1.0, alpha)
    return tl.where(row == column, at_home[:, None], (1.0 - alpha) * share / total[:, None])


@triton.jit
def _scale(
    supply,
    demand,
    v,
    kernel,
    iterations,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Sinkhorn's iteration for a block of edges: U, V and what U reaches through the kernel."""
    # Where there is no mass, 0 / positive is 0 and 0 * finite is 0: no mask is needed.
    for _ in range(iterations - 1):
        u = _quotient(supply, tl.dot(v, kernel, input_precision=PRECISION), INTERPRETED)
        v = _quotient(demand, tl.dot(u, kernel, input_precision=PRECISION), INTERPRETED)
    u = _quotient(supply, tl.dot(v, kernel, input_precision=PRECISION), INTERPRETED)
    reached = tl.dot(u, kernel, input_precision=PRECISION)
    return u, _quotient(demand, reached, INTERPRETED), reached


@triton.jit
def _round(
    supply,
    demand,
    u,
    v,
    distances,
    blur,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Cost of the plan rounded to its marginals, and the mass that rounding moved.

    After the last half-step the demands are met and only rows may hold too much: scale those
    down, then spread what is left over in proportion (Altschuler, Weed and Rigollet 2017).
    """
    kernel = tl.exp(-tl.load(distances) / blur)
    sent = u * tl.dot(v, kernel, input_precision=PRECISION)
    u *= tl.minimum(_quotient(supply, sent, INTERPRETED), 1.0)
    left = tl.maximum(supply - sent, 0.0)
    missing = tl.maximum(demand - v * tl.dot(u, kernel, input_precision=PRECISION), 0.0)
    tl.debug_barrier()
    distance = tl.load(distances)
    costs = distance * tl.exp(-distance / blur)
    cost = tl.sum(v * tl.dot(blur * u, costs, input_precision=PRECISION), 1) / blur
    tl.debug_barrier()
    mass = tl.sum(left, 1)
    spread = tl.sum(left * tl.dot(missing, distance, input_precision=PRECISION), 1)
    return cost + _quotient(spread, mass, INTERPRETED), mass


@triton.jit(do_not_specialize=["graphs", "nodes", "edges", "steps", "iterations"])
def flow_kernel(
    source,  # [B, E]
    target,  # [B, E]
    counts,  # [B]
    weight,  # [B, E]
    flowed,  # [B, E]
    lower,  # [B, E] if WRITE_BOUNDS
    upper,  # [B, E] if WRITE_BOUNDS
    gap,  # [B]
    converged,  # [B]
    scratch,  # [programs, (4 * BLOCK_N + BLOCK_E + E) * BLOCK_N]
    graphs,
    nodes,
    edges,
    steps,
    iterations,
    step_size,
    alpha,
    p,
    epsilon,
    tolerance,
    BLOCK_N: tl.constexpr,
    BLOCK_E: tl.constexpr,
    SQUARE: tl.constexpr,
    WRITE_BOUNDS: tl.constexpr,
    PRECISION: tl.constexpr,
    INTERPRETED: tl.constexpr,
):
    """Programs share the graphs in turn; any grid ``(programs,)``."""
    program = tl.program_id(0)
    offs_n = tl.arange(0, BLOCK_N)
    row, column = offs_n[:, None], offs_n[None, :]
    cell = row * BLOCK_N + column
    own = program.to(tl.int64) * ((4 * BLOCK_N + BLOCK_E + edges) * BLOCK_N)
    measures = scratch + own
    distances = measures + BLOCK_N * BLOCK_N
    lengths_at = distances + BLOCK_N * BLOCK_N
    moves = lengths_at + BLOCK_N * BLOCK_N
    spare = moves + BLOCK_N * BLOCK_N + tl.arange(0, BLOCK_E)[:, None] * BLOCK_N + column
    scalings = moves + (BLOCK_N + BLOCK_E) * BLOCK_N

    for graph in range(program, graphs, tl.num_programs(0)):
        first_edge = graph * edges.to(tl.int64)
        count = tl.minimum(tl.load(counts + graph), edges).to(tl.int32)

        # The lengths as a symmetric matrix; infinite where there is no edge.
        tl.store(lengths_at + cell, tl.full([BLOCK_N, BLOCK_N], float("inf"), tl.float32))
        tl.debug_barrier()
        wrong = tl.zeros([BLOCK_E], tl.int32)
        for first in range(0, count, BLOCK_E):
            offs_e = first + tl.arange(0, BLOCK_E)
            real = offs_e < count
            x = tl.load(source + first_edge + offs_e, mask=real, other=0)
            y = tl.load(target + first_edge + offs_e, mask=real, other=0)
            length = tl.load(weight + first_edge + offs_e, mask=real, other=0.0)
            good = (tl.minimum(x, y) >= 0) & (tl.maximum(x, y) < nodes) & (x != y)
            good = good & (length >= 0.0) & (length < float("inf"))
            wrong |= (real & ~good).to(tl.int32)
            tl.store(lengths_at + x * BLOCK_N + y, length, mask=real & good)
            tl.store(lengths_at + y * BLOCK_N + x, length, mask=real & good)
        refused = tl.max(wrong, 0) > 0

        widest = tl.zeros([BLOCK_E], tl.float32)
        missed = tl.zeros([BLOCK_E], tl.int32)
        for step in range(tl.where(refused, 0, steps)):
            tl.debug_barrier()
            lengths = tl.where(row == column, 0.0, tl.load(lengths_at + cell))
            distance = _shortest_paths(lengths, nodes, row)
            # Infinite distances lie between components, where no mass moves: any finite value does.
            distance = tl.where(distance < float("inf"), distance, 0.0)
            longest = tl.max(tl.max(distance, 1), 0)
            blur = tl.maximum(longest / _LARGEST_EXPONENT, epsilon)
            # Tiles that the edges need go through memory, where they take no registers.
            tl.store(distances + cell, distance)
            measure = _node_measures(lengths, row, column, alpha, p, SQUARE)
            tl.store(measures + cell, measure)
            tl.debug_barrier()

            for first in range(0, count, BLOCK_E):
                offs_e = first + tl.arange(0, BLOCK_E)
                real = offs_e < count
                # A padded edge joins node 0 with itself: it moves nothing.
                x = tl.load(source + first_edge + offs_e, mask=real, other=0).to(tl.int32)
                y = tl.load(target + first_edge + offs_e, mask=real, other=0).to(tl.int32)
                from_x = measures + x[:, None] * BLOCK_N + column
                from_y = measures + y[:, None] * BLOCK_N + column
                warm = scalings + offs_e[:, None] * BLOCK_N + column
                excess = tl.load(from_x) - tl.load(from_y)
                supply, demand = tl.maximum(excess, 0.0), tl.maximum(-excess, 0.0)
                kernel = tl.exp(-tl.load(distances + cell) / blur)
                v = demand + tl.load(warm, mask=real[:, None] & (step > 0), other=0.0)
                u, v, reached = _scale(
                    supply, demand, v, kernel, iterations, PRECISION, INTERPRETED
                )
                # The soft minimum -eps log(sum exp((f_i - d_ij) / eps)) lies below the minimum of
                # d_ij - f_i, so the potentials are feasible as they stand.
                dual = supply * _log2(tl.maximum(u, _TINY), INTERPRETED)
                dual -= demand * _log2(tl.maximum(reached, _TINY), INTERPRETED)
                least = tl.maximum(blur * _LN2 * tl.sum(dual, 1), 0.0)
                tl.store(warm, v, mask=real[:, None])
                tl.store(spare, u)

                # Read again, so that the iteration above keeps no more in registers than it needs.
                tl.debug_barrier()
                excess = tl.load(from_x) - tl.load(from_y)
                supply, demand = tl.maximum(excess, 0.0), tl.maximum(-excess, 0.0)
                most, mass = _round(
                    supply,
                    demand,
                    tl.load(spare),
                    tl.load(warm, mask=real[:, None], other=0.0),
                    distances + cell,
                    blur,
                    PRECISION,
                    INTERPRETED,
                )
                least = tl.minimum(least, most)
                misplaced = mass > tolerance * tl.sum(supply, 1)
                widest = tl.maximum(widest, most - least)
                missed |= misplaced.to(tl.int32)
                if WRITE_BOUNDS:
                    tl.store(lower + first_edge + offs_e, least, mask=real)
                    tl.store(upper + first_edge + offs_e, most, mask=real)
                tl.store(moves + x * BLOCK_N + y, most, mask=real)
                tl.store(moves + y * BLOCK_N + x, most, mask=real)
            tl.debug_barrier()

            # w - step kappa w with kappa = 1 - W1 / d. The factor w / d is 1 for a shortest path;
            # only lengths given by the user can be longer than the distance of their ends.
            lengths = tl.load(lengths_at + cell)
            distance = tl.load(distances + cell)
            moved = tl.load(moves + cell)
            adjacent = (lengths < float("inf")) & (row != column)
            stretched = (lengths > distance) & (distance > 0.0) & adjacent
            moved *= tl.where(stretched, lengths / tl.where(stretched, distance, 1.0), 1.0)
            moved = tl.where(adjacent, (1.0 - step_size) * lengths + step_size * moved, 0.0)
            total = 0.5 * tl.sum(tl.sum(moved, 1), 0)
            refused |= ~(total < float("inf"))
            scale = tl.where(total > 0.0, count / tl.where(total > 0.0, total, 1.0), 0.0)
            tl.store(lengths_at + cell, tl.where(adjacent, moved * scale, float("inf")))

        tl.debug_barrier()
        for first in range(0, edges, BLOCK_E):
            offs_e = first + tl.arange(0, BLOCK_E)
            real = (offs_e < count) & ~refused
            x = tl.load(source + first_edge + offs_e, mask=real, other=0).to(tl.int32)
            y = tl.load(target + first_edge + offs_e, mask=real, other=0).to(tl.int32)
            length = tl.load(lengths_at + x * BLOCK_N + y, mask=real, other=0.0)
            flagged = (offs_e < count) & refused
            length = tl.where(flagged, float("nan"), length)
            tl.store(flowed + first_edge + offs_e, length, mask=offs_e < edges)
            if WRITE_BOUNDS:
                tl.store(lower + first_edge + offs_e, float("nan"), mask=flagged)
                tl.store(upper + first_edge + offs_e, float("nan"), mask=flagged)
        tl.store(gap + graph, tl.where(refused, float("nan"), tl.max(widest, 0)))
        tl.store(converged + graph, ~refused & (tl.max(missed, 0) == 0))
        tl.debug_barrier()  # the next graph writes where this one reads


_INTERPRETED = not isinstance(flow_kernel, triton.JITFunction)


class Specialization(NamedTuple):
    """What one compiled variant of the kernel is made of."""

    constants: dict[str, object]
    launch: FlowLaunch


class FlowResult(NamedTuple):
    """What `ricci_flow` returns; 0 in the padding.

    ``gap`` is the largest ``upper - lower`` of W1 over all edges and steps. ``lower`` and ``upper``
    bound W1 in the last step; None unless asked for.
    """

    weight: Tensor  # [B, E] float32, mean 1 per graph
    converged: Tensor  # [B] bool
    gap: Tensor  # [B] float32
    lower: Tensor | None  # [B, E] float32
    upper: Tensor | None  # [B, E] float32


def specialize(
    capability: int, nodes: int, p: float, precision: str, bounds: bool = False
) -> Specialization:
    """Compile-time arguments and launch settings for a chip and a padded size.

    Args:
        capability: compute capability, for example 90.
        nodes: of the largest graph.
        p: exponent of the node measure; 2 is compiled apart.
        precision: of the products.
        bounds: also write the bounds of W1.
    """
    launch = flow_launch(capability, nodes, precision)
    constants: dict[str, object] = {
        "BLOCK_N": launch.block_n,
        "BLOCK_E": launch.block_e,
        "SQUARE": p == 2,
        "WRITE_BOUNDS": bounds,
        "PRECISION": precision,
        "INTERPRETED": _INTERPRETED,
    }
    return Specialization(constants, launch)


def ricci_flow(
    weight: Tensor,
    source: Tensor,
    target: Tensor,
    counts: Tensor,
    nodes: int,
    *,
    alpha: float = 0.5,
    p: float = 2.0,
    step: float = 1.0,
    iterations: int = 20,
    epsilon: float = 0.05,
    sinkhorn_iterations: int = 10,
    tolerance: float = 0.05,
    precision: str = "ieee",
    bounds: bool = False,
) -> FlowResult:
    """Run the normalised flow of every graph; after each step its edges have mean length 1.

    Args:
        weight: ``[B, E]`` float32 edge lengths at the start; need not be shortest paths.
        source: ``[B, E]`` int64, one end of each edge.
        target: ``[B, E]`` int64, the other end. Each edge stands once.
        counts: ``[B]`` int64: a graph's edges are the first ``counts[b]`` columns.
        nodes: of the largest graph.
        alpha: laziness of the node measure, in [0, 1).
        p: exponent of the node measure, at least 0.
        step: in (0, 1].
        iterations: of the flow, at least 0.
        epsilon: entropic blur, in units of length.
        sinkhorn_iterations: pairs of half-steps per step of the flow, at least 1.
        tolerance: a graph counts as converged when no edge in any step left more than this share
            of its moved mass on the wrong node before rounding.
        precision: of the products: ``ieee`` (exact float32) or ``tf32x3`` (three tf32 products,
            near float32, on the tensor cores).
        bounds: return the bounds of W1 too.

    Raises:
        ValueError: impossible settings, graphs of more than `MAX_NODES` nodes, tensors that do not
            fit together, or a chip older than compute capability 8.0.
    """
    _check(weight, source, target, counts, nodes)
    _check_settings(alpha, p, step, iterations, epsilon, sinkhorn_iterations, tolerance, precision)
    graphs, edges = weight.shape
    device = weight.device
    lower, upper = (torch.zeros_like(weight) if bounds else None for _ in range(2))
    result = FlowResult(
        torch.empty_like(weight),
        torch.empty(graphs, dtype=torch.bool, device=device),
        torch.empty(graphs, dtype=torch.float32, device=device),
        lower,
        upper,
    )
    if graphs == 0:
        return result
    capability, processors = device_limits(device)
    constants, launch = specialize(capability, nodes, p, precision, bounds)
    programs = min(graphs, launch.programs * processors)
    scratch = torch.empty(
        (programs, (4 * launch.block_n + launch.block_e + edges) * launch.block_n),
        dtype=torch.float32,
        device=device,
    )
    with torch.cuda.device_of(weight):
        flow_kernel[(programs,)](
            source,
            target,
            counts,
            weight,
            result.weight,
            lower,
            upper,
            result.gap,
            result.converged,
            scratch,
            graphs,
            nodes,
            edges,
            iterations,
            sinkhorn_iterations,
            step,
            alpha,
            p,
            epsilon,
            tolerance,
            **constants,
            **launch.options,
        )
    return result


def _check(weight: Tensor, source: Tensor, target: Tensor, counts: Tensor, nodes: int) -> None:
    if weight.dim() != 2 or weight.dtype is not torch.float32 or not weight.is_contiguous():
        raise ValueError(
            f"`weight` must be contiguous float32 of shape [graphs, edges]; got {weight.dtype} of "
            f"shape {tuple(weight.shape)} with strides {weight.stride()}. Convert it with "
            ".to(torch.float32).contiguous()."
        )
    for name, tensor, shape in (
        ("source", source, weight.shape),
        ("target", target, weight.shape),
        ("counts", counts, weight.shape[:1]),
    ):
        found = (tensor.dtype, tensor.shape, tensor.device)
        if found != (torch.int64, shape, weight.device) or not tensor.is_contiguous():
            raise ValueError(
                f"`{name}` must be contiguous int64 of shape {tuple(shape)} on {weight.device}; "
                f"got {tensor.dtype} of shape {tuple(tensor.shape)} on {tensor.device}."
            )
    if not 1 <= nodes <= MAX_NODES:
        raise ValueError(
            f"the flow kernel treats graphs of 1 to {MAX_NODES} nodes; got {nodes}. Take fewer "
            "candidates, or use the torch backend."
        )


def _check_settings(
    alpha: float,
    p: float,
    step: float,
    iterations: int,
    epsilon: float,
    sinkhorn_iterations: int,
    tolerance: float,
    precision: str,
) -> None:
    for name, value, rule, holds in (
        ("alpha", alpha, "lie in [0, 1)", 0 <= alpha < 1),
        ("p", p, "be at least 0 and finite", 0 <= p < math.inf),
        ("step", step, "lie in (0, 1]", 0 < step <= 1),
        ("iterations", iterations, "be at least 0", iterations >= 0),
        ("epsilon", epsilon, "be greater than 0 and finite", 0 < epsilon < math.inf),
        ("sinkhorn_iterations", sinkhorn_iterations, "be at least 1", sinkhorn_iterations >= 1),
        ("tolerance", tolerance, "be greater than 0", tolerance > 0),
        ("precision", precision, f"be one of {', '.join(PRECISIONS)}", precision in PRECISIONS),
    ):
        if not holds:
            raise ValueError(f"`{name}` must {rule}; got {value!r}.")


def device_limits(device: torch.device) -> tuple[int, int]:
    """Compute capability and number of multiprocessors.

    Raises:
        ValueError: not a CUDA device.
    """
    if _INTERPRETED:
        return 90, 1  # the interpreter runs the settings of a chip; which one does not matter
    if device.type != "cuda":
        raise ValueError(
            f"the Triton kernels run on a CUDA device; the tensors are on {device}. "
            "Use the torch backend there."
        )
    chip = torch.cuda.get_device_properties(device)
    return chip.major * 10 + chip.minor, chip.multi_processor_count
