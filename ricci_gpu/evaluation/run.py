"""One evaluation from start to end: pools, the four tables and the ladder, for every dataset."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ricci_gpu.config import Config
from ricci_gpu.corpus.judged import JudgedQueries
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.errors import InputError
from ricci_gpu.evaluation import null_queries
from ricci_gpu.evaluation.answers import Generator, accepted_answers, answer_questions
from ricci_gpu.evaluation.conditions import conditions
from ricci_gpu.evaluation.datasets import Dataset, open_store
from ricci_gpu.evaluation.first_stage import Bm25, SparseModel, SparseStage, SpladeStage
from ricci_gpu.evaluation.ladder import Ladder, Signal, untrained_signals
from ricci_gpu.evaluation.latency import latency
from ricci_gpu.evaluation.matched_budget import Comparison, compare, curve
from ricci_gpu.evaluation.overall import overall
from ricci_gpu.evaluation.paper_protocol import ablations, protocol, systems
from ricci_gpu.evaluation.pools import (
    CorpusIdf,
    JudgedPools,
    WordEncoder,
    dense_pools,
    encode_queries,
)
from ricci_gpu.evaluation.rerankers import PairReranker, PoolScorer, maxsim_order
from ricci_gpu.evaluation.results import rows_of
from ricci_gpu.evaluation.rules import FIXED_K, catalogue, default_rule
from ricci_gpu.evaluation.trained import PairModel, head_signals, pair_signals
from ricci_gpu.evaluation.variants import DENSE, HYBRID, Attempts, Variant, hybrid_pools, variants
from ricci_gpu.models.late_interaction import LateInteraction
from ricci_gpu.shapes import Tensor
from ricci_gpu.stages.token_filter import TokenTransportFilter

PLOTTED = (
    "default",
    "default filter, pool 20",
    "default filter, pool 50",
    "ricci ge",
    "ricci le",
    FIXED_K,
    "fixed k or fraction MaxSim",
    "random",
)
PLOTTED_NULLS = ("default", "max_cosine", "cosine_gap", "maxsim_contrast", "ricci_ge_dropped")
ABLATED = ("percentile", "p", "iterations", "pool")
PRESET = {"percentile": 50.0, "p": 2.0, "iterations": 20.0}
Report = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """How much is computed; the defaults are those of the published tables.

    Args:
        pool: candidates of every filter.
        second_pool: a larger one, for filters and rules that are cheap enough.
        deep: candidates retrieved, from which null pools are filled up.
        pool_sizes: of the ablation.
        ablated: queries of the ablations, at most; a pool of 50 takes 0.3 s per query.
        impossible: impossible questions, at most.
        timed: queries of the latency table.
        answered: questions of each dataset that a generator answers, at most.
        variants: whether the attempts to do better are measured.
    """

    pool: int = 20
    second_pool: int = 50
    deep: int = 100
    pool_sizes: Sequence[int] = (10, 20, 50)
    ablated: int = 100
    impossible: int = 400
    timed: int = 100
    answered: int = 10
    variants: bool = True


@dataclass
class Evaluation:
    """Runs the tables dataset by dataset and gathers their rows in one document.

    Args:
        queries, passages: encode either side; the token vectors of both come from one model.
        head: a trained late-interaction head over the encoder.
        generator: writes answers; ``generator_name`` says what it is.
        splade: a second sparse stage of the ladder, beside BM25.
        absent: what this run leaves out, in words; printed in every output.
        report: called with what is being worked on.
    """

    config: Config
    queries: WordEncoder
    passages: WordEncoder
    cache: Path
    sizes: Sizes = field(default_factory=Sizes)
    seed: int = 0
    pair_models: Sequence[PairModel] = ()
    head: LateInteraction | None = None
    splade: SparseModel | None = None
    generator: Generator | None = None
    generator_name: str = "none: no answers were written"
    absent: list[str] = field(default_factory=list)
    report: Report = lambda doing: None

    def run(self, datasets: Sequence[Dataset]) -> dict[str, Any]:
        """The document of all datasets."""
        document: dict[str, Any] = {
            "bench": "quality",
            "facts": self._facts(),
            "absent": self.absent,
        }
        for table in ("overall", "protocol", "ablations", "answers", "verdicts", "matched_budget"):
            document[table] = []
        for table in ("own_terms", "null_queries", "latency", "ladder", "variants"):
            document[table] = []
        for plot in ("curves", "kept_counts", "null_curves", "ablation_curves"):
            document[plot] = {}
        attempts = Attempts(self.seed)
        done = [self._dataset(dataset, document, attempts) for dataset in datasets]
        comparisons = [compared for compared, _ in done]
        document["overall"] = rows_of(overall(comparisons, [ndcg for _, ndcg in done], self.seed))
        document["variants"] = rows_of(attempts.rows())
        document["facts"]["queries"] = "; ".join(document["facts"]["queries"])
        document["ablation_curves"] = ablation_curves(document["ablations"])
        return document

    def _facts(self) -> dict[str, Any]:
        return {
            "pool": self.sizes.pool,
            "encoder": f"{self.passages.name} ({self.passages.source})",
            "rerankers": ["MaxSim", *(model.name for model in self.pair_models)],
            "default_pool": self.config.retrieve.k,
            "default": f"{self.config.filter.name} {self.config.to_tree()['filter']}",
            "seed": self.seed,
            "queries": [],
            "generator": self.generator_name,
            "conditions": conditions(),
        }

    def _dataset(
        self, dataset: Dataset, document: dict[str, Any], attempts: Attempts
    ) -> tuple[Comparison, dict[str, np.ndarray]]:
        name, seed, sizes = dataset.name, self.seed, self.sizes
        self.report(f"{name}: corpus")
        store = open_store(dataset, self.passages, self.cache)
        idf = CorpusIdf(store, self.passages)
        fit, tune, test = (dataset.part(part) for part in ("fit", "tune", "test"))
        if not test.queries or not (fit.queries or tune.queries):
            raise InputError(
                f"dataset `{name}` needs judged queries to choose settings on and others to report "
                f"on; it has {len(fit.queries) + len(tune.queries)} and {len(test.queries)}. See "
                "`ricci_gpu.corpus.judged` for how the parts are made."
            )
        self.report(f"{name}: pools")
        deep = min(max(sizes.deep, self.config.retrieve.k), len(store.passages))
        chosen_on = joined(fit, tune)
        asked = encode_queries(test, self.queries, idf)
        asked_tuning = encode_queries(chosen_on, self.queries, idf)
        pools = dense_pools(store, asked, deep)
        tuning = dense_pools(store, asked_tuning, deep)
        said = f"{name} {len(pools)} (tuned on {len(tuning)})"
        document["facts"]["queries"].append(said)

        self.report(f"{name}: matched budget")
        second = min(sizes.second_pool, deep)
        rules = catalogue(self.config, sizes.pool, second, seed)
        compared = compare(name, rules, tuning, pools, seed)
        document["verdicts"] += rows_of(compared.verdicts)
        document["matched_budget"] += rows_of(compared.rows)
        document["own_terms"] += rows_of(compared.own)
        document["curves"][name] = recall_curves(compared)
        document["kept_counts"][name] = kept_counts(compared)

        self.report(f"{name}: null queries")
        self._nulls(dataset, store, pools, idf, document)

        bm25 = Bm25(store)
        if sizes.variants:
            self.report(f"{name}: variants")
            base = self._token_filter()
            usual = min(self.config.retrieve.k, deep)
            larger = min(2 * usual, deep)
            tried = variants(base, store, self.head, usual, larger, sizes.pool)
            unseen = slice(len(fit.queries), None)
            parts = {
                "tune": {DENSE: tuning, HYBRID: hybrid_pools(store, bm25, asked_tuning, larger)},
                "test": {DENSE: pools, HYBRID: hybrid_pools(store, bm25, asked, larger)},
            }
            judgements = chosen_on.qrels | test.qrels
            attempts.add(tried, default_variant(self.config), parts, judgements, unseen)

        self.report(f"{name}: ladder")
        sparse: list[SparseStage] = [bm25]
        if self.splade is not None:
            sparse.append(SpladeStage(self.splade, store, self.cache))
        ladder = Ladder(
            name,
            store,
            lambda judged: encode_queries(judged, self.queries, idf),
            fit,
            tune,
            test,
            seed,
        )
        rerankers = {
            model.name: PairReranker(model.name, model.score, store) for model in self.pair_models
        }
        signals = self._signals(store, rerankers)
        document["ladder"] += rows_of(ladder.climb(sparse, signals))

        self.report(f"{name}: protocol")
        ndcg = self._protocol(name, dataset.folder, store, pools, test, rerankers, document)
        return compared, ndcg

    def _token_filter(self) -> TokenTransportFilter:
        """The configured one, or one with the defaults where another filter is configured."""
        filter_ = self.config.filter
        return filter_ if isinstance(filter_, TokenTransportFilter) else TokenTransportFilter()

    def _signals(self, store: CorpusStore, rerankers: Mapping[str, PairReranker]) -> list[Signal]:
        signals = untrained_signals(self._token_filter())
        if self.head is not None:
            signals += head_signals(self.head, store)
        return signals + pair_signals(self.pair_models, rerankers)

    @staticmethod
    def _accepted(folder: Path, test: JudgedQueries) -> dict[str, list[str]]:
        """Accepted answers of the reported questions, in their order."""
        answers = accepted_answers(folder)
        return {q.id: answers[q.id] for q in test.queries if q.id in answers}

    def _nulls(
        self,
        dataset: Dataset,
        store: CorpusStore,
        pools: JudgedPools,
        idf: CorpusIdf,
        document: dict[str, Any],
    ) -> None:
        size = self.sizes.pool
        tables = [null_queries.gold_removed(dataset.name, self.config, pools, size, self.seed)]
        unanswerable = null_queries.impossible_questions(
            dataset.folder, "test", self.sizes.impossible
        )
        if unanswerable is not None:
            null = dense_pools(store, encode_queries(unanswerable, self.queries, idf), size)
            tables.append(
                null_queries.impossible(dataset.name, self.config, pools.top(size), null, self.seed)
            )
        for table in tables:
            document["null_queries"] += rows_of(table.rows)
            for (kind, feature), points in table.curves.items():
                if feature in PLOTTED_NULLS:
                    plot = document["null_curves"].setdefault(f"{dataset.name}, {kind}", {})
                    plot[feature] = points

    def _protocol(
        self,
        name: str,
        folder: Path,
        store: CorpusStore,
        pools: JudgedPools,
        test: JudgedQueries,
        rerankers: Mapping[str, PairReranker],
        document: dict[str, Any],
    ) -> dict[str, np.ndarray]:
        sizes, seed = self.sizes, self.seed
        top = pools.top(sizes.pool)
        everywhere: dict[str, PoolScorer] = {"MaxSim": maxsim_order}
        sampled: dict[str, PoolScorer] = {}
        sample = len(top)
        for model in self.pair_models:
            if model.sample is None:
                everywhere[model.name] = rerankers[model.name]
            else:
                sampled[model.name] = rerankers[model.name]
                sample = min(model.sample, sample)
        rows, ndcg = protocol(name, store, top, test.qrels, systems(self.config, everywhere), seed)
        if sampled:
            few = top.some(range(sample))
            compared = systems(self.config, everywhere | sampled)
            rows += protocol(name, store, few, test.qrels, compared, seed)[0]
        document["protocol"] += rows_of(rows)
        if self.generator is not None:
            self.report(f"{name}: answers")
            accepted = dict(list(self._accepted(folder, test).items())[: sizes.answered])
            document["answers"] += rows_of(
                answer_questions(
                    name, store, top, accepted, systems(self.config, everywhere), self.generator
                )
            )
        self.report(f"{name}: ablations")
        some = pools.some(range(min(sizes.ablated, len(pools))))
        document["ablations"] += rows_of(
            ablations(name, store, some, test.qrels, everywhere, sizes.pool_sizes, sizes.pool)
        )
        self.report(f"{name}: latency")
        timed = top.some(range(min(sizes.timed, len(top))))
        fresh: dict[str, PoolScorer] = {
            model.name: _unremembered(model, store)
            for model in self.pair_models
            if model.sample is None
        }
        document["latency"] += [
            {"dataset": name} | row for row in rows_of(latency(self.config, store, timed, fresh))
        ]
        return ndcg


def default_variant(config: Config) -> Variant:
    """The configured filter on pools of the configured size."""
    rule = default_rule(config)

    def statistic(pools: JudgedPools) -> Tensor:
        found = rule.decide(pools).statistic
        assert found is not None  # filters have one
        return found

    return Variant(rule.name, statistic, rule.pool)


def joined(fit: JudgedQueries, tune: JudgedQueries) -> JudgedQueries:
    """Both tuning parts in one, for rules without trained weights."""
    return JudgedQueries(
        [*fit.queries, *tune.queries], fit.qrels | tune.qrels, [*fit.rows, *tune.rows]
    )


def _unremembered(model: PairModel, store: CorpusStore) -> PoolScorer:
    """A reranker that scores every pair again, for the clock."""

    def order(pools: JudgedPools, keep: Tensor | None = None) -> Tensor:
        return PairReranker(model.name, model.score, store)(pools, keep)

    return order


def recall_curves(compared: Comparison) -> dict[str, list[tuple[float, float]]]:
    """(mean kept, recall) of the filters and of the controls worth a line."""
    least = min(each.rule.pool for each in compared.decided.values())
    points = [float(k) for k in range(1, least + 1)]
    best = [verdict.control for verdict in compared.verdicts]
    names = [each for each in dict.fromkeys([*PLOTTED, *best]) if each in compared.decided]
    return {name: curve(compared.decided[name], points) for name in names}


def kept_counts(compared: Comparison) -> dict[str, list[float]]:
    """Share of queries with 0, 1, 2, ... kept, for the filters on their own terms.

    Up to the smallest pool; a filter that reads more may keep more, which is not drawn.
    """
    least = min(each.rule.pool for each in compared.decided.values())
    counts = {}
    for name, each in compared.decided.items():
        if each.rule.kind == "filter" and each.test.keep is not None:
            kept = each.test.keep.sum(axis=1)
            share = np.bincount(kept, minlength=least + 1)[: least + 1] / len(kept)
            counts[name] = share.tolist()
    return counts


def ablation_curves(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """Gold recall minus that of a fixed k, over each setting, one line per dataset."""
    curves: dict[str, dict[str, list[Any]]] = {}
    for row in rows:
        if row["reranker"] != "MaxSim":
            continue
        gain = row["gold_recall"] - row["fixed_k_recall"]
        for setting in ABLATED:
            line = curves.setdefault(setting, {}).setdefault(row["dataset"], [])
            if row["change"] == "preset" and setting in PRESET:
                line.append((PRESET[setting], gain))
            elif row["change"].startswith((f"{setting}=", f"{setting} ")):
                line.append((float(row["change"].replace("=", " ").split()[-1]), gain))
    return {
        setting: {name: sorted(line) for name, line in lines.items() if line}
        for setting, lines in curves.items()
        if any(len(line) > 1 for line in lines.values())
    }
