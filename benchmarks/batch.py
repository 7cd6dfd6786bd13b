"""How fast does a job rerank a log, and what does the job itself cost? Run: `make bench-batch`.

For both presets: a web search log against SciFact and the SQuAD2 questions against their passages,
end to end with one worker of one thread; the share of time per stage; the overhead over the pure
computation of the same batches, taken in alternation with it; one process against two; and the
peak memory of a worker on the log and on a sixth of it. Every run is a process of its own. The
indexes of both corpora are built on the first run, which takes a quarter of an hour, and kept.
"""

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.datasets import data_folder
from benchmarks.record import finish
from ricci_gpu.config import Config
from ricci_gpu.corpus.readers import read_corpus
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.jobs.calibrate import peak_memory
from ricci_gpu.jobs.compute import UnitRanker
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.plan import plan_job
from ricci_gpu.jobs.processes import work_in_processes
from ricci_gpu.jobs.rows import read_unit
from ricci_gpu.jobs.verify import verify_job
from ricci_gpu.jobs.worker import Worker
from ricci_gpu.reranker import Reranker

PRESETS = ("default", "ricci_filtration")
LOGS = {
    "scifact": "querylogs/trec_million_query_60k.tsv.gz",
    "squad2": "squad2/queries_all.jsonl.gz",
}
LEASE_SECONDS = 60.0
OVERHEAD_UNITS, SCALING_UNITS = 4, 40  # many, so that the last unit of two workers ends together
LONG_TO_SHORT = 6  # 60,000 rows and 10,000, or as much of them as fits
SQUAD_SHARE = 0.15  # of the time for whole logs: 12,000 questions to 70,000 rows
console = Console(stderr=True)


def kept_index(corpus: str, folder: Path) -> Path:
    """The index of a corpus; encoded on the first run and kept in the folder."""
    path = folder / f"index-{corpus}"
    if not path.exists():
        console.print(f"encoding {corpus}, once")
        passages = read_corpus(data_folder() / corpus)
        CorpusStore.build(passages, Reranker("default").encoder, path)
    return path


def first_rows(corpus: str, rows: int, folder: Path) -> Path:
    """The first rows of a log, as a plain file."""
    source = data_folder() / LOGS[corpus]
    path = folder / source.name.removesuffix(".gz").replace(".", f"-{rows}.")
    with gzip.open(source, "rb") as lines, path.open("wb") as file:
        file.writelines(islice(lines, rows))
    return path


def plan(preset: str, corpus: str, rows: int, unit_rows: int, indexes: Path, jobs: Path) -> Path:
    job = Path(tempfile.mkdtemp(dir=jobs))
    log = first_rows(corpus, rows, job.parent)
    planned = plan_job(
        Config.load(preset, ["runtime.device=cpu"]),
        queries=[str(log)],
        index=kept_index(corpus, indexes),
        unit_rows=unit_rows,
    )
    planned.save(job)
    return job


def in_a_process(measure: str, job: Path) -> dict:
    """What one of the functions below finds, in a process of its own."""
    code = f"from benchmarks import batch; batch.{measure}({str(job)!r})"
    done = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    require_complete(job)
    return json.loads(done.stdout.splitlines()[-1])


def require_complete(job: Path) -> None:
    found = verify_job(JobFolder(job), Job.load(job))
    if not found.complete:
        raise SystemExit("\n".join(found.lines()))


def end_to_end(job: str) -> None:
    """One worker on the whole job: seconds without loading, per stage, and its peak memory."""
    worker = Worker(JobFolder(Path(job)), "cpu", LEASE_SECONDS)
    worker.load()
    start = time.perf_counter()
    progress = worker.run()
    seconds = time.perf_counter() - start
    stages = {name: spent / seconds for name, spent in worker.seconds.items()}
    result = {
        "rows": progress.rows,
        "queries_per_s": progress.rows / seconds,
        "share_of_time": stages | {"rest": 1 - sum(stages.values())},
        "peak_mib": peak_memory() / 2**20,
    }
    print(json.dumps(result))


def overhead(job: str) -> None:
    """Time of a worker over that of ranking the same rows, unit by unit in alternation."""
    folder = JobFolder(Path(job))
    planned = Job.load(folder.root)
    worker, bare = Worker(folder, "cpu", LEASE_SECONDS), UnitRanker(planned, "cpu")
    worker.load()
    by_cost = iter(sorted(planned.units, key=lambda unit: -unit.cost))
    pure = outside = 0.0

    def rank_the_same() -> bool:
        nonlocal pure, outside
        entered = time.perf_counter()
        rows = read_unit(planned, next(by_cost))
        start = time.perf_counter()
        for _ in bare.answers(rows):
            pass
        end = time.perf_counter()
        pure += end - start
        outside += end - entered
        return True

    list(bare.answers(read_unit(planned, planned.units[0])[: planned.batch_rows]))  # compile
    start = time.perf_counter()
    worker.run(keep_on=rank_the_same)
    whole = time.perf_counter() - start - outside
    print(json.dumps({"overhead": whole / pure - 1, "pure_seconds": pure}))


