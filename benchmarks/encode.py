"""How fast are texts encoded, next to sentence-transformers? Run: `make bench-encode`.

One run, the same process, the same texts, all-MiniLM-L6-v2 in float32: SciFact passages and claims
from the folder in RICCI_GPU_DATA. Ours batches by token count under a budget; sentence-transformers
sorts by length and takes 32 texts at a time, its default, and once more the batch size nearest to
our budget. Routes take turns, and the quickest of some rounds counts: the others met a busier
machine. CPU seconds on the CPU, wall seconds on a GPU.
"""

import argparse
import os
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from rich.console import Console
from rich.table import Table

from benchmarks.record import finish
from ricci_gpu.corpus.judged import data_folder
from ricci_gpu.corpus.readers import read_corpus, read_queries
from ricci_gpu.models import Encoder
from ricci_gpu.models.batching import Budget, batches_by_length, token_budget


@dataclass(frozen=True)
class Route:
    """A way to encode: seconds of its quickest round, its vectors, and its share of padding."""

    name: str
    encode: Callable[[], torch.Tensor]
    padding: float


def padding_share(lengths: list[int], batches: list[list[int]]) -> float:
    """Share of padding among all places of the batches."""
    places = sum(len(rows) * max(lengths[row] for row in rows) for rows in batches)
    return 1 - sum(lengths) / places


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--passages", type=int, default=256)
    parser.add_argument("--queries", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-tokens", type=int, help="by default what suits the device")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))

    budget = token_budget(options.batch_tokens, torch.device(options.device))
    options.batch_tokens = budget.tokens
    folder = data_folder() / "scifact"
    texts = [passage.full_text for passage in read_corpus(folder)[: options.passages]]
    texts += [query.text for query in read_queries(folder)[: options.queries]]
    encoder = Encoder.load(device=options.device)
    lengths = [len(row) for row in encoder._token_ids(texts)[0]]
    tokens = sum(lengths)
    console = Console()
    routes = [_ours(encoder, texts, lengths, budget)]
    try:
        routes += _sentence_transformers(texts, lengths, options)
    except ImportError as missing:
        console.print(f"sentence-transformers is left out: {missing}")

    seconds = {route.name: float("inf") for route in routes}
    vectors = {}
    for _ in range(options.rounds):
        for route in routes:
            start = _clock(options.device)
            vectors[route.name] = route.encode()
            seconds[route.name] = min(seconds[route.name], _clock(options.device) - start)

    table = Table(title=f"{len(texts)} texts, {tokens} tokens, {options.device}")
    for column in ("route", "tokens/s", "texts/s", "padding", "ours is", "largest difference"):
        table.add_column(column)
    rows = []
    for route in routes:
        taken = seconds[route.name]
        row = {
            "route": route.name,
            "tokens_per_s": tokens / taken,
            "texts_per_s": len(texts) / taken,
            "padding_share": route.padding,
            "ours_faster": taken / seconds["ours"],
            "max_abs_diff": float((vectors[route.name] - vectors["ours"]).abs().max()),
        }
        rows.append(row)
        table.add_row(
            route.name,
            f"{row['tokens_per_s']:,.0f}",
            f"{row['texts_per_s']:,.1f}",
            f"{row['padding_share']:.1%}",
            f"{row['ours_faster']:.2f}x",
            f"{row['max_abs_diff']:.1e}",
        )
    console.print(table)
    finish(
        {
            "bench": "encode",
            "device": options.device,
            "texts": len(texts),
            "tokens": tokens,
            "batch_tokens": options.batch_tokens,
            "rows": rows,
        },
        options.record,
    )


def _ours(encoder: Encoder, texts: list[str], lengths: list[int], budget: Budget) -> Route:
    batches = [rows.tolist() for rows in batches_by_length(lengths, budget)]

    def encode() -> torch.Tensor:
        found = encoder.encode(texts, batch_tokens=budget.tokens, log_truncated=False).vectors
        return found.cpu()

    return Route("ours", encode, padding_share(lengths, batches))


def _sentence_transformers(
    texts: list[str], lengths: list[int], options: argparse.Namespace
) -> list[Route]:
    from sentence_transformers import SentenceTransformer

    from ricci_gpu.models.folder import locate

    peer = SentenceTransformer(
        str(locate("all-MiniLM-L6-v2", "encoder").path), device=options.device
    )
    by_characters = sorted(range(len(texts)), key=lambda row: -len(texts[row]))  # as it sorts

    def route(size: int) -> Route:
        batches = [by_characters[at : at + size] for at in range(0, len(texts), size)]

        def encode() -> torch.Tensor:
            found = peer.encode(
                texts, batch_size=size, convert_to_tensor=True, show_progress_bar=False
            )
            return found.cpu()

        return Route(f"sentence_transformers_{size}", encode, padding_share(lengths, batches))

    alike = max(1, options.batch_tokens * len(lengths) // sum(lengths))
    return [route(32), route(alike)]


def _clock(device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.process_time()


if __name__ == "__main__":
    main()
