import io
import time
from types import SimpleNamespace

import pytest
import rich.console
from jobs.conftest import write_log

from ricci_gpu.config import Config
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.plan import plan_job
from ricci_gpu.jobs.progress import in_words, progress_bar
from ricci_gpu.jobs.status import Quarantined, Status
from ricci_gpu.jobs.worker import Worker


@pytest.fixture
def planned(index, tmp_path):
    log = write_log(tmp_path / "log.tsv", 12)
    job = plan_job(Config.load("default"), [str(log)], index, unit_rows=4)
    folder = JobFolder(tmp_path / "job")
    job.save(folder.root)
    folder.make()
    return folder, job


def test_the_bar_tells_the_state_of_the_whole_job(planned, monkeypatch):
    folder, job = planned
    screen = io.StringIO()
    console = rich.console.Console(file=screen, force_terminal=True, width=160)
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console)
    with progress_bar(folder, job) as shown:
        assert shown
        Worker(folder, "cpu", 60.0).run()
        time.sleep(0.05)
    drawn = screen.getvalue()
    assert "12/12" in drawn
    assert "rows/s" in drawn
    assert "0 units in the queue" in drawn
    assert "23 % padding" in drawn  # pools of 24 in places for 31


def test_no_bar_where_there_is_no_terminal(planned, monkeypatch):
    console = SimpleNamespace(is_terminal=False)
    monkeypatch.setattr(rich.console, "Console", lambda stderr: console)
    with progress_bar(*planned) as shown:
        assert not shown


def test_what_stands_beside_the_bar():
    status = Status(10, 4, 100, 40, 2, 2, 1234.5, 75.0, 0.25, [Quarantined(1, "", "", 3)])
    assert in_words(status) == (
        "1,234.5 rows/s, 1 min 15 s left, 2 at work, 3 units in the queue, 1 quarantined, "
        "25 % padding"
    )
    start = Status(10, 0, 100, 0, 0, 0, None, None, None, [])
    assert in_words(start) == "0 at work, 10 units in the queue"
