"""From a call to a reply: settings, cache, queue, workers, warnings."""

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from ricci_gpu.errors import RicciError
from ricci_gpu.serving.batcher import Batcher
from ricci_gpu.serving.cache import AnswerCache
from ricci_gpu.serving.calls import Call, Reply
from ricci_gpu.serving.dialects.vllm import ScoreCall
from ricci_gpu.serving.failures import Refusal, invalid
from ricci_gpu.serving.metrics import Metrics
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.scores import scored
from ricci_gpu.serving.settings import ServeSettings
from ricci_gpu.serving.tasks import Answer, Failure, Task
from ricci_gpu.serving.worker import ProcessWorker, Worker, WorkerLost
from ricci_gpu.stages.ricci_filter import LARGEST_POOL, RicciFilter

logger = logging.getLogger(__name__)

RETRY_S = (0.5, 1.0, 2.0, 5.0, 15.0)  # between attempts to start a worker
MOST_FLOW = 400_000  # `Task.flow_cost` of a request: the largest pool, with forty steps
DRAIN_S = 30.0  # for what was accepted before the server was told to stop


class Service:
    """Answers calls. `start` before the first, `stop` after the last.

    Args:
        workers: by default a process per device of the settings.
    """

    def __init__(self, settings: ServeSettings, workers: Sequence[Worker] | None = None) -> None:
        self.settings = settings
        self.presets = Presets(settings.presets, settings.overrides)
        self.metrics = Metrics()
        self.cache = AnswerCache(settings.cache_entries)
        self.batcher = Batcher(settings)
        self.workers = list(workers) if workers is not None else self._processes()
        self.batcher.workers = len(self.workers)
        self._loops: list[asyncio.Task[None]] = []
        self.metrics.watch(
            "ricci_queue_requests", "Requests waiting", lambda: float(len(self.batcher))
        )
        self.metrics.watch(
            "ricci_workers_ready",
            "Workers that rank",
            lambda: float(sum(map(_ready, self.workers))),
        )

    @property
    def ready(self) -> bool:
        return not self.batcher.draining and any(worker.ready for worker in self.workers)

    async def start(self) -> None:
        """Start all workers; `ready` once the first is warm."""
        self._loops = [asyncio.create_task(self._run(worker)) for worker in self.workers]

    async def stop(self) -> None:
        """Answer what was accepted, then end the workers."""
        self.batcher.draining = True
        end = time.monotonic() + DRAIN_S
        while self.batcher.unfinished and self._loops and time.monotonic() < end:
            await asyncio.sleep(0.02)
        self.batcher.refuse_all()
        for loop in self._loops:
            loop.cancel()
        await asyncio.gather(*self._loops, return_exceptions=True)
        await asyncio.gather(*(worker.stop() for worker in self.workers))

    async def answer(self, call: Call) -> Reply:
        """The reply to a rerank call.

        Raises:
            Refusal: see there.
        """
        call, warnings = self._within_limits(call)
        options = call.options
        preset = options.preset or self._preset_of_model(call.model)
        choice = self.presets.choose(preset, options.filter, options.rerank)
        task = Task(choice.config, choice.key, call.query, call.documents, call.vectors)
        _require_possible(task)
        if self.settings.log_texts:
            logger.info("%s: %r with %d documents", choice.preset, call.query, call.pairs)
        answer = await self._ranked(task, options.deadline_s, options.priority)
        warnings += self._cut(answer, call.truncate)
        results = scored(answer, choice.config, call.raw)
        kept = sum(each.hit.kept for each in results)
        self.metrics.documents.labels("yes").inc(kept)
        self.metrics.documents.labels("no").inc(len(results) - kept)
        if answer.ranking.status == "bad_embedding":
            warnings.append("a vector is NaN, infinite or zero: what it stands for comes last")
        if options.drop:
            results = [each for each in results if each.hit.kept]
        return Reply(
            id=uuid4().hex,
            model=call.model or choice.preset,
            preset=choice.preset,
            results=results[: call.top_n],
            ranking=answer.ranking,
            kept=kept,
            tokens=answer.tokens,
            warnings=warnings,
        )

    async def score(self, call: ScoreCall) -> tuple[str, list[float], int, list[str]]:
        """Model, scores in the order of the documents, tokens and warnings."""
        options = call.options
        choice = self.presets.for_pairs(options.preset or self._preset_of_model(call.model))
        self._require_number(len(call.queries))
        tasks = []
        warnings: list[str] = []
        first = 0  # documents are counted through all pools
        for query, documents in zip(call.queries, call.pools, strict=True):
            asked = Call(query, documents, documents, truncate=options.truncate)
            rerank, said = self._within_limits(asked, first)
            warnings += said
            first += len(documents)
            tasks.append(Task(choice.config, choice.key, rerank.query, rerank.documents))
        waits = [self._ranked(task, options.deadline_s, options.priority) for task in tasks]
        scores: list[float] = []
        tokens = 0
        for answer in await _all_or_first_error(waits):
            warnings += self._cut(answer, options.truncate, len(scores))
            tokens += answer.tokens
            made = sorted(
                scored(answer, choice.config, call.raw), key=lambda each: each.hit.position
            )
            scores += [each.score for each in made]
        return call.model or choice.preset, scores, tokens, warnings

    async def _ranked(self, task: Task, deadline_s: float | None, priority: int) -> Answer:
        known = self.cache.get(task)
        if known is not None:
            self.metrics.cache_hits.inc()
            return known
        if not any(worker.ready for worker in self.workers) and not self.batcher.unfinished:
            raise Refusal(503, "no worker is ready yet; see /ready", retry_after=2)
        seconds = min(deadline_s or self.settings.deadline_s, self.settings.deadline_s)
        outcome = await self.batcher.submit(task, seconds, priority)
        if isinstance(outcome, Failure):
            raise (
                invalid(outcome.message)
                if outcome.fault == "input"
                else Refusal(500, outcome.message)
            )
        self.cache.put(task, outcome)
        return outcome

    def _preset_of_model(self, model: str | None) -> str | None:
        """A model that is called like a preset means it; all other names are of other servers."""
        return model if model is not None and self.presets.knows(model) else None

    def _within_limits(self, call: Call, first: int = 0) -> tuple[Call, list[str]]:
        """The call with long texts cut, and a warning for each; documents count from ``first``.

        Raises:
            Refusal: 413.
        """
        self._require_number(call.pairs)
        most = self.settings.max_chars
        long = [at for at, text in enumerate(call.documents) if len(text) > most]
        if not long and len(call.query) <= most:
            return call, []
        if not call.truncate:
            what = f"document {first + long[0]}" if long else "the query"
            raise Refusal(413, f"{what} must have at most {most} characters. Cut it.")
        cut = replace(
            call,
            query=call.query[:most],
            documents=tuple(text[:most] for text in call.documents),
        )
        self.metrics.cut.inc(len(long))
        warnings = [f"document {first + at} was cut to {most} characters" for at in long]
        if len(call.query) > most:
            warnings.append(f"the query was cut to {most} characters")
        return cut, warnings

    def _require_number(self, pairs: int) -> None:
        most = self.settings.max_documents
        if pairs > most:
            raise Refusal(413, f"a request may have at most {most} documents; got {pairs}.")

    def _cut(self, answer: Answer, truncate: bool, first: int = 0) -> list[str]:
        """Warnings for what the model did not read to its end; documents count from ``first``.

        Raises:
            Refusal: 413, where the request does not want that.
        """
        names = [f"document {first + at}" for at in answer.cut]
        names += ["the query"] if answer.query_cut else []
        if names and not truncate:
            raise Refusal(
                413,
                f"{names[0]} must be shorter than the {answer.cut_at} tokens that the model reads. "
                "Cut it, or let the server do so.",
            )
        self.metrics.cut.inc(len(answer.cut))
        return [f"{name} was read up to {answer.cut_at} tokens" for name in names]

    async def _run(self, worker: Worker) -> None:
        """Start the worker, feed it, and replace it when it is lost."""
        failures = 0
        while True:
            try:
                await worker.start()
                failures = 0
                await self._feed(worker)
            except WorkerLost as error:
                logger.warning("%s; another starts", error)
            except RicciError as error:
                logger.error("a worker cannot start: %s", error)
            except Exception:
                logger.exception("a worker failed; another starts")
            self.metrics.restarts.inc()
            await asyncio.sleep(RETRY_S[min(failures, len(RETRY_S) - 1)])
            failures += 1

    async def _feed(self, worker: Worker) -> None:
        """Batches for a warm worker, until it is lost."""
        metrics = self.metrics
        while True:
            batch = await self.batcher.take()
            start = time.monotonic()
            try:
                outcomes = await worker.rank([each.task for each in batch])
            except Exception:  # whatever it is, nobody must wait for ever
                self.batcher.give_back(batch)
                raise
            seconds = time.monotonic() - start
            self.batcher.done(batch, outcomes, seconds)
            metrics.computed.observe(seconds)
            metrics.batch_requests.observe(len(batch))
            metrics.batch_pairs.observe(sum(each.task.pairs for each in batch))
            metrics.batch_tokens.observe(sum(each.cost for each in batch))
            for each in batch:
                metrics.queued.observe(start - each.arrived)

    def _processes(self) -> list[Worker]:
        settings = self.settings
        return [
            ProcessWorker(self.presets.configs, device, settings.threads, settings.batch_s)
            for device in settings.devices or self._devices()
        ]

    def _devices(self) -> list[str | None]:
        """Every GPU where the settings leave the device open, else the one they name."""
        import torch

        named = self.presets.configs[self.presets.default].runtime.device != "auto"
        count = 0 if named else torch.cuda.device_count()
        return [f"cuda:{at}" for at in range(count)] or [None]


