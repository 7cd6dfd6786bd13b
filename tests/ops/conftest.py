"""Graphs as padded batches, for every test of the tensor core."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import settings
from oracles.graphs import Edge, clustered_vectors

from ricci_gpu.ops.adjacency import (
    EdgeList,
    EdgeRule,
    cosine_dissimilarity,
    edge_list,
    join_query,
    percentile_threshold,
    threshold_graph,
    to_matrix,
)
from ricci_gpu.ops.distances import shortest_paths
from ricci_gpu.ops.measures import node_measures
from ricci_gpu.ops.transport import TransportProblems

settings.register_profile("ops", deadline=None, derandomize=True, database=None)
settings.load_profile("ops")


class Graphs(NamedTuple):
    """What `ricci_flow` and `curvature` take first: lengths, edges, adjacency."""

    weight: torch.Tensor
    edges: EdgeList
    adjacency: torch.Tensor

    def problems(self, alpha: float = 0.5, p: float = 2.0) -> TransportProblems:
        lengths = to_matrix(self.edges, self.weight, self.adjacency.shape[1], torch.inf)
        measure = node_measures(lengths, self.adjacency, alpha, p)
        return TransportProblems(shortest_paths(lengths), measure, self.edges)

    def rows(self, values: torch.Tensor) -> list[np.ndarray]:
        """The real entries of each graph, in the order of its sorted edges."""
        return [row[mask].numpy() for row, mask in zip(values, self.edges.mask, strict=True)]


@pytest.fixture(scope="session")
def batch_of() -> Callable[..., Graphs]:
    """Pads ``(edges, lengths)`` pairs into one batch; NaN stands in the padding."""

    def build(
        graphs: Sequence[tuple[list[Edge], np.ndarray | float]],
        nodes: int | None = None,
        dtype: torch.dtype = torch.float64,
    ) -> Graphs:
        largest = 1 + max(max((y for _, y in edges), default=0) for edges, _ in graphs)
        size = largest if nodes is None else nodes
        adjacency = torch.zeros((len(graphs), size, size), dtype=torch.bool)
        for row, (edges, _) in enumerate(graphs):
            for x, y in edges:
                adjacency[row, x, y] = adjacency[row, y, x] = True
        padded = edge_list(adjacency)
        weight = torch.full(padded.mask.shape, torch.nan, dtype=dtype)
        for row, (edges, lengths) in enumerate(graphs):
            assert edges == sorted(edges)
            full = np.broadcast_to(np.asarray(lengths, dtype=float), (len(edges),))
            weight[row, : len(edges)] = torch.tensor(full, dtype=dtype)
        return Graphs(weight, padded, adjacency)

    return build


@pytest.fixture(scope="session")
def pool_graphs() -> Callable[..., Graphs]:
    """Query graphs as the filter builds them: vectors, percentile, rule, query edges, unit length.

    ``vectors`` is a list of (1 + candidates, D) arrays, or a number of random pools of 20.
    """

    def build(
        vectors: int | Sequence[np.ndarray],
        rule: EdgeRule = "ge",
        percentile: float = 50.0,
        nodes: int | None = None,
        dtype: torch.dtype = torch.float64,
        query_edges: bool = True,
    ) -> Graphs:
        if isinstance(vectors, int):
            vectors = [clustered_vectors(np.random.default_rng(s), 21) for s in range(vectors)]
        size = max(len(rows) for rows in vectors) if nodes is None else nodes
        node_emb = torch.full((len(vectors), size, vectors[0].shape[1]), torch.nan)
        mask = torch.zeros((len(vectors), size), dtype=torch.bool)
        for row, rows in enumerate(vectors):
            node_emb[row, : len(rows)] = torch.as_tensor(rows, dtype=torch.float32)
            mask[row, : len(rows)] = True
        dissimilarity = cosine_dissimilarity(node_emb, mask)
        limit = percentile_threshold(dissimilarity, mask, percentile)
        adjacency = threshold_graph(dissimilarity, mask, limit, rule)
        if query_edges:
            adjacency = join_query(adjacency, mask)
        edges = edge_list(adjacency)
        weight = torch.where(edges.mask, 1.0, torch.nan).to(dtype)
        return Graphs(weight, edges, adjacency)

    return build
