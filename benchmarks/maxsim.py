"""How fast is MaxSim on a CPU? Run: `make bench-maxsim`.

One run, one thread, CPU time, float32: 32 query tokens against 100 documents, 128 numbers per
token, documents of 180 tokens or ragged from 60 to 300. Ours (packed) next to `maxsim-cpu`,
`torch.einsum` on padded documents, and PyLate's scoring as its `rank.rerank` calls it (documents
padded on every call). Errors are against float64. What is not installed is named and left out.
"""

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.record import finish
from ricci_gpu.ops.maxsim import maxsim

QUERY_TOKENS, DOCUMENTS, WIDTH = 32, 100, 128
ROUTES = ("ours", "maxsim_cpu", "einsum", "pylate")


class Problem:
    """One query and its documents, in every layout that a route wants."""

    def __init__(self, lengths: np.ndarray, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)

        def unit(rows: int) -> torch.Tensor:
            drawn = torch.randn(rows, WIDTH, generator=generator)
            return torch.nn.functional.normalize(drawn, dim=1)

        self.query = unit(QUERY_TOKENS)
        self.tokens = unit(int(lengths.sum()))
        self.offsets = torch.from_numpy(np.concatenate([[0], lengths.cumsum()]))
        self.documents = list(self.tokens.split(lengths.tolist()))
        self.arrays = [document.numpy() for document in self.documents]
        self.padded = torch.nn.utils.rnn.pad_sequence(self.documents, batch_first=True)
        real = torch.arange(self.padded.shape[1])[None] < torch.from_numpy(lengths)[:, None]
        self.padding = ~real[:, :, None]
        exact = [(self.query.double() @ d.double().T).amax(1).sum() for d in self.documents]
        self.truth = torch.stack(exact)

    def ours(self) -> torch.Tensor:
        one = torch.zeros(len(self.documents), dtype=torch.int64)
        return maxsim(
            self.query,
            torch.tensor([0, QUERY_TOKENS]),
            self.tokens,
            self.offsets,
            one,
            torch.arange(len(self.documents)),
        )

    def einsum(self) -> torch.Tensor:
        similarity = torch.einsum("qd,nkd->nkq", self.query, self.padded)
        return similarity.masked_fill(self.padding, -torch.inf).amax(1).sum(1)

    def maxsim_cpu(self) -> torch.Tensor:
        import maxsim_cpu

        scores = maxsim_cpu.maxsim_scores_variable(self.query.numpy(), self.arrays)
        return torch.from_numpy(np.asarray(scores))

    def pylate(self) -> torch.Tensor:
        from pylate.scores import colbert_scores

        padded = torch.nn.utils.rnn.pad_sequence(self.documents, batch_first=True)
        return colbert_scores(self.query[None], padded, backend="torch")[0]


def cpu_ms(routes: dict[str, Callable[[], torch.Tensor]], calls: int, rounds: int) -> dict:
    """CPU milliseconds per call, of each route's quickest round; the routes take turns, so that a
    busy minute of the machine meets all of them."""
    best = dict.fromkeys(routes, float("inf"))
    for _ in range(rounds):
        for name, work in routes.items():
            start = time.process_time()
            for _ in range(calls):
                work()
            best[name] = min(best[name], 1e3 * (time.process_time() - start) / calls)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    shapes = {
        "uniform_180": np.full(DOCUMENTS, 180),
        "ragged_60_300": np.random.default_rng(0).integers(60, 301, DOCUMENTS),
    }
    console = Console()
    table = Table(title=f"MaxSim, CPU ms per query of {DOCUMENTS} documents, one thread")
    for column in ("shape", "route", "ms", "ours is", "largest error"):
        table.add_column(column)
    rows = []
    for shape, lengths in shapes.items():
        problem = Problem(lengths)
        error, routes = {}, {}
        for route in ROUTES:
            work = getattr(problem, route)
            try:
                scores = work()
            except ImportError as missing:
                console.print(f"{route} is left out: {missing}")
                continue
            error[route] = float((scores.double() - problem.truth).abs().max())
            routes[route] = work
        ms = cpu_ms(routes, options.calls, options.rounds)
        for route, value in ms.items():
            faster = f"{value / ms['ours']:.2f}x faster"
            table.add_row(shape, route, f"{value:.3f}", faster, f"{error[route]:.1e}")
        rows.append(
            {"shape": shape, "ms_per_query": ms, "max_error": error["ours"], "errors": error}
        )
    console.print(table)
    finish({"bench": "maxsim", "rows": rows}, options.record)


if __name__ == "__main__":
    main()
