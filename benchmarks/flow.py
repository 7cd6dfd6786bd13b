"""How fast is the flow, and does it decide as the linear programme does? Run: `make bench-flow`.

One run, one thread, CPU time, SciFact pools (k = 20, 20 steps), both edge rules, next to
GraphRicciCurvature (OTD, one process) and a direct loop over POT's network simplex on problems
whose common mass is cancelled. The slow ones run on the first few queries and say how many.
Then growth over k and batch size, two threads against one, memory, and where the time goes.
"""

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.datasets import embedded_pools
from benchmarks.record import finish
from ricci_gpu.batch import pad_pools
from ricci_gpu.config import Config
from ricci_gpu.ops.adjacency import edge_list, to_matrix
from ricci_gpu.ops.distances import shortest_paths
from ricci_gpu.ops.flow import ricci_flow
from ricci_gpu.ops.measures import node_measures
from ricci_gpu.ops.transport import SOLVERS, TransportProblems
from ricci_gpu.stages.ricci_filter import CUTOFF_TOLERANCE, GRAPHS_AT_ONCE, RicciFilter

OURS = ("exact", "checked", "sinkhorn", "geomloss")
STEPS = 20
console = Console(stderr=True)


@dataclass(frozen=True)
class Graphs:
    """Pool graphs of one rule; node 0 is the query."""

    adjacency: torch.Tensor  # (B, N, N)
    k: int

    def first(self, count: int) -> "Graphs":
        return Graphs(self.adjacency[:count], self.k)


def pool_graphs(rule: str, k: int, queries: int) -> Graphs:
    pools = embedded_pools("scifact", k, queries)
    ricci = Config.load("ricci_filtration", [f"filter.rule={rule}"]).filter
    assert isinstance(ricci, RicciFilter)
    node_emb = torch.cat([pools.query_emb[:, None], pools.candidate_emb], dim=1)
    mask = torch.ones(node_emb.shape[:2], dtype=torch.bool)
    adjacency, _, _ = ricci.pool_graph(node_emb, mask)
    return Graphs(adjacency, k)


def our_flow(graphs: Graphs, solver: str, at_once: int = GRAPHS_AT_ONCE) -> dict[str, object]:
    """Decisions of every query, and the share of transports that were solved exactly."""
    keep, share = [], []
    for first in range(0, len(graphs.adjacency), at_once):
        adjacency = graphs.adjacency[first : first + at_once]
        edges = edge_list(adjacency)
        weight = torch.ones(edges.mask.shape, dtype=torch.float64)
        flow = ricci_flow(weight, edges, adjacency, SOLVERS.build(solver, {}), iterations=STEPS)
        keep.append(kept(flow.weight[:, : graphs.k]))
        share.append(flow.resolved_share)
    return {"keep": torch.cat(keep), "resolved": float(torch.cat(share).mean())}


def kept(query_edges: torch.Tensor) -> torch.Tensor:
    # Edges are listed row by row, so the k edges of the query come first.
    return query_edges <= 1.0 + CUTOFF_TOLERANCE["float64"]


def pot_flow(graphs: Graphs) -> tuple[torch.Tensor, float, int]:
    """The direct loop: network simplex per edge. Decisions, seconds in it, transports."""
    from ot.lp.emd_wrap import emd_c

    decisions, inside, transports = [], 0.0, 0
    for row in range(len(graphs.adjacency)):
        adjacency = graphs.adjacency[row : row + 1]
        edges = edge_list(adjacency)
        source, target = edges.source[0].numpy(), edges.target[0].numpy()
        weight = torch.ones(edges.mask.shape, dtype=torch.float64)
        size = adjacency.shape[1]
        for _ in range(STEPS):
            lengths = to_matrix(edges, weight, size, torch.inf)
            distance = shortest_paths(lengths)[0].numpy()
            measure = node_measures(lengths, adjacency)[0].numpy()
            w1 = np.zeros(len(source))
            start = time.process_time()
            for e in range(len(source)):
                excess = measure[source[e]] - measure[target[e]]
                give, take = np.flatnonzero(excess > 1e-15), np.flatnonzero(excess < -1e-15)
                if len(give) == 0 or len(take) == 0:
                    continue
                supply, demand = excess[give], -excess[take]
                demand *= supply.sum() / demand.sum()
                cost = distance[give[:, None], take]
                w1[e] = emd_c(supply, demand, cost, 100_000, 1)[1]
                transports += 1
            inside += time.process_time() - start
            weight = torch.from_numpy(w1 * (len(w1) / w1.sum()))[None]
        decisions.append(kept(weight[:, : graphs.k]))
    return torch.cat(decisions), inside, transports


