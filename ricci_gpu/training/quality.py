"""nDCG@10 of pools that a ranker reordered."""

import torch

from ricci_gpu.evaluation.metrics import ndcg
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.shapes import Bool, Float, Tensor


def mean_ndcg(scores: Float[Tensor, "B W"], relevant: Bool[Tensor, "B W"]) -> float:
    """Mean nDCG@10 of pools ordered by score; a pool without a relevant passage counts as 0.

    The ideal is the best order of the pool: what retrieval missed is not held against the ranker.
    """
    order = descending_order(scores.float().cpu(), torch.isfinite(scores).cpu())
    runs, judgements = {}, {}
    for row, (places, flags) in enumerate(zip(order.tolist(), relevant.tolist(), strict=True)):
        if any(flags):
            runs[str(row)] = [str(place) for place in places]
            judgements[str(row)] = {str(place): 1 for place, flag in enumerate(flags) if flag}
    return ndcg(runs, judgements) * len(runs) / len(scores) if runs else 0.0
