"""Plain rules that cut a scored list: the controls that every filter has to beat.

Each takes scores ``[B K]`` (larger is better) and a mask, and returns the mask of what is kept.
Ties are broken by the lower index. None reads masked scores. Scores at ``-inf`` (empty documents)
or NaN count as the worst; rules that compare neighbours or the spread of a pool leave them out, and
drop them.
"""

import torch

from ricci_gpu.ops.topk import descending_order, rank_of
from ricci_gpu.shapes import Bool, Float, Tensor


def fixed_k(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], k: int) -> Bool[Tensor, "B K"]:
    """The best ``k``."""
    return mask & (rank_of(score, mask) < k)


def fraction(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], share: float
) -> Bool[Tensor, "B K"]:
    """The best ``ceil(share * n)`` of n."""
    # The small slack keeps 0.7 * 10 = 7.000000000000001 at seven.
    count = (mask.sum(dim=1, keepdim=True).double() * share - 1e-9).ceil()
    return mask & (rank_of(score, mask) < count)


def threshold(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], at_least: float
) -> Bool[Tensor, "B K"]:
    """Scores of at least a fixed value; may keep nothing."""
    return mask & (score >= at_least)


def z_threshold(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], at_least: float
) -> Bool[Tensor, "B K"]:
    """Scores of at least ``mean + at_least * std`` of their own pool; all equal keeps all."""
    return mask & (z_scores(score, mask) >= at_least)


