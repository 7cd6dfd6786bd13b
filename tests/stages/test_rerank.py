from dataclasses import replace

import pytest
import torch

from ricci_gpu.batch import Reason, Status, TextPool
from ricci_gpu.errors import SettingError
from ricci_gpu.ops.maxsim import maxsim_from_maxima, pool_maxima
from ricci_gpu.stages import FILTERS, RERANKERS
from ricci_gpu.stages.rerank import CrossEncoderReranker, KeepOrder, LLMReranker, MaxSim


@pytest.fixture(scope="module")
def pools(random_pool):
    return [random_pool(seed, count) for seed, count in enumerate((9, 4, 6))]


@pytest.fixture
def expected(pools, batch_of):
    maxima = pool_maxima(batch_of(pools, poison=False).tokens)
    return maxsim_from_maxima(maxima, torch.ones(3, 4, dtype=torch.bool))


def test_names():
    assert RERANKERS.names() == ["cross_encoder", "llm", "maxsim", "none"]


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


def with_texts(batch, score):
    rows = [[f"{row}-{column}" for column in range(9)] for row in range(len(batch.keep))]
    return batch.with_(texts=TextPool(["q0", "q1", "q2"], rows, score))


def test_a_model_scores_the_pairs_that_the_filter_kept(pools, batch_of):
    asked = []

    def score(pairs):
        asked.extend(pairs)
        return torch.arange(len(pairs)) / 7

    batch = FILTERS.build("fixed_k", {"k": 2})(batch_of(pools))
    stage = CrossEncoderReranker("m")
    assert stage.needs() == {"texts"}
    result = stage(with_texts(batch, score))
    kept = batch.keep.nonzero().tolist()
    assert asked == [(f"q{row}", f"{row}-{column}") for row, column in kept]
    assert torch.equal(result.score[batch.keep], torch.arange(6) / 7)
    assert torch.isnan(result.score[~batch.keep]).all()
    assert torch.equal(result.keep, batch.keep)
    assert torch.equal(result.reason, batch.reason)


def test_what_has_no_score_stays_and_the_reason_says_so(pools, batch_of):
    batch = batch_of(pools)
    scores = torch.where(torch.arange(int(batch.keep.sum())) % 2 == 0, 1.0, torch.nan)
    result = LLMReranker("m")(with_texts(batch, lambda pairs: scores))
    assert torch.equal(result.keep, batch.keep)
    unscored = result.reason == Reason.UNSCORED
    assert torch.equal(unscored, batch.keep & torch.isnan(result.score))
    assert unscored.any()
    assert not unscored.all()


def test_nothing_kept_asks_for_nothing(pools, batch_of):
    batch = batch_of(pools)
    empty = batch.with_(keep=torch.zeros_like(batch.keep))
    assert torch.isnan(
        LLMReranker("m")(with_texts(empty, lambda p: torch.empty(len(p)))).score
    ).all()


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("cross_encoder", {}, r"the cross_encoder reranker needs a model: set `rerank\.model` to"),
        ("llm", {"model": ""}, r"the llm reranker needs a model"),
        ("cross_encoder", {"model": "m", "batch_tokens": 0}, r"`batch_tokens` must be at least 1"),
        ("llm", {"model": "m", "concurrency": 0}, r"`concurrency` must be at least 1; got 0"),
        ("llm", {"model": "m", "timeout": 0}, r"`timeout` must be greater than 0 seconds; got 0"),
        ("llm", {"model": "m", "retries": -1}, r"`retries` must be at least 0; got -1"),
    ],
)
def test_settings_of_the_models(name, settings, message):
    with pytest.raises(SettingError, match=message):
        RERANKERS.build(name, settings)
