import os
import time

import pytest

from ricci_gpu.jobs import leases
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.leases import Holder, LeaseBook

SECONDS = 0.8


@pytest.fixture
def folder(tmp_path):
    made = JobFolder(tmp_path)
    made.make()
    return made


def vanished(folder, unit=0, generation=0, pid=None, machine="elsewhere"):
    """The lease of a worker that is no more."""
    holder = Holder("dead", machine, pid or os.getpid(), SECONDS, 0, False)
    folder.lease(unit, generation).write_bytes(holder.to_line())


def test_one_holder_at_a_time(folder):
    one, two = LeaseBook(folder, "one", SECONDS), LeaseBook(folder, "two", SECONDS)
    with one.take(0) as lease:
        assert lease.generation == 0
        end = time.monotonic() + 2.5 * SECONDS
        while time.monotonic() < end:  # long after its seconds, it still beats
            assert two.take(0) is None
            time.sleep(SECONDS / 10)
    with two.take(0) as lease:
        assert lease.generation == 1  # released: no waiting
        assert two.abandoned(0, 1) == 0


def test_a_silent_lease_is_taken_over_once(folder):
    vanished(folder)
    one, two = LeaseBook(folder, "one", SECONDS), LeaseBook(folder, "two", SECONDS)
    assert one.take(0) is None
    assert two.take(0) is None
    time.sleep(1.5 * SECONDS)
    with one.take(0) as lease:
        assert lease.generation == 1
        assert one.abandoned(0, 1) == 1
        assert two.take(0) is None


def test_the_owner_says_how_long_its_silence_may_last(folder):
    vanished(folder)
    hasty = LeaseBook(folder, "hasty", SECONDS / 100)
    assert hasty.take(0) is None
    time.sleep(SECONDS / 2)
    assert hasty.take(0) is None


@pytest.mark.parametrize("skew", [-10_000, 10_000])
def test_clocks_of_other_machines_do_not_matter(folder, skew, monkeypatch):
    """File times and the observer's own wall clock are hours off; only silence counts."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7 * skew)
    book = LeaseBook(folder, "observer", SECONDS)
    with LeaseBook(folder, "owner", SECONDS).take(0) as lease:
        end = time.monotonic() + 2 * SECONDS
        while time.monotonic() < end:
            os.utime(lease.path, (now + skew, now + skew))
            assert book.take(0) is None
            time.sleep(SECONDS / 10)
    vanished(folder, unit=1)
    os.utime(folder.lease(1, 0), (now + skew, now + skew))
    assert book.take(1) is None  # however old the file claims to be
    time.sleep(1.5 * SECONDS)
    with book.take(1) as lease:
        assert lease.generation == 1


def test_a_dead_process_of_this_machine_is_known_at_once(folder):
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    vanished(folder, pid=gone, machine=leases.this_machine())
    with LeaseBook(folder, "one", 1000.0).take(0) as lease:
        assert lease.generation == 1


def test_a_lease_that_was_never_written_runs_out(folder):
    folder.lease(0, 0).touch()
    book = LeaseBook(folder, "one", SECONDS)
    assert book.take(0) is None
    time.sleep(1.5 * SECONDS)
    with book.take(0):
        assert book.abandoned(0, 1) == 1


def test_a_paused_owner_does_not_disturb_its_successor(folder):
    """The old owner goes on beating after the take-over: only in its own file."""
    book = LeaseBook(folder, "new", SECONDS)
    with LeaseBook(folder, "old", SECONDS).take(0) as old:
        holder = Holder("new", "elsewhere", 1, SECONDS, 0, False)
        folder.lease(0, 1).write_bytes(holder.to_line())
        time.sleep(SECONDS)
        assert Holder.from_bytes(folder.lease(0, 1).read_bytes()) == holder
        assert Holder.from_bytes(old.path.read_bytes()).worker == "old"
        book.forget(0)
        time.sleep(SECONDS / 2)
    assert list((folder.root / "leases").iterdir()) == []


def test_a_full_disk_leaves_no_lease(folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        LeaseBook(folder, "one", SECONDS).take(0)
    assert list((folder.root / "leases").iterdir()) == []
