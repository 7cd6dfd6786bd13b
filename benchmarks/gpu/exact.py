"""Exact transport on the device: against the product's exact solver, and the flow it makes."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.correctness import kernels_run, largest_error
from benchmarks.gpu.flow import STEPS, K
from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.routes import torch_route
from benchmarks.gpu.workloads import Graphs, clustered_nodes
from ricci_gpu.ops.flow import ricci_flow
from ricci_gpu.ops.transport import SOLVERS, TransportProblems, TransportSolution
from ricci_gpu.ops.transport.exact import solve_on_device
from ricci_gpu.stages.ricci_filter import GRAPHS_AT_ONCE_CUDA

SIZES = (64, 1024, 16_384)
TINY_SIZES = (1,)
# Of W1, where the mean edge is 1. In float32 the masses themselves are rounded.
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-5}


def checked_name(size: int) -> str:
    return f"flow checked, B = {size:,}"


@dataclass(frozen=True)
class OnDevice:
    """The kernel, whatever device the tensors are on (the interpreter runs it on a CPU)."""

    def solve(self, problems: TransportProblems, state: Any = None) -> TransportSolution:
        return solve_on_device(problems)


def check(dtype: torch.dtype, bench: Bench) -> None:
    """A few graphs, since without numba the product's solver is plain Python."""
    label = _label(dtype)
    if not kernels_run(bench, label):
        return
    for k in (4,) if bench.tiny else (10, K):
        graphs = Graphs.of(clustered_nodes(bench.generator(k), 1 if bench.tiny else 2, k))
        for steps in (1, 3):
            found = _flow(graphs, dtype, steps)
            reference = SOLVERS.build("exact", {})
            weight = graphs.unit_lengths(torch.float64)
            with torch_route():
                exact = ricci_flow(
                    weight, graphs.edges, graphs.adjacency, reference, iterations=steps
                ).weight
            error = largest_error(found.weight, exact)
            # Each step amplifies the rounding of the one before.
            bench.check(f"{label}, k = {k}, weights after {steps}", error, BOUNDS[dtype] * steps**2)
    many = Graphs.of(clustered_nodes(bench.generator(9), 1 if bench.tiny else 512, k))
    gap = _flow(many, dtype, 1).gap.max()
    bench.check(f"{label}, k = {k}, primal above dual", gap, BOUNDS[dtype])


def throughput(bench: Bench) -> None:
    """Queries per second of the flow with exact and with checked transport, k = 20, 20 steps."""
    sizes = TINY_SIZES if bench.tiny else SIZES
    graphs = Graphs.of(clustered_nodes(bench.generator(0), sizes[-1], 4 if bench.tiny else K))
    for dtype in BOUNDS:
        for size in sizes:
            work = partial(_flow, graphs.rows(0, size), dtype, 1 if bench.tiny else STEPS)
            bench.time(f"{_label(dtype)}, B = {size:,}", work, size, kernel=_label(dtype))
    kernel = _label(torch.float64) if bench.on_gpu else None
    for size in sizes:
        work = partial(_checked, graphs.rows(0, size), 1 if bench.tiny else STEPS)
        bench.time(checked_name(size), work, size, kernel=kernel)


def _checked(graphs: Graphs, steps: int) -> None:
    """As the filter runs it: Sinkhorn and its sharp bounds in torch, the doubtful on the kernel."""
    solver, weight = SOLVERS.build("checked", {}), graphs.unit_lengths(torch.float64)
    for first in range(0, len(graphs), GRAPHS_AT_ONCE_CUDA):
        part, few = graphs.rows(first, GRAPHS_AT_ONCE_CUDA), weight[first:][:GRAPHS_AT_ONCE_CUDA]
        ricci_flow(few, part.edges, part.adjacency, solver, iterations=steps)


def _flow(graphs: Graphs, dtype: torch.dtype, steps: int) -> Any:
    weight = graphs.unit_lengths(dtype)
    return ricci_flow(weight, graphs.edges, graphs.adjacency, OnDevice(), iterations=steps)


def _label(dtype: torch.dtype) -> str:
    return f"flow exact {str(dtype).removeprefix('torch.')}"


CHECKS = tuple(
    Part(f"correctness of {_label(each)}", partial(check, each), 80, _label(each))
    for each in BOUNDS
)
PARTS = (Part("flow, exact", throughput, 40),)
