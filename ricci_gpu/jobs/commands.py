"""``ricci-gpu batch plan | run | status | verify | merge``."""

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from ricci_gpu.errors import InputError
from ricci_gpu.jobs.defaults import BATCH_TOKENS, CALIBRATION_SECONDS, LEASE_SECONDS, UNIT_ROWS

INCOMPLETE, INTERRUPTED = 1, 130


def add_commands(subparsers: Any) -> None:
    """Add ``batch`` and its commands to the subparsers of ``ricci-gpu``."""
    batch = subparsers.add_parser("batch", help="rerank a large log: resumable, on many workers")
    commands = batch.add_subparsers(dest="batch_command", required=True, metavar="COMMAND")
    _add_plan(commands)
    _add_run(commands)
    for name, run, says in (
        ("status", _status, "how far it is, how fast, what is quarantined"),
        ("verify", _verify, "prove that every query is answered exactly once, or say which not"),
    ):
        command = commands.add_parser(name, help=says)
        _add_job(command)
        command.set_defaults(run=run)
    merge = commands.add_parser("merge", help="one file in the order of the input")
    _add_job(merge)
    merge.add_argument("--out", type=Path, required=True, help="folder for merged.parquet")
    merge.add_argument("--trec", action="store_true", help="also write run.trec")
    merge.add_argument(
        "--partial", action="store_true", help="merge what there is of an incomplete job"
    )
    merge.set_defaults(run=_merge)


def _add_job(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("job", help="folder of the job")


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser("plan", help="fix the units of a job in JOB/job.json")
    _add_job(plan)
    source = plan.add_argument_group("input (paths, quoted globs or URLs; repeat for several)")
    source.add_argument(
        "--queries", action="append", default=[], help=".jsonl, .tsv or .parquet: id, text"
    )
    source.add_argument("--index", type=Path, help="folder made by `ricci-gpu index`")
    source.add_argument(
        "--candidates",
        action="append",
        default=[],
        help=".jsonl or .parquet, one query per row; also .tsv, .trec, one candidate per row",
    )
    source.add_argument(
        "--corpus", action="append", default=[], help="texts of candidates that are ids only"
    )
    size = plan.add_argument_group("sizes")
    size.add_argument("--unit-rows", type=int, default=UNIT_ROWS, help="queries per unit, at most")
    size.add_argument(
        "--batch-tokens",
        type=int,
        default=BATCH_TOKENS,
        help="passage tokens per padded batch: decides the memory of a worker",
    )
    size.add_argument("--threads", type=int, default=1, help="per worker")
    size.add_argument(
        "--max-failures", type=int, default=3, help="attempts before a unit is quarantined"
    )
    size.add_argument(
        "--calibrate",
        type=float,
        nargs="?",
        const=CALIBRATION_SECONDS,
        metavar="SECONDS",
        help="rank a sample for so long, two minutes by default, and say how long the job takes",
    )
    settings = plan.add_argument_group("settings")
    settings.add_argument("--preset", default="default", help="a preset name, or a .yaml file")
    settings.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="SECTION.SETTING=VALUE",
        help="override one setting; repeat for several",
    )
    plan.set_defaults(run=_plan)


def _add_run(commands: Any) -> None:
    run = commands.add_parser("run", help="work on the job until nothing is left")
    _add_job(run)
    run.add_argument("--workers", type=int, help="processes; by default one, or one per device")
    run.add_argument(
        "--devices", metavar="auto|N", help="one worker per GPU, or per group of cores"
    )
    run.add_argument("--launcher", choices=["processes", "ray"], default="processes")
    run.add_argument("--ray-address", help="of a cluster, for --launcher ray")
    run.add_argument(
        "--lease-seconds",
        type=float,
        default=LEASE_SECONDS,
        help="a worker that is silent for so long loses its unit (default: %(default)s)",
    )
    run.add_argument(
        "--retry-quarantined", action="store_true", help="try quarantined units again first"
    )
    run.set_defaults(run=_run)


