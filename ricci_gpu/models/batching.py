"""Batches of texts of like length under a budget of tokens: how every model here is run.

Padding is decided here and nowhere else. A batch holds rows of like length, so that little of it
is padding, and as many of them as the budget allows, so that memory does not depend on how long
the texts happen to be.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.shapes import Bool, Int, Tensor

# Texts are tokenised and sorted by length in windows of this many, which bounds the memory for
# token ids; within a window, texts of like length share a batch.
WINDOW = 8192


class Budget(NamedTuple):
    """What a forward pass may hold.

    Args:
        tokens: with their padding.
        padding: of them; beyond it a further pass costs less than the padding does.
    """

    tokens: int
    padding: int


# On a CPU small batches are quicker, because they are padded less and stay in its caches
# (benchmarks/encode.py), and a further pass costs what some 60 tokens do; a GPU wants more to do
# at once.
CPU_BUDGET = Budget(tokens=2048, padding=64)
GPU_BUDGET = Budget(tokens=16384, padding=4096)


def token_budget(asked: int | None, device: torch.device) -> Budget:
    """Padded tokens per forward pass as asked, or what suits the device.

    Raises:
        SettingError: ``asked`` is not positive.
    """
    budget = CPU_BUDGET if device.type == "cpu" else GPU_BUDGET
    if asked is None:
        return budget
    if asked < 1:
        raise SettingError(f"`batch_tokens` must be at least 1; got {asked}. Raise it.")
    return budget._replace(tokens=asked)


def batches_by_length(lengths: Sequence[int], budget: Budget) -> Iterator[np.ndarray]:
    """Rows of like length, longest first (memory trouble shows at once), within the budget.

    A single row may exceed the budget; it then has a batch of its own.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = padding = 0
    for end, row in enumerate(order.tolist()):
        longest = lengths[order[start]]
        padding += longest - lengths[row]
        full = longest * (end + 1 - start) > budget.tokens or padding > budget.padding
        if full and end > start:
            yield order[start:end]
            start, padding = end, 0
    if start < len(order):
        yield order[start:]


def windows(count: int) -> Iterator[slice]:
    """Consecutive slices of at most `WINDOW` items."""
    for start in range(0, count, WINDOW):
        yield slice(start, min(start + WINDOW, count))


def pad_right(rows: Sequence[np.ndarray], value: int) -> np.ndarray:
    """Rows of integers as one array, padded on the right with ``value``."""
    batch = np.full((len(rows), max(map(len, rows), default=0)), value, dtype=np.int64)
    for place, row in enumerate(rows):
        batch[place, : len(row)] = row
    return batch


def real_tokens(lengths: Int[Tensor, "b"], width: int) -> Bool[Tensor, "b L"]:
    """Which places of a padded batch hold a token, on the device of ``lengths``."""
    return torch.arange(width, device=lengths.device)[None, :] < lengths[:, None]


def offsets_of(counts: np.ndarray) -> np.ndarray:
    """``[0, c0, c0 + c1, ...]``: where each packed row begins, and where the last one ends."""
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])
