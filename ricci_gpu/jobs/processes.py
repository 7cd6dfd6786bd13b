"""Workers as processes of this machine: this one, or several that are started here."""

import logging
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from ricci_gpu.errors import RicciError
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.interrupts import interruptible, stop_is_asked, uninterrupted
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.status import job_status
from ricci_gpu.jobs.worker import Worker

logger = logging.getLogger(__name__)

RESTARTS = 3  # of one place, when its process was killed
REPORT_SECONDS = 10.0
CANNOT_GO_ON = 1


def work_here(folder: JobFolder, device: str, lease_seconds: float) -> None:
    """One worker in this process. Ctrl-C and SIGTERM end it, with its lease given back."""
    with interruptible():
        Worker(folder, device, lease_seconds).run(keep_on=lambda: not stop_is_asked())


def work_in_processes(folder: JobFolder, devices: Sequence[str], lease_seconds: float) -> None:
    """One worker process per device, until all have ended; those that were killed are restarted.

    Ctrl-C and SIGTERM are passed on to the processes, and waited for.
    """
    job = Job.load(folder.root)
    folder.make()
    os.environ["OMP_NUM_THREADS"] = str(job.threads)  # read when the processes load torch
    places: dict[int, BaseProcess] = {}
    restarts = [0] * len(devices)
    reported = time.monotonic()
    with interruptible():
        try:
            for place, device in enumerate(devices):
                places[place] = _start(folder, device, lease_seconds)
            while places:
                connection.wait([each.sentinel for each in places.values()], timeout=1.0)
                for place, process in list(places.items()):
                    if process.is_alive():
                        continue
                    del places[place]
                    code = process.exitcode or 0
                    if code < 0 and restarts[place] < RESTARTS:
                        logger.warning("a worker was killed by signal %d; another starts", -code)
                        restarts[place] += 1
                        places[place] = _start(folder, devices[place], lease_seconds)
                    elif code < 0:
                        logger.warning("a worker was killed again, and is not restarted")
                if time.monotonic() - reported > REPORT_SECONDS:
                    reported = time.monotonic()
                    logger.info("%s", "; ".join(job_status(folder, job).lines()))
        except KeyboardInterrupt:
            for process in places.values():
                process.terminate()
            for process in places.values():
                process.join()
            raise


def _start(folder: JobFolder, device: str, lease_seconds: float) -> BaseProcess:
    log_level = logging.getLogger("ricci_gpu").getEffectiveLevel()
    process = multiprocessing.get_context("spawn").Process(
        target=_work, args=(folder.root, device, lease_seconds, log_level), daemon=True
    )
    with uninterrupted():
        # A process inherits what is ignored. Ctrl-C in a terminal reaches every process; only this
        # one acts on it, and the others hear from it.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        process.start()
        signal.signal(signal.SIGINT, before)
    return process


def _work(root: Path, device: str, lease_seconds: float, log_level: int) -> None:
    """What a worker process does."""
    logging.basicConfig(level=log_level, format=f"[{os.getpid()}] %(message)s", stream=sys.stderr)
    for chatty in ("httpx", "faiss", "faiss.loader", "numba"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    parent = multiprocessing.parent_process()
    assert parent is not None  # this function is the target of a process
    try:
        with interruptible():
            Worker(JobFolder(root), device, lease_seconds).run(
                keep_on=lambda: parent.is_alive() and not stop_is_asked()
            )
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGTERM)
    except RicciError as error:
        logger.error("error: %s", error)
        sys.exit(CANNOT_GO_ON)
