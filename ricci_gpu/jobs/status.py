"""How far a job is, from its folder alone."""

import json
from dataclasses import dataclass

from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.leases import Holder, is_gone
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.worker import Progress, is_set_aside


@dataclass(frozen=True)
class Quarantined:
    """A unit that was set aside.

    Args:
        place: its file and rows, in words.
        error: of the last attempt.
    """

    unit: int
    place: str
    error: str
    attempts: int


@dataclass(frozen=True)
class Status:
    """Numbers of a job.

    Args:
        held: units under a lease that was not given back.
        workers: those holding them.
        rows_per_second: of these workers together, over what each has finished; without workers,
            of one worker as seen so far; None before the first unit is done.
        seconds_left: from the costs of what is left, at that pace; None where it is unknown.
        padding: share of the places in padded batches, of all workers so far, that held no
            candidate; None before the first unit is done.
    """

    units: int
    units_done: int
    rows: int
    rows_done: int
    held: int
    workers: int
    rows_per_second: float | None
    seconds_left: float | None
    padding: float | None
    quarantined: list[Quarantined]

    @property
    def settled(self) -> bool:
        return self.units_done + len(self.quarantined) == self.units

    @property
    def complete(self) -> bool:
        return self.units_done == self.units

    @property
    def queue(self) -> int:
        """Units that nobody works on yet."""
        return self.units - self.units_done - self.held - len(self.quarantined)

    def lines(self) -> list[str]:
        """For people."""
        lines = [
            f"units: {self.units_done} of {self.units} done, {self.held} in work, "
            f"{self.queue} in the queue, {len(self.quarantined)} quarantined",
            f"rows:  {self.rows_done} of {self.rows} done",
        ]
        if self.rows_per_second is not None:
            who = f"{self.workers} at work" if self.workers else "one worker; none is at work"
            lines.append(f"pace:  {self.rows_per_second:,.1f} rows/s ({who})")
        if self.seconds_left is not None and not self.settled:
            lines.append(f"left:  {duration(self.seconds_left)}")
        if self.padding is not None:
            lines.append(f"padding: {100 * self.padding:.0f} % of the places in batches")
        lines += [
            f"quarantined unit {each.unit} after {each.attempts} attempts: {each.place}: "
            f"{each.error}"
            for each in self.quarantined
        ]
        return lines


def job_status(folder: JobFolder, job: Job) -> Status:
    """Read the state of a job; nothing is locked, so it may be a moment old."""
    done = folder.done()
    holders = _holders(folder, done)
    set_aside = quarantined(folder, job, done)
    finished = _finished(folder)
    active = {holder.worker for holder in holders.values()}
    paces = {name: each.rows / each.seconds for name, each in finished.items() if each.seconds > 0}
    places = sum(each.padded for each in finished.values())
    candidates = sum(each.candidates for each in finished.values())
    pace: float | None = None
    if active & set(paces):
        working = [paces[name] for name in active if name in paces]
        pace = len(active) * sum(working) / len(working)  # new ones will be like the others
    elif paces:
        pace = sum(paces.values()) / len(paces)
    rows_done = sum(job.units[unit].rows for unit in done)
    cost_done = sum(job.units[unit].cost for unit in done)
    aside = {each.unit for each in set_aside}
    cost_left = sum(
        unit.cost for at, unit in enumerate(job.units) if at not in done and at not in aside
    )
    seconds_left = None
    if pace and cost_done:
        seconds_left = cost_left * (rows_done / cost_done) / pace
    return Status(
        units=len(job.units),
        units_done=len(done),
        rows=job.rows,
        rows_done=rows_done,
        held=len(holders),
        workers=len(active),
        rows_per_second=pace,
        seconds_left=seconds_left,
        padding=1 - candidates / places if places else None,
        quarantined=set_aside,
    )


def quarantined(folder: JobFolder, job: Job, done: set[int]) -> list[Quarantined]:
    """The units that were set aside."""
    found = []
    for unit in sorted(folder.failed_units() - done):
        if is_set_aside(folder, job, unit):
            failures = folder.failures(unit)
            error = failures[-1].get("error", "its record cannot be read")
            found.append(Quarantined(unit, job.place(job.units[unit]), error, len(failures)))
    return found


def duration(seconds: float) -> str:
    """``1 h 02 min``, ``3 min 20 s``, ``12 s``."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


def _holders(folder: JobFolder, done: set[int]) -> dict[int, Holder]:
    """Owners of the highest lease of each open unit; a lease may be stale without it showing."""
    latest: dict[int, tuple[int, Holder]] = {}
    for path in (folder.root / "leases").glob("unit-*.*"):
        name, _, generation = path.name.partition(".")
        unit = int(name.removeprefix("unit-"))
        try:
            holder = Holder.from_bytes(path.read_bytes())
        except FileNotFoundError:
            continue
        if unit in done or holder is None:
            continue
        if unit not in latest or int(generation) > latest[unit][0]:
            latest[unit] = (int(generation), holder)
    return {
        unit: holder
        for unit, (_, holder) in latest.items()
        if not holder.released and not is_gone(holder)
    }


def _finished(folder: JobFolder) -> dict[str, Progress]:
    """What each worker that finished a unit has done."""
    found = {}
    for path in (folder.root / "workers").glob("[!.]*"):
        try:
            found[path.name] = Progress(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            continue  # replaced just now
    return found
