"""`--launcher ray` on a Ray of this machine, with a worker that is killed."""

import json
import os
import signal

import numpy as np
import pytest
from jobs.conftest import parts, until

from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.leases import Holder

ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'ricci-gpu[ray]'")

pytestmark = pytest.mark.slow  # Ray takes some ten seconds to start, and gigabytes

UNITS, ROWS = 8, 8


def holders(job) -> list[Holder]:
    found = []
    for path in (job / "leases").glob("unit-*"):
        try:
            holder = Holder.from_bytes(path.read_bytes())
        except FileNotFoundError:
            continue
        if holder is not None and not holder.released:
            found.append(holder)
    return found


def test_ray_starts_a_killed_worker_again(batch, tmp_path, start):
    """One worker only: without a restart, nobody would finish the job."""
    rng = np.random.default_rng(0)
    path = tmp_path / "pools.jsonl"
    with path.open("w") as file:
        for row in range(UNITS * ROWS):
            vectors = rng.normal(size=(21, 4)).tolist()
            candidates = [{"id": c, "embedding": vector} for c, vector in enumerate(vectors[1:])]
            query = {"query_id": row, "query_embedding": vectors[0], "candidates": candidates}
            file.write(json.dumps(query) + "\n")
    settings = ["--preset", "ricci_filtration", "--set", "rerank.type=none"]
    for name in ("job", "undisturbed"):
        options = ["--candidates", path, "--unit-rows", ROWS, *settings]
        assert batch("plan", tmp_path / name, *options)[0] == 0
    job = tmp_path / "job"
    driver = start("run", job, "--launcher", "ray", "--workers", 1, "--lease-seconds", 5)
    until(lambda: parts(job) and holders(job), seconds=180)
    os.kill(holders(job)[0].pid, signal.SIGKILL)
    said, _ = driver.communicate(timeout=300)
    assert driver.returncode == 0, said
    assert f"{UNITS} of {UNITS} done" in said
    status, verified = batch("verify", job)
    assert status == 0, verified
    failures = [each for unit in range(UNITS) for each in JobFolder(job).failures(unit)]
    assert all(each["vanished"] for each in failures)  # one, unless its part was just written
    assert len(list((job / "workers").glob("[!.]*"))) == 2  # the killed one and its successor
    assert batch("run", tmp_path / "undisturbed")[0] == 0
    assert parts(job) == parts(tmp_path / "undisturbed")
