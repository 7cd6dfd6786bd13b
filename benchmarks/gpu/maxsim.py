"""MaxSim of 1 to 10,000 queries, documents not shared, next to torch and the two peers.

Bandwidth counts what must be moved once. Calls on fewer queries than there are move over the
documents, so that no call finds its documents in the cache. The peers compute addresses in 32-bit
integers: they run up to 900 queries, each in a process of its own, after everything else.
"""

import itertools
import os
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from benchmarks.gpu.ceilings import COPY
from benchmarks.gpu.correctness import largest_error
from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.workloads import (
    DOCUMENT_TOKENS,
    DOCUMENTS,
    QUERY_TOKENS,
    TokenWorkload,
    query_bytes,
)
from ricci_gpu.ops.maxsim import maxsim, token_maxima

SIZES = (1, 100, 900, 10_000)
TINY_SIZES = (1, 2)
# The largest first: the peers tune for each size, and may not come to the others.
PEER_SIZES = (900, 100, 1)
KERNEL = "maxsim fp16"
Score = Callable[[int, int], Tensor]  # first query, number of queries


def share_name(route: str, queries: int) -> str:
    return f"maxsim {route}, B = {queries:,}, share of copy"


def maxsim_sizes(bench: Bench) -> None:
    sizes = list(TINY_SIZES if bench.tiny else SIZES)
    pool, tokens = (3, 10) if bench.tiny else (DOCUMENTS, DOCUMENT_TOKENS)
    # Beside the documents: similarities of the einsum, and room for what torch keeps.
    room = int((0.9 * bench.free_bytes - 20e9) / query_bytes(pool)) if bench.on_gpu else sizes[-1]
    if room < sizes[-1]:
        reason = f"{bench.free_bytes / 1e9:.0f} GB of memory are free: {room:,} queries fit"
        bench.skip(f"maxsim, B = {sizes[-1]:,}", reason)
        sizes = [size for size in sizes if size < room] + [room]
    work = TokenWorkload(bench.generator(0), sizes[-1], pool, tokens)
    kernel = KERNEL if bench.on_gpu else None
    ours, maxima = partial(_ours, work), partial(_maxima, work)
    for size in sizes:
        _timed(bench, "ours fp16", ours, work, size, kernel)
    _timed(bench, "ours fp16 with maxima", maxima, work, sizes[-1], kernel, 4 * QUERY_TOKENS * pool)
    if bench.on_gpu:
        bench.attempt("maxsim ours fp16 in a CUDA graph", partial(_replayed, bench, work), kernel)
    for size in sizes:
        _timed(bench, "eager einsum", partial(_einsum, work), work, size)
    if bench.on_gpu:  # on a CPU it would ask for a C++ compiler
        _timed(bench, "compiled einsum", _compiled_einsum(work), work, min(900, sizes[-1]))


def _timed(
    bench: Bench,
    route: str,
    score: Score,
    work: TokenWorkload,
    queries: int,
    kernel: str | None = None,
    more_bytes: int = 0,
) -> None:
    """Queries per second, bytes per second, and those as a share of the copy's."""
    name = f"maxsim {route}, B = {queries:,}"
    firsts = itertools.cycle(range(0, work.count - queries + 1, queries))
    sample = bench.time(name, lambda: score(next(firsts), queries), queries, kernel=kernel)
    if sample is None:
        return
    rate = queries * (query_bytes(work.pool, work.tokens) + more_bytes) / sample.seconds / 1e9
    bench.figure(f"{name}, bandwidth", rate, "GB/s", sample)
    if COPY in bench.values:
        share = rate / bench.values[COPY]
        bench.figure(share_name(route, queries), share, "of copy", sample)


def _ours(work: TokenWorkload, first: int, count: int) -> Tensor:
    return maxsim(*work.packed, *work.pairs(first, count))


def _maxima(work: TokenWorkload, first: int, count: int) -> Tensor:
    return token_maxima(*work.packed, *work.pairs(first, count), width=QUERY_TOKENS)


def _replayed(bench: Bench, work: TokenWorkload) -> None:
    """Single queries without the time of launching: 64 calls in one CUDA graph."""
    calls = min(64, work.count)
    graph = torch.cuda.CUDAGraph()
    _ours(work, 0, 1)
    with torch.cuda.graph(graph):
        for first in range(calls):
            _ours(work, first, 1)
    bench.time("maxsim ours fp16 in a CUDA graph, B = 1", graph.replay, calls)


def _einsum(work: TokenWorkload, first: int, count: int) -> Tensor:
    return _einsum_scores(*work.dense(first, count))


def _compiled_einsum(work: TokenWorkload) -> Score:
    # No pool of compilers, which could outlive this process.
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    compiled = torch.compile(_einsum_scores, dynamic=False)
    return lambda first, count: compiled(*work.dense(first, count))


def _einsum_scores(queries: Tensor, documents: Tensor) -> Tensor:
    similarity = torch.einsum("bld,bktd->bklt", queries, documents)
    return similarity.amax(dim=3).float().sum(dim=2)


def _late_interaction_kernels(work: TokenWorkload) -> Score:
    packed = import_module("late_interaction_kernels.score_pairs").score_pairs_packed
    offsets = work.query_offsets.int(), work.document_offsets.int()
    pair_query, pair_document = work.pair_query.int(), work.pair_document.int()

    def score(first: int, count: int) -> Tensor:
        rows = slice(first * work.pool, (first + count) * work.pool)
        return packed(
            work.queries,
            work.documents,
            *offsets,
            pair_query[rows],
            pair_document[rows],
            max_seqlen_q=QUERY_TOKENS,
            max_seqlen_d=DOCUMENT_TOKENS,
        )

    return score


def _flash_maxsim(work: TokenWorkload) -> Score:
    batched = import_module("flash_maxsim").flash_maxsim_batched

    def score(first: int, count: int) -> Tensor:
        return batched(*work.dense(first, count), shared_docs=False, pad_lq=False)

    return score


PEERS = {
    "late_interaction_kernels": _late_interaction_kernels,
    "flash_maxsim": _flash_maxsim,
}


def peer(name: str, bench: Bench) -> None:
    if not bench.on_gpu:
        return bench.skip(f"maxsim {name}", "it needs a GPU")
    if find_spec(name) is None:
        return bench.skip(f"maxsim {name}", "it is not installed")
    work = TokenWorkload(bench.generator(0), max(PEER_SIZES), DOCUMENTS)
    score = PEERS[name](work)
    queries, documents = (part.double() for part in work.dense(0, 2))
    error = largest_error(score(0, 2).flatten(), _einsum_scores(queries, documents).flatten())
    bench.figure(f"maxsim {name}, largest error", error, "score")
    for size in PEER_SIZES:
        _timed(bench, name, score, work, size)
    return None


PARTS = (Part("maxsim", maxsim_sizes, 75),)
PEER_PARTS = tuple(Part(f"maxsim {name}", partial(peer, name), 50) for name in PEERS)
