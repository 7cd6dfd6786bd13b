"""Run the parts in processes of their own: a fault of one kernel or a hang ends one part only."""

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any

import torch

from benchmarks.gpu.report import (
    Check,
    Failed,
    Figure,
    Machine,
    Message,
    Report,
    Skipped,
    installed,
    say,
)
from benchmarks.gpu.timing import Sample, measure
from benchmarks.record import _processor

SECONDS_PER_FIGURE = 1.0


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter, on a CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1" and installed("triton") != "none"


@dataclass
class Bench:
    """What a part works with.

    Args:
        tiny: sizes that prove the script.
        proven: kernels, by data type, that came out right on this device.
        values: figures of earlier parts.
        until: clock time (`time.monotonic`) after which nothing new starts.
    """

    tiny: bool
    proven: frozenset[str]
    values: dict[str, float]
    until: float
    send: Callable[[Message], None]
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        self.device = torch.device("cpu" if self.tiny else "cuda")
        if self.on_gpu:
            self.send(Machine("cuda", torch.cuda.get_device_name()))
        else:
            torch.set_num_threads(1)
            name = _processor() + (", Triton interpreter" if interpreted() else "")
            self.send(Machine("cpu", name))

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info()[0] if self.on_gpu else 1 << 30

    def generator(self, seed: int) -> torch.Generator:
        return torch.Generator(self.device).manual_seed(seed)

    def check(self, name: str, error: float | torch.Tensor, bound: float = 0.0) -> None:
        self.send(Check(name, float(error), bound))

    def skip(self, name: str, reason: str) -> None:
        self.send(Skipped(name, reason))

    def attempt(self, name: str, work: Callable[[], Any], kernel: str | None = None) -> Any:
        """Call ``work`` unless time is up or ``kernel`` is not proven; an exception is reported."""
        if kernel is not None and kernel not in self.proven:
            return self.skip(name, f"the kernel ({kernel}) is not proven on this device")
        if time.monotonic() > self.until:
            return self.skip(name, "time is up")
        try:
            return work()
        except Exception as error:  # whatever a library raises: the other figures go on
            self.send(Failed(name, _words(error)))
        return None

    def time(
        self,
        name: str,
        work: Callable[[], object],
        amount: float,
        unit: str = "queries",
        kernel: str | None = None,
    ) -> Sample | None:
        """Time ``work``; the figure is the amount that a call treats, per second."""

        def timed() -> Sample:
            sample = measure(work, self.device, 0.0 if self.tiny else SECONDS_PER_FIGURE)
            self.figure(name, amount / sample.seconds, f"{unit}/s", sample)
            return sample

        sample: Sample | None = self.attempt(name, timed, kernel)
        return sample

    def figure(self, name: str, value: float, unit: str, sample: Sample | None = None) -> None:
        spread, runs = (None, 1) if sample is None else (sample.spread, sample.runs)
        self.send(Figure(name, value, unit, spread, runs))


@dataclass(frozen=True)
class Part:
    """One process.

    Args:
        seconds: after which it is ended.
        proves: the kernel that is proven if all checks of this part hold.
    """

    name: str
    work: Callable[[Bench], None]
    seconds: float
    proves: str | None = None


def run_together(parts: Sequence[Part], report: Report, tiny: bool, until: float) -> None:
    """Run parts side by side and collect what they send, until each has ended or its time is up.

    The processes are forks: torch is loaded once, and CUDA first in the child.
    """
    fork = multiprocessing.get_context("fork")
    began = time.monotonic()
    running: dict[Connection, tuple[Part, Any, float]] = {}
    found: dict[str, list[bool]] = {part.name: [] for part in parts}
    for part in parts:
        end = min(began + part.seconds, until)
        if end <= began:
            report.take(Skipped(part.name, "the time of the whole run is up"))
            continue
        say(f"[{part.name}, {until - began:.0f} s left]")
        receive, send = fork.Pipe(duplex=False)
        # What starts late in a part is likely to be cut off: better said than half done.
        last_start = began + 0.8 * (end - began)
        arguments = (part, send, tiny, frozenset(report.proven), report.values, last_start)
        process = fork.Process(target=_child, args=arguments)
        process.start()
        send.close()
        running[receive] = (part, process, end)
    while running:
        soonest = min(end for _, _, end in running.values())
        ready = wait(list(running), timeout=max(0.0, soonest - time.monotonic()))
        for connection in list(running):
            part, process, end = running[connection]
            if connection in ready:
                try:
                    message = connection.recv()
                except (EOFError, OSError):
                    process.join()
                    if process.exitcode:
                        report.take(Failed(part.name, f"ended with exit code {process.exitcode}"))
                        found[part.name].append(False)
                    elif part.proves and found[part.name] and all(found[part.name]):
                        report.proven.add(part.proves)
                    connection.close()
                    del running[connection]
                    continue
                report.take(message)
                if isinstance(message, Check):
                    found[part.name].append(message.passed)
                elif isinstance(message, Failed):
                    found[part.name].append(False)
            elif time.monotonic() >= end:
                process.kill()
                process.join()
                report.take(Skipped(part.name, "the rest of this part: its time is up"))
                connection.close()
                del running[connection]


def _child(
    part: Part,
    connection: Connection,
    tiny: bool,
    proven: frozenset[str],
    values: dict[str, float],
    until: float,
) -> None:
    try:
        part.work(Bench(tiny, proven, values, until, connection.send))
    except Exception as error:
        connection.send(Failed(part.name, _words(error)))
    connection.close()


def _words(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
