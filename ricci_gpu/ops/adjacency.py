"""Which nodes of a query graph are joined, and how long the edges are at the start.

Source: Ricci-Filtration (arXiv 2606.15482). The pool graph has an edge where the cosine
dissimilarity passes a percentile of the graph's own dissimilarities; the query is then joined to
every candidate. The published text joins *dissimilar* chunks (rule ``ge``), which reproduces its
table; the theory reads better with ``le``. Both are here.
"""

from typing import Literal, NamedTuple

import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.shapes import Bool, Float, Int, Tensor

EdgeRule = Literal["ge", "le"]

# Dissimilarities are rounded to multiples of 2^-40 (about 1e-12). The rounding of a matrix product
# depends on its padding and on where a row stands; without this, duplicates would fall on either
# side of a threshold that equals their dissimilarity.
_GRID = 2.0**40


class EdgeList(NamedTuple):
    """Undirected edges of each graph, ``source < target``, in row-major order, padded to E."""

    source: Int[Tensor, "B E"]
    target: Int[Tensor, "B E"]
    mask: Bool[Tensor, "B E"]


def cosine_dissimilarity(
    node_emb: Float[Tensor, "B N D"], node_mask: Bool[Tensor, "B N"]
) -> Float[Tensor, "B N N"]:
    """``1 - cos`` between all nodes, in float64, within [0, 2], symmetric, zero on the diagonal.

    Entries that involve a masked node are 0 and must not be read. Real nodes must have finite,
    non-zero vectors; `ricci_gpu.stages` masks the others beforehand.
    """
    vectors = torch.where(node_mask[..., None], node_emb, 0.0).double()
    # A zero row is padding here: dividing it by 1 keeps it zero.
    norm = vectors.norm(dim=-1, keepdim=True)
    unit = vectors / torch.where(norm > 0, norm, 1.0)
    dissimilarity = (1.0 - unit @ unit.mT).clamp(0.0, 2.0)
    dissimilarity = (dissimilarity * _GRID).round() / _GRID
    dissimilarity = torch.maximum(dissimilarity, dissimilarity.mT)
    real_pair = node_mask[:, :, None] & node_mask[:, None, :]
    off_diagonal = ~torch.eye(node_mask.shape[1], dtype=torch.bool, device=node_mask.device)
    return torch.where(real_pair & off_diagonal, dissimilarity, 0.0)


def percentile_threshold(
    dissimilarity: Float[Tensor, "B N N"],
    node_mask: Bool[Tensor, "B N"],
    percentile: float,
    over: Literal["nodes", "candidates"] = "nodes",
) -> Float[Tensor, "B"]:
    """The percentile of the upper-triangle dissimilarities of each graph.

    Linear interpolation between order statistics (numpy's default). The upper triangle counts
    each pair once: at 25 and 75 % the answer differs from counting both triangles. ``over`` says
    whether pairs with the query count (``nodes``) or not (``candidates``). NaN where a graph has
    no pair.
    """
    if not 0.0 <= percentile <= 100.0:
        raise SettingError(f"`percentile` must lie in [0, 100]; got {percentile}.")
    size = node_mask.shape[1]
    counted = node_mask.clone()
    if over == "candidates":
        counted[:, 0] = False
    row, column = torch.triu_indices(size, size, offset=1, device=node_mask.device)
    pair_mask = counted[:, row] & counted[:, column]
    values = torch.where(pair_mask, dissimilarity[:, row, column], torch.inf).sort(dim=1).values
    count = pair_mask.sum(dim=1)
    if values.shape[1] == 0:
        return dissimilarity.new_full((len(count),), torch.nan)
    position = (percentile / 100.0) * (count - 1).clamp(min=0).double()
    low = position.floor().long()
    high = torch.minimum(low + 1, (count - 1).clamp(min=0))
    at_low = values.gather(1, low[:, None])[:, 0]
    at_high = values.gather(1, high[:, None])[:, 0]
    threshold = torch.where(high > low, at_low + (at_high - at_low) * (position - low), at_low)
    return torch.where(count > 0, threshold, torch.nan)


