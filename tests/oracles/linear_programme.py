"""Wasserstein-1, Ollivier-Ricci curvature and Ricci flow by a general linear-programme solver.

Float64, one edge at a time, and nothing of the library under test: no cancellation of common
mass, curvature in its textbook form, flow as ``w - step kappa w``.
"""

import numpy as np
from oracles.graphs import Edge, length_matrix
from scipy.optimize import linprog
from scipy.sparse import identity, kron, vstack


def wasserstein1(mu: np.ndarray, nu: np.ndarray, distance: np.ndarray) -> float:
    """The least cost of moving the measure ``mu`` to ``nu``."""
    rows, columns = np.flatnonzero(mu), np.flatnonzero(nu)
    cost = distance[np.ix_(rows, columns)]
    scale = cost.max()  # the tolerances of the solver are absolute
    if scale == 0.0:
        return 0.0
    n, m = cost.shape
    marginals = vstack([kron(identity(n), np.ones((1, m))), kron(np.ones((1, n)), identity(m))])
    masses = np.concatenate([mu[rows], nu[columns]])
    result = linprog(
        (cost / scale).ravel(),
        A_eq=marginals.tocsr()[:-1],  # the last equation follows from the others
        b_eq=masses[:-1],
        method="highs",
        options={"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10},
    )
    assert result.status == 0, result.message
    return float(result.fun * scale)


def shortest_paths(lengths: np.ndarray) -> np.ndarray:
    distance = lengths.copy()
    for via in range(len(distance)):
        distance = np.minimum(distance, distance[:, via, None] + distance[None, via, :])
    return distance


def measures(lengths: np.ndarray, alpha: float, p: float) -> np.ndarray:
    """Row x: ``alpha`` at x, the rest on its neighbours in proportion to ``exp(-w^p)``."""
    measure = np.zeros_like(lengths)
    for x, row in enumerate(lengths):
        neighbours = np.flatnonzero(np.isfinite(row) & (np.arange(len(row)) != x))
        if len(neighbours) == 0:
            measure[x, x] = 1.0
            continue
        power = row[neighbours] ** p
        share = np.exp(power.min() - power)
        measure[x, neighbours] = (1.0 - alpha) * share / share.sum()
        measure[x, x] = alpha
    return measure


def curvature(
    edges: list[Edge], lengths: np.ndarray, nodes: int, alpha: float, p: float
) -> tuple[np.ndarray, np.ndarray]:
    """W1 and ``kappa = 1 - W1 / d`` of every edge; kappa is 1 where the ends coincide."""
    matrix = length_matrix(edges, lengths, nodes)
    distance, measure = shortest_paths(matrix), measures(matrix, alpha, p)
    w1 = np.array([wasserstein1(measure[x], measure[y], distance) for x, y in edges])
    apart = np.array([distance[x, y] for x, y in edges])
    ratio = np.divide(w1, apart, out=np.zeros_like(w1), where=apart > 0)
    return w1, 1.0 - ratio


def ricci_flow(
    edges: list[Edge],
    lengths: np.ndarray,
    nodes: int,
    alpha: float,
    p: float,
    iterations: int,
    step: float = 1.0,
) -> np.ndarray:
    """Weights after every step, shape (iterations, edges); mean 1 after each."""
    weight, history = np.asarray(lengths, dtype=float), []
    for _ in range(iterations):
        _, kappa = curvature(edges, weight, nodes, alpha, p)
        weight = weight - step * kappa * weight
        weight = weight / weight.mean()
        history.append(weight)
    return np.array(history)
