"""What the parts say, and how it is kept: progress lines, CSV rows, one JSON object at the end."""

import csv
import datetime
import json
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple


class Machine(NamedTuple):
    """Where a part ran."""

    device: str  # cuda or cpu
    name: str


class Figure(NamedTuple):
    """The median of some timed runs. ``spread`` is (largest - smallest) / median; None for one."""

    name: str
    value: float
    unit: str
    spread: float | None = None
    runs: int = 1


class Check(NamedTuple):
    """An error against its bound; boolean checks count what is wrong, with the bound 0."""

    name: str
    error: float
    bound: float

    @property
    def passed(self) -> bool:
        return self.error <= self.bound  # NaN fails


class Skipped(NamedTuple):
    """Something that did not run, and why."""

    name: str
    reason: str


class Failed(NamedTuple):
    """Something that ran into an exception."""

    name: str
    reason: str


Message = Machine | Figure | Check | Skipped | Failed


class Aim(NamedTuple):
    """What a figure should reach."""

    text: str
    figures: tuple[str, ...]  # the best of them counts
    at_least: float
    divided_by: tuple[str, ...] = ()  # the best of these, for an aim relative to others


@dataclass
class Report:
    """Collects what the parts send; a CSV row is on disk as soon as its figure is known.

    Args:
        csv: file to append to, or None.
        commit: of the checkout.
    """

    csv: Path | None
    commit: str
    machine: Machine | None = None
    figures: list[Figure] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    proven: set[str] = field(default_factory=set)

    def take(self, message: Message) -> None:
        if isinstance(message, Machine):
            self.machine = message
        elif isinstance(message, Figure):
            self.figures.append(message)
            self._append(message)
            spread = "" if message.spread is None else f"  ±{message.spread:.1%}"
            say(f"  {message.name}: {message.value:.6g} {message.unit}{spread}")
        elif isinstance(message, Check):
            self.checks.append(message)
            word = "ok" if message.passed else "WRONG"
            say(f"  {word:6}{message.name}: {message.error:.2g} (bound {message.bound:.2g})")
        elif isinstance(message, Skipped):
            self.skipped.append(message)
            say(f"  skipped: {message.name}: {message.reason}")
        else:
            self.failed.append(message)
            say(f"  FAILED: {message.name}: {message.reason}")

    @property
    def values(self) -> dict[str, float]:
        return {figure.name: figure.value for figure in self.figures}

    def _append(self, figure: Figure) -> None:
        # A figure that a CPU printed is no figure of this file.
        if self.csv is None or self.machine is None or self.machine.device != "cuda":
            return
        row = {
            "name": figure.name,
            "value": f"{figure.value:.6g}",
            "unit": figure.unit,
            "spread": "" if figure.spread is None else f"{figure.spread:.4f}",
            "machine": self.machine.name,
            **self._versions(),
        }
        new = not self.csv.exists()
        with self.csv.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(row), lineterminator="\n")
            if new:
                writer.writeheader()
            writer.writerow(row)

    def _versions(self) -> dict[str, str]:
        return {
            "torch": installed("torch"),
            "triton": installed("triton"),
            "commit": self.commit,
            "date": datetime.date.today().isoformat(),
        }

    def as_json(self, aims: Iterable[Aim], seconds: float) -> str:
        """One line: figures beside the aims. Aims are judged on a GPU only."""
        machine = self.machine or Machine("none", "no part has run")
        document: dict[str, Any] = {
            "bench": "gpu",
            "device": machine.device,
            "machine": machine.name,
            **self._versions(),
            "seconds": round(seconds, 1),
            "aims": [self._judge(aim, machine.device == "cuda") for aim in aims],
            "figures": [figure._asdict() for figure in self.figures],
            "checks": [check._asdict() | {"passed": check.passed} for check in self.checks],
            "proven": sorted(self.proven),
            "skipped": [skip._asdict() for skip in self.skipped],
            "failed": [failure._asdict() for failure in self.failed],
        }
        return json.dumps(_finite(document))

    def _judge(self, aim: Aim, judged: bool) -> dict[str, Any]:
        value = self._best(aim.figures) if judged else None
        if value is not None and aim.divided_by:
            rival = self._best(aim.divided_by)
            value = None if rival is None else value / rival
        return {
            "aim": aim.text,
            "at_least": aim.at_least,
            "value": value,
            "met": None if value is None else value >= aim.at_least,
        }

    def _best(self, names: Iterable[str]) -> float | None:
        values = self.values
        return max((values[name] for name in names if name in values), default=None)


def say(line: str) -> None:
    print(line, flush=True)


def installed(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"


def commit_of_checkout() -> str:
    """Short hash, or `unknown`: a copy of the tree may come without git or its history."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=False,
        )
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"


def _finite(value: Any) -> Any:
    """Infinity and NaN are no JSON: they become text."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)
    return value
