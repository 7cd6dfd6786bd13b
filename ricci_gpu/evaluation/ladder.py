"""The ladder: from dense retrieval to the best order we can make, one step at a time.

Every step ranks the whole corpus for the reported queries. The first stages order all passages;
later steps reorder the best of their fusion by one more signal, alone and added to what was there.
Weights are chosen on the tuning part; for a signal with weights trained here, only on queries that
it was not trained on. The time of a step is what that step adds per query on this machine, and
``ms_cumulative`` is everything that it needs.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from ricci_gpu.corpus.judged import JudgedQueries
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.evaluation.bootstrap import Difference, paired_difference
from ricci_gpu.evaluation.first_stage import SparseStage, best, finite, reciprocal_ranks, z_fusion
from ricci_gpu.evaluation.metrics import per_query
from ricci_gpu.evaluation.pools import EncodedQueries, JudgedPools, pools_of_rows
from ricci_gpu.evaluation.rules import standardised
from ricci_gpu.ops.token_transport import token_transport
from ricci_gpu.ops.topk import descending_order
from ricci_gpu.shapes import Float, Int, Tensor
from ricci_gpu.stages.token_filter import TokenTransportFilter

SPARSE_WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)
SIGNAL_WEIGHTS = (0.0, 0.25, 0.5, 1.0, 2.0, 4.0)
DEPTH = 100  # candidates of the fused first stage that later steps reorder
Pair = tuple[Tensor, Tensor]
NDCG, RECALL = "nDCG@10", f"R@{DEPTH}"


@dataclass(frozen=True)
class Step:
    """One rung.

    Args:
        setting: what was chosen on the tuning part.
        ndcg10_tune: on the queries that the setting was chosen on; fewer for trained signals.
        over_dense: difference in nDCG@10 to dense retrieval, with its interval.
    """

    dataset: str
    step: str
    setting: str
    ndcg10: float
    recall100: float
    ndcg10_tune: float
    over_dense: Difference
    ms_own: float
    ms_cumulative: float


@dataclass(frozen=True)
class Signal:
    """A score of pool candidates.

    Args:
        score: from pools, larger is better; ``-inf`` for what it does not score.
        depth: it reads only so many candidates of the order before it.
        trained: its weights were trained here, on the part ``fit``.
    """

    name: str
    score: Callable[[JudgedPools], Tensor]
    depth: int = DEPTH
    trained: bool = False


def untrained_signals(filter_: TokenTransportFilter) -> list[Signal]:
    """MaxSim and token transport on the token vectors of the encoder."""

    def log_mass(pools: JudgedPools) -> Tensor:
        return token_transport(
            pools.maxima,
            pools.token_mask,
            pools.batch.candidate_mask,
            temperature=filter_.temperature,
            steps=filter_.steps,
        ).log_mass

    return [
        Signal("MaxSim", lambda pools: pools.maxsim),
        Signal("MaxSim idf", lambda pools: pools.maxsim_idf),
        Signal("token transport", log_mass),
    ]


class Ladder:
    """Climbs the ladder of one dataset, keeping the steps.

    Everything exists twice, as a pair: for the tuning part and for the reported part.

    Args:
        encode: encodes judged queries; its time counts for every dense step.
        fit, tune, test: judged queries by part.
    """

    def __init__(
        self,
        dataset: str,
        store: CorpusStore,
        encode: Callable[[JudgedQueries], EncodedQueries],
        fit: JudgedQueries,
        tune: JudgedQueries,
        test: JudgedQueries,
        seed: int = 0,
    ) -> None:
        self.steps: list[Step] = []
        self._dataset, self._store, self._seed = dataset, store, seed
        self._ids = np.array([passage.id for passage in store.passages], dtype=object)
        self._unseen = slice(len(fit.queries), None)
        chosen_on = JudgedQueries(
            [*fit.queries, *tune.queries], fit.qrels | tune.qrels, [*fit.rows, *tune.rows]
        )
        self._judged = (chosen_on, test)
        self._queries, self._encode_ms = self._both(encode, self._judged)
        self._dense: np.ndarray | None = None

    def climb(self, sparse: Sequence[SparseStage], signals: Sequence[Signal]) -> list[Step]:
        """All steps: dense, every sparse stage alone and fused, then every signal likewise."""
        corpus = self._store.vectors
        dense, ms = self._both(lambda each: each.vectors @ corpus.T, self._queries)
        needed = self._encode_ms + ms
        self._add("dense", "", self._best(dense), ms, needed)
        lists, weights = [dense], [1.0]
        fused = dense
        for stage in sparse:
            scores, ms = self._both(partial(_sparse_scores, stage), self._queries)
            needed += ms
            self._add(stage.name, "alone", self._best(scores), ms, ms)
            lists.append(scores)
            tried = {
                weight: self._both(partial(_z_fused, [*weights, weight]), *lists)
                for weight in SPARSE_WEIGHTS
            }
            figure = {w: self._ndcg_tune(self._best(pair)) for w, (pair, _) in tried.items()}
            weight = max(figure, key=figure.__getitem__)
            weights.append(weight)
            fused, ms = tried[weight]
            needed += ms
            self._add(f"+ {stage.name}", f"z-scores, x {weight:g}", self._best(fused), ms, needed)
        if sparse:
            ranked, ms = self._both(_rank_fused, *lists)
            self._add("all by RRF", "k=60", self._best(ranked), ms, needed + ms)

        heads = (best(fused[0], DEPTH), best(fused[1], DEPTH))
        pools, ms = self._both(
            lambda queries, head: pools_of_rows(self._store, queries, head[1], finite(head[0])),
            self._queries,
            heads,
        )
        # The maxima, which MaxSim and token transport share, count for the first signal.
        self._climb_signals(pools, signals, needed, ms)
        return self.steps

    def _climb_signals(
        self,
        pools: tuple[JudgedPools, JudgedPools],
        signals: Sequence[Signal],
        needed: float,
        own: float,
    ) -> None:
        now = (standardised(pools[0].cosine), standardised(pools[1].cosine))
        for signal in signals:
            heads = (_head(now[0], signal.depth), _head(now[1], signal.depth))
            windows = (pools[0].columns(heads[0]), pools[1].columns(heads[1]))
            scores, ms = self._scores(signal, windows)
            ms, own = ms + own, 0.0
            needed += ms
            place = partial(self._placed, now, heads, scores)
            seen = self._unseen if signal.trained else slice(None)
            alone = _ordered_rows(pools, place(0.0, 1.0))
            self._add(signal.name, "alone", alone, ms, needed, seen)
            orders = {weight: place(1.0, weight) for weight in SIGNAL_WEIGHTS}
            rows = {weight: _ordered_rows(pools, order) for weight, order in orders.items()}
            figure = {weight: self._ndcg_tune(each, seen) for weight, each in rows.items()}
            weight = max(SIGNAL_WEIGHTS, key=figure.__getitem__)
            now = orders[weight]
            self._add(f"+ {signal.name}", f"x {weight:g}", rows[weight], ms, needed, seen)

    def _scores(
        self, signal: Signal, windows: tuple[JudgedPools, JudgedPools]
    ) -> tuple[Pair, float]:
        """Scores of both parts; zeros for the queries that a trained signal was trained on."""
        if not signal.trained:
            return self._both(signal.score, windows)
        tune, test = windows
        first = self._unseen.start
        scores, ms = self._both(signal.score, (tune.some(range(first, len(tune))), test))
        trained_on = scores[0].new_zeros(first, tune.size)
        return (torch.cat([trained_on, scores[0]]), scores[1]), ms

    @staticmethod
    def _placed(now: Pair, heads: Pair, scores: Pair, old: float, new: float) -> Pair:
        tune, test = (_reordered(*each, old, new) for each in zip(now, heads, scores, strict=True))
        return tune, test

    def _both(self, make: Callable[..., Any], *pairs: tuple[Any, Any]) -> tuple[Any, float]:
        """``make`` of both parts, and the milliseconds per query of the reported one."""
        tune = make(*(pair[0] for pair in pairs))
        start = time.perf_counter()
        test = make(*(pair[1] for pair in pairs))
        seconds = time.perf_counter() - start
        return (tune, test), 1000 * seconds / len(self._judged[1].queries)

    def _best(self, scores: Pair) -> Pair:
        return best(scores[0], DEPTH)[1], best(scores[1], DEPTH)[1]

    def _add(
        self,
        name: str,
        setting: str,
        rows: Pair,
        own: float,
        needed: float,
        seen: slice = slice(None),
    ) -> None:
        figures = self._figures(1, rows)
        if self._dense is None:
            self._dense = figures[NDCG]
        self.steps.append(
            Step(
                dataset=self._dataset,
                step=name,
                setting=setting,
                ndcg10=float(figures[NDCG].mean()),
                recall100=float(figures[RECALL].mean()),
                ndcg10_tune=self._ndcg_tune(rows, seen),
                over_dense=paired_difference(figures[NDCG], self._dense, self._seed),
                ms_own=own,
                ms_cumulative=needed,
            )
        )

    def _ndcg_tune(self, rows: Pair, seen: slice = slice(None)) -> float:
        return float(self._figures(0, rows)[NDCG][seen].mean())

    def _figures(self, part: int, rows: Pair) -> dict[str, np.ndarray]:
        judged = self._judged[part]
        names = self._ids[rows[part].numpy()]
        runs = {query.id: list(ids) for query, ids in zip(judged.queries, names, strict=True)}
        return per_query(runs, judged.qrels, [NDCG, RECALL])


def _sparse_scores(stage: SparseStage, queries: EncodedQueries) -> Tensor:
    return stage.scores(queries.texts)


def _z_fused(weights: Sequence[float], *scores: Tensor) -> Tensor:
    return z_fusion(list(zip(weights, scores, strict=True)))


def _rank_fused(*scores: Tensor) -> Tensor:
    return torch.stack([reciprocal_ranks(score) for score in scores]).sum(dim=0)


def _head(score: Float[Tensor, "B K"], depth: int) -> Int[Tensor, "B S"]:
    return descending_order(score, torch.ones_like(score, dtype=torch.bool))[:, :depth]


def _reordered(
    now: Float[Tensor, "B K"],
    head: Int[Tensor, "B S"],
    score: Float[Tensor, "B S"],
    old: float,
    new: float,
) -> Float[Tensor, "B K"]:
    """The head of the order by ``old`` times what stood plus ``new`` times the signal; what lies
    behind the head stays behind, in its order."""
    mixed = old * standardised(now.gather(1, head)) + new * standardised(score.double())
    behind = now - now.amax(dim=1, keepdim=True) + mixed.amin(dim=1, keepdim=True) - 1.0
    return behind.scatter(1, head, mixed)


def _ordered_rows(pools: tuple[JudgedPools, JudgedPools], scores: Pair) -> Pair:
    tune, test = (
        each.rows.gather(1, _head(score, each.size))
        for each, score in zip(pools, scores, strict=True)
    )
    return tune, test
