"""How long a job will take: a sample of its rows is ranked, and nothing is written."""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from random import Random

import torch

from ricci_gpu.jobs.compute import UnitRanker
from ricci_gpu.jobs.manifest import Job, Unit
from ricci_gpu.jobs.rows import Row, read_unit
from ricci_gpu.jobs.status import duration

SAMPLED_UNITS = 16
SHORT_UNIT, LONG_UNIT = 5.0, 300.0  # seconds


@dataclass(frozen=True)
class Calibration:
    """What a sample says of the whole job.

    Args:
        rows, seconds: ranked, without the time to load and compile things.
        cost: of these rows.
        memory: most bytes held by the process, and on the GPU if there is one.
    """

    rows: int
    seconds: float
    cost: float
    memory: int
    device_memory: int | None

    def lines(self, job: Job) -> list[str]:
        """For people."""
        total = sum(unit.cost for unit in job.units)
        whole = total / self.cost * self.seconds
        unit = whole / len(job.units)
        lines = [
            f"calibration: {self.rows} rows in {self.seconds:.1f} s: "
            f"{self.rows / self.seconds:,.1f} rows/s per worker",
            f"the job: about {duration(whole)} of one worker, divided by the number of workers; "
            f"a unit takes about {duration(unit)}",
            f"memory: {self.memory / 2**20:,.0f} MiB per worker"
            + (f", {self.device_memory / 2**20:,.0f} MiB on its GPU" if self.device_memory else ""),
        ]
        if unit < SHORT_UNIT and len(job.units) > 1:
            lines.append("units are short: a larger --unit-rows saves overhead")
        if unit > LONG_UNIT:
            lines.append("units are long: with a smaller --unit-rows a lost worker costs less")
        return lines


def calibrate(job: Job, device: str, seconds: float) -> Calibration:
    """Rank a sample of rows, batch by batch, for some seconds or until it is through.

    The sample are units spread evenly over the range of costs, and of these the batches in a random
    order, fixed by a seed. The largest batch of the first unit, which is the costliest, comes
    before all and does not count: it loads and compiles things, and it decides the memory.
    """
    ranker = UnitRanker(job, device)
    by_cost = sorted(job.units, key=lambda unit: -unit.cost)
    sample = by_cost[:: max(1, len(by_cost) // SAMPLED_UNITS)]
    largest = max(_batches(job, ranker, sample[0]), key=lambda batch: batch[0], default=(0.0, []))
    _rank(ranker, largest[1])
    rows, cost = 0, 0.0
    start = time.monotonic()
    spent = 0.0
    for batch_cost, batch in _sampled(job, ranker, sample):
        began = time.monotonic()
        _rank(ranker, batch)
        spent += time.monotonic() - began
        rows += len(batch)
        cost += batch_cost
        if time.monotonic() - start > seconds:
            break
    on_gpu = torch.device(device).type == "cuda" if device != "auto" else torch.cuda.is_available()
    return Calibration(
        rows=rows,
        seconds=spent,
        cost=cost,
        memory=peak_memory(),
        device_memory=torch.cuda.max_memory_allocated() if on_gpu else None,
    )


def peak_memory() -> int:
    """Most bytes that this process held in memory so far."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _batches(job: Job, ranker: UnitRanker, unit: Unit) -> list[tuple[float, list[Row]]]:
    """Rows of each batch of a unit, with their share of its cost."""
    batches = ranker.batches(read_unit(job, unit))
    tokens = [sum(item.tokens + 1 for item in batch) for batch in batches]
    return [
        (unit.cost * mine / sum(tokens), [row for item in batch for row in item.rows])
        for mine, batch in zip(tokens, batches, strict=True)
    ]


def _sampled(
    job: Job, ranker: UnitRanker, units: Sequence[Unit]
) -> Iterator[tuple[float, list[Row]]]:
    """Batches of the units in turn: one of each, then another of each."""
    order = Random(0)
    for turn in count():
        left = False
        for unit in units:
            batches = _batches(job, ranker, unit)
            order.seed(unit.first_row)
            order.shuffle(batches)
            if turn < len(batches):
                left = True
                yield batches[turn]
        if not left:
            return


def _rank(ranker: UnitRanker, rows: Sequence[Row]) -> None:
    for _ in ranker.answers(rows):
        pass
