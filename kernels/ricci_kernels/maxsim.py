"""MaxSim (late interaction) over packed tokens and a list of (query, document) pairs.

``score[p] = sum_i max_j <q_i, d_j>`` with ``i`` over the tokens of query ``pair_query[p]`` and
``j`` over the tokens of document ``pair_document[p]`` (Khattab & Zaharia, ColBERT, 2020). One
program per pair reads its document once; no similarity leaves the chip.

What every entry point promises:

* products and sums accumulate in float32; nothing is cast to a narrower type;
* a document without tokens scores -inf, below every real score; a query without tokens scores 0
  against any document that has one;
* NaN in a token of the query or the document gives NaN, never a dropped token; infinite and
  negative similarities survive;
* a negative pair index (a dropped candidate, padding) reads no token and scores -inf; an index
  past the end reads nothing either and scores NaN;
* addresses are 64-bit; a program loops to the length of its own document.
"""

# Kernel arguments have no Python types.
# mypy: allow-untyped-defs, allow-incomplete-defs

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ricci_kernels.configs import MaxSimLaunch, maxsim_launch, query_block

PRECISIONS = ("ieee", "tf32", "tf32x3")
_TOKEN_TYPES = (torch.float16, torch.bfloat16, torch.float32)


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _load_columns(pointers, columns, D: tl.constexpr, EVEN: tl.constexpr):
    """Embedding columns that may end inside the block; past the end they read as 0."""
    if EVEN:
        return tl.load(pointers)
    return tl.load(pointers, mask=columns < D, other=0)


