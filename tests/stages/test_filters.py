"""What every registered filter must do, whatever its rule."""

from dataclasses import replace

import pytest
import torch

from ricci_gpu.batch import Reason, Status
from ricci_gpu.stages import FILTERS
from ricci_gpu.stages.controls import ScoreFilter

SETTINGS = {
    "ricci": [
        {"iterations": 3},
        {"iterations": 3, "rule": "le", "query_edges": False},
        {"iterations": 2, "graph": "mutual_knn", "neighbours": 3, "lengths": "dissimilarity"},
        {"iterations": 2, "solver": {"type": "sinkhorn", "epsilon": 0.3, "iterations": 200}},
    ],
    "token_transport": [{}, {"eta": 1.5}],
}


def variants():
    for name in FILTERS.names():
        default = [{}]
        if issubclass(FILTERS.variant(name), ScoreFilter):
            default.append({"on": "maxsim"})
        for settings in SETTINGS.get(name, default):
            yield name, settings


def cases(wanted=lambda name, settings: True):
    """A parametrisation over the filters for which a property is promised."""
    chosen = [each for each in variants() if wanted(*each)]
    words = [" ".join([name, *map(str, settings.values())]) for name, settings in chosen]
    return pytest.mark.parametrize(
        "filter_", [FILTERS.build(name, settings) for name, settings in chosen], ids=words
    )


def reads(what):
    return lambda name, settings: what in FILTERS.build(name, settings).needs()


# A budget falls between equal candidates by their place, and so do mutual neighbours.
BUDGETS = {"fixed_k", "fraction", "random", "degree"}


def breaks_ties(name, settings):
    return name in BUDGETS or settings.get("graph") == "mutual_knn"


@pytest.fixture(scope="module")
def pools(random_pool):
    return [random_pool(seed, count) for seed, count in enumerate((7, 3, 12, 2))]


@cases(lambda name, settings: name != "random")  # a lot belongs to a place in the pool
def test_permuted_candidates_permute_the_answer(filter_, pools, answer_of):
    for seed, pool in enumerate(pools):
        order = torch.randperm(
            len(pool.prior), generator=torch.Generator().manual_seed(seed)
        ).tolist()
        expected = answer_of(filter_, pool).at(order)
        answer_of(filter_, pool.at(order)).require_same(expected)


@cases()
def test_padding_and_company_change_nothing(filter_, pools, batch_of, answers, answer_of):
    together = answers(filter_(batch_of(pools, nodes=32)))
    backwards = answers(filter_(batch_of(pools[::-1])))[::-1]
    for pool, one, other in zip(pools, together, backwards, strict=True):
        alone = answer_of(filter_, pool)
        one.require_same(alone)
        other.require_same(alone)


@cases()
def test_what_stands_in_the_padding_is_never_read(filter_, pools, batch_of, answers):
    clean = filter_(batch_of(pools, nodes=16, poison=False))
    poisoned = filter_(batch_of(pools, nodes=16, poison=True))
    assert torch.equal(clean.keep, poisoned.keep)
    assert torch.equal(clean.reason, poisoned.reason)
    for one, other in zip(answers(clean), answers(poisoned), strict=True):
        assert torch.equal(one.score, other.score)
        assert torch.equal(one.value.nan_to_num(-9), other.value.nan_to_num(-9))
    padding = ~poisoned.candidate_mask
    assert not poisoned.keep[padding].any()
    assert (poisoned.reason[padding] == Reason.PADDING).all()


@cases()
def test_pools_of_none_and_of_one_are_kept_as_they_came(filter_, random_pool, batch_of, answers):
    one = random_pool(3, 1)
    one = replace(one, prior=torch.tensor([0.9]), documents=[one.query_tokens])  # a good match
    pools = [one.at([]), one, random_pool(4, 5)]
    for batch in (batch_of(pools), batch_of(pools, nodes=16)):
        none, single, many = answers(filter_(batch))
        assert (none.keep, none.status) == ([], Status.TOO_FEW_NODES)
        assert (single.keep, single.reason) == ([True], [Reason.KEPT])
        assert single.status == Status.TOO_FEW_NODES
        assert many.status == Status.OK
    assert answers(filter_(batch_of([one.at([])])))[0].keep == []


@cases()
def test_a_batch_of_no_queries(filter_, pools, batch_of):
    batch = batch_of(pools, nodes=16)
    tokens = replace(
        batch.tokens,
        query_tokens=batch.tokens.query_tokens[:0],
        query_offsets=batch.tokens.query_offsets[:1],
        document_of=batch.tokens.document_of[:0],
    )
    names = ("node_mask", "prior", "keep", "score", "filter_value", "reason", "status")
    empty = {name: getattr(batch, name)[:0] for name in (*names, "abstention", "node_emb")}
    result = filter_(batch.with_(**empty, tokens=tokens))
    assert result.keep.shape == (0, 15)


@cases()
def test_minimum_and_maximum(filter_, pools, batch_of):
    batch = batch_of(pools)
    count = batch.candidate_mask.sum(dim=1)
    free = filter_(batch).keep
    at_least = replace(filter_, minimum=4)(batch)
    assert (free <= at_least.keep).all()
    assert torch.equal(at_least.keep.sum(dim=1), torch.maximum(free.sum(dim=1), count.clamp(max=4)))
    at_most = replace(filter_, maximum=2)(batch)
    assert (at_most.keep <= free).all()
    assert torch.equal(at_most.keep.sum(dim=1), free.sum(dim=1).clamp(max=2))
    assert (at_most.reason[free & ~at_most.keep] == Reason.OUTSIDE_BUDGET).all()
    exactly = replace(filter_, minimum=3, maximum=3)(batch)
    assert torch.equal(exactly.keep.sum(dim=1), count.clamp(max=3))
    assert (exactly.reason[exactly.keep] == Reason.KEPT).all()