def z_scores(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Scores standardised within their pool (population std); +inf everywhere if all are equal."""
    real = mask & torch.isfinite(score)
    count = real.sum(dim=1, keepdim=True).clamp(min=1)
    inside = torch.where(real, score, 0.0).double()
    deviation = torch.where(real, inside - inside.sum(dim=1, keepdim=True) / count, 0.0)
    std = (deviation.square().sum(dim=1, keepdim=True) / count).sqrt()
    rounding = 4 * torch.finfo(score.dtype).eps
    spread = std > rounding * (inside.square().sum(dim=1, keepdim=True) / count).sqrt()
    z = torch.where(spread, deviation / torch.where(spread, std, 1.0), torch.inf)
    return torch.where(real, z, -torch.inf).to(score.dtype)


def largest_gap(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], window: float = 0.9
) -> Bool[Tensor, "B K"]:
    """Everything before the largest drop between neighbours in the sorted list.

    Adaptive-k (Taguchi et al. 2025, arXiv 2506.08479). Only drops within the first
    ``ceil(window * n)`` places count, else the tail often wins. Lists shorter than 2 keep all;
    equal drops cut at the first.
    """
    mask = mask & (score > -torch.inf)
    if mask.shape[1] < 2:
        return mask
    ordered, real = _sorted(score, mask)
    count = mask.sum(dim=1, keepdim=True)
    place = torch.arange(1, ordered.shape[1], device=score.device)[None, :]
    allowed = real[:, 1:] & (place <= (count.double() * window - 1e-9).ceil())
    drop = torch.where(allowed, ordered[:, :-1] - ordered[:, 1:], -torch.inf)
    cut = drop.argmax(dim=1, keepdim=True) + 1
    cut = torch.where(allowed.any(dim=1, keepdim=True), cut, count)
    return mask & (rank_of(score, mask) < cut)


def autocut(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], jumps: int = 1
) -> Bool[Tensor, "B K"]:
    """Cut before the ``jumps``-th steep place, as Weaviate's autocut does.

    With scores turned into distances, both axes scaled to [0, 1] and d = y - x: cut before the
    j-th strict local maximum of d. Fewer than three scores, no spread, or fewer maxima than
    ``jumps`` keep all.
    """
    mask = mask & (score > -torch.inf)
    ordered, real = _sorted(score, mask)
    count = mask.sum(dim=1, keepdim=True)
    size = ordered.shape[1]
    if size < 3:
        return mask
    last = ordered.gather(1, (count - 1).clamp(min=0))
    span = ordered[:, :1] - last
    steep = span > 0
    y = (ordered[:, :1] - ordered) / torch.where(steep, span, 1.0)
    x = torch.arange(size, device=score.device)[None, :] / (count - 1).clamp(min=1)
    d = torch.where(real, y - x, -torch.inf)
    before, here = d[:, 1:-1] > d[:, :-2], d[:, 1:-1] > d[:, 2:]
    inner = before & here & real[:, 2:]
    # The last point has no right neighbour: it compares with the two before it.
    final = torch.zeros_like(mask)
    final[:, 2:] = (d[:, 2:] > d[:, 1:-1]) & (d[:, 2:] > d[:, :-2])
    place = torch.arange(size, device=score.device)[None, :]
    peak = torch.zeros_like(mask)
    peak[:, 1:-1] = inner
    peak |= final & (place == count - 1) & real
    nth = peak & (peak.cumsum(dim=1) == jumps)
    cut = torch.where(nth.any(dim=1, keepdim=True), nth.int().argmax(dim=1, keepdim=True), count)
    cut = torch.where((count >= 3) & steep, cut, count)
    return mask & (rank_of(score, mask) < cut)


def ratio_to_top(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], share: float
) -> Bool[Tensor, "B K"]:
    """Scores of at least ``share`` of the best of their pool.

    Stated as a drop of at most ``(1 - share) * |best|``, which also means something for a best
    score below zero. A best score of 0 keeps its equals only.
    """
    return mask & (relative_drop(score, mask) >= share - 1.0)


def relative_drop(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """``(score - best) / |best|`` within each pool: 0 for the best, negative below it."""
    real = mask & torch.isfinite(score)
    inside = torch.where(real, score, -torch.inf)
    if not inside.shape[1]:
        return inside
    best = inside.amax(dim=1, keepdim=True)
    best = torch.where(torch.isfinite(best), best, 0.0)
    drop = torch.where(real, inside, best) - best
    scaled = drop / torch.where(best == 0, 1.0, best.abs())
    return torch.where(real, torch.where((best == 0) & (drop < 0), -torch.inf, scaled), -torch.inf)


def knee(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
    """Everything before the place where the sorted list lies farthest below its chord.

    The knee of a falling curve, as Kneedle (Satopaa et al. 2011) finds it, without smoothing. The
    first of equals counts. Fewer than three scores, no spread, or a list nowhere below its chord
    keep all.
    """
    mask = mask & (score > -torch.inf)
    ordered, real = _sorted(score, mask)
    count = mask.sum(dim=1, keepdim=True)
    if ordered.shape[1] < 3:
        return mask
    first, last = ordered[:, :1], ordered.gather(1, (count - 1).clamp(min=0))
    span = first - last
    spread = (span > 0) & (count >= 3)
    place = torch.arange(ordered.shape[1], device=score.device)[None, :]
    chord = 1.0 - place / (count - 1).clamp(min=1)
    height = (ordered - last) / torch.where(spread, span, 1.0)
    below = torch.where(real, chord - height, -torch.inf)
    depth, at = below.max(dim=1, keepdim=True)
    rounding = 8 * torch.finfo(score.dtype).eps
    cut = torch.where(spread & (depth > rounding), at, count)
    return mask & (rank_of(score, mask) < cut)


def otsu(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Bool[Tensor, "B K"]:
    """The upper of the two groups with the least variance within them (Otsu 1979).

    On a list of numbers this is exact 2-means. Equal scores are never parted; no spread keeps all.
    """
    mask = mask & (score > -torch.inf)
    ordered, real = _sorted(score, mask)
    if ordered.shape[1] < 2:
        return mask
    values = torch.where(real, ordered, 0.0).double()
    count = mask.sum(dim=1, keepdim=True)
    above = torch.arange(1, ordered.shape[1], device=score.device)[None, :]
    upper_sum = values.cumsum(dim=1)[:, :-1]
    lower_sum = values.sum(dim=1, keepdim=True) - upper_sum
    gap = upper_sum / above - lower_sum / (count - above).clamp(min=1)
    between = above * (count - above) * gap.square()
    parted = real[:, 1:] & (ordered[:, :-1] > ordered[:, 1:])
    between = torch.where(parted, between, -torch.inf)
    cut = between.argmax(dim=1, keepdim=True) + 1
    cut = torch.where(parted.any(dim=1, keepdim=True), cut, count)
    return mask & (rank_of(score, mask) < cut)


def random_k(mask: Bool[Tensor, "B K"], draw: Float[Tensor, "B K"], k: int) -> Bool[Tensor, "B K"]:
    """``k`` candidates by the largest of given random draws: the floor for every filter."""
    return fixed_k(draw, mask, k)


def query_component(
    adjacency: Bool[Tensor, "B N N"], node_mask: Bool[Tensor, "B N"]
) -> Bool[Tensor, "B K"]:
    """Candidates in the query's connected component."""
    reached = torch.zeros_like(node_mask)
    reached[:, 0] = node_mask[:, 0]
    for _ in range(node_mask.shape[1]):
        grown = reached | (adjacency & reached[:, None, :]).any(dim=2)
        if torch.equal(grown, reached):
            break
        reached = grown
    return (reached & node_mask)[:, 1:]


def candidate_degree(adjacency: Bool[Tensor, "B N N"]) -> Float[Tensor, "B K"]:
    """Number of other candidates that each candidate is joined to; the query does not count."""
    return adjacency[:, 1:, 1:].sum(dim=2).float()


def _sorted(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]
) -> tuple[Float[Tensor, "B K"], Bool[Tensor, "B K"]]:
    order = descending_order(score, mask)
    return score.gather(1, order), mask.gather(1, order)