def grc_flow(graphs: Graphs) -> torch.Tensor:
    """GraphRicciCurvature as its users call it, one process, no early stop."""
    import networkx as nx
    from GraphRicciCurvature.OllivierRicci import OllivierRicci

    decisions = []
    for adjacency in graphs.adjacency:
        graph = nx.from_numpy_array(adjacency.int().numpy())
        nx.set_edge_attributes(graph, 1.0, "weight")
        orc = OllivierRicci(graph, alpha=0.5, method="OTD", exp_power=2, proc=1, verbose="ERROR")
        orc.compute_ricci_flow(iterations=STEPS, step=1, delta=0)
        weight = [orc.G[0][c]["weight"] for c in range(1, graphs.k + 1)]
        decisions.append(kept(torch.tensor(weight)))
    return torch.stack(decisions)


def cpu_ms(work: Callable[[], object], queries: int) -> tuple[float, object]:
    """CPU milliseconds per query, children included (GraphRicciCurvature forks)."""
    before = cpu_seconds()
    result = work()
    return 1e3 * (cpu_seconds() - before) / queries, result


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def compare(rule: str, k: int, queries: int, sample: dict[str, int]) -> dict[str, object]:
    graphs = pool_graphs(rule, k, queries)
    our_flow(graphs.first(2), "exact")  # compile before the clock runs
    ms: dict[str, float] = {}
    agreement: dict[str, float] = {}
    row: dict[str, object] = {"rule": rule, "k": k, "queries": queries}
    ms["exact"], exact = cpu_ms(lambda: our_flow(graphs, "exact"), queries)
    truth = exact["keep"]
    for solver in OURS[1:]:
        count = min(sample.get(solver, queries), queries)
        part = graphs.first(count)
        ms[solver], result = cpu_ms(lambda s=solver, p=part: our_flow(p, s), count)
        agreement[solver] = float((result["keep"] == truth[:count]).double().mean())
        row[f"{solver}_queries"] = count
        if solver == "checked":
            row["resolved_share"] = result["resolved"]
    count = min(sample["pot_loop"], queries)
    ms["pot_loop"], (decided, inside, transports) = cpu_ms(
        lambda: pot_flow(graphs.first(count)), count
    )
    agreement["exact"] = float((decided == truth[:count]).double().mean())
    row["pot_us_per_transport"] = 1e6 * inside / transports
    row["pot_queries"] = count
    count = min(sample["graphriccicurvature"], queries)
    if count:
        ms["graphriccicurvature"], decided = cpu_ms(lambda: grc_flow(graphs.first(count)), count)
        agreement["graphriccicurvature"] = float((decided == truth[:count]).double().mean())
        row["grc_queries"] = count
    row |= {"ms_per_query": ms, "decisions": truth.numel(), "agreement": agreement}
    return row


