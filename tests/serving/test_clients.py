"""A real client of another service, against our server on a loopback port."""

import socket
import threading
import time

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("cohere")

import cohere
import httpx
import uvicorn

from ricci_gpu.serving.app import create_app
from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.service import Service
from ricci_gpu.serving.settings import ServeSettings
from ricci_gpu.serving.worker import ThreadWorker

pytestmark = pytest.mark.filterwarnings("ignore")  # of the client's own
KEY = "a-key-of-ours"
DOCUMENTS = ["x y", "a b c", "", "a b"]


@pytest.fixture
def url(words):
    """A server in a thread, which answers whoever has the key."""
    settings = ServeSettings(keys=(KEY,), presets=("default",))
    configs = Presets(settings.presets).configs

    class Slow(Engine):
        def rank(self, tasks):
            if any(task.query == "slow" for task in tasks):
                time.sleep(0.3)
            return super().rank(tasks)

    def make():
        return Slow(configs["default"], encoder=words)

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    made = []

    def run():
        app = create_app(settings, Service(settings, [ThreadWorker(make, configs)]))
        made.append(app)
        server.config.app = app
        server.run()

    server = uvicorn.Server(uvicorn.Config(None, port=port, log_level="warning"))
    thread = threading.Thread(target=run)
    thread.start()
    end = time.monotonic() + 20
    while not (server.started and made[0].state.service.ready):
        assert time.monotonic() < end
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join()


@pytest.fixture
def connected(url):
    """Makes a client of one of Cohere's classes."""
    with httpx.Client() as session:
        yield lambda kind, key=KEY: kind(key, base_url=url, httpx_client=session)


def test_cohere(connected):
    client = connected(cohere.ClientV2)
    answer = client.rerank(model="rerank-v3.5", query="a b", documents=DOCUMENTS, top_n=3)
    assert [each.index for each in answer.results] == [1, 3, 0]
    assert answer.meta.api_version.version == "2"
    options = {"additional_body_parameters": {"ricci": {"drop": True, "explain": True}}}
    kept = client.rerank(
        model="default", query="a b", documents=DOCUMENTS, request_options=options
    ).results
    assert [each.index for each in kept] == [1, 3]
    assert kept[0].ricci["reason"].startswith("kept: mass")
    with pytest.raises(cohere.BadRequestError) as error:
        client.rerank(model="m", query="a b", documents=[])
    assert error.value.body["message"] == "`documents` must not be empty."
    with pytest.raises(cohere.UnauthorizedError):
        connected(cohere.ClientV2, "a-wrong-key").rerank(model="m", query="a", documents=["b"])


def test_cohere_version_1(connected):
    documents = [{"text": "x y"}, {"text": "a b", "page": "3"}]
    answer = connected(cohere.Client).rerank(
        query="a b", documents=documents, return_documents=True, model="m"
    )
    assert [each.index for each in answer.results] == [1, 0]
    assert answer.results[0].document.text == "a b"


def test_a_client_that_goes_away_frees_its_place(url):
    headers = {"authorization": f"Bearer {KEY}"}
    slow = {"query": "slow", "documents": DOCUMENTS}
    with httpx.Client(base_url=url, headers=headers) as client:
        for _ in range(3):  # the first is ranked, the others wait behind it
            with pytest.raises(httpx.ReadTimeout):
                client.post("/v1/rerank", json=slow, timeout=0.05)
        answer = client.post("/v1/rerank", json=slow | {"query": "a"}, timeout=10)
        assert answer.status_code == 200
        metrics = client.get("/metrics").text
    assert 'ricci_requests_total{code="499",route="/v1/rerank"} 3.0' in metrics
    assert "ricci_queue_requests 0.0" in metrics
    assert "ricci_batch_requests_sum 2.0" in metrics  # two of the three were never ranked
