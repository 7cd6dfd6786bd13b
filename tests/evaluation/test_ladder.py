import pytest
import torch

from ricci_gpu.evaluation.first_stage import Bm25
from ricci_gpu.evaluation.ladder import Ladder, Signal, untrained_signals
from ricci_gpu.evaluation.metrics import ndcg
from ricci_gpu.evaluation.pools import CorpusIdf, encode_queries
from ricci_gpu.stages.token_filter import TokenTransportFilter


@pytest.fixture
def ladder(dataset, store, words):
    idf = CorpusIdf(store, words)
    parts = [dataset.part(part) for part in ("fit", "tune", "test")]
    return Ladder("small", store, lambda judged: encode_queries(judged, words, idf), *parts)


def test_one_step_at_a_time(ladder, dataset, store, words):
    steps = {
        step.step: step
        for step in ladder.climb([Bm25(store)], untrained_signals(TokenTransportFilter()))
    }
    assert list(steps)[:4] == ["dense", "BM25", "+ BM25", "all by RRF"]
    assert list(steps)[4:6] == ["MaxSim", "+ MaxSim"]
    assert list(steps)[-1] == "+ token transport"
    judged = dataset.part("test")
    encoded = words.encode([query.text for query in judged.queries])
    order = (encoded.vectors @ store.vectors.T).argsort(dim=1, descending=True)[:, :100]
    runs = {
        query.id: [store.passages[row].id for row in rows]
        for query, rows in zip(judged.queries, order.tolist(), strict=True)
    }
    assert steps["dense"].ndcg10 == pytest.approx(ndcg(runs, judged.qrels))
    assert steps["dense"].over_dense.interval == [0, 0]
    assert steps["BM25"].ndcg10 > steps["dense"].ndcg10
    cumulative = [step.ms_cumulative for step in steps.values() if step.setting == "alone"]
    assert cumulative == sorted(cumulative)
    added = [step.ndcg10_tune for name, step in steps.items() if name.startswith("+")]
    assert added == sorted(added)  # a weight of 0 is among those tried


def test_a_short_signal_leaves_what_is_behind_its_head(ladder):
    def backwards(pools):
        assert pools.size == 2
        return torch.arange(2.0).expand(len(pools), 2)

    steps = ladder.climb([], [Signal("backwards", backwards, depth=2)])
    before, alone, added = steps
    assert alone.recall100 == before.recall100
    assert alone.ndcg10 != before.ndcg10
    assert added.ndcg10_tune >= before.ndcg10_tune


def test_trained_signals_are_weighed_on_queries_they_did_not_see(ladder):
    """The signal is right about the part it was trained on, and wrong everywhere else."""
    trained_on = {query.id for query in ladder._judged[0].queries[: ladder._unseen.start]}

    def memorised(pools):
        sign = torch.tensor([1.0 if q.id in trained_on else -1.0 for q in pools.queries])
        return sign[:, None] * pools.grades.double()

    honest, naive = (
        ladder.climb([], [Signal("memory", memorised, trained=trained)])[-1]
        for trained in (True, False)
    )
    assert honest.setting == "x 0"
    assert naive.step == "+ memory"
