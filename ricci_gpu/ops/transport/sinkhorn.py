"""Entropic transport by Sinkhorn's iteration (Cuturi 2013), for all edges of all graphs at once.

All edges of one graph share one cost matrix, so the Gibbs kernel ``K = exp(-d / eps)`` is one
N x N matrix per graph and a half-step for every edge is one batched matrix product:

    U = A / (V K),   V = B / (U K)        U, V, A, B of shape (B, E, N), K symmetric

No exponential stands inside the loop. The plan is then rounded to one that meets both marginals
(Altschuler, Weed and Rigollet 2017), whose cost bounds W1 from above; the dual potentials,
made feasible by a c-transform, bound it from below.
"""

from dataclasses import dataclass
from typing import Any

import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.ops.transport.interface import SOLVERS, TransportProblems, TransportSolution
from ricci_gpu.shapes import Float, Tensor

# exp(-x) is a normal number for x below 708 (float64) or 87 (float32). Beyond, the iteration
# would divide 0 by 0 without a word. The margin leaves room for the scalings themselves.
_LARGEST_EXPONENT = {torch.float64: 600.0, torch.float32: 75.0}


@SOLVERS.register("sinkhorn")
@dataclass(frozen=True)
class SinkhornTransport:
    """Batched scaling iteration in the dtype of the problems.

    Args:
        epsilon: entropic blur, in units of length (the flow keeps the mean edge at 1). A graph so
            long that ``exp(-d / epsilon)`` would underflow gets the smallest blur that does not:
            its bounds are wider and still hold.
        iterations: pairs of half-steps.
        tolerance: a query counts as converged when every edge of it leaves at most this share of
            its moved mass on the wrong node before rounding.
        sharp: bound from below by the exact c-transform. It costs about as much as five
            iterations; without it the entropic one is used, which comes for free and is looser by
            the entropy of the plan.
    """

    epsilon: float = 0.05
    iterations: int = 10
    tolerance: float = 0.05
    sharp: bool = False

    def __post_init__(self) -> None:
        if not self.epsilon > 0:
            raise SettingError(f"`epsilon` must be greater than 0; got {self.epsilon}.")
        if self.iterations < 1:
            raise SettingError(f"`iterations` must be at least 1; got {self.iterations}.")
        if not self.tolerance > 0:
            raise SettingError(f"`tolerance` must be greater than 0; got {self.tolerance}.")

    def solve(self, problems: TransportProblems, state: Any = None) -> TransportSolution:
        """Solve all problems; ``state`` holds the scalings V (B, E, N) of an earlier call."""
        supply, demand = problems.excess()
        # Infinite distances lie between components, where no mass moves: any finite value does.
        distance = torch.where(torch.isfinite(problems.distance), problems.distance, 0.0)
        longest = distance.amax(dim=(1, 2), keepdim=True)
        epsilon = (longest / _LARGEST_EXPONENT[distance.dtype]).clamp(min=self.epsilon)
        kernel = (-distance / epsilon).exp()

        # No mask is needed below: where there is no mass, 0 / positive is 0 and 0 * finite is 0.
        # The clamps only act on padded edges, whose every product is 0.
        tiny = torch.finfo(distance.dtype).tiny
        v = demand if state is None else state + demand
        for _ in range(self.iterations):
            u = supply / torch.bmm(v, kernel).clamp_(min=tiny)
            reached = torch.bmm(u, kernel).clamp_(min=tiny)
            v = demand / reached

        upper, misplaced = _rounded_cost(supply, demand, distance, kernel, u, v)
        f = epsilon * u.clamp(min=tiny).log_()
        if self.sharp:
            g = _c_transform(distance, torch.where(supply > 0, f, -torch.inf))
            g = torch.where(demand > 0, g, 0.0)
        else:
            # The soft minimum -eps log(sum exp((f_i - d_ij) / eps)) lies below the minimum, so
            # it is feasible as it stands.
            g = reached.log_().mul_(-epsilon)
        lower = (supply * f).sum(dim=2) + (demand * g).sum(dim=2)
        lower = torch.minimum(lower.clamp_(min=0.0), upper)
        converged = (misplaced <= self.tolerance * supply.sum(dim=2)).all(dim=1)
        return TransportSolution(upper, lower, upper, converged, v)


def _rounded_cost(
    supply: Float[Tensor, "B E N"],
    demand: Float[Tensor, "B E N"],
    distance: Float[Tensor, "B N N"],
    kernel: Float[Tensor, "B N N"],
    u: Float[Tensor, "B E N"],
    v: Float[Tensor, "B E N"],
) -> tuple[Float[Tensor, "B E"], Float[Tensor, "B E"]]:
    """Cost of the plan rounded to its marginals, and the mass that rounding moved.

    After the last half-step the demands are met and only rows may hold too much: scale those
    down, then spread what is left over in proportion (a rank-one plan).
    """
    tiny = torch.finfo(distance.dtype).tiny
    sent = u * torch.bmm(v, kernel)
    u = u * (supply / sent.clamp(min=tiny)).clamp_(max=1.0)
    left = (supply - sent).clamp_(min=0.0)
    missing = (demand - v * torch.bmm(u, kernel)).clamp_(min=0.0)
    mass = left.sum(dim=2)
    along_plan = (u * torch.bmm(v, kernel * distance)).sum(dim=2)
    spread = (left * torch.bmm(missing, distance)).sum(dim=2) / mass.clamp(min=tiny)
    return along_plan + spread, mass


def _c_transform(
    distance: Float[Tensor, "B N N"], f: Float[Tensor, "B E N"]
) -> Float[Tensor, "B E N"]:
    """``min_i d_ij - f_i``; one node i at a time, so that no (B, E, N, N) tensor is built."""
    g = torch.full_like(f, torch.inf)
    for i in range(f.shape[2]):
        torch.minimum(g, distance[:, i, None, :] - f[:, :, i, None], out=g)
    return g