@cases(lambda name, settings: name != "random")  # its lots are drawn for the pool as it came
def test_masks_only_shrink_and_the_dropped_have_no_say(filter_, pools, batch_of, answers):
    batch = batch_of(pools)
    gone = torch.zeros_like(batch.keep)
    gone[:, 1] = True
    before = batch.with_(
        keep=batch.keep & ~gone,
        reason=torch.where(gone, int(Reason.LOW_SCORE), batch.reason),
    )
    after = filter_(before)
    assert (after.keep <= before.keep).all()
    assert torch.equal(after.node_mask, batch.node_mask)
    assert (after.reason[gone] == Reason.LOW_SCORE).all()
    for pool, answer in zip(pools, answers(after), strict=True):
        alone = answers(filter_(batch_of([pool.without(1)])))[0]
        answer.without(1).require_same(alone, status=False)


@cases(reads("embeddings"))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf, 0.0])
def test_a_bad_candidate_vector_is_dropped_by_name(filter_, bad, pools, answer_of):
    pool = pools[0]
    vectors = pool.candidates.clone()
    vectors[2] = bad if bad == 0.0 else torch.where(torch.arange(8) == 5, bad, vectors[2])
    answer = answer_of(filter_, replace(pool, candidates=vectors))
    assert answer.keep[2] is False
    assert answer.reason[2] == Reason.BAD_EMBEDDING
    assert answer.status == Status.BAD_EMBEDDING
    answer.without(2).require_same(answer_of(filter_, pool.without(2)), status=False)
    assert filter_.describe(Reason(answer.reason[2]), float(answer.value[2])) == (
        "bad embedding: NaN, infinite or zero"
    )
    at_least = answer_of(replace(filter_, minimum=7), replace(pool, candidates=vectors))
    assert at_least.keep == [True, True, False, True, True, True, True]


@cases(reads("tokens"))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_token_vector_drops_its_document_by_name(filter_, bad, pools, answer_of):
    pool = pools[0]
    documents = [each.clone() for each in pool.documents]
    documents[2][0, 5] = bad
    answer = answer_of(filter_, replace(pool, documents=documents))
    assert answer.keep[2] is False
    assert answer.reason[2] == Reason.BAD_EMBEDDING
    assert answer.status == Status.BAD_EMBEDDING
    answer.without(2).require_same(answer_of(filter_, pool.without(2)), status=False)


@cases(reads("embeddings"))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 0.0])
def test_a_bad_query_vector_judges_nobody(filter_, bad, pools, batch_of, answers, answer_of):
    broken = replace(pools[0], query=torch.full_like(pools[0].query, bad))
    answer, neighbour = answers(filter_(batch_of([broken, pools[2]])))
    assert answer.keep == [True] * 7
    assert answer.reason == [Reason.KEPT] * 7
    assert answer.status == Status.BAD_EMBEDDING
    neighbour.require_same(answer_of(filter_, pools[2]))


@cases(reads("tokens"))
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_bad_query_token_judges_nobody(filter_, bad, pools, batch_of, answers, answer_of):
    tokens = pools[0].query_tokens.clone()
    tokens[1, 3] = bad
    broken = replace(pools[0], query_tokens=tokens)
    answer, neighbour = answers(filter_(batch_of([broken, pools[2]])))
    assert answer.keep == [True] * 7
    assert answer.reason == [Reason.KEPT] * 7
    assert answer.status == Status.BAD_EMBEDDING
    assert not torch.isnan(answer.score).any()
    neighbour.require_same(answer_of(filter_, pools[2]))


@cases(lambda name, settings: not breaks_ties(name, settings))
def test_duplicates_are_treated_alike(filter_, random_pool, answer_of):
    for seed in range(4):
        answer = answer_of(filter_, random_pool(seed, 8).at([*range(8), 3, 0]))
        assert answer.keep[8] == answer.keep[3]
        assert answer.keep[9] == answer.keep[0]
        torch.testing.assert_close(
            answer.value[[8, 9]], answer.value[[3, 0]], atol=1e-5, rtol=1e-5, equal_nan=True
        )


@cases()
@pytest.mark.parametrize("like_the_query", [True, False])
def test_identical_candidates(filter_, like_the_query, random_pool, answer_of):
    one = random_pool(6, 1)
    if like_the_query:
        one = replace(one, candidates=one.query[None], documents=[one.query_tokens])
    pool = replace(one, prior=torch.ones(1)).at([0] * 6)
    answer = answer_of(filter_, pool)
    assert answer.status == Status.OK
    assert not torch.isnan(answer.score).any()
    expected = {"fixed_k": 5, "random": 5, "degree": 5, "fraction": 3, "largest_gap": 1}
    kept = {expected.get(filter_.name, 6)}
    if filter_.name == "token_transport" and filter_.eta > 1:
        kept = {0}  # all have the mean, which is not enough
    if not like_the_query and filter_.name in ("connected_component", "ricci"):
        kept = {0, 6}  # at the 50 % threshold only copies are joined: the query stands alone
    if filter_.name == "threshold" and filter_.on == "maxsim":
        kept = {0, 6}
    assert sum(answer.keep) in kept


@cases()
def test_every_reason_has_words(filter_):
    for reason in Reason:
        for value in (0.5, float("nan"), -float("inf")):
            assert filter_.describe(reason, value).strip()
