"""GeomLoss's batched entropic solver, as the reference for the entropic value."""

from dataclasses import dataclass
from typing import Any

import torch

from ricci_gpu.errors import SettingError, missing
from ricci_gpu.ops.transport.interface import SOLVERS, TransportProblems, TransportSolution

# GeomLoss takes logarithms of the masses: an empty node gets a mass that cannot matter.
_ALMOST_NOTHING = 1e-30


@SOLVERS.register("geomloss")
@dataclass(frozen=True)
class GeomlossTransport:
    """``geomloss.ot.solve_batch`` with explicit costs, one (N, N) problem per edge.

    It works in the log domain with epsilon-annealing and builds a plan per edge: slow, robust and
    independent of our code. Its plan is rounded and its potentials are made feasible here, so that
    the bounds are ours to guarantee.

    Args:
        epsilon: entropic blur, in units of length.
        iterations: Sinkhorn iterations.
    """

    epsilon: float = 0.05
    iterations: int = 100

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise SettingError(f"`epsilon` must be greater than 0; got {self.epsilon}.")
        if self.iterations < 1:
            raise SettingError(f"`iterations` must be at least 1; got {self.iterations}.")

    def solve(self, problems: TransportProblems, state: Any = None) -> TransportSolution:
        """Solve all problems; ``state`` is not used."""
        try:
            from geomloss import ot
        except ImportError as error:
            raise missing("geomloss", "the `geomloss` solver", "geomloss") from error
        mask = problems.edges.mask
        supply, demand = (excess[mask].double() for excess in problems.excess())  # (P, N)
        graph = mask.nonzero()[:, 0]
        distance = torch.where(torch.isfinite(problems.distance), problems.distance, 0.0).double()
        cost = distance[graph]
        total = supply.sum(dim=1, keepdim=True)
        moving = total[:, 0] > 0
        value = total.new_zeros(mask.shape)
        lower = torch.zeros_like(value)
        upper = torch.zeros_like(value)
        if moving.any():
            share = (excess[moving] / total[moving] for excess in (supply, demand))
            a, b = (part.clamp(min=_ALMOST_NOTHING) for part in share)
            a, b = a / a.sum(dim=1, keepdim=True), b / b.sum(dim=1, keepdim=True)
            c = cost[moving]
            solution = ot.solve_batch(c, reg=self.epsilon, a=a, b=b, max_iter=self.iterations)
            mass = total[moving][:, 0]
            plan = _round(torch.as_tensor(solution.plan), a, b)
            f = torch.as_tensor(solution.potential_a)
            g = (c - f[:, :, None]).amin(dim=1)
            top = mass * (plan * c).sum(dim=(1, 2))
            bottom = (mass * ((a * f).sum(dim=1) + (b * g).sum(dim=1))).clamp(min=0.0)
            edge = mask.nonzero()[moving]
            upper[edge[:, 0], edge[:, 1]] = top
            lower[edge[:, 0], edge[:, 1]] = torch.minimum(bottom, top)
            value[edge[:, 0], edge[:, 1]] = top
        dtype = problems.distance.dtype
        converged = torch.ones(mask.shape[0], dtype=torch.bool, device=mask.device)
        return TransportSolution(value.to(dtype), lower.to(dtype), upper.to(dtype), converged)


def _round(plan: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The nearest plan with marginals a and b (Altschuler, Weed and Rigollet 2017, alg. 2)."""
    plan = plan * (a / plan.sum(dim=2)).clamp(max=1.0)[:, :, None]
    plan = plan * (b / plan.sum(dim=1)).clamp(max=1.0)[:, None, :]
    left, missing_mass = (a - plan.sum(dim=2)).clamp(min=0.0), (b - plan.sum(dim=1)).clamp(min=0.0)
    mass = left.sum(dim=1).clamp(min=1e-300)
    return plan + left[:, :, None] * missing_mass[:, None, :] / mass[:, None, None]