def growth(rule: str, queries: int) -> list[dict[str, object]]:
    rows = []
    for k in track((10, 20, 50, 100), description=f"pool size, {rule}", console=console):
        count = max(queries * 20 // (k * k), 4) if k > 20 else queries
        graphs = pool_graphs(rule, k, count)
        row: dict[str, object] = {"rule": rule, "k": k, "queries": count}
        row["edges"] = float(graphs.adjacency.sum() / 2 / count)
        for solver in ("exact", "sinkhorn"):
            row[f"{solver}_ms"], _ = cpu_ms(lambda s=solver, g=graphs: our_flow(g, s), count)
        rows.append(row)
    return rows


def batch_sizes(most: int) -> list[dict[str, object]]:
    graphs = pool_graphs("ge", 20, 300)
    tiled = Graphs(graphs.adjacency.repeat(-(-most // 300), 1, 1)[:most], 20)
    rows = []
    size = 1
    while size <= most:
        part = tiled.first(size)
        repeats = max(1, 16 // size)
        row: dict[str, object] = {"queries": size}
        for solver in ("exact", "sinkhorn"):
            row[f"{solver}_ms"], _ = cpu_ms(
                lambda s=solver, p=part, r=repeats: [our_flow(p, s) for _ in range(r)],
                size * repeats,
            )
        rows.append(row)
        size *= 8
    return rows


def threads(queries: int) -> dict[str, float]:
    """Wall time of one thread over that of two, exact solver."""
    graphs = pool_graphs("ge", 20, queries)
    seconds = {}
    for count in (1, 2):
        torch.set_num_threads(count)
        start = time.perf_counter()
        our_flow(graphs, "exact", at_once=64)
        seconds[count] = time.perf_counter() - start
    torch.set_num_threads(1)
    return {"speedup_of_two": seconds[1] / seconds[2]}


class Clocked:
    """A function whose CPU seconds are added up."""

    def __init__(self, work: Callable[..., object]) -> None:
        self.work, self.seconds = work, 0.0

    def __call__(self, *arguments: object) -> object:
        start = time.process_time()
        result = self.work(*arguments)
        self.seconds += time.process_time() - start
        return result


def where_time_goes(queries: int) -> dict[str, float]:
    """CPU share of each part of a step, exact solver."""
    graphs = pool_graphs("ge", 20, queries)
    paths, measures = Clocked(shortest_paths), Clocked(node_measures)
    transport = Clocked(SOLVERS.build("exact", {}).solve)
    start = time.process_time()
    for first in range(0, queries, GRAPHS_AT_ONCE):
        adjacency = graphs.adjacency[first : first + GRAPHS_AT_ONCE]
        edges = edge_list(adjacency)
        weight = torch.ones(edges.mask.shape, dtype=torch.float64)
        state = None
        for _ in range(STEPS):
            lengths = to_matrix(edges, weight, adjacency.shape[1], torch.inf)
            problems = TransportProblems(paths(lengths), measures(lengths, adjacency), edges)
            solution = transport(problems, state)
            state = solution.state
            mean = solution.value.sum(1, keepdim=True) / edges.mask.sum(1, keepdim=True)
            weight = torch.where(edges.mask, solution.value / mean, 0.0)
    total = time.process_time() - start
    shares = {
        "shortest_paths": paths.seconds / total,
        "measures": measures.seconds / total,
        "transport": transport.seconds / total,
    }
    return shares | {"rest": 1.0 - sum(shares.values())}


def peak_memory_mib(queries: int) -> float:
    """Growth of the resident set while filtering, in a process of its own."""
    code = f"from benchmarks.flow import measure_memory; measure_memory({queries})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def measure_memory(queries: int) -> None:
    pools = embedded_pools("scifact", 20, 300)
    rows = torch.arange(queries) % 300
    ricci = Config.load("ricci_filtration").filter

    def run(chosen: torch.Tensor) -> None:
        batch = pad_pools(
            [20] * len(chosen),
            query_emb=pools.query_emb[chosen],
            candidate_emb=list(pools.candidate_emb[chosen]),
        )
        ricci(batch)

    run(rows[:32])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    run(rows)
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--pot-queries", type=int, default=40)
    parser.add_argument("--grc-queries", type=int, default=6)
    parser.add_argument("--geomloss-queries", type=int, default=4)
    parser.add_argument("--largest-batch", type=int, default=4096)
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    sample = {
        "pot_loop": options.pot_queries,
        "graphriccicurvature": options.grc_queries,
        "geomloss": options.geomloss_queries,
    }
    rows = [
        compare(rule, 20, options.queries, sample)
        for rule in track(("ge", "le"), description="solvers", console=console)
    ]
    extra = {
        "growth": [row for rule in ("ge", "le") for row in growth(rule, options.queries // 3)],
        "batch": batch_sizes(options.largest_batch),
        "threads": threads(options.queries),
        "where": where_time_goes(options.queries),
        "peak_mib_per_1000_queries": peak_memory_mib(1000),
    }
    show(rows, extra)
    finish({"bench": "flow", "rows": rows} | extra, options.record)


def show(rows: list[dict], extra: dict) -> None:
    out = Console()
    table = Table(title="CPU time per query, one thread, k = 20, 20 steps")
    for column in ("rule", "route", "ms/query", "vs POT loop", "agreement"):
        table.add_column(column)
    for row in rows:
        ms = row["ms_per_query"]
        for name, value in sorted(ms.items(), key=lambda item: item[1]):
            agreement = row["agreement"].get(name)
            shown = "" if agreement is None else f"{100 * agreement:.2f} %"
            ratio = ms["pot_loop"] / value
            table.add_row(row["rule"], name, f"{value:.2f}", f"{ratio:.1f}x", shown)
        out.print(
            f"{row['rule']}: POT takes {row['pot_us_per_transport']:.0f} us per transport here; "
            f"checked resolved {100 * row['resolved_share']:.0f} % of transports exactly"
        )
    out.print(table)
    out.print(extra)


if __name__ == "__main__":
    main()
