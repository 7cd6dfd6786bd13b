"""How long a job will take: a sample of its rows is ranked, and nothing is written."""

import resource
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

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

    The sample are units spread evenly over the range of costs; its first batch is ranked twice and
    counts once, so that loading and compiling do not.
    """
    ranker = UnitRanker(job, device)
    by_cost = sorted(job.units, key=lambda unit: -unit.cost)
    sample = by_cost[:: max(1, len(by_cost) // SAMPLED_UNITS)]
    for _ in ranker.answers(read_unit(job, sample[0])[: job.batch_rows]):
        pass
    rows, cost = 0, 0.0
    start = time.monotonic()
    for unit, batch in _batches(job, sample):
        rows += sum(1 for _ in ranker.answers(batch))
        cost += unit.cost * len(batch) / unit.rows
        if time.monotonic() - start > seconds:
            break
    spent = time.monotonic() - start
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


def _batches(job: Job, units: Sequence[Unit]) -> Iterator[tuple[Unit, list[Row]]]:
    for unit in units:
        rows = read_unit(job, unit)
        for first in range(0, len(rows), job.batch_rows):
            yield unit, rows[first : first + job.batch_rows]
