"""Table 4: time and memory of each filter and reranker on the same pools.

Each stage of the product runs alone on ready pools (sentence vectors and token vectors are there),
as one batch and query by query. Memory is what the process held at most beyond what it held
before, as Linux reports it; other systems do not, and show none.
"""

import ctypes
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ricci_gpu.batch import QueryGraphBatch
from ricci_gpu.config import Config
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.evaluation.pools import JudgedPools
from ricci_gpu.evaluation.rerankers import PoolScorer
from ricci_gpu.stages import FILTERS, RERANKERS, Stage

SINGLE = 20  # queries that are timed one by one


@dataclass(frozen=True)
class LatencyRow:
    """Cost of one stage.

    Args:
        ms_batch: milliseconds per query in one batch of all.
        ms_single: median milliseconds of a query that comes alone.
        extra_mb: largest memory beyond what was held before, in the batch; None where unknown.
    """

    stage: str
    role: str
    pool: int
    queries: int
    ms_batch: float
    ms_single: float
    extra_mb: float | None


def stages_to_time(config: Config) -> dict[tuple[str, str], Stage]:
    """(role, name) of what is timed: every registered filter, and the rerankers without a model."""
    timed: dict[tuple[str, str], Stage] = {("filter", "default"): config.filter}
    for name in FILTERS.names():
        timed["filter", name] = FILTERS.build(name, {})
    timed["filter", "ricci le"] = FILTERS.build("ricci", {"rule": "le"})
    timed["filter", "fixed_k on maxsim"] = FILTERS.build("fixed_k", {"on": "maxsim"})
    timed["reranker", "maxsim"] = RERANKERS.build("maxsim", {})
    return timed


def latency(
    config: Config,
    store: CorpusStore,
    pools: JudgedPools,
    rerankers: Mapping[str, PoolScorer],
) -> list[LatencyRow]:
    """All stages on the same pools.

    Args:
        rerankers: those that need a model, by name; they score all candidates.
    """
    whole = with_documents(store, pools)
    singles = [with_documents(store, pools.some([place])) for place in range(len(pools))][:SINGLE]
    rows = [
        _row(name, role, pools, stage, whole, singles)
        for (role, name), stage in stages_to_time(config).items()
    ]
    for name, order in rerankers.items():
        one_by_one = [pools.some([place]) for place in range(min(SINGLE, len(pools)))]
        rows.append(_row(name, "reranker", pools, order, pools, one_by_one))
    return rows


def with_documents(store: CorpusStore, pools: JudgedPools) -> QueryGraphBatch:
    """The batch as the pipeline sees it: token vectors of the documents, and no maxima yet."""
    unique, place = pools.rows.unique(return_inverse=True)
    document_tokens, document_offsets = store.token_slices(unique)
    assert pools.batch.tokens is not None
    tokens = replace(
        pools.batch.tokens,
        document_tokens=document_tokens,
        document_offsets=document_offsets,
        document_of=place,
    )
    return pools.batch.with_(tokens=tokens, maxima=None)


def _row(
    name: str,
    role: str,
    pools: JudgedPools,
    run: Callable[..., object],
    whole: object,
    singles: Sequence[object],
) -> LatencyRow:
    run(singles[0])  # loading and compiling are paid before the clock runs
    ms_single = sorted(_milliseconds(run, each) for each in singles)[len(singles) // 2]
    before = _reset_peak()
    ms_batch = _milliseconds(run, whole) / len(pools)
    peak = _peak_mb()
    return LatencyRow(
        stage=name,
        role=role,
        pool=pools.size,
        queries=len(pools),
        ms_batch=ms_batch,
        ms_single=ms_single,
        extra_mb=None if before is None or peak is None else max(peak - before, 0.0),
    )


def _milliseconds(run: Callable[..., object], given: object) -> float:
    start = time.perf_counter()
    run(given)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - start)


def _reset_peak() -> float | None:
    """Forget the largest memory held so far; what is held now, in MB."""
    gc.collect()
    try:
        # What was freed and not given back would hide what is taken now.
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (OSError, AttributeError):
        return None
    return _status("VmRSS")


def _peak_mb() -> float | None:
    return _status("VmHWM")


def _status(field: str) -> float | None:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    values = [line.split()[1] for line in lines if line.startswith(f"{field}:")]
    return int(values[0]) / 1024 if values else None
