"""Where the files of a job lie.

=================================  ========================================================
path                               what it holds
=================================  ========================================================
``job.json``                       the manifest
``parts/unit-00000000.parquet``    the answers of a unit; it exists exactly when it is done
``leases/unit-00000000.0``         who works on it; the number rises with each take-over
``failures/unit-00000000.0``       what went wrong in one attempt
``workers/<name>``                 what a worker has done so far, for `status`
=================================  ========================================================
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ricci_gpu.errors import InputError

FOLDERS = ("parts", "leases", "failures", "workers")


@dataclass(frozen=True)
class JobFolder:
    """Paths inside the folder of a job."""

    root: Path

    @classmethod
    def at(cls, path: str | Path) -> "JobFolder":
        """The folder; it must lie on a file system, because leases need exclusive creation."""
        if "://" in str(path):
            raise InputError(
                f"the folder of a job must be a path on a (shared) file system; got the URL {path}."
                " Inputs may be URLs."
            )
        return cls(Path(path).expanduser())

    def make(self) -> None:
        """Make the folders that workers write to."""
        for name in FOLDERS:
            (self.root / name).mkdir(exist_ok=True)

    def part(self, unit: int) -> Path:
        return self.root / "parts" / f"{unit_name(unit)}.parquet"

    def lease(self, unit: int, generation: int) -> Path:
        return self.root / "leases" / f"{unit_name(unit)}.{generation}"

    def done(self) -> set[int]:
        """Units whose part exists."""
        names = (path.name for path in (self.root / "parts").glob("unit-*.parquet"))
        return {int(name[5:-8]) for name in names if name[5:-8].isdigit()}

    def failures(self, unit: int) -> list[dict[str, Any]]:
        """What went wrong with a unit so far, in order."""
        found: list[dict[str, Any]] = []
        while (path := self.failure(unit, len(found))).exists():
            found.append(_read_json(path))
        return found

    def failed_units(self) -> set[int]:
        """Units with at least one failure."""
        names = (path.name for path in (self.root / "failures").glob("unit-*.0"))
        return {int(name[5:-2]) for name in names}

    def failure(self, unit: int, number: int) -> Path:
        return self.root / "failures" / f"{unit_name(unit)}.{number}"

    def worker(self, name: str) -> Path:
        return self.root / "workers" / name


def unit_name(unit: int) -> str:
    """What the files of a unit are called."""
    return f"unit-{unit:08d}"


def _read_json(path: Path) -> dict[str, Any]:
    try:
        read: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # being written, or cut by a full disk: the fact remains
        read = {}
    return read