def threshold_graph(
    dissimilarity: Float[Tensor, "B N N"],
    node_mask: Bool[Tensor, "B N"],
    threshold: Float[Tensor, "B"],
    rule: EdgeRule,
) -> Bool[Tensor, "B N N"]:
    """Join nodes whose dissimilarity is ``>=`` (``ge``) or ``<=`` (``le``) the threshold.

    Neither is strict: a pair exactly on the threshold is an edge, so a pool whose chunks are all
    identical becomes a complete graph under both rules. A NaN threshold gives no edge.
    """
    if rule not in ("ge", "le"):
        raise SettingError(f"`rule` must be `ge` or `le`; got `{rule}`.")
    limit = threshold[:, None, None]
    joined = dissimilarity >= limit if rule == "ge" else dissimilarity <= limit
    return _valid_pairs(joined, node_mask)


def mutual_knn_graph(
    dissimilarity: Float[Tensor, "B N N"], node_mask: Bool[Tensor, "B N"], neighbours: int
) -> Bool[Tensor, "B N N"]:
    """Join two nodes when each is among the other's nearest ``neighbours``; ties by lower index."""
    if neighbours < 1:
        raise SettingError(f"`neighbours` must be at least 1; got {neighbours}.")
    size = node_mask.shape[1]
    allowed = _valid_pairs(torch.ones_like(dissimilarity, dtype=torch.bool), node_mask)
    order = torch.where(allowed, dissimilarity, torch.inf).argsort(dim=2, stable=True)
    rank = torch.empty_like(order).scatter_(
        2, order, torch.arange(size, device=order.device).expand_as(order)
    )
    near = (rank < neighbours) & allowed
    return near & near.mT


def join_query(
    adjacency: Bool[Tensor, "B N N"], node_mask: Bool[Tensor, "B N"]
) -> Bool[Tensor, "B N N"]:
    """Add an edge between the query (node 0) and every candidate."""
    joined = adjacency.clone()
    joined[:, 0, :] = node_mask
    joined[:, :, 0] = node_mask
    return _valid_pairs(joined, node_mask)


def edge_list(adjacency: Bool[Tensor, "B N N"]) -> EdgeList:
    """The edges of symmetric adjacency matrices, each once."""
    upper = adjacency.triu(diagonal=1)
    graph, source, target = upper.nonzero(as_tuple=True)
    count = upper.sum(dim=(1, 2))
    most = int(count.max()) if len(count) else 0
    mask = torch.arange(most, device=adjacency.device)[None, :] < count[:, None]
    sources = torch.zeros(mask.shape, dtype=torch.int64, device=adjacency.device)
    targets = torch.zeros_like(sources)
    # `nonzero` lists graph by graph in row-major order, as boolean indexing writes them.
    del graph
    sources[mask] = source
    targets[mask] = target
    return EdgeList(sources, targets, mask)


def to_matrix(
    edges: EdgeList, values: Float[Tensor, "B E"], size: int, fill: float
) -> Float[Tensor, "B N N"]:
    """Edge values as symmetric matrices; ``fill`` where there is no edge, 0 on the diagonal."""
    batch = values.shape[0]
    matrix = values.new_full((batch, size, size), fill)
    graph = torch.arange(batch, device=values.device)[:, None].expand_as(values)[edges.mask]
    source, target, real = edges.source[edges.mask], edges.target[edges.mask], values[edges.mask]
    matrix[graph, source, target] = real
    matrix[graph, target, source] = real
    matrix.diagonal(dim1=1, dim2=2).zero_()
    return matrix


def _valid_pairs(
    joined: Bool[Tensor, "B N N"], node_mask: Bool[Tensor, "B N"]
) -> Bool[Tensor, "B N N"]:
    off_diagonal = ~torch.eye(node_mask.shape[1], dtype=torch.bool, device=node_mask.device)
    return joined & node_mask[:, :, None] & node_mask[:, None, :] & off_diagonal
