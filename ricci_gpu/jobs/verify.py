"""Proof that every row of the input is in the output exactly once, or the list of those that
are not."""

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ricci_gpu.errors import InputError
from ricci_gpu.jobs.files import file_size, footer_sha256
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.parts import read_part
from ricci_gpu.jobs.status import quarantined

SHOWN = 5


@dataclass
class Verification:
    """What `verify_job` found.

    Args:
        missing: per unit, which rows are not in the output, and why.
        problems: everything else that is wrong: foreign files, a changed input.
        errors: rows that are there with an error instead of a ranking.
        repeated: rows whose query id came before; legal, each has its answer.
        examples: some of those ids.
    """

    rows: int = 0
    missing: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    errors: int = 0
    repeated: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.missing and not self.problems

    def lines(self) -> list[str]:
        """For people."""
        lines = [*self.problems, *(f"missing: {each}" for each in self.missing.values())]
        head = "complete: every row of the input is in the output exactly once"
        lines.append(head if self.complete else "NOT complete")
        lines.append(f"{self.rows} rows in the output, {self.errors} of them with an error")
        if self.repeated:
            lines.append(
                f"{self.repeated} rows repeat a query id, such as {', '.join(self.examples)}; each "
                "has its own answer, under its file and row"
            )
        return lines


def verify_job(folder: JobFolder, job: Job) -> Verification:
    """Read every part and compare its keys with the plan.

    To count repeated query ids, eight bytes are held per row, a hash of its id: one repetition too
    many may be reported in some thousand logs of a hundred million rows. Everything else is exact.
    """
    found = Verification()
    for source in job.inputs:
        try:
            _require_unchanged(source.path, source.size, source.footer_sha256)
        except InputError as error:
            found.problems.append(str(error))
    done = folder.done()
    set_aside = {each.unit: each for each in quarantined(folder, job, done)}
    hashes = array("q")
    for unit in range(len(job.units)):
        place = f"unit {unit} ({job.place(job.units[unit])})"
        if unit in set_aside:
            found.missing[unit] = (
                f"{place} is quarantined after {set_aside[unit].attempts} attempts: "
                f"{set_aside[unit].error}"
            )
        elif unit not in done:
            found.missing[unit] = f"{place} is not done; run the job again"
        else:
            try:
                table = read_part(folder.part(unit), job, unit).select(["query_id", "error"])
            except InputError as error:
                found.missing[unit] = f"{place}: {error}"
                continue
            found.rows += len(table)
            found.errors += len(table) - table["error"].null_count
            hashes.extend(hash(name) for name in _ids(table))
    for unit in sorted(done - set(range(len(job.units)))):
        found.problems.append(f"{folder.part(unit)} belongs to no unit of the job. Remove it.")
    distinct, counts = np.unique(np.frombuffer(hashes, dtype=np.int64), return_counts=True)
    found.repeated = len(hashes) - len(distinct)
    if found.repeated:
        some = set(distinct[counts > 1][:SHOWN].tolist())
        found.examples = _named(
            folder, job, sorted(set(range(len(job.units))) - set(found.missing)), some
        )
    return found


def _ids(table: Any) -> list[str]:
    return [name for name in table["query_id"].to_pylist() if name is not None]


def _named(folder: JobFolder, job: Job, units: Iterable[int], hashes: set[int]) -> list[str]:
    """The ids with these hashes, in the order of the input."""
    names: dict[str, None] = {}
    for unit in units:
        table = read_part(folder.part(unit), job, unit)
        names |= dict.fromkeys(name for name in _ids(table) if hash(name) in hashes)
        if len(names) >= len(hashes):
            break
    return list(names)


def _require_unchanged(path: str, size: int, footer: str | None) -> None:
    if file_size(path) != size or (footer is not None and footer_sha256(path) != footer):
        raise InputError(
            f"{path}: was changed after the job was planned; the output answers what it was then."
        )
