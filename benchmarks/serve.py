"""What does the server cost, and what does it do under too much load? Run: `make bench-serve`.

For both presets, over loopback, on the first words of SciFact passages, cache off: throughput and
latency of 1 to 256 clients with texts and with ready vectors (per token, and of sentences), as a
share of what the engine ranks offline with the same work in the same minutes; then four times more
requests than fit, a worker that is killed under load, and random bodies. The server and its worker
are processes of their own, one thread each; the clients share this process.
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.datasets import data_folder
from benchmarks.record import RESULTS, finish
from ricci_gpu.corpus.readers import read_corpus, read_queries
from ricci_gpu.serving.calls import vectors_of
from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.schemas import RerankBody
from ricci_gpu.serving.tasks import Task
from ricci_gpu.serving.vectors import encode

PRESETS = ("default", "ricci_filtration")
CLIENTS = (1, 16, 64, 256)
SERVER = ("--set", "runtime.device=cpu", "--deadline-s", "300")
PARTS = ("load", "kill", "overload", "fuzz")
POOL, WORDS, WIDTH = (
    10,
    25,
    128,
)  # short, so that 256 clients of one core have their answers in time
DEADLINE_S = 10.0
console = Console(stderr=True)


class Connection:
    """One client over one connection: as little of a client as HTTP allows."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.reader = self.writer = None

    async def post(self, body: bytes, path: str = "/v1/rerank") -> int:
        """The status; 0 when the connection broke.

        A kept connection that breaks may have been closed for idling: as every client does, it is
        opened again, once.
        """
        kept = self.writer is not None
        status = await self._post(body, path)
        return await self._post(body, path) if kept and status == 0 else status

    async def _post(self, body: bytes, path: str) -> int:
        try:
            if self.writer is None:
                self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
            head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
            self.writer.write(head.encode() + body)
            await self.writer.drain()
            answer = await self.reader.readuntil(b"\r\n\r\n")
            headers = answer.decode("latin-1").lower()
            length = int(headers.split("content-length:")[1].split("\r\n")[0])
            await self.reader.readexactly(length)
            return int(headers.split(" ")[1])
        except (OSError, asyncio.IncompleteReadError, IndexError):
            self.close()
            return 0

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


