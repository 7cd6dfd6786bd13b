import numpy as np
import pytest
import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.models.batching import (
    CPU_BUDGET,
    GPU_BUDGET,
    Budget,
    batches_by_length,
    token_budget,
)


def made(lengths, tokens, padding):
    return [rows.tolist() for rows in batches_by_length(lengths, Budget(tokens, padding))]


def test_the_longest_come_first_and_the_budget_holds():
    assert made([3, 5, 5, 1, 3], tokens=10, padding=99) == [[1, 2], [0, 4, 3]]
    assert made([3, 5, 5, 1, 3], tokens=1, padding=99) == [[1], [2], [0], [4], [3]]
    assert made([], tokens=10, padding=99) == []
    assert made([0, 0], tokens=1, padding=0) == [[0, 1]]


def test_a_batch_ends_before_its_padding_costs_more_than_another():
    assert made([10, 9, 9, 2], tokens=99, padding=2) == [[0, 1, 2], [3]]
    assert made([10, 9, 9, 2], tokens=99, padding=1) == [[0, 1], [2], [3]]
    assert made([10, 9, 9, 2], tokens=99, padding=10) == [[0, 1, 2, 3]]


def test_every_row_comes_once_whatever_the_lengths():
    rng = np.random.default_rng(0)
    for _ in range(50):
        lengths = rng.integers(0, 300, rng.integers(1, 200)).tolist()
        budget = Budget(int(rng.integers(1, 2000)), int(rng.integers(0, 100)))
        batches = [rows.tolist() for rows in batches_by_length(lengths, budget)]
        assert sorted(row for rows in batches for row in rows) == list(range(len(lengths)))
        for rows in batches:
            longest, total = max(lengths[r] for r in rows), sum(lengths[r] for r in rows)
            assert len(rows) == 1 or longest * len(rows) <= budget.tokens
            assert longest * len(rows) - total <= budget.padding


def test_the_budget_is_that_of_the_device_unless_asked():
    assert token_budget(None, torch.device("cpu")) == CPU_BUDGET
    assert token_budget(None, torch.device("cuda", 0)) == GPU_BUDGET
    assert token_budget(7, torch.device("cpu")) == Budget(7, CPU_BUDGET.padding)
    with pytest.raises(SettingError, match=r"`batch_tokens` must be at least 1; got 0\. Raise it"):
        token_budget(0, torch.device("cpu"))
