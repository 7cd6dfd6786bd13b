"""A small log, an index, and ways to run a job: here, or in processes that may be killed."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from jobs.program import SlowEncoder

from ricci_gpu.cli import main
from ricci_gpu.corpus import CorpusStore, Passage
from ricci_gpu.models.encoder import Encoder

PROGRAM = Path(__file__).with_name("program.py")
WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


@pytest.fixture(autouse=True)
def made(monkeypatch) -> list[SlowEncoder]:
    """The encoders that were loaded: of words, not of a model."""
    loaded: list[SlowEncoder] = []

    def load(*arguments):
        loaded.append(SlowEncoder())
        return loaded[-1]

    monkeypatch.setattr(Encoder, "load", load)
    return loaded


@pytest.fixture(scope="session")
def index(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("jobs") / "index"
    texts = [" ".join(WORDS[(i * j) % 10] for j in range(1, 6)) for i in range(24)]
    passages = [Passage(f"p{i}", "", text) for i, text in enumerate(texts)]
    CorpusStore.build(passages, SlowEncoder(), folder)
    return folder


def write_log(path: Path, rows: int = 20, first: str = "") -> Path:
    """Queries of three words; ``first`` stands before each."""
    lines = (f"q{i}\t{first}{' '.join(WORDS[(i + j) % 10] for j in range(3))}" for i in range(rows))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture
def batch(capfd) -> Callable[..., tuple[int, str]]:
    """Run `ricci-gpu batch ...` in this process: its status, and all that it said."""

    def run(*arguments: object) -> tuple[int, str]:
        capfd.readouterr()
        status = main(["batch", *map(str, arguments)])
        said = capfd.readouterr()
        return status, said.out + said.err

    return run


@pytest.fixture
def start():
    """Start `ricci-gpu batch ...` as a process; none outlives the test."""
    processes: list[subprocess.Popen] = []

    def begin(*arguments: object, seconds: float = 0.0, **options) -> subprocess.Popen:
        environment = os.environ | {"RICCI_TEST_SECONDS": str(seconds), "OMP_NUM_THREADS": "1"}
        processes.append(
            subprocess.Popen(
                [sys.executable, str(PROGRAM), "batch", *map(str, arguments)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                start_new_session=True,
                **options,
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "what was waited for did not happen"
        time.sleep(0.02)


def parts(job: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (job / "parts").glob("unit-*.parquet")}


def answers(job: Path) -> list[dict]:
    """All rows of all parts, in order."""
    found = sorted((job / "parts").glob("unit-*.parquet"))
    return [row for path in found for row in pq.read_table(path).to_pylist()]
