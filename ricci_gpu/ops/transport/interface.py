"""What every transport solver takes and returns."""

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from ricci_gpu.ops.adjacency import EdgeList
from ricci_gpu.registry import Registry
from ricci_gpu.shapes import Bool, Float, Tensor


class TransportSolution(NamedTuple):
    """``lower <= W1 <= upper`` for every edge; ``value`` is the solver's estimate within.

    Entries of padded edges are 0. ``state`` may be handed to the next call on the same edges as a
    warm start. ``resolved`` marks edges that a cheap solver left to an exact one.
    """

    value: Float[Tensor, "B E"]
    lower: Float[Tensor, "B E"]
    upper: Float[Tensor, "B E"]
    converged: Bool[Tensor, "B"]
    state: Any = None
    resolved: Bool[Tensor, "B E"] | None = None


@dataclass(frozen=True)
class TransportProblems:
    """One problem per edge: move the measure of its source node to that of its target node.

    Args:
        distance: shortest-path metric of each graph; ``inf`` between components.
        measure: row x is the probability measure of node x.
        edges: the pairs of nodes.
    """

    distance: Float[Tensor, "B N N"]
    measure: Float[Tensor, "B N N"]
    edges: EdgeList

    def excess(self) -> tuple[Float[Tensor, "B E N"], Float[Tensor, "B E N"]]:
        """Supply ``(m_x - m_y)+`` and demand ``(m_y - m_x)+`` of every edge; zero on padding.

        A padded edge joins node 0 with itself, so it needs no mask.
        """
        graph = torch.arange(len(self.measure), device=self.measure.device)[:, None]
        difference = self.measure[graph, self.edges.source]
        difference -= self.measure[graph, self.edges.target]
        return difference.clamp(min=0.0), difference.neg_().clamp_(min=0.0)


@runtime_checkable  # the shape checks of a test run ask whether a solver is one
class TransportSolver(Protocol):
    """A solver: a frozen dataclass of its settings, with this one method."""

    def solve(self, problems: TransportProblems, state: Any = None) -> TransportSolution:
        """Solve all problems; ``state`` is a warm start returned by an earlier call."""
        ...


SOLVERS: Registry[TransportSolver] = Registry("solver")
