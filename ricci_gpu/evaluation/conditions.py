"""What a figure may depend on besides settings and data: machine, versions, commit, date, load."""

import datetime
import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ricci_gpu import __version__

PACKAGES = ("transformers", "ir_measures", "bm25s", "scikit-learn", "networkx", "numba")


def conditions() -> dict[str, Any]:
    """The state of this machine and this checkout, for results files."""
    return {
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "threads": torch.get_num_threads(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "date": datetime.date.today().isoformat(),
        "commit": _commit(),
        "versions": {
            "ricci_gpu": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }
        | {name: found for name in PACKAGES if (found := _installed(name)) is not None},
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=Path(__file__).parent
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"  # an installed package, or a copy without git
    return done.stdout.strip()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
