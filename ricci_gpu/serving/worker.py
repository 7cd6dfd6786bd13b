"""Where batches are ranked: in a thread of this process, or in a process per device.

A worker process is told from its pipe what to rank and says "alive" by a time stamp that it
writes while it waits. It counts as lost when its process ends, when the stamp grows old, or when a
batch takes longer than it may; then it is killed, and another starts. What travels through the pipe
is ours on both ends: nothing that a client sends is unpickled.
"""

import asyncio
import logging
import multiprocessing
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, runtime_checkable

from ricci_gpu.config import Config
from ricci_gpu.errors import RicciError
from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.tasks import Outcome, Task

logger = logging.getLogger(__name__)

BEAT_S = 0.5  # between two stamps of a waiting worker
STALE_S = 10.0  # a waiting worker that is silent for so long is lost
STOP_S = 5.0  # for a worker to end by itself


class WorkerLost(RicciError):
    """The worker ended, or is wedged; its batch is not ranked."""


@runtime_checkable
class Worker(Protocol):
    """Ranks one batch at a time."""

    @property
    def ready(self) -> bool:
        """Warm, and alive as far as anybody can tell."""

    async def start(self) -> None:
        """Load and warm up; also again, after `WorkerLost`."""

    async def rank(self, tasks: Sequence[Task]) -> list[Outcome]:
        """One outcome per task. Raises `WorkerLost`."""

    async def stop(self) -> None:
        """End it."""


class ThreadWorker:
    """Ranks in a thread of this process: for tests, and where another server owns the processes.

    Args:
        engine: makes the engine, in that thread.
        configs: to warm up with, by key.
    """

    def __init__(self, engine: Callable[[], Engine], configs: Mapping[str, Config]) -> None:
        self._make = engine
        self._configs = configs
        self._engine: Engine | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rank")

    @property
    def ready(self) -> bool:
        return self._engine is not None

    async def start(self) -> None:
        def load() -> Engine:
            engine = self._make()
            engine.warm_up(self._configs)
            return engine

        self._engine = await asyncio.get_running_loop().run_in_executor(self._thread, load)

    async def rank(self, tasks: Sequence[Task]) -> list[Outcome]:
        engine = self._engine
        assert engine is not None  # started
        return await asyncio.get_running_loop().run_in_executor(self._thread, engine.rank, tasks)

    async def stop(self) -> None:
        self._thread.shutdown(wait=True)


class ProcessWorker:
    """Ranks in a process of its own.

    Args:
        device: of the models; None for the one of the settings.
        batch_s: seconds after which a batch counts as wedged.
        start_s: likewise for loading and warming up.
    """

    def __init__(
        self,
        configs: Mapping[str, Config],
        device: str | None = None,
        threads: int = 1,
        batch_s: float = 120.0,
        start_s: float = 600.0,
    ) -> None:
        if device is not None:
            configs = {
                key: replace(config, runtime=replace(config.runtime, device=device))
                for key, config in configs.items()
            }
        self._configs = dict(configs)
        self._threads = threads
        self._batch_s, self._start_s = batch_s, start_s
        self._context = multiprocessing.get_context("spawn")
        self._beat: Any = self._context.Value("d", 0.0, lock=False)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="worker")
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._warm = False
        self._busy = False

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def ready(self) -> bool:
        if not self._warm or self._process is None or not self._process.is_alive():
            return False
        return self._busy or time.monotonic() - self._beat.value < STALE_S

    async def start(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._start)

    async def rank(self, tasks: Sequence[Task]) -> list[Outcome]:
        if not self.ready:
            self._kill()
            raise WorkerLost("the worker ended, or stopped answering")
        self._busy = True
        try:
            loop = asyncio.get_running_loop()
            result: list[Outcome] = await loop.run_in_executor(
                self._thread, self._exchange, list(tasks), self._batch_s
            )
            return result
        except WorkerLost:
            self._kill()
            raise
        finally:
            self._busy = False

    async def stop(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._stop)
        self._thread.shutdown(wait=False)

    def _start(self) -> None:
        self._kill()
        self._pipe, child = self._context.Pipe()
        level = logging.getLogger("ricci_gpu").getEffectiveLevel()
        self._process = self._context.Process(
            target=_work,
            args=(child, self._beat, self._configs, self._threads, level),
            daemon=True,
            name="ricci-gpu worker",
        )
        self._process.start()
        child.close()  # so that the pipe breaks when the process ends
        trouble = self._exchange("warm up", self._start_s)
        if trouble is not None:
            self._kill()
            raise RicciError(trouble)
        self._warm = True

    def _exchange(self, message: Any, seconds: float) -> Any:
        """Send, and wait for the answer."""
        pipe = self._pipe
        if pipe is None:
            raise WorkerLost("the worker has ended")
        try:
            pipe.send(message)
            if not pipe.poll(seconds):
                raise WorkerLost(f"the worker did not answer for {seconds:g} s")
            return pipe.recv()
        except (OSError, EOFError) as error:
            raise WorkerLost("the worker ended while it worked") from error

    def _stop(self) -> None:
        if self._pipe is not None and not self._busy:
            try:
                self._pipe.send(None)
            except OSError:  # it has ended already
                logger.debug("a worker had ended before it was stopped")
            if self._process is not None:
                self._process.join(STOP_S)
        self._kill()

    def _kill(self) -> None:
        self._warm = False
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _work(
    pipe: Connection, beat: Any, configs: Mapping[str, Config], threads: int, level: int
) -> None:
    """What a worker process does until its pipe closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which ends this one
    logging.basicConfig(level=level, format="[worker] %(message)s", stream=sys.stderr)
    import torch

    torch.set_num_threads(threads)
    engine = Engine(next(iter(configs.values())))
    while True:
        beat.value = time.monotonic()
        try:
            if not pipe.poll(BEAT_S):
                continue
            message = pipe.recv()
            if message is None:
                return
            warming = message == "warm up"
            answer = _trouble_of_warm_up(engine, configs) if warming else engine.rank(message)
            beat.value = time.monotonic()  # fresh when the server sees that the batch is done
            pipe.send(answer)
        except (EOFError, OSError):  # the server has gone
            return


def _trouble_of_warm_up(engine: Engine, configs: Mapping[str, Config]) -> str | None:
    try:
        engine.warm_up(configs)
    except RicciError as error:
        return str(error)
    return None
