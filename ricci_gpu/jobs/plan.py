"""Fix a job: which units, in what batches, with which settings, model and index."""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from ricci_gpu.config import Config
from ricci_gpu.corpus.candidates import CandidateList
from ricci_gpu.corpus.store import CorpusStore, StoreMeta
from ricci_gpu.errors import InputError
from ricci_gpu.jobs.defaults import BATCH_TOKENS, UNIT_ROWS
from ricci_gpu.jobs.files import expand, file_size
from ricci_gpu.jobs.join import join_tables
from ricci_gpu.jobs.manifest import POOLS, InputFile, Job, Unit, require_new
from ricci_gpu.jobs.rows import first_candidates, plan_file
from ricci_gpu.jobs.tables import is_flat
from ricci_gpu.reranker import Reranker

logger = logging.getLogger(__name__)


def plan_job(
    config: Config,
    queries: Sequence[str] = (),
    index: Path | None = None,
    candidates: Sequence[str] = (),
    corpus: Sequence[str] = (),
    folder: Path | None = None,
    unit_rows: int = UNIT_ROWS,
    batch_tokens: int = BATCH_TOKENS,
    threads: int = 1,
    max_failures: int = 3,
) -> Job:
    """The manifest of a job over queries and an index, or over candidates.

    Args:
        queries, candidates, corpus: paths, globs or URLs. Queries alone are looked up in the index.
            Candidates are nested, one query per row, or flat tables, one candidate per row, which
            are joined with the queries and the corpus (`ricci_gpu.jobs.join`).
        index: folder made by `ricci-gpu index`; with candidates, it has their passages.
        folder: of the job; joined tables are written there.
        unit_rows: most rows per unit: what is lost when a worker dies.
        batch_tokens: passage tokens per batch, which decide the memory of a worker.
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
    kind = "candidates" if candidates else "queries"
    paths = expand(candidates or queries)
    flat = _require_sources(kind, paths, queries, index, corpus)
    reranker = Reranker(config)
    job = Job(
        config=config.to_tree(),
        kind=kind,
        index=None,
        model=None,
        embedding_width=None,
        token_width=None,
        joined=[],
        batch_rows=config.runtime.batch_size,
        batch_tokens=batch_tokens,
        threads=threads,
        max_failures=max_failures,
        inputs=(),
        units=(),
    )
    if not flat:
        return _planned(job, paths, index, unit_rows, reranker)
    if folder is None:
        raise InputError("flat tables are joined in the folder of the job; none was given.")
    tables = {"candidates": paths, "queries": expand(queries), "corpus": expand(corpus)}
    sources = [
        {"role": role, "path": path, "size": file_size(path)}
        for role, given in tables.items()
        for path in given
    ]
    require_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    before = set(folder.glob(POOLS))
    try:
        pools = _joined(tables, folder.resolve(), unit_rows, index)
        job = _planned(replace(job, joined=sources), [str(pools)], index, unit_rows, reranker)
        job.is_in(folder)
    except BaseException:
        for path in set(folder.glob(POOLS)) - before:
            path.unlink()
        raise
    return job


def _planned(
    job: Job, paths: Sequence[str], index: Path | None, unit_rows: int, reranker: Reranker
) -> Job:
    """The job with its units, and with what it needs to compute them."""
    inputs, units = _inputs(paths, job.kind, unit_rows)
    job = replace(job, inputs=inputs, units=units)
    if index is not None:
        job = _with_index(job, index.expanduser().resolve(), reranker)
    else:
        job = _with_widths(job, reranker)
    reads_tokens = "tokens" in reranker.pipeline.needs
    if job.embedding_width is not None and not (reads_tokens and job.token_width is None):
        return job
    return replace(job, model={"name": reranker.encoder.name} | reranker.fingerprints())


def index_sha256(folder: str | Path) -> str:
    """Digest of ``meta.json`` of an index, which holds those of its passages and its model."""
    try:
        return hashlib.sha256((Path(folder) / "meta.json").read_bytes()).hexdigest()
    except OSError as error:
        raise InputError(
            f"{folder}: not an index: its `meta.json` cannot be read ({error.strerror}). Give the "
            "folder that `ricci-gpu index` wrote."
        ) from error


def _require_sources(
    kind: str,
    paths: Sequence[str],
    queries: Sequence[str],
    index: Path | None,
    corpus: Sequence[str],
) -> bool:
    """Refuse inputs that do not go together; whether the candidates are flat tables."""
    if not paths:
        raise InputError(
            "a job needs --queries with --index, or --candidates. Give one of them, or "
            "candidates together with the tables they belong to."
        )
    if kind == "queries":
        if index is None or corpus:
            raise InputError(
                "--queries alone are looked up in an index: give its folder with --index (and "
                "leave out --corpus). `ricci-gpu index` makes one of a corpus."
            )
        return False
    shapes = {is_flat(path) for path in paths}
    if len(shapes) > 1:
        raise InputError(
            "--candidates are all nested (a field `candidates`, one query per row) or all flat "
            "(one candidate per row); got both. Plan two jobs."
        )
    if shapes == {False} and (queries or corpus):
        raise InputError(
            "nested candidates bring their own queries and texts: leave out --queries and "
            "--corpus (an --index may have the passages)."
        )
    if index is not None and corpus:
        raise InputError("the passages come from --index or from --corpus. Leave one of them out.")
    return shapes == {True}


def _joined(tables: dict[str, list[str]], folder: Path, unit_rows: int, index: Path | None) -> Path:
    """The joined pools in the folder of the job, named by what is in them."""
    new = folder / POOLS.replace("*", "new")
    done = join_tables(
        new, tables["candidates"], tables["queries"], tables["corpus"], group_rows=unit_rows
    )
    if done.ids_only and index is None:
        raise InputError(
            f"{', '.join(tables['candidates'])}: these candidates are ids only. Give the index "
            "that has their passages with --index, or their texts with --corpus."
        )
    logger.info("joined: %d candidates of %d queries", done.pairs, done.queries)
    if done.unasked:
        logger.warning(
            "%d rows of candidates belong to no query of the table, and are left out", done.unasked
        )
    with new.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    path = folder / POOLS.replace("*", digest[:16])
    new.replace(path)
    return path


def _inputs(
    paths: Sequence[str], kind: str, unit_rows: int
) -> tuple[tuple[InputFile, ...], tuple[Unit, ...]]:
    inputs: list[InputFile] = []
    units: list[Unit] = []
    for path in paths:
        source, cut = plan_file(path, len(inputs), kind, unit_rows)
        inputs.append(source)
        units += cut
    if not units:
        raise InputError(f"{', '.join(paths)}: a job needs at least one row; got none.")
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
    job = replace(job, index={"path": str(folder), "meta_sha256": digest})
    pool = job.settings().retrieve.k if job.kind == "queries" else len(_first(job).passages)
    cost = round(min(pool, store.meta.passages) * passage_tokens(store.meta, needs_tokens))
    return replace(
        job, units=tuple(replace(unit, cost=unit.cost + unit.rows * cost) for unit in job.units)
    )


def passage_tokens(meta: StoreMeta, needs_tokens: bool) -> float:
    """Tokens that a passage of an index brings, on average; 1 where none are read."""
    if not needs_tokens or meta.tokens is None:
        return 1.0
    return meta.tokens / meta.passages


def _with_widths(job: Job, reranker: Reranker) -> Job:
    """The job with the widths of the given vectors, as its first good row has them."""
    first = _first(job)
    if first.query_embedding is None:
        return job
    token_width = None if first.query_tokens is None else first.query_tokens.shape[1]
    if "tokens" in reranker.pipeline.needs and token_width is None and not first.has_text:
        raise InputError(
            f"{job.inputs[0].path}: these settings read token vectors, which need texts; the rows "
            "bring embeddings only. Add texts or token vectors, or choose stages that do without."
        )
    return replace(job, embedding_width=len(first.query_embedding), token_width=token_width)


def _first(job: Job) -> CandidateList:
    first, why = first_candidates(job)
    if first is None:
        raise InputError(
            f"{job.place(job.units[0])}: none of these rows can be read, so the input is probably "
            f"no table of candidates as docs/formats.md says. The first: {why}"
        )
    return first


def _require_positive(settings: dict[str, int]) -> None:
    for name, value in settings.items():
        if value < 1:
            raise InputError(f"--{name} must be at least 1; got {value}.")
