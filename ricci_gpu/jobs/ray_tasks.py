"""Workers as Ray tasks, on this machine or an existing cluster.

Ray places workers and starts them again when they or their machines are lost. Nothing else is
asked of it: which unit is done is for the folder of the job to say, which must be shared.
"""

import logging
import math
from pathlib import Path
from typing import Any

from ricci_gpu.errors import missing
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.status import job_status
from ricci_gpu.jobs.worker import Worker

logger = logging.getLogger(__name__)

REPORT_SECONDS = 10.0


def work_on_ray(
    folder: JobFolder, workers: int | None, lease_seconds: float, address: str | None
) -> None:
    """Workers as Ray tasks, each with a GPU where the cluster has any, until all have ended.

    Args:
        workers: by default one per GPU, or per ``threads`` cores without GPUs.
        address: of a cluster; None joins the one of this machine or starts one.

    Raises:
        MissingDependencyError: without ray.
    """
    try:
        import ray
    except ImportError as error:
        raise missing("ray", "`--launcher ray`", "ray") from error
    job = Job.load(folder.root)
    folder.make()
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=True)
    gpus, cores = (math.floor(ray.cluster_resources().get(name, 0)) for name in ("GPU", "CPU"))
    if job.settings().runtime.device == "cpu":
        gpus = 0
    number = workers or gpus or max(1, cores // job.threads)
    # A task is retried when its worker dies; what it raises itself is reported, not retried.
    share = 1 if gpus else 0
    task = ray.remote(max_retries=-1, num_cpus=job.threads, num_gpus=share)(_work)
    device = "cuda" if gpus else "cpu"
    root = str(folder.root.resolve())
    waiting: list[Any] = [task.remote(root, device, lease_seconds) for _ in range(number)]
    failed: Exception | None = None
    while waiting:
        ended, waiting = ray.wait(waiting, timeout=REPORT_SECONDS)
        for each in ended:
            try:
                ray.get(each)
            except Exception as error:
                logger.error("a worker ended: %s", error)
                failed = error
        logger.info("%s", "; ".join(job_status(folder, job).lines()))
    if failed is not None and not job_status(folder, job).settled:
        raise failed


def _work(root: str, device: str, lease_seconds: float) -> int:
    """What a task does; it gives the number of units it finished."""
    return Worker(JobFolder(Path(root)), device, lease_seconds).run().units
