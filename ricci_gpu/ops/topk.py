"""Order within each row of a batch, with a stated tie rule: equal scores go by the lower index.

On a CUDA device float32 rows of up to 1,024 candidates take the Triton kernel of `ricci_kernels`,
one launch in place of two stable sorts; the order is the same.
"""

import torch

from ricci_gpu.ops.kernels import define_kernel, on_kernels
from ricci_gpu.shapes import Bool, Float, Int, Tensor

# Candidates of a row that the Triton kernel takes.
LONGEST_ROW = 1024


def descending_order(score: Float[Tensor, "B K"], mask: Bool[Tensor, "B K"]) -> Int[Tensor, "B K"]:
    """Indices of each row, best score first; then scores at -inf or NaN; masked entries last.

    Entries of equal rank, the masked ones among them, stand in the order of their index.
    """
    if _kernel_serves(score):
        return torch.ops.ricci_gpu.order_kernel(score.contiguous(), mask.contiguous())
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


def _kernel_serves(score: Float[Tensor, "B K"]) -> bool:
    fits = score.dtype is torch.float32 and score.shape[1] <= LONGEST_ROW
    return fits and on_kernels(score)


def _launch(score: Tensor, mask: Tensor) -> Tensor:
    from ricci_kernels.order import descending_order as kernel

    return kernel(score, mask)


define_kernel(
    "order_kernel",
    "(Tensor score, Tensor mask) -> Tensor",
    _launch,
    lambda score, mask: torch.empty_like(score, dtype=torch.int64),
)