def rate_of_processes(job: Path, processes: int) -> float:
    """Rows per second of some processes together, between the first and the last part."""
    folder = JobFolder(job)
    work_in_processes(folder, ["cpu"] * processes, LEASE_SECONDS)
    require_complete(job)
    units = Job.load(job).units
    written = sorted(
        (folder.part(unit).stat().st_mtime, units[unit].rows) for unit in range(len(units))
    )
    first, last = written[0][0], written[-1][0]
    return sum(rows for _, rows in written[1:]) / (last - first)


def measure_preset(
    preset: str, options: argparse.Namespace, jobs: Path, seconds: float
) -> dict[str, Any]:
    """All figures of a preset, in about so many seconds.

    What the machine does per second, as the overhead is measured, decides how much of the logs is
    ranked from end to end; the long log is six times the short one in any case.
    """
    end = time.monotonic() + seconds

    def new_job(corpus: str, rows: int, unit_rows: int = options.unit_rows) -> Path:
        console.print(f"{preset}: {rows} rows against {corpus}")
        return plan(preset, corpus, rows, unit_rows, options.indexes, jobs)

    sample = options.sample_rows
    cost = in_a_process("overhead", new_job("scifact", sample, max(1, sample // OVERHEAD_UNITS)))
    small = max(1, sample // SCALING_UNITS)
    one = rate_of_processes(new_job("scifact", sample, small), 1)
    two = rate_of_processes(new_job("scifact", sample, small), 2)

    affordable = max(0.0, end - time.monotonic()) * sample / cost["pure_seconds"]
    questions = min(options.squad_rows, int(affordable * SQUAD_SHARE))
    long = min(options.rows, int((affordable - questions) * LONG_TO_SHORT / (1 + LONG_TO_SHORT)))
    short = max(1, long // LONG_TO_SHORT)
    long, questions = short * LONG_TO_SHORT, max(1, questions)
    if (long, questions) != (options.rows, options.squad_rows):
        console.print(
            f"{preset}: the first {long} of {options.rows} rows and {questions} of "
            f"{options.squad_rows} questions fit into the time (--minutes)"
        )
    whole = in_a_process("end_to_end", new_job("scifact", long))
    brief = in_a_process("end_to_end", new_job("scifact", short))
    squad = in_a_process("end_to_end", new_job("squad2", questions))
    return {
        "queries_per_s": whole["queries_per_s"],
        "overhead": cost["overhead"],
        "scaling_1_to_2": two / one,
        "peak_memory_ratio_60k_to_10k": whole["peak_mib"] / brief["peak_mib"],
        "rows_long": long,
        "rows_short": short,
        "scifact": whole,
        "scifact_short": brief,
        "squad2": squad,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=60_000, help="of the log against SciFact")
    parser.add_argument("--squad-rows", type=int, default=11_993)
    parser.add_argument("--sample-rows", type=int, default=1_000, help="for overhead and scaling")
    parser.add_argument("--unit-rows", type=int, default=512)
    parser.add_argument(
        "--minutes", type=float, default=28, help="for all; the logs are cut to fit (default: 28)"
    )
    parser.add_argument("--preset", action="append", choices=PRESETS, help="both by default")
    parser.add_argument("--indexes", type=Path, default=Path("build/batch"), help="kept there")
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.indexes.mkdir(parents=True, exist_ok=True)
    for corpus in LOGS:
        kept_index(corpus, options.indexes)
    chosen = options.preset or PRESETS
    seconds = 60 * options.minutes / len(chosen)
    with tempfile.TemporaryDirectory() as folder:
        presets = {
            preset: measure_preset(preset, options, Path(folder), seconds) for preset in chosen
        }
    show(presets)
    finish({"bench": "batch", "presets": presets}, options.record)


def show(presets: dict[str, dict]) -> None:
    table = Table(title="One worker, one thread")
    for column in ("preset", "log", "rows", "queries/s", "peak MiB", "share of time"):
        table.add_column(column)
    for preset, figures in presets.items():
        for log in ("scifact", "scifact_short", "squad2"):
            row = figures[log]
            shares = ", ".join(
                f"{name} {100 * share:.0f} %"
                for name, share in sorted(row["share_of_time"].items(), key=lambda item: -item[1])
            )
            table.add_row(
                preset,
                log,
                str(row["rows"]),
                f"{row['queries_per_s']:.1f}",
                f"{row['peak_mib']:.0f}",
                shares,
            )
    out = Console()
    out.print(table)
    for preset, figures in presets.items():
        out.print(
            f"{preset}: overhead {100 * figures['overhead']:.1f} %, two processes "
            f"{figures['scaling_1_to_2']:.2f}x one, peak memory of the long log "
            f"{figures['peak_memory_ratio_60k_to_10k']:.3f}x that of the short one"
        )


if __name__ == "__main__":
    main()
