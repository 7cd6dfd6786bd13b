import asyncio

import pytest

pytest.importorskip("fastapi")

from ricci_gpu.serving.batcher import Batcher
from ricci_gpu.serving.failures import Refusal
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.settings import ServeSettings
from ricci_gpu.serving.tasks import Failure, Task

CHOICE = Presets(["default"]).choose()
OUTCOME = Failure("an outcome", "input")  # any will do here


def task(documents=2, letters=8):
    return Task(CHOICE.config, CHOICE.key, "q", ("x" * letters,) * documents)


def batcher(**settings):
    return Batcher(ServeSettings(**{"max_wait_ms": 20.0, **settings}))


def finish(queue, batch, seconds=0.01):
    queue.done(batch, [OUTCOME] * len(batch), seconds)


async def submitted(queue, *tasks, seconds=5.0, priority=0):
    """Requests that have reached the queue."""
    made = [asyncio.create_task(queue.submit(each, seconds, priority)) for each in tasks]
    await asyncio.sleep(0)
    return made


def test_requests_of_many_come_together(run):
    async def go():
        queue = batcher()
        first = await submitted(queue, task(), task())
        taking = asyncio.create_task(queue.take())
        await asyncio.sleep(0.005)
        assert not taking.done()  # it waits for company
        second = await submitted(queue, task())
        batch = await taking
        assert len(batch) == 3
        assert (len(queue), queue.unfinished) == (0, 3)
        finish(queue, batch)
        assert await asyncio.gather(*first, *second) == [OUTCOME] * 3
        assert queue.unfinished == 0

    run(go())


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ({"batch_requests": 2}, [2, 2, 1]),
        ({"batch_pairs": 4}, [2, 2, 1]),
        ({"batch_tokens": 25}, [2, 2, 1]),  # 10 each
        ({"batch_tokens": 3}, [1] * 5),  # a single one may exceed it
    ],
)
def test_batches_are_bounded_and_full_ones_do_not_wait(run, settings, sizes):
    async def go():
        queue = batcher(max_wait_ms=200.0, **settings)
        waiting = await submitted(queue, *[task() for _ in range(5)])
        found = []
        start = asyncio.get_running_loop().time()
        for _ in sizes[:-1]:
            batch = await queue.take()
            found.append(len(batch))
            finish(queue, batch)
        assert asyncio.get_running_loop().time() - start < 0.15
        batch = await queue.take()
        finish(queue, batch)
        assert [*found, len(batch)] == sizes
        await asyncio.gather(*waiting)

    run(go())


def test_smaller_priorities_first_then_in_order(run):
    async def go():
        queue = batcher(batch_requests=1)
        names = {}
        for name, priority in (("late", 5), ("first", 0), ("second", 0), ("urgent", -3)):
            [one] = await submitted(queue, task(), priority=priority)
            names[one] = name
        order = []
        for _ in range(4):
            batch = await queue.take()
            finish(queue, batch)
            done, _ = await asyncio.wait(list(names), return_when="FIRST_COMPLETED")
            order += [names.pop(each) for each in done]
        assert order == ["urgent", "first", "second", "late"]

    run(go())


def test_a_full_queue_refuses_and_says_when_to_come_back(run):
    async def go():
        queue = batcher(queue_requests=2)
        waiting = await submitted(queue, task(), task())
        with pytest.raises(
            Refusal, match=r"^the queue is full: 2 requests wait, about 0\.0 s"
        ) as e:
            await queue.submit(task(), 5.0)
        assert (e.value.status, e.value.retry_after) == (429, 1)
        finish(queue, await queue.take())
        await asyncio.gather(*waiting)
        [again] = await submitted(queue, task())
        finish(queue, await queue.take())
        assert await again == OUTCOME

    run(go())


def test_what_would_be_late_is_refused_at_once(run):
    async def go():
        queue = batcher(max_wait_ms=0.0)
        [one] = await submitted(queue, task())
        finish(queue, await queue.take(), seconds=2.0)  # the pace: 2 s for each
        await one
        waiting = await submitted(queue, task(), task(), seconds=60.0)
        assert queue.expected_wait() == pytest.approx(4.0)
        with pytest.raises(Refusal, match="Try again later, or with a later deadline") as error:
            await queue.submit(task(), 5.0)
        assert (error.value.status, error.value.retry_after) == (429, 2)
        [fits] = await submitted(queue, task(), seconds=10.5)
        queue.workers = 2
        assert queue.expected_wait() == pytest.approx(3.0)
        with pytest.raises(Refusal, match=r"^this request alone needs about 2\.0 s, and its") as e:
            await queue.submit(task(), 1.5)
        assert e.value.status == 413
        for _ in range(3):
            batch = await queue.take()
            assert len(batch) == 1  # together they would take longer than a batch should
            finish(queue, batch, seconds=0.0)
        await asyncio.gather(*waiting, fits)

    run(go())


def test_deadlines_and_clients_that_leave_free_their_place(run):
    async def go():
        queue = batcher(max_wait_ms=0.0)
        with pytest.raises(Refusal, match=r"^the deadline of 0.02 s passed before an") as error:
            await queue.submit(task(), 0.02)
        assert error.value.status == 504
        assert len(queue) == 0
        gone, stays = await submitted(queue, task(), task())
        gone.cancel()
        await asyncio.sleep(0.01)
        batch = await queue.take()
        assert len(batch) == 1
        finish(queue, batch)
        assert await stays == OUTCOME
        [leaves] = await submitted(queue, task())
        batch = await queue.take()
        leaves.cancel()
        await asyncio.sleep(0.01)
        finish(queue, batch)  # nobody listens, and nothing breaks
        assert queue.unfinished == 0

    run(go())


def test_after_a_death_each_gets_one_more_attempt_alone(run):
    async def go():
        queue = batcher(max_wait_ms=0.0)
        waiting = await submitted(queue, task(), task(), task())
        batch = await queue.take()
        assert len(batch) == 3
        queue.give_back(batch)
        [first] = await queue.take()
        queue.give_back([first])  # this one kills workers
        newer = await submitted(queue, task())
        sizes = []
        for _ in range(3):
            batch = await queue.take()
            sizes.append(len(batch))
            finish(queue, batch)
        assert sizes == [1, 1, 1]
        outcomes = await asyncio.gather(*waiting, *newer)
        assert outcomes[0] == Failure("the worker died over this request", "server")
        assert outcomes[1:] == [OUTCOME] * 3

    run(go())


def test_a_server_that_stops_takes_nothing_more(run):
    async def go():
        queue = batcher()
        [one] = await submitted(queue, task())
        queue.draining = True
        with pytest.raises(Refusal, match="the server is stopping; ask another") as error:
            await queue.submit(task(), 5.0)
        assert error.value.status == 503
        queue.refuse_all()
        with pytest.raises(Refusal, match="the server stopped"):
            await one

    run(go())


@pytest.mark.parametrize(("waiting", "size"), [(12, 5), (61, 20)])
def test_batches_grow_with_what_waits(run, waiting, size):
    """Half a second's work, or a third of all that waits."""

    async def go():
        queue = batcher(batch_target_s=0.55, max_wait_ms=0.0)
        [first] = await submitted(queue, task(), seconds=60.0)
        finish(queue, await queue.take(), seconds=0.1)  # the pace: a tenth of a second each
        await first
        requests = await submitted(queue, *[task() for _ in range(waiting)], seconds=60.0)
        batch = await queue.take()
        assert len(batch) == size
        finish(queue, batch)
        queue.refuse_all()
        await asyncio.gather(*requests, return_exceptions=True)

    run(go())
