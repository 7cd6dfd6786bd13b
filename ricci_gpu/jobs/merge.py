"""All parts as one file, in the order of the input, and as a TREC run."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ricci_gpu.errors import InputError
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.parts import JOB_KEY, rankings_of, read_part, schema
from ricci_gpu.jobs.verify import verify_job
from ricci_gpu.output import Ranking, atomic_file, write_rankings

MERGED = "merged.parquet"


def merge_job(
    folder: JobFolder, job: Job, out: Path, trec: bool = False, partial: bool = False
) -> list[Path]:
    """Write ``merged.parquet``, and ``run.trec`` if asked, and give their paths.

    The Parquet file has the columns of a part (`ricci_gpu.jobs.parts`), a row group per unit, and
    the raw scores. The run has the hits only, with scores that decrease strictly
    (`ricci_gpu.output`); rows with an error or without hits have no line in it.

    Args:
        partial: merge what there is of a job that is not complete.

    Raises:
        InputError: the job is not complete; or a query id that a TREC run cannot hold, because
            it comes twice, for example.
    """
    import pyarrow.parquet as pq

    found = verify_job(folder, job)
    if not found.complete and not partial:
        raise InputError(
            f"{folder.root}: the job is not complete: {found.lines()[0]}. Run it again, or merge "
            "what there is with --partial."
        )
    units = [unit for unit in range(len(job.units)) if unit not in found.missing]
    out.mkdir(parents=True, exist_ok=True)
    path = out / MERGED
    paths = [path]
    merged_schema = schema().with_metadata({JOB_KEY: job.sha256})
    with atomic_file(path) as temporary:
        with pq.ParquetWriter(temporary, merged_schema, compression="zstd") as writer:
            for part in _parts(folder, job, units):
                writer.write_table(part.replace_schema_metadata(merged_schema.metadata))
        if trec:
            # Before the Parquet file gets its name: a run that is refused leaves neither.
            rankings = _with_hits(folder, job, units)
            paths.append(write_rankings(rankings, out, formats=["trec"])["trec"])
    return paths


def _parts(folder: JobFolder, job: Job, units: Iterable[int]) -> Iterator[Any]:
    return (read_part(folder.part(unit), job, unit) for unit in units)


def _with_hits(folder: JobFolder, job: Job, units: Iterable[int]) -> Iterator[Ranking]:
    """The rankings of all parts that have hits, part by part."""
    for part in _parts(folder, job, units):
        yield from (ranking for ranking in rankings_of(part) if ranking.hits)
