import numpy as np
import pytest
import torch

from ricci_gpu.config import Config
from ricci_gpu.evaluation.latency import latency
from ricci_gpu.evaluation.paper_protocol import ablations, protocol, systems
from ricci_gpu.evaluation.rerankers import PairReranker, maxsim_order


@pytest.fixture
def overlap(store):
    """A reranker that counts shared words, and what it was asked."""
    asked = []

    def score(pairs):
        asked.extend(pairs)
        return [float(len(set(a.split()) & set(b.split()))) for a, b in pairs]

    return PairReranker("overlap", score, store), asked


def test_systems_of_the_protocol(pools_of, dataset, store, overlap):
    reranker, asked = overlap
    pools = pools_of("test", 12)
    judgements = dataset.part("test").qrels
    compared = systems(Config(), {"MaxSim": maxsim_order, "overlap": reranker})
    table, ndcg = protocol("small", store, pools, judgements, compared)
    rows = {row.system: row for row in table}
    assert ndcg["MaxSim"].mean() == pytest.approx(rows["MaxSim"].ndcg_survivors)
    assert len(asked) == len(set(asked)) == len(pools) * 12  # once per pair, whoever asks again
    plain = rows["no reranker"]
    assert plain.kept == 12
    assert plain.empty_rate == 0
    assert plain.gold_recall == pytest.approx(pools.gain.sum(axis=1).mean())
    assert plain.recall_5 == pytest.approx(pools.gain[:, :5].sum(axis=1).mean())
    assert plain.precision_5 == pytest.approx(float(pools.gold[:, :5].double().mean()))
    assert plain.over_plain.interval == [0, 0]
    ricci = rows["Ricci-Filtration, then overlap"]
    assert 0 < ricci.kept < 12
    assert ricci.gold_recall < plain.gold_recall
    assert ricci.ndcg_full >= ricci.ndcg_survivors
    # everything relevant in the pool comes first
    assert rows["overlap"].ndcg_full > 0.99 * rows["overlap"].gold_recall
    assert rows["overlap"].over_plain.low > 0


def test_a_pair_without_a_score_comes_last(pools_of, store):
    reranker = PairReranker("picky", lambda pairs: [None] * len(pairs), store)
    assert torch.isinf(reranker(pools_of("test", 4))).all()


def test_ablations_name_what_was_published(pools_of, dataset, store):
    pools = pools_of("test", 16).some(range(8))
    rows = ablations(
        "small", store, pools, dataset.part("test").qrels, {"MaxSim": maxsim_order}, (8, 12, 16), 12
    )
    by_change = {row.change: row for row in rows}
    assert {
        "preset",
        "rule=le",
        "percentile=25",
        "p=5",
        "iterations=1",
        "pool 8",
        "pool 16",
    } <= set(by_change)
    assert "2-means" in by_change
    assert by_change["preset"].published_kept == 16.7
    assert by_change["pool 8"].published_kept is None
    for row in rows:
        assert row.queries == 8
        assert 0 <= row.gold_recall <= 1
    everything = pools.top(12)
    fixed = by_change["preset"].fixed_k_recall
    low, high = (
        everything.gain[:, :k].sum(axis=1).mean()
        for k in (int(by_change["preset"].kept), int(by_change["preset"].kept) + 1)
    )
    assert min(low, high) - 1e-9 <= fixed <= max(low, high) + 1e-9


def test_every_stage_is_timed_on_the_same_pools(pools_of, store, overlap):
    reranker, _ = overlap
    pools = pools_of("test", 8).some(range(4))
    rows = {row.stage: row for row in latency(Config(), store, pools, {"overlap": reranker})}
    assert {"default", "ricci", "ricci le", "token_transport", "maxsim", "overlap", "otsu"} <= set(
        rows
    )
    for row in rows.values():
        assert (row.pool, row.queries) == (8, 4)
        assert row.ms_batch > 0
        assert row.ms_single > 0
        assert row.extra_mb is None or np.isfinite(row.extra_mb)
    assert rows["ricci"].ms_batch > rows["fixed_k"].ms_batch
