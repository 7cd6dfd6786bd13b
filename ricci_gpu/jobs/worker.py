"""One worker: takes units, costliest first, until every unit is done or set aside.

Any number of workers, started by anything, may run on one job. What ends a unit is the rename of
its part; leases only keep two workers from computing the same one.

* A unit whose computation raises is given back and tried again, by whoever comes first. After
  ``max_failures`` attempts it is set aside, with the errors, and the job goes on.
* A unit whose worker vanishes (killed, out of memory, machine lost) is taken over. After
  `MAX_VANISHED` of them it is set aside too: it probably kills its workers.
* What is no fault of a unit stops the worker and counts for nothing: a changed input, another
  model, a full disk, or several different units failing in a row, as with a broken device.
"""

import json
import logging
import os
import socket
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from uuid import uuid4

from ricci_gpu.errors import MissingDependencyError, RicciError
from ricci_gpu.jobs.compute import UnitRanker
from ricci_gpu.jobs.defaults import LEASE_SECONDS
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.interrupts import uninterrupted
from ricci_gpu.jobs.leases import Lease, LeaseBook
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.parts import write_part
from ricci_gpu.jobs.rows import read_unit
from ricci_gpu.output import atomic_file

logger = logging.getLogger(__name__)

MAX_VANISHED = 5
MAX_FAILING_UNITS = 3  # different ones, one after the other
LONGEST_WAIT = 2.0  # seconds between looks at units that others hold


class StoppedError(RicciError):
    """The worker cannot go on, through no fault of a unit; the job can be continued."""


@dataclass
class Progress:
    """What this worker has done.

    Args:
        candidates, padded: ranked, and the places that they took in padded batches.
    """

    units: int = 0
    rows: int = 0
    seconds: float = 0.0
    candidates: int = 0
    padded: int = 0


