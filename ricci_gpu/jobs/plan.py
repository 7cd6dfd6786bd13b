"""Fix a job: which units, in what batches, with which settings, model and index."""

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ricci_gpu.config import Config
from ricci_gpu.corpus.store import CorpusStore, StoreMeta
from ricci_gpu.errors import InputError
from ricci_gpu.jobs.defaults import BATCH_TOKENS, UNIT_ROWS
from ricci_gpu.jobs.files import expand
from ricci_gpu.jobs.manifest import InputFile, Job, Unit
from ricci_gpu.jobs.rows import first_candidates, plan_file
from ricci_gpu.reranker import Reranker


def plan_job(
    config: Config,
    queries: Sequence[str] = (),
    index: Path | None = None,
    candidates: Sequence[str] = (),
    unit_rows: int = UNIT_ROWS,
    batch_tokens: int = BATCH_TOKENS,
    threads: int = 1,
    max_failures: int = 3,
) -> Job:
    """The manifest of a job over query tables and an index, or over ready candidates.

    Args:
        queries, candidates: paths, globs or URLs; exactly one of the two.
        index: folder made by `ricci-gpu index`; with ``queries`` only.
        unit_rows: most rows per unit: what is lost when a worker dies.
        batch_tokens: passage tokens per padded batch, which decides the memory of a worker.
        threads: per worker.

    Raises:
        InputError: input that cannot be read, or that the chain of stages cannot use.
    """
    _require_positive(
        {
            "unit-rows": unit_rows,
            "batch-tokens": batch_tokens,
            "threads": threads,
            "max-failures": max_failures,
        }
    )
    if bool(queries) == bool(candidates):
        raise InputError("a job needs either --queries with --index, or --candidates. Give one.")
    if bool(queries) != (index is not None):
        raise InputError(
            "--queries are looked up in an index: give its folder with --index (and leave it out "
            "with --candidates). `ricci-gpu index` makes one."
        )
    kind = "queries" if queries else "candidates"
    inputs, units = _inputs(queries or candidates, kind, unit_rows)
    reranker = Reranker(config)
    job = Job(
        config=config.to_tree(),
        kind=kind,
        index=None,
        model=None,
        embedding_width=None,
        batch_rows=config.runtime.batch_size,
        threads=threads,
        max_failures=max_failures,
        inputs=inputs,
        units=units,
    )
    if index is not None:
        job = _with_index(job, index.expanduser().resolve(), reranker)
    else:
        job = _with_embedding_width(job, reranker)
    if job.embedding_width is not None and "tokens" not in reranker.pipeline.needs:
        return job
    encoder = reranker.encoder
    tokens_per_row = sum(unit.cost for unit in job.units) // job.rows  # every row costs at least 1
    return replace(
        job,
        model={"name": encoder.name, "fingerprint": encoder.fingerprint},
        batch_rows=min(max(batch_tokens // tokens_per_row, 1), config.runtime.batch_size),
    )


def index_sha256(folder: str | Path) -> str:
    """Digest of ``meta.json`` of an index, which holds those of its passages and its model."""
    try:
        return hashlib.sha256((Path(folder) / "meta.json").read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"{folder}: not an index: its `meta.json` cannot be read ({error.strerror}). Give the "
            "folder that `ricci-gpu index` wrote."
        ) from error


def _inputs(
    patterns: Sequence[str], kind: str, unit_rows: int
) -> tuple[tuple[InputFile, ...], tuple[Unit, ...]]:
    inputs: list[InputFile] = []
    units: list[Unit] = []
    for path in expand(patterns):
        source, cut = plan_file(path, len(inputs), kind, unit_rows)
        inputs.append(source)
        units += cut
    if not units:
        raise InputError(f"{', '.join(patterns)}: a job needs at least one row; got none.")
    return tuple(inputs), tuple(units)


def _with_index(job: Job, folder: Path, reranker: Reranker) -> Job:
    """The job with its index; its costs then count the passages that queries will meet."""
    digest = index_sha256(folder)
    store = CorpusStore.open(folder)
    store.require_encoder(reranker.encoder)
    needs_tokens = "tokens" in reranker.pipeline.needs
    if needs_tokens and store.tokens is None:
        raise InputError(
            f"{folder}: these settings read token vectors, and the index has none. Build it again "
            "with `ricci-gpu index`, or choose stages that do without."
        )
    pool = _pool_tokens(store.meta, job.settings().retrieve.k, needs_tokens)
    units = (replace(unit, cost=unit.cost + unit.rows * pool) for unit in job.units)
    return replace(job, index={"path": str(folder), "meta_sha256": digest}, units=tuple(units))


def _pool_tokens(meta: StoreMeta, k: int, needs_tokens: bool) -> int:
    """Tokens of the passages in the pool of a query; a passage counts 1 where none are read."""
    pool = min(k, meta.passages)
    if not needs_tokens or meta.tokens is None:
        return pool
    return round(pool * meta.tokens / meta.passages)


def _with_embedding_width(job: Job, reranker: Reranker) -> Job:
    """The job with the width of the given embeddings, as its first good row has them."""
    first = first_candidates(job)
    if first is None:
        raise InputError(
            f"{job.place(job.units[0])}: none of these rows can be read, so the input is probably "
            "not a table of candidates. Their format is in docs/batch.md."
        )
    if first.query_embedding is None:
        return job
    if "tokens" in reranker.pipeline.needs and not first.has_text:
        raise InputError(
            f"{job.inputs[0].path}: these settings read token vectors, which need texts; the rows "
            "bring embeddings only. Add texts, or choose stages that do without."
        )
    return replace(job, embedding_width=len(first.query_embedding))


def _require_positive(settings: dict[str, int]) -> None:
    for name, value in settings.items():
        if value < 1:
            raise InputError(f"--{name} must be at least 1; got {value}.")
