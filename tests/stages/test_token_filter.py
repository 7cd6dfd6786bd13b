from dataclasses import replace

import pytest
import torch

from ricci_gpu.batch import Reason, Status
from ricci_gpu.ops.maxsim import pool_maxima
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.stages.token_filter import TokenTransportFilter


@pytest.fixture(scope="module")
def pools(random_pool):
    return [random_pool(seed, count) for seed, count in enumerate((9, 4, 6))]


def test_score_mask_and_abstention_are_those_of_the_operation(pools, batch_of):
    batch = batch_of(pools, poison=False)
    result = TokenTransportFilter(temperature=0.2, steps=3, eta=0.8)(batch)
    maxima = pool_maxima(batch.tokens)
    tokens = torch.ones(3, 4, dtype=torch.bool)
    expected = token_transport(maxima, tokens, batch.candidate_mask, temperature=0.2, steps=3)
    real = batch.candidate_mask
    assert torch.equal(result.score[real], expected.log_mass[real])
    assert torch.equal(result.filter_value[real], expected.share[real])
    assert torch.equal(result.abstention, expected.abstention)
    assert torch.equal(result.keep, real & (expected.share >= 0.8 * (1 - 1e-5)))
    assert (result.reason[real & ~result.keep] == Reason.LOW_MASS).all()
    assert torch.equal(result.maxima, maxima)  # handed on to MaxSim


@pytest.mark.parametrize("seed", range(5))
def test_never_empty_at_the_mean(seed, random_pool, answer_of):
    answer = answer_of(TokenTransportFilter(), random_pool(seed, 10))
    assert any(answer.keep)
    assert answer.value.mean() == pytest.approx(1, abs=1e-5)
    assert torch.isfinite(answer.abstention)


def test_2000_candidates(random_pool, batch_of, answers, answer_of):
    large, small = random_pool(0, 2000), random_pool(1, 5)
    answer, neighbour = answers(TokenTransportFilter()(batch_of([large, small])))
    assert 0 < sum(answer.keep) < 2000
    assert answer.status == Status.OK
    assert torch.isfinite(answer.score).all()
    neighbour.require_same(answer_of(TokenTransportFilter(), small))


def test_a_chunk_that_alone_matches_a_token_is_kept(answer_of, random_pool):
    basis = torch.eye(8)
    pool = replace(
        random_pool(0, 4),
        query_tokens=basis[:2],
        documents=[basis[:1], basis[:1], basis[1:2], basis[5:6]],
    )
    answer = answer_of(TokenTransportFilter(), pool)
    assert answer.keep == [True, True, True, False]
    assert answer.score.argmax() == 2  # the other two share the mass of their token
    assert answer.score[0] == answer.score[1]
    assert answer.reason[3] == Reason.LOW_MASS


def test_empty_documents_receive_nothing(pools, answer_of):
    documents = list(pools[0].documents)
    documents[4] = documents[4][:0]
    answer = answer_of(TokenTransportFilter(), replace(pools[0], documents=documents))
    assert answer.keep[4] is False
    assert answer.reason[4] == Reason.LOW_MASS
    assert answer.value[4] == 0
    assert answer.status == Status.OK
    assert any(answer.keep)


@pytest.mark.parametrize("eta", [1.0, 1.5])
def test_nothing_to_go_by_keeps_all(eta, pools, batch_of, answers):
    no_words = replace(pools[0], query_tokens=pools[0].query_tokens[:0])
    all_empty = replace(pools[1], documents=[each[:0] for each in pools[1].documents])
    for answer in answers(TokenTransportFilter(eta=eta)(batch_of([no_words, all_empty]))):
        assert all(answer.keep)
        assert set(answer.reason) == {Reason.KEPT}
        assert answer.status == Status.OK
        assert torch.isnan(answer.abstention)
        assert (answer.value - 1).abs().max() < 1e-6


def test_all_documents_broken_and_the_query_sound(pools, answer_of):
    broken = [torch.full_like(each, torch.nan) for each in pools[1].documents]
    answer = answer_of(TokenTransportFilter(), replace(pools[1], documents=broken))
    assert answer.keep == [False] * 4
    assert answer.reason == [Reason.BAD_EMBEDDING] * 4
    assert answer.status == Status.BAD_EMBEDDING


def test_zero_token_vectors_are_similar_to_nothing(pools, answer_of):
    documents = [*pools[0].documents[:-1], torch.zeros(2, 8)]
    answer = answer_of(TokenTransportFilter(), replace(pools[0], documents=documents))
    assert torch.isfinite(answer.score).all()
    assert answer.status == Status.OK


def test_trace_holds_a_plan_per_step(pools, batch_of):
    batch = batch_of(pools)
    result = TokenTransportFilter(trace=True, steps=4)(batch)
    assert [tuple(plan.shape) for plan in result.details["plans"]] == [(3, 4, 9)] * 4
    assert (result.details["plans"][-1].sum(dim=2) - 1).abs().max() < 1e-5
    assert TokenTransportFilter()(batch).details is None


def test_words():
    filter_ = TokenTransportFilter(eta=0.8)
    assert filter_.describe(Reason.LOW_MASS, 0.1234) == "low mass: 0.123 < 0.8 of the mean"
    assert filter_.describe(Reason.KEPT, 1.5) == "kept: mass 1.5 of the mean"
    assert filter_.describe(Reason.KEPT, float("nan")) == "kept"
