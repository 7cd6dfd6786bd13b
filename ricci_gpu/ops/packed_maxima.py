"""The CPU kernel of MaxSim: product and maximum in one pass, compiled with numba.

A product with the 32 columns of one query is too thin for a matrix library, which spends its time
on rearranging the documents for it. Here a tile of three document tokens stays in the first-level
cache while it meets the query, four tokens at a time: twelve running sums in vector registers, and
the maximum taken at once, so that no similarity is ever written. Documents in half precision are
widened one at a time into memory of that cache's size, so that only half of their bytes travel.
"""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from inspect import unwrap
from typing import Any

import numpy as np
import torch

from ricci_gpu.shapes import Float, Int, Tensor

logger = logging.getLogger(__name__)


def _fill_maxima(
    query_tokens: np.ndarray,  # (Tq, D)
    query_offsets: np.ndarray,  # (B + 1,) unsigned, as all indices: no test for negative ones
    document_tokens: np.ndarray,  # (Td, D), of the same type; for halves, memory for one document
    halves: np.ndarray,  # (Td, D) bits of half-precision documents, or (0, D)
    widened: np.ndarray,  # the bits of `document_tokens`, for halves
    document_offsets: np.ndarray,  # (M + 1,)
    pair_query: np.ndarray,  # (P,)
    pair_document: np.ndarray,  # (P,)
    maxima: np.ndarray,  # (P, L) out
    first: int,
    last: int,
) -> None:
    """Fill the rows of pairs ``first`` to ``last - 1``; written for the compiler.

    A tile that reaches past the last token repeats it, which changes no maximum: one code path
    for all tokens, so that a similarity does not depend on its neighbours, bit for bit.
    """
    width = query_tokens.shape[1]
    one, three, four = np.uint64(1), np.uint64(3), np.uint64(4)
    zero = query_tokens.dtype.type(0.0)
    magnitude, sign, exponent = np.uint32(0x7FFF), np.uint32(0x8000), np.uint32(0x7C00)
    ones, thirteen, sixteen = np.uint32(0x7F800000), np.uint32(13), np.uint32(16)
    rescale = query_tokens.dtype.type(2.0**112)
    for pair in range(first, last):
        q, document = pair_query[pair], pair_document[pair]
        start, stop = query_offsets[q], query_offsets[q + one]
        t, end = document_offsets[document], document_offsets[document + one]
        if len(halves) > 0:
            for row in range(end - t):
                for d in range(width):
                    half = np.uint32(halves[t + row, d])
                    bits = ((half & magnitude) << thirteen) | ((half & sign) << sixteen)
                    # An exponent of ones is infinity or NaN, and stays one.
                    widened[row, d] = bits | ones if (half & exponent) == exponent else bits
                for d in range(width):  # the exponent of a half is off by 15, of a float32 by 127
                    document_tokens[row, d] *= rescale
            t, end = np.uint64(0), end - t
        while t < end:
            t1 = min(t + one, end - one)
            t2 = min(t1 + one, end - one)
            i = start
            while i < stop:
                i1 = min(i + one, stop - one)
                i2 = min(i1 + one, stop - one)
                i3 = min(i2 + one, stop - one)
                a0 = a1 = a2 = b0 = b1 = b2 = c0 = c1 = c2 = e0 = e1 = e2 = zero
                for d in range(width):
                    x, y, z = document_tokens[t, d], document_tokens[t1, d], document_tokens[t2, d]
                    a, b = query_tokens[i, d], query_tokens[i1, d]
                    c, e = query_tokens[i2, d], query_tokens[i3, d]
                    a0 += a * x
                    a1 += a * y
                    a2 += a * z
                    b0 += b * x
                    b1 += b * y
                    b2 += b * z
                    c0 += c * x
                    c1 += c * y
                    c2 += c * z
                    e0 += e * x
                    e1 += e * y
                    e2 += e * z
                for place, x, y, z in (
                    (i, a0, a1, a2),
                    (i1, b0, b1, b2),
                    (i2, c0, c1, c2),
                    (i3, e0, e1, e2),
                ):
                    # A NaN is not equal to itself and below nothing: once met, it stays.
                    best = maxima[pair, place - start]
                    best = best if best != best or x <= best else x
                    best = best if best != best or y <= best else y
                    best = best if best != best or z <= best else z
                    maxima[pair, place - start] = best
                i += four
            t += three


@cache
def _compiled() -> Callable[..., None] | None:
    try:
        import numba
    except ImportError:
        logger.warning(
            "MaxSim on the CPU runs on torch's matrix products, about half as fast as compiled: "
            'numba is not installed. Install it with: pip install "ricci-gpu[exact]"'
        )
        return None
    # The shape checks of a test run wrap every function; the compiler needs the bare one. The
    # order of a sum may change, and nothing else: NaN and infinity keep their meaning.
    compiled: Callable[..., None] = numba.njit(
        cache=True, nogil=True, error_model="numpy", fastmath={"nsz", "reassoc", "contract"}
    )(unwrap(_fill_maxima))
    return compiled


def is_compiled() -> bool:
    """Whether numba is there; says so once where it is not."""
    return _compiled() is not None


def widens(document_tokens: Tensor, query_tokens: Tensor) -> bool:
    """Whether `fill_maxima` takes documents of this type for queries of that one, float32 or 64."""
    if document_tokens.dtype == query_tokens.dtype:
        return True
    return (document_tokens.dtype, query_tokens.dtype) == (torch.float16, torch.float32)


def fill_maxima(
    query_tokens: Float[Tensor, "Tq D"],
    query_offsets: Int[Tensor, "Bplus1"],
    document_tokens: Float[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
    maxima: Float[Tensor, "P L"],
) -> None:
    """Write the largest similarity per pair and query token into ``maxima``, ``-inf`` before.

    All on the CPU and contiguous; types as `widens` takes them; indices are real ones. Pairs are
    shared among torch's threads. Needs `is_compiled`.
    """
    kernel = _compiled()
    assert kernel is not None
    offsets = document_offsets.numpy().view(np.uint64)
    pairs: list[Any] = [pair_query.numpy().view(np.uint64), pair_document.numpy().view(np.uint64)]
    longest = int(document_offsets.diff().max()) if len(document_offsets) > 1 else 0

    def fill(first: int, last: int) -> None:
        tokens, halves = document_tokens.numpy(), np.empty((0, 0), dtype=np.uint16)
        bits = np.empty((0, 0), dtype=np.uint32)
        if document_tokens.dtype != query_tokens.dtype:
            halves = tokens.view(np.uint16)
            tokens = np.empty((longest, tokens.shape[1]), dtype=np.float32)
            bits = tokens.view(np.uint32)
        queries = query_tokens.numpy(), query_offsets.numpy().view(np.uint64)
        kernel(*queries, tokens, halves, bits, offsets, *pairs, maxima.numpy(), first, last)

    threads = min(torch.get_num_threads(), len(pair_query))
    if threads <= 1:
        fill(0, len(pair_query))
        return
    # Equal shares of the tokens, not of the pairs: documents are ragged.
    work = document_offsets.diff()[pair_document].cumsum(0)
    shares = torch.arange(1, threads) * work[-1] / threads
    bounds = [0, *torch.searchsorted(work, shares).tolist(), len(pair_query)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, bounds[:-1], bounds[1:]))
