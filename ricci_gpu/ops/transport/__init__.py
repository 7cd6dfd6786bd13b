"""Wasserstein-1 distances for all edges of all graphs at once, behind one solver interface.

Common mass is cancelled first: for a metric cost, ``W1(mu, nu) = W1((mu - nu)+, (nu - mu)+)``.
This is exact, halves the supports and removes most of the entropic bias.
"""

from ricci_gpu.ops.transport import checked, exact, geomloss, sinkhorn  # noqa: F401
from ricci_gpu.ops.transport.interface import SOLVERS, TransportProblems, TransportSolution

__all__ = ["SOLVERS", "TransportProblems", "TransportSolution"]
