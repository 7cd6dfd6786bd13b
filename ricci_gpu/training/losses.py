"""Losses over scores of some passages per question. A score of -inf marks an empty place."""

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from ricci_gpu.shapes import Bool, Float, Tensor


def listwise_loss(scores: Float[Tensor, "B W"], relevant: Bool[Tensor, "B W"]) -> Float[Tensor, ""]:
    """Minus the log of the share that a softmax over the passages gives to the relevant ones.

    The mean over the questions that have a relevant passage; 0 where none has.
    """
    gold = torch.where(relevant, scores, -torch.inf)
    counted = torch.isfinite(gold).any(dim=1)
    if not bool(counted.any()):
        return torch.where(torch.isfinite(scores), scores, 0.0).sum() * 0.0  # keeps the graph
    scores, gold = scores[counted], gold[counted]
    return (scores.logsumexp(dim=1) - gold.logsumexp(dim=1)).mean()


def pointwise_loss(
    scores: Float[Tensor, "B W"], relevant: Bool[Tensor, "B W"]
) -> Float[Tensor, ""]:
    """Binary cross-entropy of every pair by itself, the mean over all pairs."""
    real = torch.isfinite(scores)
    return binary_cross_entropy_with_logits(scores[real], relevant[real].to(scores.dtype))
