"""Places for the nodes of a pool graph: similar texts near each other, none on top of another."""

import numpy as np

ITERATIONS = 200


def layout(dissimilarity: np.ndarray, gap: float) -> np.ndarray:
    """Points in the unit square for ``n`` nodes, ``[n, 2]``, the same for the same input.

    Their distances follow the dissimilarities as well as a plane allows: classical scaling, then
    stress majorisation (De Leeuw 1977). Points nearer than ``gap`` are then moved apart.
    """
    count = len(dissimilarity)
    if count < 2:
        return np.full((count, 2), 0.5)
    points = _classical_scaling(dissimilarity)
    target = np.maximum(dissimilarity, 1e-3)  # duplicates: moved apart below
    for _ in range(ITERATIONS):
        points = _majorise(points, target)
    points = _fit(points)
    for _ in range(ITERATIONS):
        points = np.clip(_push_apart(points, gap), 0.0, 1.0)
    return points


def _classical_scaling(dissimilarity: np.ndarray) -> np.ndarray:
    count = len(dissimilarity)
    centre = np.eye(count) - 1.0 / count
    values, vectors = np.linalg.eigh(-0.5 * centre @ dissimilarity**2 @ centre)
    points = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 0.0))
    # Equal nodes start apart, on a small circle, so that there is a direction to move them in.
    angle = 2 * np.pi * np.arange(count) / count
    return points + 1e-3 * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def _majorise(points: np.ndarray, target: np.ndarray) -> np.ndarray:
    distance = np.linalg.norm(points[:, None] - points[None], axis=-1)
    ratio = np.where(distance > 0, -target / np.where(distance > 0, distance, 1.0), 0.0)
    np.fill_diagonal(ratio, 0.0)
    np.fill_diagonal(ratio, -ratio.sum(axis=1))
    return ratio @ points / len(points)


def _fit(points: np.ndarray) -> np.ndarray:
    """Into the unit square, each direction filled, by at most twice as much as the other."""
    low = points.min(axis=0)
    span = points.max(axis=0) - low
    span = np.maximum(span, max(span.max() / 2, 1e-9))
    return (points - low - (points.max(axis=0) - low) / 2) / span + 0.5


def _push_apart(points: np.ndarray, gap: float) -> np.ndarray:
    offset = points[:, None] - points[None]
    distance = np.linalg.norm(offset, axis=-1)
    np.fill_diagonal(distance, gap)
    near = distance < gap
    step = np.where(near, (gap - distance) / np.maximum(distance, 1e-6) / 3, 0.0)
    return points + (offset * step[..., None]).sum(axis=1)
