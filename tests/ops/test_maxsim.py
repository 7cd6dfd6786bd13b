"""MaxSim and its per-token maxima, against loops in float64."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ricci_gpu.batch import TokenPool
from ricci_gpu.errors import InputError
from ricci_gpu.ops.maxsim import (
    maxsim,
    maxsim_from_maxima,
    pool_maxima,
    query_token_mask,
    token_maxima,
    token_maxima_reference,
)

INF, NAN = float("inf"), float("nan")
WIDTH = 16


@pytest.fixture(params=["compiled", "products"])
def route(request, monkeypatch) -> str:
    """Each of the two CPU routes."""
    if request.param == "products":
        monkeypatch.setattr("ricci_gpu.ops.maxsim.is_compiled", lambda: False)
    else:
        pytest.importorskip("numba")
    return request.param


def _packed(lengths: list[int], seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Unit vectors end to end, and their offsets."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(sum(lengths), WIDTH))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return torch.tensor(rows, dtype=torch.float32), torch.tensor(offsets, dtype=torch.int64)


def _loops(queries, q_offsets, documents, d_offsets, pair_query, pair_document) -> np.ndarray:
    """Maxima in float64, one token at a time; NaN beyond the tokens of a query."""
    q, d = queries.double().numpy(), documents.double().numpy()
    longest = int(np.diff(q_offsets).max(initial=0))
    maxima = np.full((len(pair_query), longest), NAN)
    for pair, (i, j) in enumerate(zip(pair_query.tolist(), pair_document.tolist(), strict=True)):
        for place, token in enumerate(q[q_offsets[i] : q_offsets[i + 1]]):
            similarities = [float(token @ other) for other in d[d_offsets[j] : d_offsets[j + 1]]]
            maxima[pair, place] = max(similarities, default=-INF)
    return maxima


@st.composite
def requests(draw):
    """Ragged queries and documents, some empty; pairs repeated, shared and unsorted."""
    q_lengths = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    d_lengths = draw(st.lists(st.integers(0, 5), min_size=1, max_size=6))
    pair = st.tuples(st.integers(0, len(q_lengths) - 1), st.integers(0, len(d_lengths) - 1))
    pairs = draw(st.lists(pair, max_size=12))
    seed = draw(st.integers(0, 1000))
    index = torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)
    return (*_packed(q_lengths, seed), *_packed(d_lengths, seed + 1), index[:, 0], index[:, 1])


# The route is fixed for all examples of a run.
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request_=requests())
def test_maxima_and_scores_equal_loops_in_float64(route, request_):
    expected = _loops(*request_)
    real = ~np.isnan(expected)
    for compute in (token_maxima, token_maxima_reference):
        got = compute(*request_).numpy()
        assert (got[~real] == -INF).all()
        np.testing.assert_allclose(got[real], expected[real], rtol=0, atol=1e-6)
    _, _, _, d_offsets, _, pair_document = request_
    empty = d_offsets.diff()[pair_document].numpy() == 0
    score = np.where(empty, -INF, np.where(real, expected, 0).sum(axis=1))
    np.testing.assert_allclose(maxsim(*request_).numpy(), score, rtol=0, atol=4e-6)


def test_negative_similarities_survive(route):
    """A padded token of zeros would win over every one of them."""
    query = torch.eye(WIDTH)[:2]
    documents = torch.cat([-torch.eye(WIDTH)[:1] - 0.5 * torch.eye(WIDTH)[1:2], torch.eye(WIDTH)])
    q_offsets, d_offsets = torch.tensor([0, 2]), torch.tensor([0, 1, 1 + WIDTH])
    pairs = torch.tensor([0, 0]), torch.tensor([0, 1])
    assert token_maxima(query, q_offsets, documents, d_offsets, *pairs)[0].tolist() == [-1.0, -0.5]
    assert maxsim(query, q_offsets, documents, d_offsets, *pairs).tolist() == [-1.5, 2.0]


def test_empty_documents_score_minus_infinity_and_empty_queries_zero(route):
    queries, q_offsets = _packed([3, 0], 0)
    documents, d_offsets = _packed([0, 2], 1)
    pair_query, pair_document = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    score = maxsim(queries, q_offsets, documents, d_offsets, pair_query, pair_document)
    assert score[0] == -INF
    assert torch.isfinite(score[1])
    assert score[2:].tolist() == [-INF, 0.0]


def test_a_negative_index_stands_for_no_pair(route):
    request_ = (*_packed([3, 2], 0), *_packed([4, 2], 1))
    pair_query, pair_document = torch.tensor([0, -1, 1, 0]), torch.tensor([1, 0, -1, 0])
    scores = maxsim(*request_, pair_query, pair_document)
    assert scores[1:3].tolist() == [-INF, -INF]
    assert torch.equal(scores[[0, 3]], maxsim(*request_, pair_query[[0, 3]], pair_document[[0, 3]]))
    assert (token_maxima(*request_, pair_query, pair_document)[1:3] == -INF).all()


def test_float64_tokens_are_scored_in_float64(route):
    queries, q_offsets = _packed([5], 0)
    documents, d_offsets = _packed([6], 1)
    pair = torch.tensor([0]), torch.tensor([0])
    score = maxsim(queries.double(), q_offsets, documents.double(), d_offsets, *pair)
    expected = (queries.double() @ documents.double().T).amax(dim=1).sum()
    assert score.dtype == torch.float64
    assert float(score) == pytest.approx(float(expected), rel=1e-14)


@pytest.mark.parametrize("compute", [token_maxima, token_maxima_reference])
def test_nan_in_a_real_token_reaches_the_scores_that_read_it_and_no_other(compute, route):
    queries, q_offsets = _packed([2, 2], 0)
    documents, d_offsets = _packed([3, 3], 1)
    documents[1, 4] = NAN
    pairs = torch.tensor([0, 0, 1, 1]), torch.tensor([0, 1, 0, 1])
    maxima = compute(queries, q_offsets, documents, d_offsets, *pairs)
    assert torch.isnan(maxima).all(dim=1).tolist() == [True, False, True, False]
    assert not torch.isnan(maxima[1::2]).any()
    scores = maxsim(queries, q_offsets, documents, d_offsets, *pairs)
    assert torch.isnan(scores).tolist() == [True, False, True, False]
    documents[1, 4] = 0.0
    queries[3, 0] = NAN  # second token of the second query
    maxima = compute(queries, q_offsets, documents, d_offsets, *pairs)
    assert torch.isnan(maxima).tolist() == [[False] * 2] * 2 + [[False, True]] * 2


def test_half_precision_tokens_are_summed_in_float32(route):
    queries, q_offsets = _packed([32], 0)
    documents, d_offsets = _packed([40], 1)
    pair = torch.tensor([0]), torch.tensor([0])
    half = queries.half(), q_offsets, documents.half(), d_offsets
    score = maxsim(*half, *pair)
    assert score.dtype == torch.float32
    widened = maxsim(half[0].float(), q_offsets, half[2].float(), d_offsets, *pair)
    assert torch.equal(score, widened)


def test_documents_in_half_precision_score_as_when_widened_before_bit_for_bit(route):
    """Every number there is, the smallest, both zeros, infinity and NaN among them."""
    every = torch.arange(-(2**15), 2**15, dtype=torch.int64).to(torch.int16).view(torch.float16)
    documents = every.view(-1, 16)
    d_offsets = torch.arange(len(documents) + 1)
    queries, q_offsets = torch.eye(16), torch.tensor([0, 16])  # reads the numbers one by one
    pairs = torch.zeros(len(documents), dtype=torch.int64), torch.arange(len(documents))
    for tokens in (queries, torch.rand(16, 16, generator=torch.Generator().manual_seed(0))):
        got = token_maxima(tokens, q_offsets, documents, d_offsets, *pairs)
        expected = token_maxima(tokens, q_offsets, documents.float(), d_offsets, *pairs)
        _require_same_bits(got, expected)
    longer = torch.tensor([0, 5, 4096])
    pairs = torch.tensor([0, 0]), torch.tensor([1, 0])
    got = token_maxima(queries, q_offsets, documents, longer, *pairs)
    expected = token_maxima(queries, q_offsets, documents.float(), longer, *pairs)
    _require_same_bits(got, expected)


def _require_same_bits(got, expected):
    """Of all that is a number; which NaN it is does not matter."""
    numbers = ~torch.isnan(expected)
    assert torch.equal(~torch.isnan(got), numbers)
    assert torch.equal(got[numbers].view(torch.int32), expected[numbers].view(torch.int32))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_documents_may_be_shared_skipped_and_longer_than_a_block(
    route, dtype, monkeypatch
):
    monkeypatch.setattr("ricci_gpu.ops.maxsim.TOKENS_AT_ONCE", 8)
    queries, q_offsets = _packed([5, 3], 0)
    documents, d_offsets = _packed([6, 0, 20, 3], 1)
    documents = documents.to(dtype)
    pairs = torch.tensor([[0, 0, -1, 1, 1, 1], [0, 2, 1, 2, 0, 3]])
    got = token_maxima(queries, q_offsets, documents, d_offsets, *pairs)
    expected = token_maxima_reference(queries, q_offsets, documents, d_offsets, *pairs)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_tokens_need_not_be_contiguous(route):
    queries, q_offsets = _packed([5], 0)
    documents, d_offsets = _packed([6, 7], 1)
    pairs = torch.tensor([0, 0]), torch.tensor([0, 1])
    strided = queries.mT.contiguous().mT, q_offsets, documents.mT.contiguous().mT, d_offsets
    assert not strided[0].is_contiguous()
    expected = maxsim(queries, q_offsets, documents, d_offsets, *pairs)
    torch.testing.assert_close(maxsim(*strided, *pairs), expected, rtol=0, atol=1e-6)


def test_a_compiled_similarity_does_not_depend_on_its_neighbours_bit_for_bit():
    """Tiles of three and four tokens: every place in a tile, alone and among others."""
    pytest.importorskip("numba")
    queries, q_offsets = _packed([9], 0)
    documents, d_offsets = _packed([1] * 10, 1)
    one = torch.zeros(10, dtype=torch.int64)
    alone = token_maxima(queries, q_offsets, documents, d_offsets, one, torch.arange(10))
    for size in range(1, 10):
        offsets = torch.tensor([0, size])
        together = token_maxima(queries, q_offsets, documents, offsets, one[:1], one[:1])
        assert torch.equal(together[0], alone[:size].amax(dim=0))
        few = torch.tensor([0, size])
        fewer = token_maxima(queries[:size], few, documents, d_offsets, one, torch.arange(10))
        assert torch.equal(fewer, alone[:, :size])


def test_threads_share_the_pairs(monkeypatch):
    pytest.importorskip("numba")
    request_ = (*_packed([5, 3], 0), *_packed([6, 0, 70, 1, 2], 1))
    pairs = torch.cartesian_prod(torch.arange(2), torch.arange(5))
    one = token_maxima(*request_, pairs[:, 0], pairs[:, 1])
    for threads in (2, 3, 16):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(token_maxima(*request_, pairs[:, 0], pairs[:, 1]), one)


def test_the_order_of_the_pairs_does_not_matter(route):
    request_ = (*_packed([5, 3, 4], 0), *_packed([6, 2, 7, 1], 1))
    pairs = torch.cartesian_prod(torch.arange(3), torch.arange(4))
    shuffled = torch.from_numpy(np.random.default_rng(2).permutation(12))
    sorted_scores = maxsim(*request_, pairs[:, 0], pairs[:, 1])
    scores = maxsim(*request_, pairs[shuffled, 0], pairs[shuffled, 1])
    torch.testing.assert_close(scores, sorted_scores[shuffled], rtol=0, atol=1e-6)


def test_a_score_depends_on_nothing_else_in_the_batch():
    queries, q_offsets = _packed([5, 3], 0)
    documents, d_offsets = _packed([6, 2, 7], 1)
    pairs = torch.cartesian_prod(torch.arange(2), torch.arange(3))
    together = maxsim(queries, q_offsets, documents, d_offsets, pairs[:, 0], pairs[:, 1])
    for place, (q, d) in enumerate(pairs.tolist()):
        one = maxsim(
            queries[q_offsets[q] : q_offsets[q + 1]],
            torch.tensor([0, int(q_offsets[q + 1] - q_offsets[q])]),
            documents[d_offsets[d] : d_offsets[d + 1]],
            torch.tensor([0, int(d_offsets[d + 1] - d_offsets[d])]),
            torch.tensor([0]),
            torch.tensor([0]),
        )
        assert float(one) == pytest.approx(float(together[place]), abs=1e-5)


def _pool(document_of: list[list[int]]) -> TokenPool:
    return TokenPool(*_packed([4, 0, 2], 0), *_packed([3, 0, 5, 1], 1), torch.tensor(document_of))


def test_pool_maxima_follow_the_candidates_and_leave_padding_out():
    """Documents shared between queries, an empty document, an empty query, a padded place."""
    pool = _pool([[2, 0, 1], [0, 3, -1], [3, -1, -1]])
    maxima = pool_maxima(pool)
    assert maxima.shape == (3, 4, 3)
    for b, row in enumerate(pool.document_of.tolist()):
        for c, document in enumerate(row):
            if document < 0:
                assert (maxima[b, :, c] == -INF).all()
                continue
            pair = torch.tensor([b]), torch.tensor([document])
            expected = token_maxima(*_parts(pool), *pair)
            torch.testing.assert_close(maxima[b, :, c], expected[0], rtol=0, atol=1e-6)


def test_scores_from_shared_maxima_are_maxsim():
    pool = _pool([[2, 0, 1], [0, 3, -1], [3, -1, -1]])
    mask = query_token_mask(pool, 4)
    assert mask.sum(dim=1).tolist() == [4, 0, 2]
    scores = maxsim_from_maxima(pool_maxima(pool), mask)
    present = pool.document_of >= 0
    pair_query = present.nonzero()[:, 0]
    expected = maxsim(*_parts(pool), pair_query, pool.document_of[present])
    torch.testing.assert_close(scores[present], expected, rtol=0, atol=1e-6)


def test_what_lies_outside_the_real_tokens_is_never_read():
    pool = _pool([[2, 0, 1], [0, 3, -1], [3, -1, -1]])
    mask = query_token_mask(pool, 4)
    maxima = pool_maxima(pool)
    poisoned = torch.where(mask[..., None], maxima, NAN)
    assert torch.equal(maxsim_from_maxima(poisoned, mask), maxsim_from_maxima(maxima, mask))


def test_pools_without_candidates_or_queries_have_empty_maxima():
    assert pool_maxima(_pool([[-1, -1]] * 3)).eq(-INF).all()
    nothing = torch.zeros(0, dtype=torch.int64)
    queries, q_offsets = _packed([2], 0)
    scores = maxsim(queries, q_offsets, *_packed([2], 1), nothing, nothing)
    assert scores.shape == (0,)


def _parts(pool: TokenPool) -> tuple[torch.Tensor, ...]:
    return pool.query_tokens, pool.query_offsets, pool.document_tokens, pool.document_offsets


def test_int8_documents_carry_a_factor_per_token(route):
    queries, q_offsets = _packed([5, 3], 0)
    documents, d_offsets = _packed([6, 0, 4], 1)
    scales = documents.abs().amax(dim=1) / 127
    small = (documents / scales[:, None]).round().to(torch.int8)
    pairs = torch.tensor([0, 1, -1, 1]), torch.tensor([0, 2, 0, 1])
    widened = small.float() * scales[:, None]
    expected = maxsim(queries, q_offsets, widened, d_offsets, *pairs)
    found = maxsim(queries, q_offsets, small, d_offsets, *pairs, document_scales=scales)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    # Rounding to 127 steps of a unit vector: at most half a step per number and query token.
    exact = maxsim(queries, q_offsets, documents, d_offsets, *pairs)
    assert float((found - exact)[:2].abs().max()) < 5 * 0.5 * float(scales.max()) * WIDTH**0.5


def test_int8_documents_in_a_pool_bring_their_factors():
    pool = _pool([[2, 0, 1], [0, 3, -1], [3, -1, -1]])
    scales = torch.full((len(pool.document_tokens),), 1 / 127)
    small = (pool.document_tokens * 127).round().to(torch.int8)
    packed = replace(pool, document_tokens=small, document_scales=scales)
    widened = replace(pool, document_tokens=small.float() / 127)
    torch.testing.assert_close(pool_maxima(packed), pool_maxima(widened), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("dtype", "scaled", "message"),
    [
        (torch.float32, True, "belong to int8 documents; got torch.float32. Leave them out"),
        (torch.int8, False, "one factor per token; got torch.int8 with none"),
        (torch.int32, True, "floating-point, or int8 .* got torch.int32 with some"),
    ],
)
def test_factors_that_do_not_fit_the_documents_are_refused(dtype, scaled, message):
    queries, q_offsets = _packed([2], 0)
    documents, d_offsets = _packed([3], 1)
    pair = torch.tensor([0]), torch.tensor([0])
    scales = torch.ones(3) if scaled else None
    with pytest.raises(InputError, match=message):
        maxsim(queries, q_offsets, documents.to(dtype), d_offsets, *pair, document_scales=scales)


def test_indices_of_32_bits_are_as_good(route):
    queries, q_offsets = _packed([5, 3], 0)
    documents, d_offsets = _packed([6, 1, 7], 1)
    pairs = torch.tensor([0, 1, 1]), torch.tensor([0, 2, 1])
    expected = maxsim(queries, q_offsets, documents, d_offsets, *pairs)
    short = [each.to(torch.int32) for each in (q_offsets, d_offsets, *pairs)]
    got = maxsim(queries, short[0], documents, short[1], *short[2:])
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-6)


def test_the_compiled_kernel_reads_nothing_beyond_the_last_document():
    pytest.importorskip("numba")
    queries, q_offsets = _packed([5], 0)
    documents, d_offsets = _packed([6, 1], 1)
    zero, beyond = torch.tensor([0]), torch.tensor([2])
    with pytest.raises(InputError, match=r"`pair_document` must .* below 2, one per document"):
        maxsim(queries, q_offsets, documents, d_offsets, zero, beyond)
    with pytest.raises(InputError, match=r"`pair_query` must .* below 1, one per query; got 2"):
        maxsim(queries, q_offsets, documents, d_offsets, beyond, zero)
