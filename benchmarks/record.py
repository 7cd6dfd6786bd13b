"""How a benchmark ends: one JSON object on the last line, and, on request, a committed file."""

import datetime
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).with_name("results")


def finish(document: dict[str, Any], record: bool) -> None:
    """Print the document with its conditions; keep it as ``results/<bench>.json`` if asked."""
    full = document | {"conditions": conditions()}
    if record:
        path = RESULTS / f"{document['bench']}.json"
        path.write_text(json.dumps(full, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(full))


def conditions() -> dict[str, Any]:
    """Machine, versions, commit, date, and how busy the machine was."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "commit": _commit(),
        "date": datetime.date.today().isoformat(),
        "load_average": os.getloadavg()[0],
    }


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # a copy without git


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
