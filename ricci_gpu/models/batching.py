"""Batches of texts of like length under a budget of tokens: how every model here is run.

Padding is decided here and nowhere else. A batch holds rows of like length, so that little of it
is padding, and as many of them as the budget allows, so that memory does not depend on how long
the texts happen to be.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.shapes import Bool, Int, Tensor

# Texts are tokenised and sorted by length in windows of this many, which bounds the memory for
# token ids; within a window, texts of like length share a batch.
WINDOW = 8192

# Padded tokens per forward pass, unless the caller says otherwise. On a CPU small batches are
# quicker, because they are padded less and stay in its caches (benchmarks/encode.py); a GPU wants
# more to do at once.
CPU_BATCH_TOKENS = 2048
GPU_BATCH_TOKENS = 16384


def token_budget(asked: int | None, device: torch.device) -> int:
    """Padded tokens per forward pass: as asked, or what suits the device."""
    if asked is not None:
        return asked
    return CPU_BATCH_TOKENS if device.type == "cpu" else GPU_BATCH_TOKENS


def batches_by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[np.ndarray]:
    """Rows of like length, longest first (memory trouble shows at once), within the budget.

    A single row may exceed the budget; it then has a batch of its own.

    Raises:
        SettingError: ``batch_tokens`` is not positive.
    """
    if batch_tokens < 1:
        raise SettingError(f"`batch_tokens` must be at least 1; got {batch_tokens}. Raise it.")
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // max(lengths[order[start]], 1))
        yield order[start : start + size]
        start += size


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
