"""The flow of k = 20 pool graphs, 20 steps: the fused kernel next to torch on the same device.

The flow amplifies rounding, so after 20 steps the routes are not equal in their weights: one step
is compared tightly, and after all steps what is kept.
"""

from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.correctness import kernels_run
from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.routes import torch_route
from benchmarks.gpu.workloads import Graphs, clustered_nodes
from ricci_gpu.ops.flow import FlowResult, curvature, ricci_flow
from ricci_gpu.ops.transport import SOLVERS
from ricci_gpu.ops.transport.sinkhorn import SinkhornTransport

K, STEPS = 20, 20
SIZES = (1, 64, 1024, 16_384, 65_536)
TINY_SIZES = (2,)
PRECISIONS = ("ieee", "tf32x3")
# An edge that ends exactly on the cutoff ends a rounding of float32 off it.
CUTOFF = 1.0 + 1e-6
# Share of decisions that may differ: a trajectory in float32 can part from one in float64.
DIFFERING = 5e-3


def fused(graphs: Graphs, precision: str, steps: int = STEPS, bounds: bool = False) -> Any:
    """The kernel on a batch of graphs."""
    from ricci_kernels.flow import ricci_flow as kernel

    edges = graphs.edges
    return kernel(
        graphs.unit_lengths(torch.float32),
        edges.source,
        edges.target,
        edges.mask.sum(dim=1),
        graphs.nodes,
        iterations=steps,
        precision=precision,
        bounds=bounds,
    )


def on_torch(
    graphs: Graphs, dtype: torch.dtype, steps: int = STEPS, solver: str = "sinkhorn"
) -> FlowResult:
    """The product's flow on torch operations, on whatever device the graphs are."""
    weight, chosen = graphs.unit_lengths(dtype), SOLVERS.build(solver, {})
    with torch_route():
        return ricci_flow(weight, graphs.edges, graphs.adjacency, chosen, iterations=steps)


def kept(weight: Tensor, k: int) -> Tensor:
    # Edges are listed row by row, so the k edges of the query come first.
    return weight[:, :k] <= CUTOFF


def check(precision: str, bench: Bench) -> None:
    """One step tightly, bounds around the exact value, decisions after all steps, flags."""
    label = f"flow {precision}"
    if not kernels_run(bench, label):
        return
    pools, count = ((6,), 2) if bench.tiny else ((10, K, 50), 512)
    steps = 3 if bench.tiny else STEPS
    for k in pools:
        name = f"{label}, k = {k}"
        graphs = Graphs.of(clustered_nodes(bench.generator(k), count, k))
        real = graphs.edges.mask
        one, exact = fused(graphs, precision, 1), on_torch(graphs, torch.float64, 1)
        error = torch.where(real, one.weight - exact.weight, 0.0).abs().max()
        bench.check(f"{name}, weights after one step", error, 1e-4)
        if k <= K:  # without numba the exact solver is plain Python
            outside = _outside_bounds(graphs.rows(0, 2), precision)
            bench.check(f"{name}, exact W1 outside the bounds", outside, 1e-5)

        flowed = fused(graphs, precision, steps)
        bench.check(f"{name}, weights that are not finite", (~flowed.weight.isfinite()).sum())
        keep = kept(flowed.weight, k)
        for dtype in (torch.float32, torch.float64):
            other = kept(on_torch(graphs, dtype, steps).weight, k)
            differ = (keep != other).double().mean()
            bench.check(f"{name}, decisions unlike {dtype} in torch", differ, DIFFERING)
        if find_spec("numba") and not bench.tiny:
            few = graphs.rows(0, 64)
            truth = kept(on_torch(few, torch.float64, steps, "exact").weight, k)
            share = float((keep[:64] != truth).double().mean())
            bench.figure(f"{name}, decisions unlike the linear programme", share, "share")
        alone = fused(graphs.rows(1, 1), precision, steps).weight[0]
        bench.check(f"{name}, weights that depend on the batch", (alone != flowed.weight[1]).sum())


def _outside_bounds(graphs: Graphs, precision: str) -> Tensor:
    """How far the exact W1 of the first step lies outside the kernel's bounds."""
    bounded = fused(graphs, precision, 1, bounds=True)
    exact = SOLVERS.build("exact", {})
    weight = graphs.unit_lengths(torch.float64)
    with torch_route():
        # Joined nodes are at distance 1: W1 = 1 - kappa.
        w1 = 1.0 - curvature(weight, graphs.edges, graphs.adjacency, exact).kappa
    outside = torch.maximum(bounded.lower - w1, w1 - bounded.upper)
    return torch.where(graphs.edges.mask, outside, 0.0).max().clamp(min=0)


def throughput(bench: Bench) -> None:
    """Queries per second of each route, and the kernel's share of its ceiling."""
    sizes = TINY_SIZES if bench.tiny else SIZES
    graphs = Graphs.of(clustered_nodes(bench.generator(0), sizes[-1], K))
    steps = 1 if bench.tiny else STEPS
    operations = steps * _operations_per_step(graphs)
    for precision in PRECISIONS:
        for size in sizes:
            name = f"flow fused {precision}, B = {size:,}"
            work = partial(fused, graphs.rows(0, size), precision, steps)
            sample = bench.time(name, work, size, kernel=f"flow {precision}")
            if sample and precision == "ieee" and "matrix product fp32" in bench.values:
                rate = size * operations / sample.seconds / 1e12
                share = rate / bench.values["matrix product fp32"]
                bench.figure(f"{name}, share of fp32 products", share, "of ceiling", sample)
    for dtype in (torch.float32, torch.float64):
        for size in sizes:
            name = f"flow {str(dtype).removeprefix('torch.')} in torch, B = {size:,}"
            part = graphs.rows(0, size)
            work = partial(_in_chunks, part, dtype, steps, _graphs_at_once(bench, part))
            bench.time(name, work, size)


def _in_chunks(graphs: Graphs, dtype: torch.dtype, steps: int, at_once: int) -> None:
    for first in range(0, len(graphs), at_once):
        on_torch(graphs.rows(first, at_once), dtype, steps)


def _graphs_at_once(bench: Bench, graphs: Graphs) -> int:
    """As many as fit: torch keeps about twelve (B, E, N) tensors in float64."""
    each = 12 * 8 * graphs.edges.mask.shape[1] * graphs.nodes
    return max(1, int(0.6 * bench.free_bytes) // each)


def _operations_per_step(graphs: Graphs) -> float:
    """Of the products and the shortest paths of one graph, without padding."""
    solver = SinkhornTransport()
    products = 2 * solver.iterations + 4  # and the rounding: sent, missing, cost, spread
    edges = float(graphs.edges.mask.sum(dim=1).double().mean())
    return 2.0 * products * edges * graphs.nodes**2 + 2.0 * graphs.nodes**3


CHECKS = tuple(
    Part(f"correctness of the flow, {each}", partial(check, each), 80, f"flow {each}")
    for each in PRECISIONS
)
PARTS = (Part("flow", throughput, 75),)
