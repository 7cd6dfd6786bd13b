"""Whole queries on tensors: pad, filter, MaxSim, top-k. Queries per second, and peak memory.

The default preset is token transport, whose mass orders what it keeps; the ``ricci`` preset
reranks the survivors of the flow by MaxSim. Each runs twice: as the stages of the product do it,
and as the kernels do it one after the other. Tokens and embeddings are on the device at the start.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from benchmarks.gpu.flow import CUTOFF, STEPS, fused
from benchmarks.gpu.parts import Bench, Part
from benchmarks.gpu.workloads import (
    DOCUMENT_TOKENS,
    QUERY_TOKENS,
    Graphs,
    TokenWorkload,
    clustered_nodes,
    query_bytes,
)
from ricci_gpu.batch import QueryGraphBatch, TokenPool, pad_pools
from ricci_gpu.ops.maxsim import maxsim
from ricci_gpu.ops.topk import top_k
from ricci_gpu.stages.rerank import MaxSim
from ricci_gpu.stages.ricci_filter import RicciFilter
from ricci_gpu.stages.token_filter import TokenTransportFilter

Answer = tuple[Tensor, Tensor]  # the best candidates of each query, and which places are filled
Route = Callable[[], Answer]


def kernels_name(preset: str, pool: int) -> str:
    return f"end to end {preset}, kernels, {pool} candidates"


def default_preset(bench: Bench) -> None:
    """Pools of 20, as the preset retrieves, and of 100."""
    for pool, most in ((3, 2),) if bench.tiny else ((20, 16_384), (100, 4096)):
        count = _fitting(bench, pool, most)
        tokens = _tokens(bench, count, pool)
        stages = partial(_token_transport_by_stages, tokens)
        kernels = partial(_token_transport_by_kernels, tokens)
        _timed(bench, f"end to end token transport, stages, {pool} candidates", stages, count)
        name = kernels_name("token transport", pool)
        if _proven(bench, name, {"maxsim fp16", "token transport"}):
            bench.attempt(name, partial(_same, bench, name, kernels, stages))
            _timed(bench, name, kernels, count)


def ricci_preset(bench: Bench) -> None:
    """Pools of 20; the filter as it is runs its graphs in small chunks, so fewer of them."""
    pool, few, most = (4, 2, 3) if bench.tiny else (20, 256, 16_384)
    count, steps = _fitting(bench, pool, most), 1 if bench.tiny else STEPS
    few = min(few, count)
    nodes = clustered_nodes(bench.generator(1), count, pool)
    tokens = _tokens(bench, count, pool)
    part = replace(
        tokens,
        query_tokens=tokens.query_tokens[: few * QUERY_TOKENS],
        query_offsets=tokens.query_offsets[: few + 1],
        document_of=tokens.document_of[:few],
    )
    stages = partial(_ricci_by_stages, part, nodes[:few], steps)
    _timed(bench, f"end to end ricci sinkhorn, stages, {pool} candidates", stages, few)
    name = kernels_name("ricci sinkhorn", pool)
    if _proven(bench, name, {"maxsim fp16", "flow ieee"}):
        few_by_kernels = partial(_ricci_by_kernels, part, nodes[:few], steps)
        bench.attempt(name, partial(_same, bench, name, few_by_kernels, stages))
        _timed(bench, name, partial(_ricci_by_kernels, tokens, nodes, steps), count)


def _proven(bench: Bench, name: str, needed: set[str]) -> bool:
    missing = sorted(needed - bench.proven)
    if missing:
        bench.skip(name, f"kernels not proven on this device: {', '.join(missing)}")
    return not missing


def _same(bench: Bench, name: str, kernels: Route, stages: Route) -> None:
    """Equal places of the answers, but for ties: the routes add up in another order."""
    found, expected = kernels(), stages()
    filled = found[1] | expected[1]
    differ = (filled & ((found[0] != expected[0]) | (found[1] != expected[1]))).sum()
    bench.check(f"{name}, places unlike the stages", differ / filled.sum(), 1e-2)


def _fitting(bench: Bench, pool: int, most: int) -> int:
    """Queries whose tokens take at most half of the free memory."""
    return min(most, bench.free_bytes // 2 // query_bytes(pool))


def _timed(bench: Bench, name: str, work: Route, queries: int) -> None:
    if bench.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    sample = bench.time(name, work, queries)
    if sample is not None and bench.on_gpu:
        gib = torch.cuda.max_memory_allocated() / 2**30
        bench.figure(f"{name}, peak memory of {queries:,} queries", gib, "GiB")


def _tokens(bench: Bench, count: int, pool: int) -> TokenPool:
    length = 10 if bench.tiny else DOCUMENT_TOKENS
    work = TokenWorkload(bench.generator(0), count, pool, length)
    document_of = torch.arange(count * pool, device=bench.device).view(count, pool)
    return TokenPool(*work.packed, document_of)


def _pad(tokens: TokenPool) -> QueryGraphBatch:
    count, pool = tokens.document_of.shape
    return pad_pools([pool] * count, tokens=tokens, device=tokens.document_of.device)


def _token_transport_by_stages(tokens: TokenPool) -> Answer:
    batch = TokenTransportFilter()(_pad(tokens))
    return top_k(batch.score, batch.keep, 10)


def _token_transport_by_kernels(tokens: TokenPool) -> Answer:
    from ricci_kernels.maxsim import token_maxima_pairs
    from ricci_kernels.token_transport import token_transport

    batch = _pad(tokens)
    count, pool = batch.keep.shape
    _, maxima = token_maxima_pairs(
        tokens.query_tokens,
        tokens.query_offsets,
        tokens.document_tokens,
        tokens.document_offsets,
        _query_of(tokens),
        torch.where(batch.keep, tokens.document_of, -1).flatten(),
        QUERY_TOKENS,
    )
    length = tokens.query_offsets.diff()[:, None]
    real = torch.arange(QUERY_TOKENS, device=batch.device) < length
    settings = TokenTransportFilter()
    flowed = token_transport(
        maxima.view(count, pool, QUERY_TOKENS),
        torch.where(real, 1.0 / length, 0.0),
        batch.keep.contiguous(),
        settings.temperature,
        settings.steps,
        settings.eta,
    )
    return top_k(flowed.log_mass, flowed.keep, 10)


def _ricci_by_stages(tokens: TokenPool, nodes: Tensor, steps: int) -> Answer:
    batch = _pad(tokens).with_(node_emb=nodes)
    ricci = RicciFilter(solver="sinkhorn", precision="float32", iterations=steps)
    batch = MaxSim()(ricci(batch))
    return top_k(batch.score, batch.keep, 5)


def _ricci_by_kernels(tokens: TokenPool, nodes: Tensor, steps: int) -> Answer:
    batch = _pad(tokens)
    pool = batch.keep.shape[1]
    # The query is joined to every candidate, and its edges come first.
    weight = fused(Graphs.of(nodes), "ieee", steps).weight
    keep = batch.keep & (weight[:, :pool] <= CUTOFF)
    score = maxsim(
        tokens.query_tokens,
        tokens.query_offsets,
        tokens.document_tokens,
        tokens.document_offsets,
        _query_of(tokens),
        torch.where(keep, tokens.document_of, -1).flatten(),
    )
    return top_k(score.view(keep.shape), keep, 5)


def _query_of(tokens: TokenPool) -> Tensor:
    count, pool = tokens.document_of.shape
    return torch.arange(count, device=tokens.document_of.device).repeat_interleave(pool)


PARTS = (
    Part("end to end, default preset", default_preset, 45),
    Part("end to end, ricci preset", ricci_preset, 45),
)
