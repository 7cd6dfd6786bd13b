"""The progress bar of `ricci-gpu batch run`: rows, pace, time left, queue, padding."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.status import Status, duration, job_status

REFRESH_SECONDS = 1.0
SHARE_OF_TIME = 20  # of a folder with many units the state is read this many times more seldom


@contextmanager
def progress_bar(folder: JobFolder, job: Job) -> Iterator[bool]:
    """A bar on standard error while the block runs; whether there is one.

    There is none where standard error is no terminal, or without rich. It shows the whole job, as
    its folder tells it, so also what other machines do.
    """
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    except ImportError:
        yield False
        return
    console = Console(stderr=True)
    if not console.is_terminal:
        yield False
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("rows  {task.description}"))
    stop = threading.Event()
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("", total=job.rows)

        def draw() -> float:
            start = time.monotonic()
            status = job_status(folder, job)
            bar.update(task, completed=status.rows_done, description=in_words(status))
            return time.monotonic() - start

        def keep_drawing() -> None:
            while not stop.wait(max(REFRESH_SECONDS, SHARE_OF_TIME * draw())):
                pass

        thread = threading.Thread(target=keep_drawing, name="progress", daemon=True)
        thread.start()
        try:
            yield True
        finally:
            stop.set()
            thread.join()
            draw()


def in_words(status: Status) -> str:
    """What stands beside the bar."""
    pace, left, padding = status.rows_per_second, status.seconds_left, status.padding
    said = [
        None if pace is None else f"{pace:,.1f} rows/s",
        None if left is None or status.settled else f"{duration(left)} left",
        f"{status.workers} at work, {status.queue} units in the queue",
        f"{len(status.quarantined)} quarantined" if status.quarantined else None,
        None if padding is None else f"{100 * padding:.0f} % padding",
    ]
    return ", ".join(each for each in said if each)
