"""Rerank a query log over the documentation that this Python ships, five ways, side by side.

Builds the collection, encodes it, retrieves a pool of 20 per question, and treats the same pools
with five configurations. Writes the ranked files and prints what each costs and keeps.
`make demo` runs it; everything happens on this machine.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from examples.python_docs import build
from ricci_gpu.cli import progress_bar
from ricci_gpu.config import Config
from ricci_gpu.corpus.readers import read_corpus, read_qrels, read_queries
from ricci_gpu.corpus.store import CorpusStore
from ricci_gpu.evaluation.metrics import evaluate
from ricci_gpu.output import write_rankings
from ricci_gpu.pipeline import Pipeline, Pools
from ricci_gpu.reranker import Reranker

CONFIGURATIONS = {
    "dense only": ("default", ["filter.type=none", "select.top_k=null"]),
    "MaxSim only": ("default", ["filter.type=none", "rerank.type=maxsim", "select.top_k=null"]),
    "best 5 by MaxSim": (
        "default",
        [
            "filter.type=fixed_k",
            "filter.on=maxsim",
            "filter.k=5",
            "rerank.type=maxsim",
            "select.top_k=null",
        ],
    ),
    "Ricci, then MaxSim": ("ricci_filtration", ["select.top_k=null"]),
    "token transport": ("default", ["select.top_k=null"]),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-output"), help="folder of the files")
    parser.add_argument(
        "--passages",
        type=int,
        help="use only so many passages, judged ones first (for a quick look)",
    )
    parser.add_argument("--record", action="store_true", help="keep the figures for the README")
    options = parser.parse_args(arguments)
    console = Console()

    build.main(options.out / "collection")
    queries = read_queries(options.out / "collection")
    judgements = read_qrels(options.out / "collection")
    passages = read_corpus(options.out / "collection")
    if options.passages is not None:
        judged = {doc for documents in judgements.values() for doc in documents}
        passages = sorted(passages, key=lambda passage: passage.id not in judged)
        passages = passages[: options.passages]

    reranker = Reranker("default", ["retrieve.k=20"])  # that of the published filter, for all
    console.print(f"model {reranker.encoder.name} from {reranker.encoder.source}")
    start = time.perf_counter()
    with progress_bar("encode corpus") as progress:
        store = CorpusStore.build(passages, reranker.encoder, progress=progress)
    console.print(
        f"{len(passages)} passages encoded and indexed in {time.perf_counter() - start:.0f} s"
    )
    pools = reranker.retrieve(store, queries)

    table = Table(title=f"{len(queries)} questions, pools of {reranker.config.retrieve.k}")
    for column in (
        "",
        "filter/s",
        "rerank/s",
        "kept",
        "recall",
        "nDCG@10",
        "of kept",
    ):
        table.add_column(column, justify="right" if column else "left", no_wrap=True)
    rows = []
    for name, (preset, overrides) in CONFIGURATIONS.items():
        config = Config.load(preset, overrides)
        warm_up(config, pools)
        pipeline = Pipeline(config, reranker.device)
        rankings = pipeline.rank(pools)
        write_rankings(rankings, options.out / name.replace(",", "").replace(" ", "_").lower())
        quality = evaluate(rankings, judgements)
        speed = {
            "filter_per_s": per_second(pipeline, "filter", len(queries)),
            "rerank_per_s": per_second(pipeline, "rerank", len(queries)),
        }
        rows.append({"name": name} | speed | asdict(quality))
        table.add_row(
            name,
            *("-" if rate is None else f"{rate:,.0f}" for rate in speed.values()),
            f"{quality.mean_kept:.1f}",
            f"{quality.gold_recall:.3f}",
            f"{quality.ndcg_full:.3f}",
            f"{quality.ndcg_survivors:.3f}",
        )
    console.print(table)
    rates = {
        stage: len(queries) / reranker.pipeline.seconds[stage] for stage in ("encode", "retrieve")
    }
    console.print(
        f"before the filter: encode {rates['encode']:,.0f} queries/s, "
        f"retrieve {rates['retrieve']:,.0f} queries/s"
    )
    console.print(
        "filter/s, rerank/s: queries per second; kept: mean survivors; recall: relevant passages\n"
        "among them (those never retrieved count as missed); nDCG@10 of the full order (survivors\n"
        "first, then the dropped), and of the kept alone. "
        f"{len(queries) - evaluate(rankings, judgements).queries} questions have no answer here "
        "and are not scored."
    )
    console.print(f"ranked files (Parquet, JSONL, TREC run): {options.out}/")
    if options.record:
        from benchmarks.record import finish

        document = {"bench": "demo", "queries": len(queries), "passages": len(passages)}
        finish(document | {"rows": rows}, record=True)


def warm_up(config: Config, pools: Pools) -> None:
    """Load and compile before the clock runs: the first query of a process pays for that once."""
    tokens = pools.tokens
    first = Pools(
        query_ids=pools.query_ids[:1],
        queries=pools.queries[:1],
        candidate_ids=pools.candidate_ids[:1],
        query_emb=None if pools.query_emb is None else pools.query_emb[:1],
        candidate_emb=None if pools.candidate_emb is None else pools.candidate_emb[:1],
        tokens=tokens,
    )
    Pipeline(config).rank(first)


def per_second(pipeline: Pipeline, stage: str, queries: int) -> float | None:
    """Queries per second of a stage; None for one that has nothing to do."""
    if getattr(pipeline.config, stage).name == "none":
        return None
    return queries / pipeline.seconds[stage]


if __name__ == "__main__":
    main()