async def _all_or_first_error(waits: Sequence[Coroutine[Any, Any, Answer]]) -> list[Answer]:
    """All results; with the first error, the others are cancelled."""
    tasks = [asyncio.create_task(wait) for wait in waits]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _require_possible(task: Task) -> None:
    """Refuse before it is queued what its stages could not read."""
    config, vectors = task.config, task.vectors
    if vectors is not None:
        words = {"embeddings": "sentence embeddings", "tokens": "token vectors", "texts": "texts"}
        for each in (config.filter, config.rerank):
            for lacking in sorted(each.needs() - vectors.carries):
                raise invalid(
                    f"stage `{each.name}` reads {words[lacking]}, and the request brings none. "
                    "Send them, send texts, or choose another preset."
                )
    stage = config.filter
    if not isinstance(stage, RicciFilter):
        return
    if task.pairs > LARGEST_POOL:
        raise invalid(
            f"the Ricci filter takes at most {LARGEST_POOL} documents; got {task.pairs}. Send the "
            f"best {LARGEST_POOL}, or choose another preset."
        )

    if task.flow_cost > MOST_FLOW:
        raise Refusal(
            413,
            f"{task.pairs} documents with {stage.iterations} steps of the Ricci flow are "
            "too much work for a request. Send fewer, or lower `iterations`.",
        )


def _ready(worker: Worker) -> bool:
    return worker.ready
