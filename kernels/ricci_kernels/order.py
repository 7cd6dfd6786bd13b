"""Segmented order: the candidates of every query, best first, in one launch.

The order is total, so that it does not depend on how a chip sorts: candidates that count come
before those that do not; higher scores first; -inf and NaN last among those that count; equal
scores by the lower index. Score, mask and index are packed into one integer key per candidate,
and each program sorts the keys of one query on the chip.
"""

# Kernel arguments have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from ricci_kernels.configs import power_of_two

#: Longer rows do not fit the registers of one program.
MAX_ROW = 1024
WARPS = 4

# An index takes the low bits of a key, the score the 32 above, the mask one more.
_INDEX_BITS = tl.constexpr(10)
_SCORE_BITS = tl.constexpr(32)
_LOWEST_SCORE = tl.constexpr(-(1 << 31))


@triton.jit
def order_kernel(
    scores,  # [B, K] float32
    mask,  # [B, K] bool
    order,  # [B, K] int64
    candidates,
    BLOCK: tl.constexpr,
):
    """One program per row; grid ``(B,)``."""
    offs = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * candidates
    inside = offs < candidates
    counts = tl.load(mask + row + offs, mask=inside, other=0) != 0
    score = tl.load(scores + row + offs, mask=inside, other=float("-inf"))
    score = tl.where(counts & (score == score), score, float("-inf"))
    # Adding 0 turns -0 into 0. Signed integers order like floats once the bits below the sign of
    # a negative number are turned over.
    bits = (score + 0.0).to(tl.int32, bitcast=True)
    bits ^= (bits >> 31) & 0x7FFFFFFF
    key = bits.to(tl.int64) - _LOWEST_SCORE
    key += counts.to(tl.int64) << _SCORE_BITS
    key = (key << _INDEX_BITS) | (BLOCK - 1 - offs).to(tl.int64)
    key = tl.sort(tl.where(inside, key, -1), descending=True)
    place = (BLOCK - 1 - (key & (BLOCK - 1))).to(tl.int64)
    tl.store(order + row + offs, place, mask=inside)


_INTERPRETED = not isinstance(order_kernel, triton.JITFunction)


def descending_order(scores: Tensor, mask: Tensor) -> Tensor:
    """Indices of each row, best first; see the module for the order.

    Args:
        scores: ``[B, K]`` float32, at most 1,024 candidates.
        mask: ``[B, K]`` bool, the candidates that count.

    Returns:
        ``[B, K]`` int64.

    Raises:
        ValueError: tensors that do not fit together.
    """
    _check(scores, mask)
    order = torch.empty(scores.shape, dtype=torch.int64, device=scores.device)
    if order.numel() == 0:
        return order
    rows, candidates = scores.shape
    with torch.cuda.device_of(scores):
        order_kernel[(rows,)](
            scores, mask, order, candidates, BLOCK=row_block(candidates), num_warps=WARPS
        )
    return order


def row_block(candidates: int) -> int:
    """Keys that one program sorts."""
    return max(16, power_of_two(candidates))


def _check(scores: Tensor, mask: Tensor) -> None:
    for name, tensor, dtype in (("scores", scores, torch.float32), ("mask", mask, torch.bool)):
        fits = tensor.dtype is dtype and tensor.dim() == 2 and tensor.shape == scores.shape
        if not fits or not tensor.is_contiguous() or tensor.device != scores.device:
            raise ValueError(
                f"`{name}` must be contiguous {dtype} of shape [rows, candidates], the same for "
                f"both and on one device; got {tensor.dtype} of shape {tuple(tensor.shape)} on "
                f"{tensor.device}."
            )
    if scores.shape[1] > MAX_ROW:
        raise ValueError(
            f"the order kernel sorts rows of at most {MAX_ROW} candidates; got "
            f"{scores.shape[1]}. Use the torch route."
        )
    if scores.device.type != "cuda" and not _INTERPRETED:
        raise ValueError(
            f"the Triton kernels run on a CUDA device; the tensors are on {scores.device}. "
            "Use the torch backend there."
        )
