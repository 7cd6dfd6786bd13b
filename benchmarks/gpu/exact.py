"""Exact transport on the device: against the product's exact solver, and the flow it makes."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from benchmarks.gpu.correctness import kernels_run, largest_error
from benchmarks.gpu.flow import STEPS, K
from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.workloads import Graphs, clustered_nodes
from ricci_gpu.ops.flow import ricci_flow
from ricci_gpu.ops.transport import SOLVERS, TransportProblems, TransportSolution

SIZES = (64, 1024, 16_384)
TINY_SIZES = (1,)
# Of W1, where the mean edge is 1. In float32 the masses themselves are rounded.
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-5}


@dataclass(frozen=True)
class OnDevice:
    """The kernel behind the interface of the product's solvers."""

    def solve(self, problems: TransportProblems, state: Any = None) -> TransportSolution:
        from ricci_kernels.exact import exact_transport

        edges = problems.edges
        primal, dual = exact_transport(
            problems.distance.contiguous(),
            problems.measure.contiguous(),
            edges.source,
            edges.target,
            edges.mask.sum(dim=1),
        )
        lower = torch.minimum(dual, primal).clamp(min=0.0)
        return TransportSolution(primal, lower, primal, ~primal.isnan().any(dim=1))


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
    """Queries per second of the flow with exact transport, k = 20, 20 steps."""
    sizes = TINY_SIZES if bench.tiny else SIZES
    graphs = Graphs.of(clustered_nodes(bench.generator(0), sizes[-1], 4 if bench.tiny else K))
    for dtype in BOUNDS:
        for size in sizes:
            work = partial(_flow, graphs.rows(0, size), dtype, 1 if bench.tiny else STEPS)
            bench.time(f"{_label(dtype)}, B = {size:,}", work, size, kernel=_label(dtype))


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
