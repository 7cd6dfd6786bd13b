"""MaxSim, the late-interaction score of ColBERT (Khattab and Zaharia 2020), over packed tokens.

The score of a (query, document) pair is the sum over query tokens of the largest dot product with
a token of the document. Semantics, the same on every path:

* only real tokens count: nothing stands in for a masked one, so negative similarities survive;
* an empty document has the maximum ``-inf`` for every token and scores ``-inf``, below any real
  one; an empty query scores 0 against a document that has a token;
* a NaN in a real token makes the scores that read it NaN; it is never dropped;
* a negative index in a pair stands for no pair: it costs nothing and scores ``-inf``;
* products and sums are in float32 (float64 for float64 tokens);
* int8 documents carry a factor per token, ``document_scales``. On a CUDA device they need 16-bit
  queries. Documents compressed further are widened to one of these types first.

CPU tensors take the compiled kernel of `packed_maxima`, or packed matrix products where numba is
missing; CUDA tensors take the Triton kernel of `ricci_kernels`. They are registered with
`torch.library` as ``ricci_gpu::maxsim`` and ``ricci_gpu::token_maxima``, so that a model that calls
them can be compiled and exported. MaxSim has gradients with respect to
both token matrices (those of the largest similarity; the first of equals).
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import torch
from einops import rearrange

from ricci_gpu.batch import TokenPool
from ricci_gpu.errors import InputError
from ricci_gpu.ops.kernels import require_kernels
from ricci_gpu.ops.packed_maxima import fill_maxima, is_compiled, widens
from ricci_gpu.shapes import Bool, Float, Int, Tensor

# So many document tokens are gathered, widened or multiplied at a time; their similarities with one
# query (32 x 4 bytes each) stay in the second-level cache until the maximum reads them.
TOKENS_AT_ONCE = 4096

Precision = Literal["ieee", "tf32", "tf32x3"]


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
    document_tokens: Float[Tensor, "Td D"] | Int[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
    width: int | None = None,
    document_scales: Float[Tensor, "Td"] | None = None,
    precision: Precision = "ieee",
) -> Float[Tensor, "P L"]:
    """Per pair and query token, the largest similarity with a token of the document.

    Columns past the query's own length are ``-inf``. Pairs may come in any order; those of one
    query are fastest side by side.

    Args:
        width: columns ``L`` of the result, at least the longest query; by default just that,
            which reads the offsets (give it under `torch.compile`).
        document_scales: the factor of each document token, with int8 documents only.
        precision: of float32 products on a CUDA device: ``ieee`` (exact), ``tf32`` (fast, about
            1e-3) or ``tf32x3`` (three tf32 products, near float32). Other products are exact.
    """
    return torch.ops.ricci_gpu.token_maxima(
        query_tokens,
        query_offsets,
        document_tokens,
        document_offsets,
        pair_query,
        pair_document,
        longest_query(query_offsets) if width is None else width,
        _checked_scales(document_tokens, document_scales),
        precision,
    )


def maxsim(
    query_tokens: Float[Tensor, "Tq D"],
    query_offsets: Int[Tensor, "Bplus1"],
    document_tokens: Float[Tensor, "Td D"] | Int[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
    document_scales: Float[Tensor, "Td"] | None = None,
    precision: Precision = "ieee",
) -> Float[Tensor, "P"]:
    """MaxSim of every (query, document) pair; see the module for the edge cases.

    ``document_scales`` and ``precision`` are those of `token_maxima`.
    """
    return torch.ops.ricci_gpu.maxsim(
        query_tokens,
        query_offsets,
        document_tokens,
        document_offsets,
        pair_query,
        pair_document,
        _checked_scales(document_tokens, document_scales),
        precision,
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
        document_scales=tokens.document_scales,
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
    " Tensor pair_query, Tensor pair_document, int width, Tensor? document_scales=None,"
    " str precision='ieee') -> Tensor",
)
torch.library.define(
    "ricci_gpu::maxsim",
    "(Tensor query_tokens, Tensor query_offsets, Tensor document_tokens, Tensor document_offsets,"
    " Tensor pair_query, Tensor pair_document, Tensor? document_scales=None,"
    " str precision='ieee') -> Tensor",
)
torch.library.define(
    "ricci_gpu::maxsim_backward",
    "(Tensor gradient, Tensor query_tokens, Tensor query_offsets, Tensor document_tokens,"
    " Tensor document_offsets, Tensor pair_query, Tensor pair_document,"
    " Tensor? document_scales=None) -> (Tensor, Tensor)",
)


class _Request(NamedTuple):
    """What both operators take; the dispatcher leaves out options that stand at their defaults."""

    query_tokens: Tensor
    query_offsets: Tensor
    document_tokens: Tensor
    document_offsets: Tensor
    pair_query: Tensor
    pair_document: Tensor
    document_scales: Tensor | None = None
    precision: str = "ieee"

    @property
    def queries(self) -> Tensor:
        """Query tokens in the type of the products."""
        return self.query_tokens.to(_wide_type(self.query_tokens))

    def documents(self, rows: Tensor | slice) -> Tensor:
        """Some rows of the document tokens in the type of the products."""
        tokens = self.document_tokens[rows].to(_wide_type(self.query_tokens))
        scales = self.document_scales
        return tokens if scales is None else tokens * scales[rows, None]


def _token_maxima_cuda(*arguments: Any) -> Tensor:
    require_kernels("MaxSim on a CUDA device")
    from ricci_kernels.maxsim import token_maxima_pairs

    request, width = _of_one_type(_Request(*arguments[:6], *arguments[7:])), arguments[6]
    options = {"precision": request.precision, "document_scales": request.document_scales}
    return token_maxima_pairs(*request[:6], width, **options)[1]


def _maxsim_cuda(*arguments: Any) -> Tensor:
    require_kernels("MaxSim on a CUDA device")
    from ricci_kernels.maxsim import maxsim_pairs

    request = _of_one_type(_Request(*arguments))
    options = {"precision": request.precision, "document_scales": request.document_scales}
    return maxsim_pairs(*request[:6], **options)


def _of_one_type(request: _Request) -> _Request:
    """Documents that were kept in half precision, as wide as the queries: kernels cast nothing."""
    query_tokens, document_tokens = request.query_tokens, request.document_tokens
    if request.document_scales is not None or query_tokens.dtype == document_tokens.dtype:
        return request
    wide = torch.promote_types(query_tokens.dtype, document_tokens.dtype)
    return request._replace(
        query_tokens=query_tokens.to(wide), document_tokens=document_tokens.to(wide)
    )


def _token_maxima_cpu(*arguments: Any) -> Tensor:
    return _maxima_on_cpu(_Request(*arguments[:6], *arguments[7:]), arguments[6])


def _maxsim_cpu(*arguments: Any) -> Tensor:
    request = _Request(*arguments)
    maxima = _maxima_on_cpu(request, longest_query(request.query_offsets))
    skipped = (request.pair_query < 0) | (request.pair_document < 0)
    count = request.query_offsets.diff()[request.pair_query.clamp(min=0)]
    real = torch.arange(maxima.shape[1])[None, :] < count[:, None]
    empty = request.document_offsets.diff()[request.pair_document.clamp(min=0)] == 0
    score = torch.where(real, maxima, 0.0).sum(dim=1)
    return torch.where(skipped | empty, -torch.inf, score)


def _maxima_on_cpu(request: _Request, width: int) -> Tensor:
    queries = request.queries
    maxima = queries.new_full((len(request.pair_query), width), -torch.inf)
    if is_compiled():
        _fill_compiled(request, queries, maxima)
    else:
        _fill_by_products(request, queries, maxima)
    return maxima


def _fill_compiled(request: _Request, queries: Tensor, maxima: Tensor) -> None:
    tokens, offsets = request.document_tokens, request.document_offsets.long().contiguous()
    owned = queries.contiguous(), request.query_offsets.long().contiguous()
    real = ((request.pair_query >= 0) & (request.pair_document >= 0)).nonzero()[:, 0]
    pair_query, pair_document = request.pair_query[real].long(), request.pair_document[real].long()
    _require_there(pair_query, len(owned[1]) - 1, "query")
    _require_there(pair_document, len(offsets) - 1, "document")
    target = maxima if len(real) == len(maxima) else maxima[real]
    if widens(tokens, queries) and request.document_scales is None:
        fill_maxima(*owned, tokens.contiguous(), offsets, pair_query, pair_document, target)
    else:
        # Other types are widened a few documents at a time, and only those that a pair reads.
        counts = offsets.diff()[pair_document]
        for first, last in _blocks([0] * len(real), counts.tolist()):
            count, one = counts[first:last], slice(first, last)
            local = torch.cat([count.new_zeros(1), count.cumsum(0)])
            places = torch.arange(last - first)
            wide = request.documents(_document_rows(offsets[pair_document[one]], count))
            fill_maxima(*owned, wide, local, pair_query[one], places, target[one])
    if target is not maxima:
        maxima[real] = target


def _require_there(pairs: Tensor, count: int, what: str) -> None:
    """The compiled kernel reads whatever memory an index points at."""
    if len(pairs) and int(pairs.max()) >= count:
        raise InputError(
            f"`pair_{what}` must hold numbers below {count}, one per {what}; got "
            f"{int(pairs.max())}. Check it against the offsets."
        )


def _fill_by_products(request: _Request, queries: Tensor, maxima: Tensor) -> None:
    for first, lengths, similarity, _ in _similarities(request, queries):
        columns = similarity.shape[1]
        rows = maxima[first : first + len(lengths), :columns].unbind(0)
        for count, part, row in zip(lengths, similarity.split(lengths), rows, strict=True):
            if count:
                torch.amax(part, dim=0, out=row)


def _maxsim_backward(gradient: Tensor, *arguments: Any) -> tuple[Tensor, Tensor]:
    """Every query token pulls at the document token it matched best, and the other way round.

    The similarities are computed again rather than kept: training reads each batch once. For int8
    documents the second gradient is that of the widened tokens, which nothing asks for.
    """
    request = _Request(*arguments)
    queries = request.queries
    to_query = torch.zeros_like(queries)
    to_document = torch.zeros_like(request.document_tokens, dtype=queries.dtype)
    for first, lengths, similarity, rows in _similarities(request, queries):
        q = int(request.pair_query[first])
        own = slice(int(request.query_offsets[q]), int(request.query_offsets[q + 1]))
        start = 0
        for pair, part in enumerate(similarity.split(lengths), start=first):
            if len(part):
                best = rows[start + part.argmax(dim=0)]
                pull = gradient[pair].to(queries.dtype)
                to_query[own] += pull * request.documents(best)
                to_document.index_add_(0, best, pull * queries[own])
            start += len(part)
    like = request.document_tokens.dtype
    to_document = to_document.to(like) if like.is_floating_point else to_document
    return to_query.to(request.query_tokens.dtype), to_document


def _token_maxima_shape(query_tokens: Tensor, *rest: Any) -> Tensor:
    pair_query, width = rest[3], rest[5]
    return query_tokens.new_empty((len(pair_query), width), dtype=_wide_type(query_tokens))


def _maxsim_shape(query_tokens: Tensor, *rest: Any) -> Tensor:
    return query_tokens.new_empty(rest[3].shape, dtype=_wide_type(query_tokens))


def _maxsim_backward_shape(gradient: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    queries, documents = rest[0], rest[2]
    like = documents.dtype if documents.dtype.is_floating_point else _wide_type(queries)
    return torch.empty_like(queries), torch.empty_like(documents, dtype=like)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    request = _Request(*inputs)
    ctx.save_for_backward(*request[:7])


def _pull_back(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
    to_query, to_document = torch.ops.ricci_gpu.maxsim_backward(gradient, *ctx.saved_tensors)
    learnt = ctx.saved_tensors[2].dtype.is_floating_point
    return to_query, None, to_document if learnt else None, None, None, None, None, None


torch.library.impl("ricci_gpu::token_maxima", "cpu", _token_maxima_cpu)
torch.library.impl("ricci_gpu::token_maxima", "cuda", _token_maxima_cuda)
torch.library.register_fake("ricci_gpu::token_maxima", _token_maxima_shape)
torch.library.impl("ricci_gpu::maxsim", "cpu", _maxsim_cpu)
torch.library.impl("ricci_gpu::maxsim", "cuda", _maxsim_cuda)
torch.library.register_fake("ricci_gpu::maxsim", _maxsim_shape)
torch.library.register_autograd("ricci_gpu::maxsim", _pull_back, setup_context=_keep_inputs)
torch.library.impl("ricci_gpu::maxsim_backward", ("cpu", "cuda"), _maxsim_backward)
torch.library.register_fake("ricci_gpu::maxsim_backward", _maxsim_backward_shape)


def _checked_scales(
    document_tokens: Tensor, document_scales: Tensor | None
) -> Float[Tensor, "Td"] | None:
    if document_tokens.dtype.is_floating_point:
        if document_scales is not None:
            raise InputError(
                f"`document_scales` belong to int8 documents; got {document_tokens.dtype}. "
                "Leave them out."
            )
        return None
    if document_tokens.dtype is not torch.int8 or document_scales is None:
        scales = "none" if document_scales is None else "some"
        raise InputError(
            "document tokens must be floating-point, or int8 with `document_scales`, one factor "
            f"per token; got {document_tokens.dtype} with {scales}. Convert them."
        )
    return document_scales


def _similarities(
    request: _Request, queries: Tensor
) -> Iterator[tuple[int, list[int], Tensor, Tensor]]:
    """Blocks of pairs of one query: first pair, tokens per pair, similarities, document rows.

    Similarities have shape (tokens of the documents end to end, tokens of the query).
    """
    offsets, pair_query = request.document_offsets, request.pair_query
    documents = torch.where(pair_query < 0, -1, request.pair_document)
    counts = torch.where(documents < 0, 0, offsets.diff()[documents.clamp(min=0)])
    starts = offsets[documents.clamp(min=0)]
    for first, last in _blocks(pair_query.tolist(), counts.tolist()):
        count, start = counts[first:last], starts[first:last]
        q = int(pair_query[first])
        if q < 0 or int(count.sum()) == 0:
            continue
        # The product reads its right side in rows, which is a fifth faster on one thread.
        query = queries[request.query_offsets[q] : request.query_offsets[q + 1]].mT.contiguous()
        rows = _document_rows(start, count)
        end = start + count
        if bool((start[1:] == end[:-1]).all()):  # the documents lie end to end: no copy
            tokens = request.documents(slice(int(start[0]), int(end[-1])))
        else:
            tokens = request.documents(rows)
        yield first, count.tolist(), torch.mm(tokens, query), rows


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
