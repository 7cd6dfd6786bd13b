"""A graph on which the query is not erased: chunks as measures over the query's tokens.

Chunk c is the measure ``m_c(i) ~ a_i exp(A[i, c] / T)`` over the query's tokens, the query is the
measure ``a`` itself, and tokens lie apart as their vectors do. The exact W1 between query and chunk
says how unevenly the chunk covers the query, and ``1 - W1 / d`` is an Ollivier curvature of their
edge; W1 between two chunks says how far apart the words lie that they cover. Total variation
between the same measures is the control without transport.
"""

from itertools import pairwise

import torch

from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.ops.adjacency import EdgeList, to_matrix
from ricci_gpu.ops.transport.exact import ExactTransport
from ricci_gpu.ops.transport.interface import TransportProblems
from ricci_gpu.shapes import Float, Int, Tensor

TEMPERATURE = 0.15


def profiles(pools: JudgedPools) -> Float[Tensor, "B L K"]:
    """The measure of every chunk over the query's tokens; columns sum to 1, padding is 0."""
    mask = pools.token_mask[..., None]
    logits = torch.where(mask, pools.maxima.double() / TEMPERATURE, -torch.inf)
    return torch.where(mask, logits.softmax(dim=1), 0.0)


def uniform(pools: JudgedPools) -> Float[Tensor, "B L"]:
    """The measure of the query."""
    mask = pools.token_mask.double()
    return mask / mask.sum(dim=1, keepdim=True).clamp(min=1.0)


def profile_variation(pools: JudgedPools) -> Float[Tensor, "B K"]:
    """Total variation between query and chunk."""
    return 0.5 * (profiles(pools) - uniform(pools)[..., None]).abs().sum(dim=1)


def profile_distance(pools: JudgedPools) -> Float[Tensor, "B K"]:
    """Exact W1 between query and chunk."""
    target = torch.arange(1, pools.size + 1).expand(len(pools), pools.size)
    return _transport(pools, torch.zeros_like(target), target)


def mean_profile_distance(pools: JudgedPools) -> Float[Tensor, "B K"]:
    """Mean exact W1 to the other chunks: large for one that covers other words than they do."""
    source, target = torch.triu_indices(pools.size, pools.size, offset=1) + 1
    edges = EdgeList(
        source.expand(len(pools), -1),
        target.expand(len(pools), -1),
        torch.ones(len(pools), len(source), dtype=torch.bool),
    )
    value = _transport(pools, edges.source, edges.target)
    matrix = to_matrix(edges, value, pools.size + 1, fill=0.0)[:, 1:, 1:]
    return matrix.sum(dim=2) / max(pools.size - 1, 1)


def _transport(
    pools: JudgedPools, source: Int[Tensor, "B E"], target: Int[Tensor, "B E"]
) -> Float[Tensor, "B E"]:
    """Exact W1 between the measures of nodes: 0 is the query, c + 1 is chunk c."""
    tokens = pools.batch.tokens
    assert tokens is not None
    measures = torch.cat([uniform(pools)[..., None], profiles(pools)], dim=2).mT
    batch, nodes, length = measures.shape
    size = max(nodes, length)
    # The solver reads square arrays: measures of the nodes over as many points.
    padded = measures.new_zeros(batch, size, size)
    padded[:, :nodes, :length] = measures
    distance = measures.new_zeros(batch, size, size)
    for place, (first, last) in enumerate(pairwise(tokens.query_offsets.tolist())):
        vectors = tokens.query_tokens[first:last].double()
        distance[place, : last - first, : last - first] = torch.cdist(vectors, vectors)
    edges = EdgeList(source, target, torch.ones_like(target, dtype=torch.bool))
    return ExactTransport().solve(TransportProblems(distance, padded, edges)).value
