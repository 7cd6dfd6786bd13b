"""Clustering baselines of one pool, by scikit-learn and networkx.

Each takes the unit vectors of a pool, the query first, and returns which candidates share the
query's cluster. They have no knob that sets a budget; their settings are the usual ones and are
not tuned. A query that ends outside every cluster (noise) filters nothing: all candidates stay.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ricci_gpu.errors import missing
from ricci_gpu.shapes import Bool, Tensor

NOISE = -1
DENSITY_NEIGHBOURS = 3  # a core point of DBSCAN has so many neighbours, itself included


def two_means(vectors: np.ndarray) -> np.ndarray:
    """K-means with two clusters."""
    return _fit("KMeans", vectors, n_clusters=2, n_init=4, random_state=0)


def dbscan(vectors: np.ndarray) -> np.ndarray:
    """DBSCAN; its radius is the knee of the sorted distances to the third neighbour."""
    distance = np.sqrt(np.clip(2 - 2 * vectors @ vectors.T, 0, None))
    nearest = np.sort(np.sort(distance, axis=1)[:, DENSITY_NEIGHBOURS - 1])
    chord = np.linspace(nearest[0], nearest[-1], len(nearest))
    radius = float(nearest[np.argmax(chord - nearest)])
    return _fit("DBSCAN", vectors, eps=max(radius, 1e-6), min_samples=DENSITY_NEIGHBOURS)


def hdbscan(vectors: np.ndarray) -> np.ndarray:
    """HDBSCAN with the smallest cluster size that it takes below a handful, 3."""
    return _fit("HDBSCAN", vectors, min_cluster_size=3, copy=True)


def affinity_propagation(vectors: np.ndarray) -> np.ndarray:
    """Affinity propagation on inner products; damping 0.7, median preference."""
    similarity = vectors @ vectors.T
    return _fit(
        "AffinityPropagation",
        similarity,
        affinity="precomputed",
        damping=0.7,
        max_iter=500,
        random_state=0,
    )


def spectral_cut(vectors: np.ndarray) -> np.ndarray:
    """The sign of the Fiedler vector of the normalised Laplacian (Shi and Malik 2000)."""
    weight = np.clip(vectors @ vectors.T, 0, None)
    np.fill_diagonal(weight, 0.0)
    root = np.sqrt(np.clip(weight.sum(axis=1), 1e-12, None))
    laplacian = np.eye(len(weight)) - weight / root[:, None] / root[None, :]
    _, eigenvectors = np.linalg.eigh(laplacian)
    return (eigenvectors[:, 1] / root >= 0).astype(int)


def label_propagation(vectors: np.ndarray) -> np.ndarray:
    """Communities by label propagation on the graph of the more similar half of the pairs."""
    try:
        import networkx
    except ImportError as error:
        raise missing("networkx", "label propagation", "eval") from error
    similarity = vectors @ vectors.T
    upper = np.triu_indices(len(vectors), k=1)
    joined = similarity >= np.median(similarity[upper])
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(vectors)))
    graph.add_edges_from((int(i), int(j)) for i, j in zip(*upper, strict=True) if joined[i, j])
    labels = np.zeros(len(vectors), dtype=int)
    for label, community in enumerate(networkx.community.label_propagation_communities(graph)):
        labels[list(community)] = label
    return labels


CLUSTERINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "2-means": two_means,
    "DBSCAN": dbscan,
    "HDBSCAN": hdbscan,
    "affinity propagation": affinity_propagation,
    "spectral cut": spectral_cut,
    "label propagation": label_propagation,
}


def query_cluster(
    node_emb: Tensor, cluster: Callable[[np.ndarray], np.ndarray]
) -> Bool[Tensor, "B K"]:
    """Candidates in the query's cluster, for every pool of ``node_emb`` ``[B N D]``."""
    unit = torch.nn.functional.normalize(node_emb.double(), dim=2).numpy()
    labels = np.stack([cluster(vectors) for vectors in unit])
    together = (labels[:, 1:] == labels[:, :1]) | (labels[:, :1] == NOISE)
    return torch.from_numpy(together)


def _fit(name: str, data: np.ndarray, **settings: Any) -> np.ndarray:
    try:
        from sklearn import cluster
        from sklearn.exceptions import ConvergenceWarning
    except ImportError as error:
        raise missing("scikit-learn", "the clustering baselines", "eval") from error
    with warnings.catch_warnings():
        # Fewer distinct points than clusters, or no convergence on one pool: its labels count.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return np.asarray(getattr(cluster, name)(**settings).fit_predict(data))
