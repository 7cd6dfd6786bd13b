"""MaxSim, the late-interaction score of ColBERT (Khattab and Zaharia 2020), over packed tokens.

The score of a (query, document) pair is the sum over query tokens of the largest dot product with
a token of the document. Semantics, the same on every path:

* only real tokens count: nothing stands in for a masked one, so negative similarities survive;
* an empty document has the maximum ``-inf`` for every token and scores ``-inf``, below any real
  one; an empty query scores 0 against a document that has a token;
* a NaN in a real token makes the scores that read it NaN; it is never dropped;
* a negative index in a pair stands for no pair: it costs nothing and scores ``-inf``;
* products and sums are in float32 (float64 for float64 tokens).

CPU tensors take the compiled kernel of `packed_maxima`, or packed matrix products where numba is
missing; CUDA tensors take the Triton kernel of `ricci_kernels`. They are registered with
`torch.library` as ``ricci_gpu::maxsim`` and ``ricci_gpu::token_maxima``, so that a model that calls
them can be compiled and exported. MaxSim has gradients with respect to
both token matrices (those of the largest similarity; the first of equals).
"""

from collections.abc import Iterator
from typing import Any

import torch
from einops import rearrange

from ricci_gpu.batch import TokenPool
from ricci_gpu.ops.kernels import require_kernels
from ricci_gpu.ops.packed_maxima import fill_maxima, is_compiled
from ricci_gpu.shapes import Bool, Float, Int, Tensor

# So many document tokens are gathered, widened or multiplied at a time; their similarities with one
# query (32 x 4 bytes each) stay in the second-level cache until the maximum reads them.
TOKENS_AT_ONCE = 4096