@contextmanager
def server(*arguments: str):
    """A server on a port of its own: (port, process)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import sys; from ricci_gpu.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "serve", "--port", str(port), *arguments]
    process = subprocess.Popen(command)
    try:
        wait_until_ready(port, process)
        yield port, process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def is_ready(port: int) -> bool:
    import httpx

    try:
        return httpx.get(f"http://127.0.0.1:{port}/ready", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


def wait_until_ready(port: int, process: subprocess.Popen, seconds: float = 180.0) -> float:
    start = time.monotonic()
    while not is_ready(port):
        if process.poll() is not None or time.monotonic() - start > seconds:
            raise SystemExit("the server did not become ready")
        time.sleep(0.1)
    return time.monotonic() - start


def text_bodies(number: int) -> list[dict]:
    """Claims with the beginnings of passages of SciFact, in no particular order."""
    folder = data_folder() / "scifact"
    passages = [" ".join(p.full_text.split()[:WORDS]) for p in read_corpus(folder)]
    queries = [query.text for query in read_queries(folder)]
    rng = np.random.default_rng(0)
    return [
        {
            "query": queries[row % len(queries)],
            "documents": [passages[at] for at in rng.choice(len(passages), POOL, replace=False)],
        }
        for row in range(number)
    ]


def vector_bodies(number: int) -> list[dict]:
    """Random vectors of length 1 in the sizes of late interaction: 32 and 60 to 180 tokens."""
    rng = np.random.default_rng(0)

    def unit(rows: int, width: int) -> str:
        made = rng.normal(size=(rows, width))
        return encode(made / np.linalg.norm(made, axis=1, keepdims=True))

    bodies = []
    for _ in range(number):
        counts = rng.integers(60, 180, POOL).tolist()
        vectors = {
            "documents": POOL,
            "query_embedding": unit(1, 384),
            "embeddings": unit(POOL, 384),
            "query_tokens": unit(32, WIDTH),
            "tokens": unit(sum(counts), WIDTH),
            "token_counts": counts,
            "token_width": WIDTH,
        }
        bodies.append({"ricci": {"vectors": vectors}})
    return bodies


def encoded(bodies: Sequence[dict], preset: str) -> list[bytes]:
    return [
        json.dumps(body | {"ricci": body.get("ricci", {}) | {"preset": preset}}).encode()
        for body in bodies
    ]


def tasks_of(bodies: Sequence[dict], preset: str, presets: Presets) -> list[Task]:
    choice = presets.choose(preset)
    return [
        Task(
            choice.config,
            choice.key,
            body.get("query", ""),
            tuple(body.get("documents", ())),
            vectors_of(RerankBody.model_validate(body)),
        )
        for body in bodies
    ]


def offline_rate(engine: Engine, tasks: Sequence[Task], seconds: float) -> float:
    """Requests per second of the bare engine, in batches of 64."""
    done, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        batch = [tasks[(done + at) % len(tasks)] for at in range(min(64, len(tasks)))]
        engine.rank(batch)
        done += len(batch)
    return done / (time.perf_counter() - start)


async def load(port: int, bodies: Sequence[bytes], clients: int, seconds: float) -> dict:
    """So many clients, each sending its next request when it has its answer."""
    latencies: list[float] = []
    statuses: Counter[int] = Counter()
    start = time.perf_counter()

    async def client(number: int) -> None:
        connection = Connection(port)
        at = number
        while time.perf_counter() - start < seconds:
            sent = time.perf_counter()
            statuses[await connection.post(bodies[at % len(bodies)])] += 1
            latencies.append(time.perf_counter() - sent)
            at += clients
        connection.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    took = time.perf_counter() - start
    p50, p95, p99 = (1000 * np.percentile(latencies, [50, 95, 99])).tolist()
    return {
        "requests_per_s": statuses[200] / took,
        "p50_ms": p50,
        "p95_ms": p95,
        "p99_ms": p99,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
    }


async def overload(
    port: int, process, bodies: Sequence[dict], preset: str, rate: float, seconds: float
) -> dict:
    """Requests at a steady rate, whatever the server can do; equal ones would share their work."""
    given = {"preset": preset, "deadline_s": DEADLINE_S}
    encodings = [json.dumps(body | {"ricci": given}).encode() for body in bodies]
    statuses: Counter[int] = Counter()
    late = 0
    free: list[Connection] = []
    memory: list[tuple[float, int]] = []

    async def one(body: bytes) -> None:
        nonlocal late
        connection = free.pop() if free else Connection(port)
        sent = time.perf_counter()
        status = await connection.post(body)
        statuses[status] += 1
        late += status == 504 or (status == 200 and time.perf_counter() - sent > DEADLINE_S)
        free.append(connection)

    start = time.perf_counter()
    running: set[asyncio.Task] = set()
    sent = 0
    while (now := time.perf_counter() - start) < seconds:
        while sent < now * rate:
            task = asyncio.create_task(one(encodings[sent % len(encodings)]))
            running.add(task)
            task.add_done_callback(running.discard)
            sent += 1
        if not memory or now - memory[-1][0] > max(1.0, seconds / 100):
            memory.append((now, resident_bytes(process.pid)))
        await asyncio.sleep(0.005)
    await asyncio.gather(*running)
    for connection in free:
        connection.close()
    settled = [size for when, size in memory if when > seconds / 5] or [memory[-1][1]]
    tenth = max(1, len(settled) // 10)
    return {
        "seconds": seconds,
        "offered_per_s": rate,
        "statuses": {str(status): count for status, count in sorted(statuses.items())},
        "crashes": int(process.poll() is not None) + statuses[0] + statuses[500],
        "late": late,
        "memory_growth": float(np.mean(settled[-tenth:]) / np.mean(settled[:tenth]) - 1),
        "memory_mib": settled[-1] / 2**20,
    }


def resident_bytes(pid: int) -> int:
    """Of a process and of those it started."""
    total = 0
    for each in (pid, *children(pid)):
        lines = Path(f"/proc/{each}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))
    return total


def children(pid: int) -> list[int]:
    """Of all threads of a process: Linux lists them by the thread that started them."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for path in lists for each in path.read_text().split()]


def workers(pid: int) -> list[int]:
    """The children that rank; Python starts another one that only watches resources."""
    names = {each: Path(f"/proc/{each}/cmdline").read_bytes() for each in children(pid)}
    return [each for each, name in names.items() if b"spawn_main" in name]


async def kill(port: int, process, bodies: Sequence[bytes], seconds: float) -> dict:
    """Kill the worker under load; nothing may be lost, and the server must recover."""
    loading = asyncio.create_task(load(port, bodies, 16, seconds))
    await asyncio.sleep(seconds / 4)
    os.kill(workers(process.pid)[0], signal.SIGKILL)
    figures = await loading
    start = time.monotonic()
    while not await asyncio.to_thread(is_ready, port) and time.monotonic() - start < 120:
        await asyncio.sleep(0.2)
    statuses = figures["statuses"]
    return {
        "lost": statuses.get("0", 0) + statuses.get("500", 0),
        "statuses": statuses,
        "recovered": is_ready(port),
    }


