import numpy as np
import pytest
import torch

from ricci_gpu.evaluation import variants as tried
from ricci_gpu.evaluation.first_stage import Bm25
from ricci_gpu.evaluation.pools import CorpusIdf, encode_queries
from ricci_gpu.evaluation.token_graph import (
    mean_profile_distance,
    profile_distance,
    profile_variation,
    profiles,
    uniform,
)
from ricci_gpu.evaluation.variants import Attempts, Cuts, Variant, figures
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.stages.token_filter import TokenTransportFilter

BASE = TokenTransportFilter()


def test_every_attempt_scores_every_candidate(pools_of, store):
    pools = pools_of()
    names = set()
    for variant in tried.variants(BASE, store, None, 20, 20, 20):
        if variant.pool != 20 or variant.source != "dense":
            continue
        values = variant.statistic(pools)
        assert tuple(values.shape) == (len(pools), 20)
        assert torch.isfinite(values).all(), variant.name
        names.add(variant.name)
    assert "T = 0.15, 5 steps" not in names  # that is the filter itself
    every = tried.variants(BASE, store, None, 20, 50, 10)
    assert len({variant.name for variant in every}) == len(every)


def test_without_likeness_grouping_changes_nothing_but_ties(pools_of):
    pools = pools_of()
    share = tried.mass_share(BASE, pools)
    assert torch.allclose(tried.grouped_share(BASE, 1.1, pools), share, atol=1e-4)


def test_duplicates_that_compete_as_one_keep_the_mass_of_one(pools_of):
    pools = pools_of().some([0])
    twice = pools.columns(torch.tensor([[*range(10), 0]]))
    alone = tried.mass_share(BASE, pools.top(10))[0] / 10
    grouped = tried.grouped_share(BASE, 0.999, twice)[0] / 10
    assert grouped[:10].numpy() == pytest.approx(alone.numpy(), abs=1e-4)
    assert grouped[10] == pytest.approx(float(alone[0]), abs=1e-4)
    parted = tried.mass_share(BASE, twice)[0] / 11
    assert parted[0] < grouped[0]


def test_spread_is_the_temperature_of_the_query(pools_of):
    pools = pools_of().some([3])
    mask = pools.token_mask[0]
    spread = float(pools.maxima[0, mask].var(dim=1, correction=0).mean().sqrt())
    expected = token_transport(
        pools.maxima, pools.token_mask, pools.batch.candidate_mask, temperature=2 * spread, steps=5
    ).share
    assert torch.allclose(tried.spread_share(BASE, 2.0, pools), expected.double(), atol=1e-5)


def test_mass_that_never_settles_takes_all_steps(pools_of):
    pools = pools_of()
    at_once = tried.settled_share(BASE, pools, moved=10.0)
    one = tried.mass_share(TokenTransportFilter(steps=1), pools)
    assert torch.equal(at_once, one)
    never = tried.settled_share(BASE, pools, moved=0.0, most=4)
    assert torch.equal(never, tried.mass_share(TokenTransportFilter(steps=4), pools))


def test_abstention_moves_all_candidates_of_a_query_alike(pools_of):
    pools = pools_of()
    with_it = tried.with_abstention(BASE, 1.0, pools)
    without = tried.with_abstention(BASE, 0.0, pools)
    moved = with_it - without
    assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-9)
    assert moved[:, 0].std() > 0


def test_profiles_and_their_distance(pools_of):
    """W1 between measures on tokens lies between TV times the least and the largest distance."""
    pools = pools_of()
    assert torch.allclose(profiles(pools).sum(dim=1), torch.ones(len(pools), 20).double())
    assert torch.allclose(uniform(pools).sum(dim=1), torch.ones(len(pools)).double())
    distance, variation = profile_distance(pools), profile_variation(pools)
    tokens = pools.batch.tokens
    for place in range(5):
        span = slice(*tokens.query_offsets[place : place + 2].tolist())
        apart = torch.cdist(tokens.query_tokens[span].double(), tokens.query_tokens[span].double())
        apart = apart[~torch.eye(len(apart), dtype=torch.bool)]
        assert (distance[place] <= variation[place] * apart.max() + 1e-6).all()
        assert (distance[place] >= variation[place] * apart.min() - 1e-6).all()


def test_mean_distance_to_the_other_chunks(pools_of):
    pools = pools_of().some([0, 1])
    from_query = profile_distance(pools)
    mean = mean_profile_distance(pools)
    assert (mean > 0).all()
    # W1 is a metric: the mean over others is at most the way over the query
    others = (from_query.sum(dim=1, keepdim=True) - from_query) / (pools.size - 1)
    assert (mean <= from_query + others + 1e-9).all()
    same = pools.columns(torch.zeros(2, 3, dtype=torch.int64))
    assert mean_profile_distance(same).abs().max() == 0


def test_differences_are_gathered_by_part(pools_of, dataset):
    tune, test = pools_of("tune", 30), pools_of("test", 30)
    judgements = {part: dataset.part(part).qrels for part in ("tune", "test")}

    def worst(pools):
        return -tried.mass_share(BASE, pools)

    def share(pools):
        return tried.mass_share(BASE, pools)

    attempts = Attempts()
    attempts.add(
        [
            Variant("same", share, 20),
            Variant("worst", worst, 20),
            Variant("deep", share, 30),
            Variant("deeper", share, 40),
        ],
        Variant("default", share, 20),
        {"tune": {"dense": tune}, "test": {"dense": test}},
        judgements["tune"] | judgements["test"],
        slice(5, None),
    )
    rows = {(row.variant, row.measure): row for row in attempts.rows()}
    assert rows["same", "nDCG@10"].tune.interval == [0, 0]
    assert rows["same", "nDCG@10"].verdict == "no difference shown"
    assert rows["worst", "recall at 3"].verdict == "loses"
    assert rows["worst", "recall at 3"].test.queries == len(test)
    null = "recall at 3, half of the pools null"
    assert ("same", null) in rows
    assert ("deep", null) not in rows  # nothing is left to fill up null pools with
    assert not any(name == "deeper" for name, _ in rows)


def test_hybrid_pools_hold_the_best_of_both(pools_of, dataset, store, words):
    queries = encode_queries(dataset.part("test"), words, CorpusIdf(store, words))
    hybrid = tried.hybrid_pools(store, Bm25(store), queries, 10)
    assert (hybrid.cosine[:, :-1] >= hybrid.cosine[:, 1:]).all()
    assert hybrid.gain.sum() > pools_of("test", 10).gain.sum()


def test_ndcg_counts_what_was_never_retrieved(pools_of, dataset):
    pools = pools_of("test", 3)
    judgements = dataset.part("test").qrels
    best = Variant("best", lambda p: p.gold.double(), 3)
    gold_first = figures(best, Cuts(pools), judgements)
    found = gold_first["nDCG@10"]
    all_there = pools.gold.sum(dim=1).numpy() == pools.relevant.numpy()
    assert np.allclose(found[all_there], 1)
    assert (found[~all_there] < 1).all()
