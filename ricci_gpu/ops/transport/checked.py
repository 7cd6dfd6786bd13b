"""Entropic first, exact where the entropic bounds are too wide: every W1 within a stated error."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.ops.adjacency import EdgeList
from ricci_gpu.ops.transport.exact import ExactTransport, serves_on_device
from ricci_gpu.ops.transport.interface import SOLVERS, TransportProblems, TransportSolution
from ricci_gpu.ops.transport.sinkhorn import SinkhornTransport


@SOLVERS.register("checked")
@dataclass(frozen=True)
class CheckedTransport:
    """Sinkhorn with certified bounds; edges whose bounds differ by more are solved exactly.

    Sinkhorn pays only where it certifies most edges: after a step in which it certified fewer than
    half of a graph, the steps that follow on that graph are solved exactly at once. The choice is
    per graph, so that it cannot depend on what else is in the batch.

    The certificate holds per step and per edge. That the decisions after many steps are those of
    the linear programme is not implied, since the flow amplifies: it was measured (independent
    relative errors of 1e-3 changed no decision; benchmarks/LOG.md).

    A check of the final weights alone (re-solve what ends near the cutoff) was tried and does not
    work: wrong decisions mostly end far from it.

    Args:
        tolerance: largest certified error of W1, relative to its upper bound.
        epsilon, iterations: of Sinkhorn's iteration.
    """

    tolerance: float = 1e-3
    epsilon: float = 0.05
    iterations: int = 5

    def __post_init__(self) -> None:
        if not self.tolerance > 0:
            raise SettingError(f"`tolerance` must be greater than 0; got {self.tolerance}.")
        SinkhornTransport(self.epsilon, self.iterations)  # refuses impossible settings

    def solve(self, problems: TransportProblems, state: Any = None) -> TransportSolution:
        """Solve all problems; ``state`` holds the warm starts of both solvers."""
        edges, distance = problems.edges, problems.distance
        if state is None:
            potentials = None  # the kernel on a device keeps none
            if not serves_on_device(distance):
                potentials = np.full((*edges.mask.shape, distance.shape[1]), np.inf)
            pays = torch.ones(len(edges.mask), dtype=torch.bool, device=distance.device)
            state = (None, potentials, pays)
        scalings, potentials, pays = state
        if not pays.any():
            fine = ExactTransport().solve(problems, potentials)
            return fine._replace(state=(scalings, fine.state, pays), resolved=edges.mask)
        rough = SinkhornTransport(self.epsilon, self.iterations, sharp=True).solve(
            problems, scalings
        )
        value, lower, upper = rough.value.clone(), rough.lower.clone(), rough.upper.clone()
        converged = torch.ones_like(pays)
        doubtful = edges.mask & ((upper - lower > self.tolerance * upper) | ~pays[:, None])
        if doubtful.any():
            place, few = _compact(doubtful, edges)
            fine = _solve_few(problems, place, few, potentials)
            graph, slot = few.mask.nonzero(as_tuple=True)
            edge = place[graph, slot]
            for all_edges, resolved in (
                (value, fine.value),
                (lower, fine.lower),
                (upper, fine.upper),
            ):
                all_edges[graph, edge] = resolved[graph, slot]
            converged = fine.converged
        pays = pays & (2 * doubtful.sum(dim=1) <= edges.mask.sum(dim=1))
        return TransportSolution(
            value, lower, upper, converged, (rough.state, potentials, pays), doubtful
        )


def _solve_few(
    problems: TransportProblems, place: torch.Tensor, few: EdgeList, potentials: np.ndarray | None
) -> TransportSolution:
    """Exact transport of a few edges of each graph; ``potentials`` of all edges are kept up."""
    part = TransportProblems(problems.distance, problems.measure, few)
    if potentials is None:
        return ExactTransport().solve(part)
    rows = place[:, :, None].cpu().numpy()
    fine = ExactTransport().solve(part, np.take_along_axis(potentials, rows, axis=1))
    np.put_along_axis(potentials, rows, fine.state, axis=1)
    return fine


def _compact(chosen: torch.Tensor, edges: EdgeList) -> tuple[torch.Tensor, EdgeList]:
    """The chosen edges of each graph moved to the front, and the place each came from."""
    order = (~chosen).to(torch.int8).argsort(dim=1, stable=True)
    order = order[:, : int(chosen.sum(dim=1).amax())]
    few = EdgeList(
        edges.source.gather(1, order), edges.target.gather(1, order), chosen.gather(1, order)
    )
    return order, few
