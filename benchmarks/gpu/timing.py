"""How long a call takes: CUDA events after warm-up, several runs, median and spread."""

import math
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

RUNS = 9
# A run lasts at least so long that the events themselves do not count.
SECONDS_PER_RUN = 0.02


class Sample(NamedTuple):
    """Seconds per call: the median of the runs, and (largest - smallest) / median."""

    seconds: float
    spread: float
    runs: int


def measure(work: Callable[[], object], device: torch.device, at_most: float) -> Sample:
    """Time ``work``.

    The first call compiles, the second fills caches and says how often to repeat; neither counts.

    Args:
        at_most: seconds to spend on all runs; there are at least two.
    """
    work()
    once = max(_seconds(work, 1, device), 1e-7)
    calls = max(1, math.ceil(min(SECONDS_PER_RUN, at_most) / once))
    runs = min(RUNS, max(2, int(at_most / (once * calls))))
    times = [_seconds(work, calls, device) / calls for _ in range(runs)]
    middle = statistics.median(times)
    return Sample(middle, (max(times) - min(times)) / middle, runs)


def _seconds(work: Callable[[], object], calls: int, device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        for _ in range(calls):
            work()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        work()
    end.record()
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1e3
