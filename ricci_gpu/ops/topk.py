"""Order within each row of a batch, with a stated tie rule: equal scores go by the lower index."""

import torch

from ricci_gpu.shapes import Bool, Float, Int, Tensor


def descending_order(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """Indices of each row, best score first; then scores at -inf or NaN; masked entries last."""
    usable = torch.where(mask & ~torch.isnan(score), score, -torch.inf)
    by_score = usable.argsort(dim=1, descending=True, stable=True)
    masked_last = (~mask).gather(1, by_score).to(torch.int8).argsort(dim=1, stable=True)
    return by_score.gather(1, masked_last)


def rank_of(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """Place of every entry in `descending_order`, from 0."""
    order = descending_order(score, mask)
    place = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, place)


def top_k(
    score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"], k: int
) -> tuple[Int[Tensor, "B k"], Bool[Tensor, "B k"]]:
    """The best ``k`` unmasked entries of each row and which of the ``k`` places are filled."""
    order = descending_order(score, mask)[:, :k]
    return order, mask.gather(1, order)
