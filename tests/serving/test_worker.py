"""A worker in a process of its own, over a tiny checkpoint; and the command over a real port."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("httpx")
pytest.importorskip("transformers")

import httpx
from checkpoints import save_dense

from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.service import Service
from ricci_gpu.serving.settings import ServeSettings
from ricci_gpu.serving.tasks import Answer, Task
from ricci_gpu.serving.worker import ProcessWorker, WorkerLost

DOCUMENTS = ("the cell makes insulin", "paris", "", "the city")


@pytest.fixture(scope="module")
def overrides(tmp_path_factory):
    folder = save_dense(tmp_path_factory.mktemp("serving") / "model")
    return (f"model.name={folder}", "runtime.device=cpu")


async def until(holds, seconds=60.0):
    async with asyncio.timeout(seconds):
        while not holds():
            await asyncio.sleep(0.02)


@pytest.mark.slow
def test_killed_workers_are_replaced_and_every_request_is_answered(run, overrides):
    settings = ServeSettings(presets=("default",), overrides=overrides, max_wait_ms=0.0)
    choice = Presets(settings.presets, settings.overrides).choose()
    worker = ProcessWorker({"default": choice.config})
    task = Task(choice.config, choice.key, "who makes insulin", DOCUMENTS)

    async def go():
        service = Service(settings, [worker])
        assert not service.ready
        await service.start()
        await until(lambda: service.ready)
        first = await service.batcher.submit(task, 30.0)
        assert isinstance(first, Answer)
        waits = [asyncio.create_task(service.batcher.submit(task, 60.0)) for _ in range(40)]
        await asyncio.sleep(0.01)
        os.kill(worker.pid, signal.SIGKILL)
        outcomes = await asyncio.gather(*waits)
        assert [type(each) for each in outcomes] == [Answer] * 40
        assert {each.ranking.hits[0].position for each in outcomes} == {
            first.ranking.hits[0].position
        }
        assert service.metrics.registry.get_sample_value("ricci_worker_restarts_total") == 1
        await until(lambda: service.ready)
        pid = worker.pid
        await service.stop()
        assert not worker.ready
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)

    run(go(), seconds=120.0)


@pytest.mark.slow
def test_a_wedged_worker_is_lost_and_a_bad_model_says_why(run, overrides):
    presets = Presets(["default"], overrides)
    choice = presets.choose()
    task = Task(choice.config, choice.key, "who makes insulin", DOCUMENTS)

    async def wedged():
        worker = ProcessWorker(presets.configs, batch_s=0.3)
        await worker.start()
        assert worker.ready
        os.kill(worker.pid, signal.SIGSTOP)
        with pytest.raises(WorkerLost, match=r"^the worker did not answer for 0.3 s$"):
            await worker.rank([task])
        assert not worker.ready
        with pytest.raises(WorkerLost, match="the worker ended, or stopped answering"):
            await worker.rank([task])
        await worker.stop()

    async def without_model():
        configs = Presets(["default"], ["model.name=nowhere/none", "runtime.device=cpu"]).configs
        worker = ProcessWorker(configs)
        try:
            with pytest.raises(Exception, match="nowhere/none"):
                await worker.start()
        finally:
            await worker.stop()

    run(wedged(), seconds=60.0)
    run(without_model(), seconds=60.0)


def test_the_command_serves_a_port_and_stops_when_told(overrides):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    settings = [part for each in overrides for part in ("--set", each)]
    command = [
        sys.executable,
        "-c",
        "import sys; from ricci_gpu.cli import main; sys.exit(main(sys.argv[1:]))",
        *("serve", "--port", str(port), "--preset", "default", *settings),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        base = f"http://127.0.0.1:{port}"
        end = time.monotonic() + 90
        while True:
            try:
                status = httpx.get(f"{base}/ready").status_code
            except httpx.TransportError:
                status = None
            if status == 200:
                break
            assert time.monotonic() < end
            assert process.poll() is None
            time.sleep(0.2)
        body = {"query": "who makes insulin", "documents": list(DOCUMENTS)}
        answer = httpx.post(f"{base}/v2/rerank", json=body).json()
        assert len(answer["results"]) == 4
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=30)
        assert "Traceback" not in said
    finally:
        process.kill()
        process.wait()