def fuzz(requests: int) -> dict:
    """Random bodies, by the tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-s", "tests/serving/test_fuzz.py"]
    done = subprocess.run(
        [*command, "-k", "random"],
        env=os.environ | {"RICCI_GPU_FUZZ": str(requests)},
        capture_output=True,
        text=True,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"requests"')]
    if done.returncode or not lines:
        raise SystemExit(done.stdout[-3000:])
    found = json.loads(lines[0])
    return {"requests": found["requests"], "status_500": found["statuses"].get("500", 0)}


def measure(preset: str, kind: str, options, engine: Engine, presets: Presets, port: int) -> dict:
    """Shares and latencies; the offline rate is taken before and after, and averaged."""
    bodies = (text_bodies if kind == "texts" else vector_bodies)(options.bodies)
    tasks, sent = tasks_of(bodies, preset, presets), encoded(bodies, preset)
    engine.rank(tasks[:64])
    before = offline_rate(engine, tasks, options.seconds)
    by_clients = {}
    for clients in options.clients:
        console.print(f"{preset}, {kind}, {clients} clients")
        asyncio.run(load(port, sent, clients, options.seconds / 4))  # warm
        by_clients[str(clients)] = asyncio.run(load(port, sent, clients, options.seconds))
    offline = (before + offline_rate(engine, tasks, options.seconds)) / 2
    for figures in by_clients.values():
        figures["share_of_offline"] = figures["requests_per_s"] / offline
    return {"offline_per_s": offline, "clients": by_clients}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20, help="per measurement")
    parser.add_argument("--overload-seconds", type=float, default=300)
    parser.add_argument("--kill-seconds", type=float, default=40)
    parser.add_argument("--clients", type=int, nargs="+", default=list(CLIENTS))
    parser.add_argument("--preset", action="append", choices=PRESETS, help="both by default")
    parser.add_argument("--bodies", type=int, default=128, help="different requests")
    parser.add_argument("--fuzz", type=int, default=10_000)
    parser.add_argument("--part", action="append", choices=PARTS, help="all by default")
    parser.add_argument("--record", action="store_true", help="keep the figures in results/")
    options = parser.parse_args()
    torch.set_num_threads(1)
    parts = options.part or list(PARTS)
    # A part that is measured alone joins those on record; the load says what the server can do.
    document = {} if "load" in parts else json.loads((RESULTS / "serve.json").read_text())
    document |= {"bench": "serve", "pool": POOL, "words_per_document": WORDS}
    if "load" in parts:
        document |= measure_load(options)
    preset = next(iter(document["presets"]))
    if "kill" in parts:
        sent = encoded(text_bodies(32), preset)
        with server(*SERVER) as (port, process):
            document["worker_kill"] = asyncio.run(kill(port, process, sent, options.kill_seconds))
    if "overload" in parts:
        by_clients = document["presets"][preset]["texts"]["clients"]
        rate = 4 * by_clients[most_clients(by_clients)]["requests_per_s"]
        seconds = options.overload_seconds
        console.print(f"overload for {seconds:g} s at {rate:.1f} requests / s")
        with server(*SERVER) as (port, process):
            flood = overload(port, process, text_bodies(1024), preset, rate, seconds)
            document["overload"] = asyncio.run(flood)
    if "fuzz" in parts:
        document["fuzz"] = fuzz(options.fuzz)
    show(document["presets"])
    finish(document, options.record)


def most_clients(by_clients: dict) -> str:
    """The number of clients that the aims are about, or the largest."""
    return "64" if "64" in by_clients else list(by_clients)[-1]


def measure_load(options) -> dict:
    """Every preset with texts and with vectors, from all numbers of clients."""
    chosen = tuple(options.preset or PRESETS)
    presets = Presets(PRESETS, ["runtime.device=cpu"])
    engine = Engine(presets.choose().config)
    rates: dict[str, dict[str, dict]] = {}
    with server(*SERVER) as (port, _):
        for preset in chosen:
            rates[preset] = {
                kind: measure(preset, kind, options, engine, presets, port)
                for kind in ("texts", "vectors")
            }
    first = {
        kind: figures["clients"][most_clients(figures["clients"])]
        for kind, figures in rates[chosen[0]].items()
    }
    return {
        "share_of_offline": {kind: row["share_of_offline"] for kind, row in first.items()},
        "p99_ms": {kind: row["p99_ms"] for kind, row in first.items()},
        "presets": rates,
    }


def show(rates: dict[str, dict[str, dict]]) -> None:
    table = Table(title=f"Pools of {POOL}, one worker of one thread")
    for column in ("preset", "kind", "clients", "requests/s", "of offline", "p50", "p95", "p99 ms"):
        table.add_column(column)
    for preset, kinds in rates.items():
        for kind, figures in kinds.items():
            for clients, row in figures["clients"].items():
                share, rate = row["share_of_offline"], row["requests_per_s"]
                latency = [f"{row[name]:.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")]
                table.add_row(preset, kind, clients, f"{rate:.1f}", f"{share:.2f}", *latency)
    Console().print(table)


if __name__ == "__main__":
    main()