def _plan(options: argparse.Namespace) -> int:
    from ricci_gpu.config import Config
    from ricci_gpu.jobs.devices import own_device
    from ricci_gpu.jobs.folder import JobFolder
    from ricci_gpu.jobs.plan import plan_job

    folder = JobFolder.at(options.job)
    config = Config.load(options.preset, options.overrides)
    job = plan_job(
        config,
        queries=options.queries,
        index=options.index,
        candidates=options.candidates,
        corpus=options.corpus,
        folder=folder.root,
        unit_rows=options.unit_rows,
        batch_tokens=options.batch_tokens,
        threads=options.threads,
        max_failures=options.max_failures,
    )
    job.save(folder.root)
    folder.make()
    print(
        f"{len(job.inputs)} files, {job.rows} rows in {len(job.units)} units of at most "
        f"{max(unit.rows for unit in job.units)}, batches of at most {job.batch_rows} queries and "
        f"{job.batch_tokens} passage tokens: {folder.root}"
    )
    if options.calibrate is not None:
        from ricci_gpu.jobs.calibrate import calibrate

        device = own_device(config.runtime.device)
        for line in calibrate(job, device, options.calibrate).lines(job):
            print(line)
    return 0


def _run(options: argparse.Namespace) -> int:
    from ricci_gpu.jobs.folder import JobFolder
    from ricci_gpu.jobs.manifest import Job
    from ricci_gpu.jobs.progress import progress_bar
    from ricci_gpu.jobs.status import job_status
    from ricci_gpu.jobs.worker import readmit

    if options.workers is not None and options.workers < 1:
        raise InputError(f"--workers must be at least 1; got {options.workers}.")
    if options.lease_seconds <= 0:
        raise InputError(f"--lease-seconds must be positive; got {options.lease_seconds}.")
    folder = JobFolder.at(options.job)
    job = Job.load(folder.root)
    if options.retry_quarantined:
        print(f"{len(readmit(folder, job))} quarantined units are tried again", file=sys.stderr)
    try:
        with progress_bar(folder, job) as shown:
            if shown:  # lines of the workers would tear it
                logging.getLogger("ricci_gpu").setLevel(logging.WARNING)
            _launch(options, folder, job)
    except KeyboardInterrupt:
        print("interrupted; what is done stays done: run the job again to go on", file=sys.stderr)
        return INTERRUPTED
    status = job_status(folder, job)
    for line in status.lines():
        print(line)
    return 0 if status.complete else INCOMPLETE


def _launch(options: argparse.Namespace, folder: Any, job: Any) -> None:
    from ricci_gpu.jobs.devices import find_devices, own_device
    from ricci_gpu.jobs.processes import work_here, work_in_processes

    configured = job.settings().runtime.device
    if options.launcher == "ray":
        from ricci_gpu.jobs.ray_tasks import work_on_ray

        work_on_ray(folder, options.workers, options.lease_seconds, options.ray_address)
    elif options.devices is not None:
        dtype = job.settings().model.dtype
        devices = find_devices(options.devices, job.threads, dtype)
        workers = options.workers or len(devices)
        places = [devices[place % len(devices)] for place in range(workers)]
        work_in_processes(folder, places, options.lease_seconds)
    elif options.workers is not None and options.workers > 1:
        work_in_processes(folder, [configured] * options.workers, options.lease_seconds)
    else:
        work_here(folder, own_device(configured), options.lease_seconds)


def _status(options: argparse.Namespace) -> int:
    from ricci_gpu.jobs.folder import JobFolder
    from ricci_gpu.jobs.manifest import Job
    from ricci_gpu.jobs.status import job_status

    folder = JobFolder.at(options.job)
    for line in job_status(folder, Job.load(folder.root)).lines():
        print(line)
    return 0


def _verify(options: argparse.Namespace) -> int:
    from ricci_gpu.jobs.folder import JobFolder
    from ricci_gpu.jobs.manifest import Job
    from ricci_gpu.jobs.verify import verify_job

    folder = JobFolder.at(options.job)
    found = verify_job(folder, Job.load(folder.root))
    for line in found.lines():
        print(line)
    return 0 if found.complete else INCOMPLETE


def _merge(options: argparse.Namespace) -> int:
    from ricci_gpu.jobs.folder import JobFolder
    from ricci_gpu.jobs.manifest import Job
    from ricci_gpu.jobs.merge import merge_job

    folder = JobFolder.at(options.job)
    job = Job.load(folder.root)
    for path in merge_job(folder, job, options.out, trec=options.trec, partial=options.partial):
        print(path)
    return 0
