"""Who works on which unit: one lease file per unit and generation, on a shared file system.

* A lease is taken by creating its file exclusively. Its owner rewrites a counter in it, from a
  thread, a few times per `seconds`.
* Others never compare clocks. They look at the content of the file, and when it has not changed
  for the owner's `seconds` of *their own* monotonic clock, the lease is stale. Where the owner was
  a process of this machine that is gone, that is known at once.
* A stale (or released) lease is taken over by creating the next generation, exclusively again.
  Lease files are not replaced and not removed while their unit is open, so no race can give one
  generation to two workers. The highest generation is the lease.

A lease only saves double work. If its owner was merely slow, both workers compute the unit, and
both write the same bytes under the same name.
"""

import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any

from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.interrupts import uninterrupted

BEATS = 6  # per lease period: several may be lost before anybody takes the unit over


@dataclass(frozen=True)
class Holder:
    """What a lease file says of its owner.

    Args:
        seconds: without a change for this long, the lease is stale.
        released: the owner gave the unit back.
    """

    worker: str
    machine: str
    pid: int
    seconds: float
    beat: int
    released: bool

    def to_line(self) -> bytes:
        # Fixed width, so that rewriting in place never leaves a tail of the old content.
        return json.dumps(self.__dict__ | {"beat": f"{self.beat:012d}"}).ljust(400).encode() + b"\n"

    @classmethod
    def from_bytes(cls, content: bytes) -> "Holder | None":
        """None while the file is being written."""
        try:
            fields: dict[str, Any] = json.loads(content)
            return cls(**fields | {"beat": int(fields["beat"])})
        except (ValueError, TypeError, KeyError):
            return None


class Lease:
    """The right to work on a unit, kept alive by a thread until it is closed."""

    def __init__(self, path: Path, file: int, holder: Holder, generation: int) -> None:
        self.path, self.generation = path, generation
        self._file, self._holder = file, holder
        self._stop = threading.Event()
        self._write(holder)
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def __enter__(self) -> "Lease":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the unit back; when it is done, `LeaseBook.forget` removes the file as well."""
        with uninterrupted():
            self._stop.set()
            self._thread.join()
            try:
                self._write(Holder(**self._holder.__dict__ | {"released": True}))
            except OSError:
                pass  # a full disk, a share that went away: the lease then runs out by itself
            finally:
                os.close(self._file)

    def _beat(self) -> None:
        beat = 0
        while not self._stop.wait(self._holder.seconds / BEATS):
            beat += 1
            try:
                self._write(Holder(**self._holder.__dict__ | {"beat": beat}))
            except OSError:
                continue  # the next beat may succeed; if none does, the unit goes to another

    def _write(self, holder: Holder) -> None:
        os.pwrite(self._file, holder.to_line(), 0)
        os.fsync(self._file)  # network file systems show others only what was flushed


class LeaseBook:
    """The leases of a job, as one worker sees them."""

    def __init__(self, folder: JobFolder, worker: str, seconds: float) -> None:
        self._folder, self._worker, self._seconds = folder, worker, seconds
        self._seen: dict[Path, tuple[bytes, float]] = {}

    def take(self, unit: int) -> Lease | None:
        """The lease of a unit, or None while another worker holds it."""
        generation = self._next_generation(unit)
        if generation is None:
            return None
        path = self._folder.lease(unit, generation)
        try:
            file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
        except FileExistsError:
            return None
        holder = Holder(self._worker, this_machine(), os.getpid(), self._seconds, 0, False)
        try:
            return Lease(path, file, holder, generation)
        except OSError:  # a full disk: leave nothing behind that looks like an owner
            os.close(file)
            path.unlink(missing_ok=True)
            raise

    def abandoned(self, unit: int, below: int) -> int:
        """How many owners of the generations before ``below`` vanished without a word."""
        before = (self._read(self._folder.lease(unit, each)) for each in range(below))
        holders = [Holder.from_bytes(content) for content in before if content is not None]
        return sum(holder is None or not holder.released for holder in holders)

    def tidy(self) -> None:
        """Remove the lease files of all units that are done: a worker may have died before."""
        done = self._folder.done()
        for path in (self._folder.root / "leases").glob("unit-*.0"):
            unit = int(path.name[5:-2])
            if unit in done:
                self.forget(unit)

    def forget(self, unit: int) -> None:
        """Remove the lease files of a unit that is done."""
        generation = 0
        while (path := self._folder.lease(unit, generation)).exists():
            path.unlink(missing_ok=True)
            self._seen.pop(path, None)
            generation += 1

    def _next_generation(self, unit: int) -> int | None:
        """The generation that may be created, or None while the highest is alive."""
        generation = 0
        while self._folder.lease(unit, generation).exists():
            generation += 1
        if generation and not self._is_open(self._folder.lease(unit, generation - 1)):
            return None
        return generation

    def _is_open(self, path: Path) -> bool:
        """Whether the lease was released or is stale."""
        content = self._read(path)
        if content is None:
            return False  # removed just now: its unit is done
        holder = Holder.from_bytes(content)
        if holder is not None and (holder.released or is_gone(holder)):
            return True
        now = time.monotonic()
        seen, since = self._seen.get(path, (None, now))
        if seen != content:
            self._seen[path] = (content, now)
            return False
        return now - since > (self._seconds if holder is None else holder.seconds)

    @staticmethod
    def _read(path: Path) -> bytes | None:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def is_gone(holder: Holder) -> bool:
    """Whether the owner was a process of this machine and has ended."""
    if holder.machine != this_machine():
        return False
    try:
        os.kill(holder.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


@cache
def this_machine() -> str:
    """Name of this machine, this boot and this process namespace: where a process id means one
    process. Without them (not Linux), of this process alone, so that nobody else matches."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"{socket.gethostname()} {os.getpid()} {time.monotonic_ns()}"
    return f"{socket.gethostname()} {boot} {namespace}"
