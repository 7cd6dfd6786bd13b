"""Packs the requests of many users into batches, and refuses what cannot be answered in time."""

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from ricci_gpu.serving.failures import Refusal
from ricci_gpu.serving.settings import ServeSettings
from ricci_gpu.serving.tasks import Failure, Outcome, Task

ATTEMPTS = 2  # of a task whose worker died: the second time alone
WEIGHT_OF_NEWS = 0.3  # in the running mean of the pace
FIRST_BATCH = 16_384  # cost of a batch as long as the pace is not known
HEADROOM = 0.6  # of a deadline is planned with: the pace to come is not the pace of late
SHARE_OF_WAIT = 1 / 3  # of what waits in all: so much more may a batch hold, when much waits


@dataclass(eq=False)
class Waiting:
    """A task in the queue; smaller priorities are taken first."""

    task: Task
    priority: int
    number: int
    arrived: float
    deadline: float
    outcome: "asyncio.Future[Outcome]"
    attempts: int = 0
    cost: int = field(init=False)

    def __post_init__(self) -> None:
        self.cost = self.task.cost

    @property
    def order(self) -> tuple[int, int]:
        return self.priority, self.number


class Batcher:
    """A bounded queue. Requests call `submit`; workers call `take` and `done` or `give_back`.

    Admission is by time: what would wait for most of its deadline, at the pace of late, is refused
    at once with the seconds after which to try again. Nobody starves by priority beyond a deadline.
    """

    def __init__(
        self, settings: ServeSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._queue: dict[int, Waiting] = {}
        self._running: set[Waiting] = set()
        self._number = 0
        self._arrival = asyncio.Event()
        self._pace: dict[str, float] = {}  # seconds per unit of cost, texts and vectors apart
        self.workers = 1  # that take from this queue
        self.draining = False

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def unfinished(self) -> int:
        return len(self._queue) + len(self._running)

    def expected_wait(self) -> float:
        """Seconds until what has been accepted is done, at the pace of late."""
        costs: dict[str, int] = defaultdict(int)
        for each in (*self._queue.values(), *self._running):
            costs[each.task.kind] += each.cost
        seconds = sum(cost * self._pace.get(kind, 0.0) for kind, cost in costs.items())
        return seconds / max(self.workers, 1)

    async def submit(self, task: Task, seconds: float, priority: int = 0) -> Outcome:
        """The outcome of the task.

        Raises:
            Refusal: the queue is full, the server stops, or the deadline passed.
        """
        if self.draining:
            raise Refusal(503, "the server is stopping; ask another", retry_after=1)
        expected = self.expected_wait()
        own = task.cost * self._pace.get(task.kind, 0.0)
        if own > seconds:
            raise Refusal(
                413,
                f"this request alone needs about {own:.1f} s, and its deadline is {seconds:g} s. "
                "Send fewer or shorter documents.",
            )
        if len(self._queue) >= self._settings.queue_requests or (
            expected > 0 and expected + own > HEADROOM * seconds
        ):
            raise Refusal(
                429,
                f"the queue is full: {len(self._queue)} requests wait, about {expected:.1f} s of "
                "work. Try again later, or with a later deadline.",
                retry_after=max(1, math.ceil(expected / 2)),
            )
        now = self._clock()
        self._number += 1
        waiting = Waiting(
            task=task,
            priority=priority,
            number=self._number,
            arrived=now,
            deadline=now + seconds,
            outcome=asyncio.get_running_loop().create_future(),
        )
        self._put(waiting)
        try:
            return await asyncio.wait_for(waiting.outcome, seconds)
        except TimeoutError:
            raise Refusal(504, f"the deadline of {seconds:g} s passed before an answer") from None
        finally:  # also when the client has gone
            self._queue.pop(waiting.number, None)

    async def take(self) -> list[Waiting]:
        """The next batch: as soon as it is full, or its first task has waited long enough."""
        while True:
            while not self._queue:
                await self._next_arrival(None)
            patience = min(each.arrived for each in self._queue.values()) + (
                self._settings.max_wait_ms / 1000
            )
            if not self._full() and (left := patience - self._clock()) > 0:
                await self._next_arrival(left)
                continue
            batch = self._fill()
            for each in batch:
                del self._queue[each.number]
            self._running.update(batch)
            return batch

    def done(self, batch: list[Waiting], outcomes: list[Outcome], seconds: float) -> None:
        """Hand out the outcomes and learn the pace."""
        self._running.difference_update(batch)
        kinds = {each.task.kind for each in batch}
        if len(kinds) == 1:  # a mixed batch says nothing about either
            [kind] = kinds
            pace = seconds / sum(each.cost for each in batch)
            before = self._pace.get(kind, pace)
            self._pace[kind] = before + WEIGHT_OF_NEWS * (pace - before)
        for each, outcome in zip(batch, outcomes, strict=True):
            if not each.outcome.done():
                each.outcome.set_result(outcome)

    def give_back(self, batch: list[Waiting]) -> None:
        """The worker died: each task gets one more attempt, alone, for one of them may be why."""
        self._running.difference_update(batch)
        for each in batch:
            each.attempts += 1
            if each.outcome.done():
                continue
            if each.attempts >= ATTEMPTS:
                each.outcome.set_result(Failure("the worker died over this request", "server"))
            else:
                self._put(each)

    def refuse_all(self) -> None:
        """Answer everything that waits: no worker will."""
        for each in self._queue.values():
            if not each.outcome.done():
                each.outcome.set_exception(Refusal(503, "the server stopped", retry_after=1))

    async def _next_arrival(self, seconds: float | None) -> None:
        self._arrival.clear()
        try:
            await asyncio.wait_for(self._arrival.wait(), seconds)
        except TimeoutError:
            return

    def _put(self, waiting: Waiting) -> None:
        self._queue[waiting.number] = waiting
        self._arrival.set()

    def _full(self) -> bool:
        most = self._settings
        queue = self._queue.values()
        return (
            len(queue) >= most.batch_requests
            or sum(each.task.pairs for each in queue) >= most.batch_pairs
            or sum(each.cost for each in queue) >= most.batch_tokens
            or sum(self._seconds(each) for each in queue) >= self._target()
        )

    def _fill(self) -> list[Waiting]:
        most = self._settings
        batch: list[Waiting] = []
        pairs = cost = 0
        seconds, target, now = 0.0, self._target(), self._clock()
        for each in sorted(self._queue.values(), key=lambda waiting: waiting.order):
            pairs += each.task.pairs
            cost += each.cost
            seconds += self._seconds(each)
            # All have their answers when the batch is done, so it must be done in time for all.
            target = min(target, HEADROOM * (each.deadline - now))
            too_much = (
                len(batch) == most.batch_requests
                or pairs > most.batch_pairs
                or cost > most.batch_tokens
                or seconds > target
            )
            if batch and (too_much or each.attempts):
                break
            batch.append(each)
            if each.attempts:  # alone
                break
        return batch

    def _target(self) -> float:
        """Seconds that a batch should take: longer where everybody waits longer anyway, because
        larger batches are padded less."""
        return max(self._settings.batch_target_s, SHARE_OF_WAIT * self.expected_wait())

    def _seconds(self, waiting: Waiting) -> float:
        """What the task will take at the pace of late, or a guess."""
        guess = self._settings.batch_target_s / FIRST_BATCH
        return waiting.cost * self._pace.get(waiting.task.kind, guess)
