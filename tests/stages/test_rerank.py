from dataclasses import replace

import pytest
import torch

from ricci_gpu.batch import Status
from ricci_gpu.ops.maxsim import maxsim_from_maxima, pool_maxima
from ricci_gpu.stages import FILTERS, RERANKERS
from ricci_gpu.stages.rerank import KeepOrder, MaxSim


@pytest.fixture(scope="module")
def pools(random_pool):
    return [random_pool(seed, count) for seed, count in enumerate((9, 4, 6))]


@pytest.fixture
def expected(pools, batch_of):
    maxima = pool_maxima(batch_of(pools, poison=False).tokens)
    return maxsim_from_maxima(maxima, torch.ones(3, 4, dtype=torch.bool))


def test_names():
    assert RERANKERS.names() == ["maxsim", "none"]


def test_keeping_the_order_changes_nothing(pools, batch_of):
    batch = batch_of(pools)
    assert KeepOrder()(batch) is batch
    assert KeepOrder().needs() == set()


def test_all_kept_candidates_are_scored(pools, batch_of, expected):
    batch = MaxSim()(batch_of(pools, nodes=16))
    real = batch.candidate_mask
    assert torch.equal(batch.score[:, :9][real[:, :9]], expected[real[:, :9]])
    assert torch.equal(batch.keep, real)
    assert MaxSim().needs() == {"tokens"}


def test_the_dropped_are_not_scored(pools, batch_of, expected):
    batch = FILTERS.build("fixed_k", {"k": 3})(batch_of(pools))
    result = MaxSim()(batch)
    assert torch.isnan(result.score[batch.candidate_mask & ~batch.keep]).all()
    assert torch.equal(result.score[batch.keep], expected[batch.keep])
    # nothing was computed for them either
    assert (result.maxima.mT[batch.candidate_mask & ~batch.keep] == -torch.inf).all()


def test_the_dropped_have_scores_where_the_filter_needed_them_anyway(pools, batch_of, expected):
    batch = FILTERS.build("token_transport", {})(batch_of(pools))
    result = MaxSim()(batch)
    real = batch.candidate_mask
    assert (real & ~batch.keep).any()
    assert torch.equal(result.score[real], expected[real])
    assert result.maxima is batch.maxima


def test_empty_documents_and_queries(pools, batch_of, answers):
    wordless = replace(pools[0], query_tokens=pools[0].query_tokens[:0])
    hollow = replace(pools[1], documents=[pools[1].documents[0][:0], *pools[1].documents[1:]])
    first, second = answers(MaxSim()(batch_of([wordless, hollow])))
    assert first.score.tolist() == [0] * 9
    assert second.score[0] == -torch.inf
    assert torch.isfinite(second.score[1:]).all()
    assert all(second.keep)


def test_bad_token_vectors_are_set_aside(pools, batch_of, answers):
    documents = [pools[0].documents[0] * torch.nan, *pools[0].documents[1:]]
    candidate = replace(pools[0], documents=documents)
    query = replace(pools[1], query_tokens=pools[1].query_tokens * torch.inf)
    first, second, third = answers(MaxSim()(batch_of([candidate, query, pools[2]])))
    assert first.keep == [False] + [True] * 8
    assert torch.isfinite(first.score[1:]).all()
    assert second.keep == [True] * 4
    assert torch.equal(second.score, pools[1].prior)  # no better order is known
    assert [first.status, second.status] == [Status.BAD_EMBEDDING] * 2
    assert third.status == Status.OK
