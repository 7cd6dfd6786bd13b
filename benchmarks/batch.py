"""How fast does a job rerank a log, and what does the job itself cost? Run: `make bench-batch`.

For both presets: a web search log against SciFact and the SQuAD2 questions against their passages,
end to end with one worker of one thread; the share of time per stage; the overhead over the pure
computation of the same batches, taken in alternation with it; one process against two; and the
peak memory of a worker on a short and on the whole log. Every run is a process of its own.
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


def measure_preset(preset: str, options: argparse.Namespace, jobs: Path) -> dict:
    def new_job(corpus: str, rows: int, unit_rows: int) -> Path:
        console.print(f"{preset}: {rows} rows against {corpus}")
        return plan(preset, corpus, rows, unit_rows, options.indexes, jobs)

    unit_rows = options.unit_rows
    whole = in_a_process("end_to_end", new_job("scifact", options.rows, unit_rows))
    short = in_a_process("end_to_end", new_job("scifact", options.short_rows, unit_rows))
    squad = in_a_process("end_to_end", new_job("squad2", options.squad_rows, unit_rows))
    cost = in_a_process("overhead", new_job("scifact", options.sample_rows, unit_rows))
    small = max(1, options.sample_rows // 40)  # so that the last unit ends close to the others
    one = rate_of_processes(new_job("scifact", options.sample_rows, small), 1)
    two = rate_of_processes(new_job("scifact", options.sample_rows, small), 2)
    return {
        "queries_per_s": whole["queries_per_s"],
        "overhead": cost["overhead"],
        "scaling_1_to_2": two / one,
        "peak_memory_ratio_60k_to_10k": whole["peak_mib"] / short["peak_mib"],
        "scifact": whole,
        "scifact_short": short,
        "squad2": squad,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=60_000, help="of the log against SciFact")
    parser.add_argument("--short-rows", type=int, default=10_000, help="for the peak memory")
    parser.add_argument("--squad-rows", type=int, default=11_993)
    parser.add_argument("--sample-rows", type=int, default=4_000, help="for overhead and scaling")
    parser.add_argument("--unit-rows", type=int, default=512)
    parser.add_argument("--preset", action="append", choices=PRESETS, help="both by default")
    parser.add_argument("--indexes", type=Path, default=Path("build/batch"), help="kept there")
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.indexes.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        presets = {
            preset: measure_preset(preset, options, Path(folder))
            for preset in options.preset or PRESETS
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