@triton.jit(do_not_specialize=["queries", "documents", "width"])
def maxsim_kernel(
    query_tokens,  # [Tq, D]
    query_offsets,  # [queries + 1]
    document_tokens,  # [Td, D]
    document_offsets,  # [documents + 1]
    document_scales,  # [Td] if SCALED
    pair_query,  # [P]
    pair_document,  # [P]
    scores,  # [P]
    maxima,  # [P, width] if WRITE_MAXIMA
    queries,
    documents,
    width,
    D: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_D: tl.constexpr,
    PRECISION: tl.constexpr,
    SCALED: tl.constexpr,
    WRITE_MAXIMA: tl.constexpr,
    UPCAST: tl.constexpr,
):
    """Program p scores pair p; grid ``(P,)``."""
    STEPS: tl.constexpr = (D + BLOCK_D - 1) // BLOCK_D
    EVEN: tl.constexpr = D % BLOCK_D == 0
    pair = tl.program_id(0).to(tl.int64)
    query = tl.load(pair_query + pair)
    document = tl.load(pair_document + pair)
    known = (query < queries) & (document < documents)
    live = known & (query >= 0) & (document >= 0)
    # A pair that is not live has length 0: the loops below do not run.
    query_start = tl.load(query_offsets + query, mask=live, other=0)
    query_end = tl.load(query_offsets + query + 1, mask=live, other=0)
    document_start = tl.load(document_offsets + document, mask=live, other=0)
    document_end = tl.load(document_offsets + document + 1, mask=live, other=0)
    length = (query_end - query_start).to(tl.int32)
    tokens = (document_end - document_start).to(tl.int32)

    offs_d = tl.arange(0, BLOCK_D)
    offs_t = tl.arange(0, BLOCK_T)
    score = 0.0
    for first in range(0, length, BLOCK_L):
        offs_l = first + tl.arange(0, BLOCK_L)
        # Rows past the end are clamped to the last token, in both operands. A repeated document
        # token cannot change a maximum, so the loop needs no mask on tokens; a repeated query
        # token is left out of the sum below.
        query_rows = query_start + tl.minimum(offs_l, length - 1)
        query_tile = query_tokens + query_rows[None, :] * D + offs_d[:, None]  # [BLOCK_D, BLOCK_L]
        q = _load_columns(query_tile, offs_d[:, None], D, EVEN)
        if UPCAST:
            q = q.to(tl.float32)

        # Document tokens are the M axis of the product: with 32 query tokens on M, sm_90 would
        # not use its warp-group instruction, or waste half of it. The maximum stays a tile and
        # is reduced once per document. Tiles and columns share one loop, so that the copies of
        # the next tile are under way while the last columns of this one are multiplied.
        best = tl.full([BLOCK_T, BLOCK_L], float("-inf"), tl.float32)
        similarity = tl.zeros([BLOCK_T, BLOCK_L], tl.float32)
        for step in range(tl.cdiv(tokens, BLOCK_T) * STEPS):
            column = step % STEPS * BLOCK_D
            rows = document_start + tl.minimum(step // STEPS * BLOCK_T + offs_t, tokens - 1)
            if STEPS > 1:
                q = _load_columns(query_tile + column, column + offs_d[:, None], D, EVEN)
                if UPCAST:
                    q = q.to(tl.float32)
            document_tile = document_tokens + rows[:, None] * D + column + offs_d[None, :]
            d = _load_columns(document_tile, column + offs_d[None, :], D, EVEN).to(q.dtype)
            similarity = tl.dot(d, q, similarity, input_precision=PRECISION)
            if column + BLOCK_D >= D:
                if SCALED:
                    similarity = similarity * tl.load(document_scales + rows)[:, None]
                best = _larger(best, similarity)
                similarity = tl.zeros([BLOCK_T, BLOCK_L], tl.float32)

        token_maxima = tl.reduce(best, 0, _larger)
        if WRITE_MAXIMA:
            # A query that does not fit the width is flagged, not cut.
            token_maxima = tl.where(length > width, float("nan"), token_maxima)
            row = maxima + pair * width + offs_l
            tl.store(row, token_maxima, mask=(offs_l < length) & (offs_l < width))
        score += tl.sum(tl.where(offs_l < length, token_maxima, 0.0), 0)

    score = tl.where(tokens == 0, float("-inf"), score)
    tl.store(scores + pair, tl.where(known, score, float("nan")))


_INTERPRETED = not isinstance(maxsim_kernel, triton.JITFunction)


class Specialization(NamedTuple):
    """What one compiled variant of the kernel is made of."""

    constants: dict[str, object]
    launch: MaxSimLaunch


def specialize(
    capability: int,
    token_type: torch.dtype,
    dim: int,
    mean_length: int,
    precision: str,
    scaled: bool = False,
    write_maxima: bool = False,
) -> Specialization:
    """Compile-time arguments and launch settings for a chip, data types and sizes.

    Args:
        capability: compute capability, for example 90.
        token_type: type of the query tokens; with ``scaled`` it is a 16-bit type.
        dim: width of the embedding.
        mean_length: mean number of tokens per query; decides the tile, not the result.
        precision: of float32 products.
        scaled: int8 documents with a scale per token.
        write_maxima: also write the maximum per query token.
    """
    half = token_type is not torch.float32
    kind = ("int8" if scaled else "half") if half else precision
    launch = maxsim_launch(capability, kind, dim, dim * (1 if scaled else token_type.itemsize))
    constants: dict[str, object] = {
        "D": dim,
        "BLOCK_T": launch.block_t,
        "BLOCK_L": query_block(mean_length),
        "BLOCK_D": launch.block_d,
        # Ignored by products of 16-bit types; one value, so that they compile once.
        "PRECISION": "ieee" if half else precision,
        "SCALED": scaled,
        "WRITE_MAXIMA": write_maxima,
        # The interpreter computes with the bit patterns of bfloat16: there, widen first.
        "UPCAST": _INTERPRETED and token_type is torch.bfloat16,
    }
    return Specialization(constants, launch)


def maxsim_pairs(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
    precision: str = "ieee",
    document_scales: Tensor | None = None,
) -> Tensor:
    """MaxSim of every pair.

    Args:
        query_tokens: ``[Tq, D]``, packed end to end; float16, bfloat16 or float32.
        query_offsets: ``[B + 1]`` int64, non-decreasing from 0 to ``Tq``; query ``b`` owns the rows
            ``query_offsets[b]:query_offsets[b + 1]``.
        document_tokens: ``[Td, D]`` in the type of the queries, or int8 with ``document_scales``
            and queries of a 16-bit type.
        document_offsets: ``[M + 1]`` int64.
        pair_query: ``[P]`` int64; -1 for a pair to skip.
        pair_document: ``[P]`` int64; -1 for a pair to skip.
        precision: of float32 products: ``ieee`` (exact float32), ``tf32`` (fast, about 1e-3) or
            ``tf32x3`` (three tf32 products, near float32). 16-bit products are exact anyway.
        document_scales: ``[Td]`` float32, the factor of each int8 document token.

    Returns:
        Scores ``[P]`` float32.

    Raises:
        ValueError: tensors that do not fit together, or a chip older than compute capability 8.0.
    """
    return _launch(
        query_tokens,
        query_offsets,
        document_tokens,
        document_offsets,
        document_scales,
        pair_query,
        pair_document,
        None,
        precision,
    )


def token_maxima_pairs(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
    width: int,
    precision: str = "ieee",
    document_scales: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """MaxSim of every pair and, from the same pass, the maximum per query token.

    Args:
        width: columns of the result, at least the number of tokens of the longest query: a pair
            whose query is longer gets NaN throughout. The other arguments are those of
            `maxsim_pairs`.

    Returns:
        Scores ``[P]`` and maxima ``[P, width]``, both float32; -inf where there is no token.

    Raises:
        ValueError: as `maxsim_pairs`.
    """
    maxima = torch.full(
        (len(pair_query), width), float("-inf"), dtype=torch.float32, device=query_tokens.device
    )
    scores = _launch(
        query_tokens,
        query_offsets,
        document_tokens,
        document_offsets,
        document_scales,
        pair_query,
        pair_document,
        maxima,
        precision,
    )
    return scores, maxima


def _launch(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    document_scales: Tensor | None,
    pair_query: Tensor,
    pair_document: Tensor,
    maxima: Tensor | None,
    precision: str,
) -> Tensor:
    if precision not in PRECISIONS:
        raise ValueError(f"`precision` must be one of {', '.join(PRECISIONS)}; got {precision!r}.")
    _check_tokens(query_tokens, document_tokens, document_scales)
    for name, indices in {
        "query_offsets": query_offsets,
        "document_offsets": document_offsets,
        "pair_query": pair_query,
        "pair_document": pair_document,
    }.items():
        if indices.dtype is not torch.int64 or indices.dim() != 1 or not indices.is_contiguous():
            raise ValueError(
                f"`{name}` must be a contiguous vector of int64; got {indices.dtype} of shape "
                f"{tuple(indices.shape)}. Convert it with .to(torch.int64).contiguous()."
            )
        if indices.device != query_tokens.device:
            raise ValueError(
                f"all tensors must be on one device; `query_tokens` is on {query_tokens.device}, "
                f"`{name}` on {indices.device}. Move it with .to(query_tokens.device)."
            )
    if len(pair_query) != len(pair_document):
        raise ValueError(
            f"`pair_query` and `pair_document` must be equally long; got {len(pair_query)} and "
            f"{len(pair_document)}."
        )

    scores = torch.empty(len(pair_query), dtype=torch.float32, device=query_tokens.device)
    if len(pair_query) == 0:
        return scores
    queries, documents = len(query_offsets) - 1, len(document_offsets) - 1
    dim = query_tokens.shape[1]
    constants, launch = specialize(
        _capability(query_tokens.device),
        query_tokens.dtype,
        dim,
        # Known without waiting for the GPU, unlike the longest query.
        -(-len(query_tokens) // max(queries, 1)),
        precision,
        scaled=document_scales is not None,
        write_maxima=maxima is not None,
    )
    with torch.cuda.device_of(query_tokens):
        maxsim_kernel[(len(pair_query),)](
            query_tokens,
            query_offsets,
            document_tokens,
            document_offsets,
            document_scales,
            pair_query,
            pair_document,
            scores,
            maxima,
            queries,
            documents,
            0 if maxima is None else maxima.shape[1],
            **constants,
            **launch.options,
        )
    return scores


def _check_tokens(
    query_tokens: Tensor, document_tokens: Tensor, document_scales: Tensor | None
) -> None:
    for name, tokens in {"query_tokens": query_tokens, "document_tokens": document_tokens}.items():
        if tokens.dim() != 2 or not tokens.is_contiguous():
            raise ValueError(
                f"`{name}` must be a contiguous matrix [tokens, dim]; got shape "
                f"{tuple(tokens.shape)} with strides {tokens.stride()}. Call .contiguous() on it."
            )
    if query_tokens.shape[1] != document_tokens.shape[1]:
        raise ValueError(
            f"queries and documents must have the same width; got {query_tokens.shape[1]} and "
            f"{document_tokens.shape[1]}."
        )
    if query_tokens.dtype not in _TOKEN_TYPES:
        raise ValueError(
            f"`query_tokens` must be float16, bfloat16 or float32; got {query_tokens.dtype}."
        )
    if document_tokens.device != query_tokens.device:
        raise ValueError(
            f"all tensors must be on one device; `query_tokens` is on {query_tokens.device}, "
            f"`document_tokens` on {document_tokens.device}. "
            "Move it with .to(query_tokens.device)."
        )
    if document_scales is None:
        if document_tokens.dtype is not query_tokens.dtype:
            raise ValueError(
                f"`document_tokens` must have the type of `query_tokens`, nothing is cast here; "
                f"got {document_tokens.dtype} and {query_tokens.dtype}. For int8 documents pass "
                "`document_scales`."
            )
        return
    if document_tokens.dtype is not torch.int8:
        raise ValueError(
            f"`document_scales` belong to int8 documents; got {document_tokens.dtype}. "
            "Leave them out."
        )
    if query_tokens.dtype is torch.float32:
        # Triton 3.7 compiles the exact product of float32 with a converted operand to tf32 on
        # sm_100. 8-bit documents do not need it: their products with 16-bit queries are exact.
        raise ValueError(
            "int8 documents need float16 or bfloat16 queries; got torch.float32. "
            "Convert the queries with .to(torch.float16)."
        )
    wanted = (document_scales.dtype, document_scales.shape, document_scales.device)
    if wanted != (torch.float32, document_tokens.shape[:1], document_tokens.device) or not (
        document_scales.is_contiguous()
    ):
        raise ValueError(
            f"`document_scales` must be a contiguous float32 vector of length "
            f"{len(document_tokens)} on {document_tokens.device}; got {document_scales.dtype} of "
            f"shape {tuple(document_scales.shape)} on {document_scales.device}."
        )


def _capability(device: torch.device) -> int:
    if _INTERPRETED:
        return 90  # the interpreter runs the settings of a chip; which one does not matter
    if device.type != "cuda":
        raise ValueError(
            f"the Triton kernels run on a CUDA device; the tensors are on {device}. "
            "Use the torch backend there."
        )
    major, minor = torch.cuda.get_device_capability(device)
    return major * 10 + minor
