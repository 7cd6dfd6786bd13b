"""Does the paper preset keep as many chunks as the paper says?

Ricci-Filtration (arXiv 2606.15482, Table 3) reports the mean number kept of a pool of 20 for
several settings. Here: the same settings over three datasets, averaged. Run with `make counts`.
"""

import argparse

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.datasets import NAMES, embedded_pools
from benchmarks.record import finish
from ricci_gpu.batch import pad_pools
from ricci_gpu.config import Config
from ricci_gpu.pipeline import buckets

# setting, pool size, published mean kept
PUBLISHED = [
    ("", 20, 16.7),
    ("filter.p=5", 20, 15.9),
    ("filter.p=1", 20, 13.5),
    ("filter.percentile=25", 20, 17.0),
    ("filter.percentile=75", 20, 16.0),
    ("filter.iterations=10", 20, 14.8),
    ("filter.iterations=1", 20, 10.4),
    ("", 10, 7.0),
]


def mean_kept(name: str, k: int, queries: int, overrides: list[str]) -> float:
    pools = embedded_pools(name, k, queries)
    config = Config.load("ricci_filtration", overrides)
    kept = 0
    for nodes, rows in buckets([k] * len(pools.query_emb), 256):
        batch = pad_pools(
            [k] * len(rows),
            query_emb=pools.query_emb[rows],
            candidate_emb=list(pools.candidate_emb[rows]),
            nodes=nodes,
        )
        kept += int(config.filter(batch).keep.sum())
    return kept / len(pools.query_emb)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=300, help="per dataset (default: 300)")
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    table = Table(title=f"mean kept, {options.queries} queries per dataset")
    for column in ("setting", "k", *NAMES, "mean", "published", "difference"):
        table.add_column(column)
    rows = []
    for setting, k, published in track(PUBLISHED, description="settings"):
        overrides = options.overrides + ([setting] if setting else [])
        each = {name: mean_kept(name, k, options.queries, overrides) for name in NAMES}
        mean = sum(each.values()) / len(each)
        rows.append({"setting": setting, "k": k, **each, "mean": mean, "published": published})
        figures = [f"{value:.2f}" for value in each.values()]
        table.add_row(
            setting or "preset",
            str(k),
            *figures,
            f"{mean:.2f}",
            str(published),
            f"{mean - published:+.2f}",
        )
    Console().print(table)
    finish({"bench": "mean_kept", "queries": options.queries, "rows": rows}, options.record)


if __name__ == "__main__":
    main()
