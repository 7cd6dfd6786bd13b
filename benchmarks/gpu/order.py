"""The segmented order of candidates: the kernel against torch's two stable sorts."""

from functools import partial

import torch

from benchmarks.gpu.correctness import kernels_run
from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.routes import torch_route
from ricci_gpu.ops.topk import descending_order

LABEL = "order"
POOLS = (20, 100, 1000)


def _rows(bench: Bench, count: int, pool: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = bench.generator(pool)
    score = torch.randn((count, pool), generator=generator, device=bench.device)
    score = (score * 4).round() / 4  # many ties
    return score, torch.rand((count, pool), generator=generator, device=bench.device) < 0.8


def _on_torch(score: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    with torch_route():
        return descending_order(score, mask)


def check(bench: Bench) -> None:
    """Equal in every place, ties, NaN and infinities among them."""
    if not kernels_run(bench, LABEL):
        return
    from ricci_kernels.order import descending_order as kernel

    for pool in (5,) if bench.tiny else POOLS:
        score, mask = _rows(bench, 2 if bench.tiny else 256, pool)
        for column, value in enumerate((float("nan"), float("inf"), -float("inf"), -0.0)):
            score[0, column] = value
        differ = (kernel(score, mask) != _on_torch(score, mask)).sum()
        bench.check(f"{LABEL}, {pool} candidates, places unlike torch", differ)


def throughput(bench: Bench) -> None:
    """Rows per second of both routes."""
    for pool in (5,) if bench.tiny else POOLS:
        rows = _rows(bench, 2 if bench.tiny else 10_000, pool)
        bench.time(f"order in torch, {pool} candidates", partial(_on_torch, *rows), len(rows[0]))
        if bench.on_gpu:
            work = partial(descending_order, *rows)
            bench.time(f"order by kernel, {pool} candidates", work, len(rows[0]), kernel=LABEL)


CHECKS = (Part("correctness of the order", check, 40, LABEL),)
PARTS = (Part("order", throughput, 15),)
