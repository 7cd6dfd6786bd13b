"""Processes that are killed, interrupted, doubled or short of disk. After each fault the job is
continued, and its parts are compared, byte by byte, with those of a job that nothing disturbed."""

import json
import os
import resource
import signal

import pytest
from jobs.conftest import parts, until, write_log

from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.leases import Holder

UNITS = 6


@pytest.fixture
def jobs(batch, index, tmp_path):
    """Two equal jobs of slow units; the second is done, undisturbed."""
    log = write_log(tmp_path / "log.tsv", 4 * UNITS, first="slow ")
    for name in ("job", "undisturbed"):
        options = ["--queries", log, "--index", index, "--unit-rows", 4]
        assert batch("plan", tmp_path / name, *options)[0] == 0
    assert batch("run", tmp_path / "undisturbed")[0] == 0
    return tmp_path / "job", tmp_path / "undisturbed"


def holders(job) -> list[Holder]:
    """Owners of leases on units in work."""
    found = []
    for path in (job / "leases").glob("unit-*"):
        try:
            holder = Holder.from_bytes(path.read_bytes())
        except FileNotFoundError:
            continue
        if holder is not None and not holder.released:
            found.append(holder)
    return found


def require_whole(batch, jobs) -> None:
    job, undisturbed = jobs
    status, said = batch("verify", job)
    assert status == 0, said
    assert "complete: every row of the input is in the output exactly once" in said
    assert parts(job) == parts(undisturbed)
    for left in ("parts/.*", "leases/*"):
        assert list(job.glob(left)) == []


def test_kill_one_worker_then_all_then_resume(batch, jobs, start):
    job, _ = jobs
    driver = start("run", job, "--workers", 2, "--lease-seconds", 5, seconds=1.5)
    until(lambda: len({holder.pid for holder in holders(job)}) == 2)
    victim = holders(job)[0].pid
    os.kill(victim, signal.SIGKILL)
    # Another process takes the place of the dead one, and its unit.
    until(lambda: len({holder.pid for holder in holders(job)} - {victim}) == 2)
    until(lambda: parts(job))
    survivors = {holder.pid for holder in holders(job)} - {victim}
    for pid in [driver.pid, *survivors]:
        os.kill(pid, signal.SIGKILL)
    assert driver.wait(timeout=30) == -signal.SIGKILL
    done = JobFolder(job).done()
    assert 0 < len(done) < UNITS
    status, said = batch("verify", job)
    assert status == 1
    assert said.count("is not done; run the job again") == UNITS - len(done)
    assert all(f"missing: unit {unit} (" in said for unit in set(range(UNITS)) - done)
    assert batch("run", job, "--lease-seconds", 5)[0] == 0
    require_whole(batch, jobs)
    vanished = [each for unit in range(UNITS) for each in JobFolder(job).failures(unit)]
    assert any(each["vanished"] for each in vanished)


def test_two_drivers_on_one_job(batch, jobs, start):
    job, _ = jobs
    drivers = [start("run", job, seconds=0.3) for _ in range(2)]
    said = [driver.communicate(timeout=120)[0] for driver in drivers]
    assert [driver.returncode for driver in drivers] == [0, 0], said
    counts = [text.count("rows/s\n") for text in said]
    assert all("6 of 6 done" in text for text in said)
    done = [json.loads(path.read_text())["units"] for path in (job / "workers").iterdir()]
    assert sum(done) == UNITS, counts  # each unit by one of them
    require_whole(batch, jobs)


def test_a_full_disk_stops_the_worker_and_costs_no_attempt(batch, jobs, start):
    job, _ = jobs

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, 2048))  # leases fit, parts do not

    process = start("run", job, preexec_fn=limit)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "cannot be written" in said
    assert "File too large" in said
    assert "Make room, or mend the folder, and run the job again" in said
    assert parts(job) == {}
    assert JobFolder(job).failed_units() == set()
    assert batch("verify", job)[1].count("is not done; run the job again") == UNITS
    assert batch("run", job)[0] == 0
    require_whole(batch, jobs)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_worker_gives_its_unit_back(batch, jobs, start, number):
    job, _ = jobs
    process = start("run", job, seconds=0.5)
    until(lambda: parts(job) and holders(job))
    process.send_signal(number)
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "interrupted; what is done stays done: run the job again to go on" in said
    assert "Traceback" not in said
    assert holders(job) == []
    assert 0 < len(parts(job)) < UNITS
    assert batch("run", job)[0] == 0
    require_whole(batch, jobs)
    assert JobFolder(job).failed_units() == set()


def test_an_interrupted_driver_takes_its_workers_along(batch, jobs, start):
    job, _ = jobs
    # An interrupt that lands inside a library which swallows it takes effect after the unit, so a
    # unit must end well within the time that is waited.
    driver = start("run", job, "--workers", 2, seconds=10.0)
    until(lambda: len(holders(job)) == 2)
    workers = {holder.pid for holder in holders(job)}
    os.killpg(driver.pid, signal.SIGINT)  # as a terminal does: to all of them
    said, _ = driver.communicate(timeout=180)
    assert driver.returncode == 130
    assert "Traceback" not in said
    assert holders(job) == []
    for pid in workers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert batch("run", job)[0] == 0
    require_whole(batch, jobs)
