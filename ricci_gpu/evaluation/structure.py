"""Structural statistics of a pool graph: one number per candidate, larger is rather kept.

They are the controls that any method on the same graph has to beat.
"""

import torch

from ricci_gpu.ops.adjacency import cosine_dissimilarity, percentile_threshold, threshold_graph
from ricci_gpu.ops.cutoffs import candidate_degree
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.shapes import Bool, Float, Tensor


def component_rank(
    node_emb: Float[Tensor, "B N D"], node_mask: Bool[Tensor, "B N"]
) -> Float[Tensor, "B K"]:
    """Minus the percentile at which a candidate joins the query's connected component.

    Cutting it at ``-p`` is the component of the graph of dissimilarities up to their p-th
    percentile: single linkage. The smallest largest step of a path to the query decides.
    """
    distance = cosine_dissimilarity(node_emb, node_mask)
    size = distance.shape[1]
    upper = torch.triu_indices(size, size, offset=1)
    pairs = distance[:, upper[0], upper[1]].sort(dim=1).values
    for via in range(size):  # Floyd and Warshall, with the maximum in place of the sum
        through = torch.maximum(distance[:, :, via, None], distance[:, None, via, :])
        distance = torch.minimum(distance, through)
    below = torch.searchsorted(pairs, distance[:, 0, 1:].contiguous())
    return -100.0 * below.double() / max(pairs.shape[1] - 1, 1)


def half_graph(
    node_emb: Float[Tensor, "B N D"], node_mask: Bool[Tensor, "B N"]
) -> Bool[Tensor, "B N N"]:
    """The more similar half of the pairs joined, the query among the nodes."""
    distance = cosine_dissimilarity(node_emb, node_mask)
    return threshold_graph(
        distance, node_mask, percentile_threshold(distance, node_mask, 50.0), "le"
    )


def degree(node_emb: Float[Tensor, "B N D"], node_mask: Bool[Tensor, "B N"]) -> Tensor:
    """Number of other candidates that each candidate is joined to, ``[B K]``."""
    return candidate_degree(half_graph(node_emb, node_mask)).double()


def mean_similarity(node_emb: Float[Tensor, "B N D"], node_mask: Bool[Tensor, "B N"]) -> Tensor:
    """Mean cosine to the other candidates, ``[B K]``."""
    distance = cosine_dissimilarity(node_emb, node_mask)[:, 1:, 1:]
    return 1.0 - distance.sum(dim=2) / max(distance.shape[2] - 1, 1)


def pagerank_mass(
    node_emb: Float[Tensor, "B N D"], node_mask: Bool[Tensor, "B N"], damping: float = 0.5
) -> Float[Tensor, "B K"]:
    """Minus the mass of the candidates before this one, by personalised PageRank from the query.

    Cutting it at ``-m`` keeps the smallest head of the list with at least the mass ``m``. Edges
    of `half_graph`, weighted by cosine; a node without an edge returns to the query.
    """
    cosine = 1.0 - cosine_dissimilarity(node_emb, node_mask)
    weight = torch.where(half_graph(node_emb, node_mask), cosine.clamp(min=0.0), 0.0)
    total = weight.sum(dim=2, keepdim=True)
    restart = torch.zeros_like(weight[:, 0])
    restart[:, 0] = 1.0
    step = torch.where(total > 0, weight / torch.where(total > 0, total, 1.0), restart[:, None, :])
    identity = torch.eye(weight.shape[1], dtype=weight.dtype)
    # p = (1 - damping) r + damping step' p, solved directly: pools are small.
    rank = torch.linalg.solve(
        identity - damping * step.mT, (1.0 - damping) * restart[..., None]
    ).squeeze(-1)[:, 1:]
    mass = rank / rank.sum(dim=1, keepdim=True).clamp(min=1e-12)
    order = descending_order(mass, node_mask[:, 1:])
    ordered = mass.gather(1, order)
    before = ordered.cumsum(dim=1) - ordered
    return -torch.empty_like(mass).scatter(1, order, before)