class Worker:
    """Works on a job. Loads the model when it gets its first unit."""

    def __init__(self, folder: JobFolder, device: str, lease_seconds: float) -> None:
        self.job = Job.load(folder.root)
        self.progress = Progress()
        self._folder, self._device = folder, device
        self._name = f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._leases = LeaseBook(folder, self._name, lease_seconds)
        self._poll = min(lease_seconds / 4, LONGEST_WAIT)
        self._ranker: UnitRanker | None = None
        self._failing: set[int] = set()
        self._seconds: dict[str, float] = defaultdict(float)
        self._folder.make()

    @property
    def seconds(self) -> dict[str, float]:
        """Time per stage so far: reading, the stages of the chain, writing."""
        return dict(self._seconds) | (self._ranker.seconds if self._ranker else {})

    def load(self) -> UnitRanker:
        """Model and index, loaded at the first call.

        Raises:
            InputError: they are not those that were planned.
        """
        if self._ranker is None:
            self._ranker = UnitRanker(self.job, self._device)
        return self._ranker

    def run(self, keep_on: Callable[[], bool] = lambda: True) -> Progress:
        """Until nothing is left to do, or ``keep_on`` says no between two units.

        Raises:
            StoppedError: this worker cannot go on.
            InputError: a changed input, model or index.
        """
        units = self.job.units
        queue = sorted(range(len(units)), key=lambda unit: -units[unit].cost)
        while queue:
            done = self._folder.done()
            waiting = []
            for unit in queue:
                if not keep_on():
                    return self.progress
                if unit not in done and not self._try(unit):
                    waiting.append(unit)
            if len(waiting) == len(queue):  # all are held by others
                time.sleep(self._poll)
            queue = waiting
        self._leases.tidy()
        return self.progress

    def _try(self, unit: int) -> bool:
        """Whether the unit is settled: done, by this worker or another, or set aside."""
        if self._is_settled(unit):
            return True
        with ExitStack() as held:
            with uninterrupted():
                lease = self._leases.take(unit)
                if lease is None:
                    return False
                held.enter_context(lease)
            if self._is_settled(unit):  # while the lease was being taken
                settled = True
            else:
                self._note_vanished(unit, lease)
                settled = self._is_settled(unit) or self._work(unit)
        if self._folder.part(unit).exists():
            self._leases.forget(unit)
        return settled

    def _is_settled(self, unit: int) -> bool:
        return self._folder.part(unit).exists() or is_set_aside(self._folder, self.job, unit)

    def _note_vanished(self, unit: int, lease: Lease) -> None:
        """Record owners that vanished since the last look, and remove what they left."""
        vanished = self._leases.abandoned(unit, lease.generation)
        recorded = sum(each.get("vanished", False) for each in self._folder.failures(unit))
        for _ in range(vanished - recorded):
            self._record(unit, "the worker that held it vanished without a word", vanished=True)
        if vanished:
            logger.info("unit %d: taken over from a worker that vanished", unit)
            part = self._folder.part(unit)
            for leftover in part.parent.glob(f".{part.name}.*.tmp"):
                leftover.unlink(missing_ok=True)

    def _work(self, unit: int) -> bool:
        ranker = self.load()
        start = time.monotonic()
        try:
            with self._timed("read"):
                rows = read_unit(self.job, self.job.units[unit])
        except RicciError:
            raise  # of the file or of this machine, not of a row
        except Exception as error:
            return self._failed(unit, error)
        try:
            answers = ranker.rank_unit(rows)
        except MissingDependencyError:
            raise
        except Exception as error:
            return self._failed(unit, error)
        try:
            with self._timed("write"):
                write_part(self._folder.part(unit), self.job, unit, answers)
        except OSError as error:
            if not self._folder.part(unit).exists():
                raise StoppedError(
                    f"the part of unit {unit} cannot be written ({error}). Make room, or mend the "
                    "folder, and run the job again; what is done stays done."
                ) from error
        except Exception as error:
            return self._failed(unit, error)
        self._failing.clear()
        self._count(unit, len(rows), time.monotonic() - start)
        return True

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        start = time.monotonic()
        yield
        self._seconds[step] += time.monotonic() - start

    def _failed(self, unit: int, error: Exception) -> bool:
        """Record an attempt; whether it was the last."""
        logger.warning("unit %d failed: %s", unit, _one_line(error))
        trace = "".join(traceback.format_exception(error))
        self._record(unit, _one_line(error), trace=trace)
        self._failing.add(unit)
        if len(self._failing) >= MAX_FAILING_UNITS:
            raise StoppedError(
                f"{len(self._failing)} units failed one after the other, the last with "
                f"{_one_line(error)}. If the machine is at fault, mend it; then run the job again."
            ) from error
        return is_set_aside(self._folder, self.job, unit)

    def _record(self, unit: int, message: str, trace: str = "", vanished: bool = False) -> None:
        number = len(self._folder.failures(unit))
        content = {"error": message, "vanished": vanished, "worker": self._name, "trace": trace}
        try:
            with atomic_file(self._folder.failure(unit, number)) as temporary:
                temporary.write_text(json.dumps(content), encoding="utf-8")
        except OSError as failure:
            raise StoppedError(f"a failure cannot be recorded ({failure}).") from failure

    def _count(self, unit: int, rows: int, seconds: float) -> None:
        self.progress.units += 1
        self.progress.rows += rows
        self.progress.seconds += seconds
        if self._ranker is not None:
            self.progress.candidates = self._ranker.candidates
            self.progress.padded = self._ranker.padded
        logger.info("unit %d: %d rows, %.0f rows/s", unit, rows, rows / seconds)
        try:
            with atomic_file(self._folder.worker(self._name)) as temporary:
                temporary.write_text(json.dumps(self.progress.__dict__), encoding="utf-8")
        except OSError as error:  # for `status` only; the next unit will meet the full disk
            logger.warning("progress cannot be recorded (%s)", error)


def is_set_aside(folder: JobFolder, job: Job, unit: int) -> bool:
    """Whether a unit has failed too often to be tried again."""
    failures = folder.failures(unit)
    vanished = sum(each.get("vanished", False) for each in failures)
    return vanished >= MAX_VANISHED or len(failures) - vanished >= job.max_failures


def readmit(folder: JobFolder, job: Job) -> list[int]:
    """Forget the failures of all units that were set aside, so that they are tried again."""
    units = [unit for unit in sorted(folder.failed_units()) if is_set_aside(folder, job, unit)]
    for unit in units:
        for number in reversed(range(len(folder.failures(unit)))):
            folder.failure(unit, number).unlink(missing_ok=True)
        LeaseBook(folder, "", LEASE_SECONDS).forget(unit)
    return units


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"
