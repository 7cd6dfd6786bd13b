"""MaxSim, the late-interaction score of ColBERT (Khattab and Zaharia 2020), over packed tokens.

The score of a (query, document) pair is the sum over query tokens of the largest dot product with
a token of the document. Semantics, the same on every path:

* only real tokens count: nothing stands in for a masked one, so negative similarities survive;
* an empty document has the maximum ``-inf`` for every token and scores ``-inf``, below any real
  one; an empty query scores 0;
* a NaN in a real token makes the scores that read it NaN; it is never dropped;
* sums accumulate in float32 or better.
"""

import torch

from ricci_gpu.batch import TokenPool
from ricci_gpu.shapes import Float, Int, Tensor


def token_maxima_reference(
    query_tokens: Float[Tensor, "Tq D"],
    query_offsets: Int[Tensor, "Bplus1"],
    document_tokens: Float[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
) -> Float[Tensor, "P L"]:
    """What `token_maxima` must return, one pair at a time."""
    longest = int(query_offsets.diff().max()) if len(query_offsets) > 1 else 0
    maxima = torch.full((len(pair_query), longest), -torch.inf, device=query_tokens.device)
    for pair, (q, d) in enumerate(zip(pair_query.tolist(), pair_document.tolist(), strict=True)):
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
) -> Float[Tensor, "P L"]:
    """Per pair and query token, the largest similarity with a token of the document.

    Columns past the query's own length are ``-inf``. Pairs may come in any order; those of one
    query are fastest side by side. One matrix product per run of pairs with the same query, then a
    segmented maximum: nothing is padded, and a result depends only on its own query and document.
    """
    longest = int(query_offsets.diff().max()) if len(query_offsets) > 1 else 0
    maxima = torch.full((len(pair_query), longest), -torch.inf, device=query_tokens.device)
    lengths = document_offsets.diff()
    queries, runs = torch.unique_consecutive(pair_query, return_counts=True)
    first = 0
    for q, run in zip(queries.tolist(), runs.tolist(), strict=True):
        documents = pair_document[first : first + run]
        query = query_tokens[query_offsets[q] : query_offsets[q + 1]].float()
        tokens = _gather(document_tokens, document_offsets, lengths, documents)
        if len(tokens) and len(query):
            similarity = tokens.float() @ query.mT  # (tokens of the run, tokens of the query)
            maxima[first : first + run, : len(query)] = _segment_max(similarity, lengths[documents])
        first += run
    return maxima


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
    return padded.mT


def query_token_mask(tokens: TokenPool, size: int) -> Tensor:
    """Which of the ``size`` padded token places of each query are real, shape (B, L)."""
    count = tokens.query_offsets.diff()
    return torch.arange(size, device=count.device)[None, :] < count[:, None]


def maxsim_from_maxima(maxima: Float[Tensor, "B L K"], token_mask: Tensor) -> Float[Tensor, "B K"]:
    """Sum of the per-token maxima over the real query tokens, in float32 or better."""
    return torch.where(token_mask[..., None], maxima, 0.0).sum(dim=1)


def maxsim(
    query_tokens: Float[Tensor, "Tq D"],
    query_offsets: Int[Tensor, "Bplus1"],
    document_tokens: Float[Tensor, "Td D"],
    document_offsets: Int[Tensor, "Mplus1"],
    pair_query: Int[Tensor, "P"],
    pair_document: Int[Tensor, "P"],
) -> Float[Tensor, "P"]:
    """MaxSim of every (query, document) pair; see the module for the edge cases."""
    maxima = token_maxima(
        query_tokens, query_offsets, document_tokens, document_offsets, pair_query, pair_document
    )
    count = query_offsets.diff()[pair_query]
    real = torch.arange(maxima.shape[1], device=maxima.device)[None, :] < count[:, None]
    return torch.where(real, maxima, 0.0).sum(dim=1)


def _gather(
    document_tokens: Float[Tensor, "Td D"],
    offsets: Int[Tensor, "Mplus1"],
    lengths: Int[Tensor, "M"],
    documents: Int[Tensor, "n"],
) -> Float[Tensor, "t D"]:
    """The tokens of some documents end to end; a view where they already lie so."""
    if len(documents) == 0:
        return document_tokens[:0]
    low, high = int(documents[0]), int(documents[-1])
    if high - low + 1 == len(documents) and bool((documents.diff() == 1).all()):
        return document_tokens[offsets[low] : offsets[high + 1]]
    count = lengths[documents]
    inside = torch.arange(int(count.sum()), device=offsets.device)
    inside -= (count.cumsum(0) - count).repeat_interleave(count)
    return document_tokens[offsets[documents].repeat_interleave(count) + inside]


def _segment_max(
    similarity: Float[Tensor, "t L"], lengths: Int[Tensor, "n"]
) -> Float[Tensor, "n L"]:
    """Maximum of each run of rows; ``-inf`` for an empty run; NaN where a run holds one."""
    rows = [
        part.amax(dim=0) if len(part) else part.new_full(part.shape[1:], -torch.inf)
        for part in similarity.split(lengths.tolist())
    ]
    return torch.stack(rows)
