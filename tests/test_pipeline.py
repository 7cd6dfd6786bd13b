from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch.nn.functional import normalize

from ricci_gpu.batch import TokenPool
from ricci_gpu.config import Config
from ricci_gpu.errors import InputError, QueryError
from ricci_gpu.pipeline import Pipeline, Pools, buckets, pack_documents

COUNTS = (20, 3, 0, 40, 1, 16, 15, 3)
WIDTH = 8


def make_pools(counts=COUNTS, tokens=True, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return normalize(torch.randn(shape, generator=generator), dim=-1)

    total = sum(counts)
    first = torch.tensor([0, *counts]).cumsum(0).tolist()
    rows = [list(range(a, b)) for a, b in pairwise(first)]
    packed = TokenPool(
        query_tokens=draw(3 * len(counts), WIDTH),
        query_offsets=torch.arange(len(counts) + 1) * 3,
        document_tokens=draw(2 * total, WIDTH),
        document_offsets=torch.arange(total + 1) * 2,
        document_of=pack_documents(rows),
    )
    return Pools(
        query_ids=[f"q{row}" for row in range(len(counts))],
        queries=[f"query {row}" for row in range(len(counts))],
        candidate_ids=[[f"{row}-{place}" for place in range(n)] for row, n in enumerate(counts)],
        prior=[torch.rand(n, generator=generator) for n in counts],
        query_emb=draw(len(counts), WIDTH),
        candidate_emb=[draw(n, WIDTH) for n in counts],
        tokens=packed if tokens else None,
    )


def config(*overrides, preset="default"):
    return Config.load(preset, overrides)


KEEP_ALL = ("filter.type=none", "rerank.type=none", "select.top_k=null")
PAPER = ("filter.iterations=2",)


def ids(hits):
    return [hit.id for hit in hits]


def test_rankings_come_in_the_order_of_the_queries():
    pools = make_pools()
    rankings = Pipeline(config(*KEEP_ALL)).rank(pools)
    assert [ranking.query_id for ranking in rankings] == pools.query_ids
    assert [ranking.query for ranking in rankings] == pools.queries
    for ranking, prior, names in zip(rankings, pools.prior, pools.candidate_ids, strict=True):
        order = prior.argsort(descending=True).tolist()
        assert ids(ranking.hits) == [names[place] for place in order]
        assert [hit.position for hit in ranking.hits] == order
        assert [hit.score for hit in ranking.hits] == prior[order].tolist()
        assert ranking.dropped == []


def test_statuses():
    statuses = [ranking.status for ranking in Pipeline(config(*KEEP_ALL)).rank(make_pools())]
    assert statuses == ["ok", "ok", "too_few_nodes", "ok", "too_few_nodes", "ok", "ok", "ok"]


@pytest.mark.parametrize(
    ("preset", "overrides"),
    [
        ("default", ()),
        ("default", ("rerank.type=maxsim",)),
        ("ricci_filtration", PAPER),
        ("default", ("filter.type=random",)),
    ],
)
def test_answers_do_not_depend_on_the_batch_size(preset, overrides):
    pools = make_pools()
    one, three, all_ = (
        Pipeline(config(*overrides, f"runtime.batch_size={size}", preset=preset)).rank(pools)
        for size in (1, 3, 100)
    )
    for first, second, third in zip(one, three, all_, strict=True):
        for other in (second, third):
            assert (other.query_id, other.status) == (first.query_id, first.status)
            assert ids(other.hits) == ids(first.hits)
            assert sorted(ids(other.dropped)) == sorted(ids(first.dropped))
            for a, b in zip(first.hits, other.hits, strict=True):
                assert a.score == pytest.approx(b.score, abs=1e-5)
            kept = {hit.id: (hit.kept, hit.reason.split(":")[0]) for hit in first.dropped}
            assert {h.id: (h.kept, h.reason.split(":")[0]) for h in other.dropped} == kept


def test_every_candidate_comes_out_once():
    pools = make_pools()
    for ranking, names in zip(Pipeline(config()).rank(pools), pools.candidate_ids, strict=True):
        assert sorted(ids(ranking.hits) + ids(ranking.dropped)) == sorted(names)
        assert all(hit.kept for hit in ranking.hits)


def test_beyond_the_top_is_said():
    [ranking] = Pipeline(config("filter.type=fixed_k", "filter.k=4", "select.top_k=3")).rank(
        make_pools((6,))
    )
    assert len(ranking.hits) == 3
    assert [hit.kept for hit in ranking.dropped] == [True, False, False]
    assert ranking.dropped[0].reason == "kept; beyond the top 3"
    assert ranking.dropped[1].reason == "others came first"
    [everything] = Pipeline(config("filter.type=none", "select.top_k=null")).rank(make_pools((6,)))
    assert len(everything.hits) == 6


def test_ties_go_by_position():
    pools = make_pools((6,), tokens=False)
    tied = Pools(
        pools.query_ids,
        pools.queries,
        pools.candidate_ids,
        prior=[torch.tensor([0.5, 0.9, 0.5, 0.5, 0.9, 0.5])],
    )
    [ranking] = Pipeline(config(*KEEP_ALL)).rank(tied)
    assert [hit.position for hit in ranking.hits] == [1, 4, 0, 2, 3, 5]
    [given] = Pipeline(config(*KEEP_ALL)).rank(
        Pools(pools.query_ids, pools.queries, pools.candidate_ids)
    )
    assert [hit.position for hit in given.hits] == [0, 1, 2, 3, 4, 5]


def test_dropped_candidates_have_reasons_values_and_no_score_under_maxsim():
    [ranking] = Pipeline(config(*PAPER, preset="ricci_filtration")).rank(make_pools((20,)))
    out = [hit for hit in ranking.dropped if not hit.kept]
    assert out
    for hit in out:
        assert hit.score is None
        assert hit.reason == f"stretched: edge {hit.filter_value:.3g} > 1"
        assert hit.filter_value > 1
    for hit in ranking.hits:
        assert hit.score is not None
        assert hit.reason == f"kept: edge {hit.filter_value:.3g} <= 1"


def test_abstention_only_where_the_filter_has_one():
    rankings = Pipeline(config()).rank(make_pools((5, 0)))
    assert isinstance(rankings[0].abstention, float)
    assert rankings[1].abstention is None
    assert Pipeline(config(*KEEP_ALL)).rank(make_pools((5,)))[0].abstention is None


@pytest.mark.parametrize(
    ("overrides", "lacking", "message"),
    [
        ((), "tokens", r"stage `token_transport` reads token vectors, and these pools carry none"),
        (
            ("filter.type=ricci",),
            "embeddings",
            r"stage `ricci` reads sentence embeddings, and these pools carry none\. Give texts",
        ),
        (
            ("filter.type=none", "rerank.type=maxsim"),
            "tokens",
            r"stage `maxsim` reads token vectors.* or choose stages that do without",
        ),
    ],
)
def test_the_chain_is_checked_before_any_work(overrides, lacking, message):
    pools = make_pools((3,))
    bare = Pools(
        pools.query_ids,
        pools.queries,
        pools.candidate_ids,
        query_emb=None if lacking == "embeddings" else pools.query_emb,
        candidate_emb=None if lacking == "embeddings" else pools.candidate_emb,
        tokens=None if lacking == "tokens" else pools.tokens,
    )
    pipeline = Pipeline(config(*overrides))
    with pytest.raises(InputError, match=message):
        pipeline.rank(bare)
    assert dict(pipeline.seconds) == {}


CROSS = ("filter.type=fixed_k", "filter.k=3", "rerank.type=cross_encoder", "rerank.model=m")


def test_texts_reach_the_scorer_and_order_the_survivors():
    pools = replace(make_pools(), texts=[[f"t{i}" for i in range(n)] for n in COUNTS])
    asked = []

    def score(pairs):
        asked.extend(pairs)
        return torch.tensor([float(text[1:]) for _, text in pairs])

    rankings = Pipeline(config(*CROSS), scorer=score).rank(pools)
    kept = Pipeline(config(*CROSS[:2])).rank(pools)
    for ranking, before, prompt in zip(rankings, kept, pools.queries, strict=True):
        places = sorted((hit.position for hit in before.hits), reverse=True)
        assert [hit.position for hit in ranking.hits] == places
        assert [hit.score for hit in ranking.hits] == [float(place) for place in places]
        assert all((prompt, f"t{place}") in asked for place in places)
    assert len(asked) == sum(len(ranking.hits) for ranking in rankings)


def test_hits_without_a_score_come_last_and_say_so():
    pools = replace(make_pools((4,)), texts=[["a", "b", "c", "d"]])
    scores = torch.tensor([torch.nan, 1.0, torch.nan])
    [ranking] = Pipeline(config(*CROSS), scorer=lambda pairs: scores[: len(pairs)]).rank(pools)
    assert [hit.score for hit in ranking.hits] == [1.0, None, None]
    assert [hit.reason for hit in ranking.hits[1:]] == ["kept; the reranker gave no score"] * 2
    assert all(hit.kept for hit in ranking.hits)


def test_texts_and_a_scorer_must_be_there():
    with pytest.raises(
        InputError, match=r"stage `cross_encoder` reads texts, and these pools carr"
    ):
        Pipeline(config(*CROSS)).rank(make_pools((3,)))
    pools = replace(make_pools((1,)), texts=[["a"]])
    with pytest.raises(
        InputError, match=r"`cross_encoder` needs a model that scores pairs of text"
    ):
        Pipeline(config(*CROSS)).rank(pools)


def test_what_a_chain_needs():
    assert Pipeline(config()).needs == {"tokens"}
    assert Pipeline(config(preset="ricci_filtration")).needs == {"embeddings", "tokens"}
    assert Pipeline(config(*KEEP_ALL)).needs == set()
    assert Pipeline(config(*CROSS)).needs == {"texts"}


def spoiled(*rows):
    pools = make_pools((4, 5, 6))
    for row in rows:
        pools.candidate_emb[row][1] = torch.nan
    return pools


RICCI = ("filter.type=ricci", "filter.iterations=1")


def test_trouble_is_data_of_one_query():
    clean = Pipeline(config(*RICCI)).rank(spoiled())
    rankings = Pipeline(config(*RICCI)).rank(spoiled(1))
    assert [ranking.status for ranking in rankings] == ["ok", "bad_embedding", "ok"]
    [bad] = [hit for hit in rankings[1].dropped if hit.id == "1-1"]
    assert bad.reason == "bad embedding: NaN, infinite or zero"
    assert (bad.kept, bad.filter_value) == (False, None)
    assert (rankings[0], rankings[2]) == (clean[0], clean[2])


def test_strict_mode_raises_and_names_the_queries():
    strict = Pipeline(config(*RICCI, "runtime.strict=true"))
    assert len(strict.rank(spoiled())) == 3
    with pytest.raises(
        QueryError,
        match=r"strict mode: 2 queries ended as bad_embedding: q0, q2\. Mend the input, or set "
        r"runtime\.strict=false to go on with the status in the output",
    ):
        strict.rank(spoiled(0, 2))
    many = make_pools((2,) * 7)
    for vectors in many.candidate_emb:
        vectors.zero_()
    with pytest.raises(QueryError, match=r"7 queries .*: q0, q1, q2, q3, q4 and 2 more\. Mend"):
        strict.rank(many)


def test_strict_mode_names_solvers_that_did_not_finish():
    rough = ("filter.solver.type=sinkhorn", "filter.solver.iterations=1")
    tight = "filter.solver.tolerance=1e-9"
    pipeline = Pipeline(config(*RICCI, *rough, tight, "runtime.strict=true"))
    with pytest.raises(QueryError, match=r"1 queries ended as not_converged: q0\. Mend"):
        pipeline.rank(make_pools((9, 1)))


def test_seconds_are_kept_per_stage():
    pipeline = Pipeline(config())
    pipeline.rank(make_pools())
    assert set(pipeline.seconds) == {"pad", "filter", "rerank", "select"}
    assert all(seconds >= 0 for seconds in pipeline.seconds.values())


def test_no_queries():
    assert Pipeline(config(*KEEP_ALL)).rank(Pools([], [], [])) == []


def test_buckets_group_by_size_and_cover_every_query():
    found = list(buckets([3, 40, 0, 15, 16, 5], batch_size=3))
    assert found == [(16, [0, 2, 3]), (16, [5]), (32, [4]), (64, [1])]


def test_documents_are_packed_with_minus_one():
    assert pack_documents([[4, 5], [], [6]]).tolist() == [[4, 5], [-1, -1], [6, -1]]
    assert pack_documents([]).shape == (0, 0)
