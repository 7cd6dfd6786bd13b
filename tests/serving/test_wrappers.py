"""The wrappers of ``deploy`` for servers of others."""

import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("fastapi")
from fastapi import HTTPException

from ricci_gpu.serving.engine import Engine

DEPLOY = Path(__file__).parents[2] / "deploy"
BODY = {"query": "a b", "documents": ["x y", "a b c", "a b"]}


def load(name, words, monkeypatch):
    found = importlib.util.spec_from_file_location(f"deploy_{name}", DEPLOY / f"{name}.py")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    monkeypatch.setattr(module, "Engine", lambda config: Engine(config, encoder=words))
    return module


@pytest.mark.parametrize("name", ["litserve_app", "ray_serve"])
def test_wrappers_are_short(name):
    assert len((DEPLOY / f"{name}.py").read_text().splitlines()) <= 40


@pytest.mark.filterwarnings("ignore")
def test_litserve(words, monkeypatch):
    pytest.importorskip("litserve")
    api = load("litserve_app", words, monkeypatch).RerankAPI(max_batch_size=4)
    api.setup("cpu")
    tasks = [api.decode_request(each) for each in (BODY, BODY | {"documents": ["a"]})]
    first, second = (api.encode_response(outcome) for outcome in api.predict(tasks))
    assert [each["index"] for each in first["results"]] == [1, 2, 0]
    assert [each["index"] for each in second["results"]] == [0]
    for body in ({"query": "a"}, BODY | {"documents": "a text"}, BODY | {"documents": [{}]}):
        with pytest.raises(HTTPException) as error:
            api.decode_request(body)
        assert error.value.status_code == 400


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_ray_serve(words, monkeypatch):
    pytest.importorskip("grpc", reason="Ray Serve needs ray[serve]")
    pytest.importorskip("ray.serve")
    module = load("ray_serve", words, monkeypatch)
    deployment = module.Rerank.func_or_class()
    assert deployment.engine.device.type in ("cpu", "cuda")