def token_maxima_reference(
    query_tokens: Float[Tensor, "Tq D"],
    query_offsets: Int[Tensor, "Bplus1"],
    document_tokens: Float[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
) -> Float[Tensor, "P L"]:
    """What `token_maxima` must return, one pair at a time."""
    width = longest_query(query_offsets)
    maxima = torch.full((len(pair_query), width), -torch.inf, device=query_tokens.device)
    for pair, (q, d) in enumerate(zip(pair_query.tolist(), pair_document.tolist(), strict=True)):
        if q < 0 or d < 0:
            continue
        query = query_tokens[query_offsets[q] : query_offsets[q + 1]].float()
        document = document_tokens[document_offsets[d] : document_offsets[d + 1]].float()
        if len(document):
            maxima[pair, : len(query)] = (query @ document.mT).amax(dim=1)
    return maxima


def token_maxima(
    query_tokens: Float[Tensor, "Tq D"],
    query_offsets: Int[Tensor, "Bplus1"],
    document_tokens: Float[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
    width: int | None = None,
) -> Float[Tensor, "P L"]:
    """Per pair and query token, the largest similarity with a token of the document.

    Columns past the query's own length are ``-inf``. Pairs may come in any order; those of one
    query are fastest side by side.

    Args:
        width: columns ``L`` of the result, at least the longest query; by default just that,
            which reads the offsets (give it under `torch.compile`).
    """
    return torch.ops.ricci_gpu.token_maxima(
        query_tokens,
        query_offsets,
        document_tokens,
        document_offsets,
        pair_query,
        pair_document,
        longest_query(query_offsets) if width is None else width,
    )


def maxsim(
    query_tokens: Float[Tensor, "Tq D"],
    query_offsets: Int[Tensor, "Bplus1"],
    document_tokens: Float[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
) -> Float[Tensor, "P"]:
    """MaxSim of every (query, document) pair; see the module for the edge cases."""
    return torch.ops.ricci_gpu.maxsim(
        query_tokens, query_offsets, document_tokens, document_offsets, pair_query, pair_document
    )


def longest_query(query_offsets: Int[Tensor, "Bplus1"]) -> int:
    """Tokens of the longest query."""
    return int(query_offsets.diff().max()) if len(query_offsets) > 1 else 0


def pool_maxima(tokens: TokenPool) -> Float[Tensor, "B L K"]:
    """``A[b, i, c]`` for a padded batch: query token i against candidate c, else ``-inf``."""
    present = tokens.document_of >= 0
    pair_query, column = present.nonzero(as_tuple=True)
    maxima = token_maxima(
        tokens.query_tokens,
        tokens.query_offsets,
        tokens.document_tokens,
        tokens.document_offsets,
        pair_query,
        tokens.document_of[present],
    )
    batch, candidates = present.shape
    padded = maxima.new_full((batch, candidates, maxima.shape[1]), -torch.inf)
    padded[pair_query, column] = maxima
    return rearrange(padded, "B K L -> B L K")


def query_token_mask(tokens: TokenPool, size: int) -> Bool[Tensor, "B L"]:
    """Which of the ``size`` padded token places of each query are real."""
    count = tokens.query_offsets.diff()
    return torch.arange(size, device=count.device)[None, :] < count[:, None]


def maxsim_from_maxima(
    maxima: Float[Tensor, "B L K"], token_mask: Bool[Tensor, "B L"]
) -> Float[Tensor, "B K"]:
    """Sum of the per-token maxima over the real query tokens."""
    return torch.where(token_mask[..., None], maxima, 0.0).sum(dim=1)


torch.library.define(
    "ricci_gpu::token_maxima",
    "(Tensor query_tokens, Tensor query_offsets, Tensor document_tokens, Tensor document_offsets,"
    " Tensor pair_query, Tensor pair_document, int width) -> Tensor",
)
torch.library.define(
    "ricci_gpu::maxsim",
    "(Tensor query_tokens, Tensor query_offsets, Tensor document_tokens, Tensor document_offsets,"
    " Tensor pair_query, Tensor pair_document) -> Tensor",
)
torch.library.define(
    "ricci_gpu::maxsim_backward",
    "(Tensor gradient, Tensor query_tokens, Tensor query_offsets, Tensor document_tokens,"
    " Tensor document_offsets, Tensor pair_query, Tensor pair_document) -> (Tensor, Tensor)",
)


def _token_maxima_cuda(*arguments: Any) -> Tensor:
    require_kernels("MaxSim on a CUDA device")
    from ricci_kernels.maxsim import token_maxima_pairs

    return token_maxima_pairs(*arguments)[1]


def _maxsim_cuda(*arguments: Any) -> Tensor:
    require_kernels("MaxSim on a CUDA device")
    from ricci_kernels.maxsim import maxsim_pairs

    return maxsim_pairs(*arguments)


def _token_maxima_cpu(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
    width: int,
) -> Tensor:
    query_tokens = _wide(query_tokens)
    maxima = query_tokens.new_full((len(pair_query), width), -torch.inf)
    pairs = pair_query, pair_document
    fill = _fill_compiled if is_compiled() else _fill_by_products
    fill(query_tokens, query_offsets, document_tokens, document_offsets, *pairs, maxima)
    return maxima


def _fill_compiled(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
    maxima: Tensor,
) -> None:
    real = ((pair_query >= 0) & (pair_document >= 0)).nonzero()[:, 0]
    everything = len(real) == len(pair_query)
    queries = query_tokens.contiguous(), query_offsets.contiguous()
    if document_tokens.dtype == query_tokens.dtype:
        target = maxima if everything else maxima[real]
        fill_maxima(
            *queries,
            document_tokens.contiguous(),
            document_offsets.contiguous(),
            pair_query[real],
            pair_document[real],
            target,
        )
        if not everything:
            maxima[real] = target
        return
    # Other types are widened a few documents at a time, and only those that a pair reads.
    counts = document_offsets.diff()[pair_document[real]]
    for first, last in _blocks([0] * len(real), counts.tolist()):
        pairs, count = real[first:last], counts[first:last]
        rows = _document_rows(document_offsets[pair_document[pairs]], count)
        target = maxima[pairs]
        fill_maxima(
            *queries,
            document_tokens[rows].to(query_tokens.dtype),
            torch.cat([count.new_zeros(1), count.cumsum(0)]),
            pair_query[pairs],
            torch.arange(len(pairs)),
            target,
        )
        maxima[pairs] = target


def _fill_by_products(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
    maxima: Tensor,
) -> None:
    similarities = _similarities(
        query_tokens, query_offsets, document_tokens, document_offsets, pair_query, pair_document
    )
    for first, lengths, similarity, _ in similarities:
        columns = similarity.shape[1]
        rows = maxima[first : first + len(lengths), :columns].unbind(0)
        for count, part, row in zip(lengths, similarity.split(lengths), rows, strict=True):
            if count:
                torch.amax(part, dim=0, out=row)


def _maxsim_cpu(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
) -> Tensor:
    maxima = _token_maxima_cpu(
        query_tokens,
        query_offsets,
        document_tokens,
        document_offsets,
        pair_query,
        pair_document,
        longest_query(query_offsets),
    )
    skipped = (pair_query < 0) | (pair_document < 0)
    count = query_offsets.diff()[pair_query.clamp(min=0)]
    real = torch.arange(maxima.shape[1])[None, :] < count[:, None]
    empty = document_offsets.diff()[pair_document.clamp(min=0)] == 0
    score = torch.where(real, maxima, 0.0).sum(dim=1)
    return torch.where(skipped | empty, -torch.inf, score)


def _maxsim_backward(
    gradient: Tensor,
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
) -> tuple[Tensor, Tensor]:
    """Every query token pulls at the document token it matched best, and the other way round.

    The similarities are computed again rather than kept: training reads each batch once.
    """
    to_query = torch.zeros_like(query_tokens, dtype=_wide_type(query_tokens))
    to_document = torch.zeros_like(document_tokens, dtype=_wide_type(query_tokens))
    similarities = _similarities(
        _wide(query_tokens),
        query_offsets,
        document_tokens,
        document_offsets,
        pair_query,
        pair_document,
    )
    for first, lengths, similarity, rows in similarities:
        q = int(pair_query[first])
        own = slice(int(query_offsets[q]), int(query_offsets[q + 1]))
        start = 0
        for pair, part in enumerate(similarity.split(lengths), start=first):
            if len(part):
                best = rows[start + part.argmax(dim=0)]
                pull = gradient[pair].to(to_query.dtype)
                to_query[own] += pull * document_tokens[best].to(to_query.dtype)
                to_document.index_add_(0, best, pull * query_tokens[own].to(to_query.dtype))
            start += len(part)
    return to_query.to(query_tokens.dtype), to_document.to(document_tokens.dtype)


def _token_maxima_shape(query_tokens: Tensor, *rest: Any) -> Tensor:
    pair_query, width = rest[3], rest[5]
    return query_tokens.new_empty((len(pair_query), width), dtype=_wide_type(query_tokens))


def _maxsim_shape(query_tokens: Tensor, *rest: Any) -> Tensor:
    return query_tokens.new_empty(rest[3].shape, dtype=_wide_type(query_tokens))


def _maxsim_backward_shape(gradient: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    return torch.empty_like(rest[0]), torch.empty_like(rest[2])


def _keep_inputs(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _pull_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    to_query, to_document = torch.ops.ricci_gpu.maxsim_backward(gradient, *ctx.saved_tensors)
    return to_query, None, to_document, None, None, None


torch.library.impl("ricci_gpu::token_maxima", "cpu", _token_maxima_cpu)
torch.library.impl("ricci_gpu::token_maxima", "cuda", _token_maxima_cuda)
torch.library.register_fake("ricci_gpu::token_maxima", _token_maxima_shape)
torch.library.impl("ricci_gpu::maxsim", "cpu", _maxsim_cpu)
torch.library.impl("ricci_gpu::maxsim", "cuda", _maxsim_cuda)
torch.library.register_fake("ricci_gpu::maxsim", _maxsim_shape)
torch.library.register_autograd("ricci_gpu::maxsim", _pull_back, setup_context=_keep_inputs)
torch.library.impl("ricci_gpu::maxsim_backward", ("cpu", "cuda"), _maxsim_backward)
torch.library.register_fake("ricci_gpu::maxsim_backward", _maxsim_backward_shape)


def _similarities(
    query_tokens: Tensor,
    query_offsets: Tensor,
    document_tokens: Tensor,
    document_offsets: Tensor,
    pair_query: Tensor,
    pair_document: Tensor,
) -> Iterator[tuple[int, list[int], Tensor, Tensor]]:
    """Blocks of pairs of one query: first pair, tokens per pair, similarities, document rows.

    Similarities have shape (tokens of the documents end to end, tokens of the query).
    """
    documents = torch.where(pair_query < 0, -1, pair_document)
    counts = torch.where(documents < 0, 0, document_offsets.diff()[documents.clamp(min=0)])
    starts = document_offsets[documents.clamp(min=0)]
    for first, last in _blocks(pair_query.tolist(), counts.tolist()):
        count, start = counts[first:last], starts[first:last]
        q = int(pair_query[first])
        if q < 0 or int(count.sum()) == 0:
            continue
        # The product reads its right side in rows, which is a fifth faster on one thread.
        query = query_tokens[query_offsets[q] : query_offsets[q + 1]].mT.contiguous()
        end = start + count
        if bool((start[1:] == end[:-1]).all()):  # the documents lie end to end: no copy
            rows = torch.arange(int(start[0]), int(end[-1]), device=count.device)
            tokens = document_tokens[int(start[0]) : int(end[-1])]
        else:
            rows = _document_rows(start, count)
            tokens = document_tokens[rows]
        yield first, count.tolist(), torch.mm(tokens.to(query.dtype), query), rows


def _document_rows(start: Tensor, count: Tensor) -> Tensor:
    """Rows of the tokens of documents that begin at ``start``, end to end."""
    shift = start - (count.cumsum(0) - count)
    return torch.arange(int(count.sum()), device=count.device) + shift.repeat_interleave(count)


def _blocks(queries: list[int], counts: list[int]) -> Iterator[tuple[int, int]]:
    """Runs of pairs with one query and at most TOKENS_AT_ONCE document tokens (or one pair)."""
    first = tokens = 0
    for pair, (query, count) in enumerate(zip(queries, counts, strict=True)):
        if pair > first and (query != queries[first] or tokens + count > TOKENS_AT_ONCE):
            yield first, pair
            first, tokens = pair, 0
        tokens += count
    if queries:
        yield first, len(queries)


def _wide_type(tokens: Tensor) -> torch.dtype:
    return torch.float64 if tokens.dtype == torch.float64 else torch.float32


def _wide(tokens: Tensor) -> Tensor:
    return tokens.to(_wide_type(tokens))
