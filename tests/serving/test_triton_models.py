"""The models of ``deploy/triton`` against a fake of the backend."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from ricci_gpu import Reranker
from ricci_gpu.serving import triton
from ricci_gpu.serving.engine import Engine

MODELS = Path(__file__).parents[2] / "deploy" / "triton"
DOCUMENTS = ["x y", "a b c", "a", "", "a b"]


def load(path, name):
    found = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


backend = load(Path(__file__).with_name("triton_backend.py"), "triton_backend")


@pytest.fixture
def model(monkeypatch, words):
    """A model as the server would load it, with the words of the tests for an encoder."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", backend.module())
    monkeypatch.setattr(triton, "Engine", lambda config: Engine(config, encoder=words))

    def start(name, preset="default", overrides=""):
        made = load(MODELS / name / "1" / "model.py", f"{name}_model").TritonPythonModel()
        parameters = {"preset": preset, "overrides": overrides}
        strings = {key: {"string_value": value} for key, value in parameters.items()}
        made.initialize(
            {
                "model_config": json.dumps({"parameters": strings}),
                "model_name": name,
                "model_instance_kind": "CPU",
                "model_instance_device_id": "0",
            }
        )
        return made

    return start


def request(**arrays):
    return backend.InferenceRequest([backend.Tensor(*each) for each in arrays.items()])


def strings(rows):
    return np.array([[each.encode() for each in row] for row in rows], dtype=object)


def outputs(response):
    assert response.error is None
    return {each.name: each.as_numpy() for each in response.output_tensors}


def test_texts_of_ragged_requests(model, words):
    served = model("ricci_rerank")
    reranker = Reranker("default", ["select.top_k=null"], encoder=words)
    pools = [DOCUMENTS, ["a"], DOCUMENTS[:3]]
    responses = served.execute(
        [request(QUERY=strings([["a b"]]), DOCUMENTS=strings([pool])) for pool in pools]
    )
    for pool, response in zip(pools, responses, strict=True):
        found = outputs(response)
        ranking = reranker.rank("a b", pool)
        hits = [*ranking.hits, *ranking.dropped]
        assert found["INDEX"].tolist() == [[hit.position for hit in hits]]
        assert found["KEPT"].tolist() == [[hit.kept for hit in hits]]
        assert found["INDEX"].dtype == np.int32
        assert found["SCORE"].dtype == np.float32
        assert np.isfinite(found["SCORE"]).all()
    assert served.dropped.value > 0


def test_rows_top_n_and_no_documents(model):
    served = model("ricci_rerank", "ricci_filtration")
    both = request(
        QUERY=strings([["a b"], ["x y"]]),
        DOCUMENTS=strings([DOCUMENTS, DOCUMENTS]),
        TOP_N=np.array([[2], [2]], dtype=np.int32),
    )
    none = request(QUERY=strings([["a"]]), DOCUMENTS=np.zeros((1, 0), dtype=object))
    zeros = request(QUERY=np.array([[b""]], dtype=object), DOCUMENTS=strings([["", ""]]))
    two, empty, blank = map(outputs, served.execute([both, none, zeros]))
    assert two["INDEX"].shape == (2, 2)
    assert two["INDEX"][1, 0] == 0
    assert empty["INDEX"].shape == (1, 0)
    assert blank["INDEX"].shape == (1, 2)


def test_each_request_fails_for_itself(model):
    served = model("ricci_rerank", "ricci_filtration")
    good = request(QUERY=strings([["a"]]), DOCUMENTS=strings([["a", "b"]]))
    large = request(QUERY=strings([["a"]]), DOCUMENTS=strings([["a"] * 200]))
    negative = request(**{t.name: t.array for t in good.tensors}, TOP_N=np.array([[-1]]))
    responses = served.execute([good, large, negative])
    assert outputs(responses[0])["INDEX"].shape == (1, 2)
    assert responses[1].error.message().startswith("the ricci filter takes pools of at most 127")
    assert responses[2].error.message() == "TOP_N must be at least 0 (all); got -1."


def vectors(words, query, documents):
    q, d = (words.encode(texts, tokens=True) for texts in ([query], documents))
    half = {
        "QUERY_EMBEDDING": q.vectors.numpy(),
        "EMBEDDINGS": d.vectors.numpy()[None],
        "QUERY_TOKENS": q.token_vectors.numpy()[None],
        "TOKENS": d.token_vectors.numpy()[None],
    }
    made = {name: array.astype(np.float16) for name, array in half.items()}
    return made | {"TOKEN_COUNTS": d.token_offsets.diff().numpy()[None].astype(np.int32)}


@pytest.mark.parametrize("preset", ["default", "ricci_filtration"])
def test_vectors_rank_as_their_texts(model, words, preset):
    texts, served = model("ricci_rerank", preset), model("ricci_rerank_embeddings", preset)
    pools = [DOCUMENTS, DOCUMENTS[:2]]
    by_text = texts.execute(
        [request(QUERY=strings([["a b"]]), DOCUMENTS=strings([pool])) for pool in pools]
    )
    by_vector = served.execute([request(**vectors(words, "a b", pool)) for pool in pools])
    for one, other in zip(map(outputs, by_text), map(outputs, by_vector), strict=True):
        assert one["INDEX"].tolist() == other["INDEX"].tolist()
        np.testing.assert_allclose(one["SCORE"], other["SCORE"], atol=2e-3)


def test_vectors_that_do_not_fit_are_explained(model, words):
    served = model("ricci_rerank_embeddings")
    good = vectors(words, "a b", DOCUMENTS)

    def without(*names):
        return {name: array for name, array in good.items() if name not in names}

    cases = {
        "send both QUERY_EMBEDDING and EMBEDDINGS": without("EMBEDDINGS"),
        "send QUERY_TOKENS, TOKENS and TOKEN_COUNTS": without("TOKENS"),
        "send embeddings, token vectors, or both": {},
        "TOKEN_COUNTS must add up to the rows of TOKENS, 8": good
        | {"TOKEN_COUNTS": good["TOKEN_COUNTS"] + 1},
        "TOKENS must have the width of the query, 16; got 8": good
        | {"TOKENS": good["TOKENS"][..., :8]},
        "EMBEDDINGS and TOKEN_COUNTS must have equally many": good
        | {"EMBEDDINGS": good["EMBEDDINGS"][:, :2]},
        "the batch dimension of TOKENS must be 1; got 2": good
        | {"TOKENS": np.repeat(good["TOKENS"], 2, axis=0)},
        "stage `token_transport` reads token vectors": without(
            "QUERY_TOKENS", "TOKENS", "TOKEN_COUNTS"
        ),
    }
    responses = served.execute([request(**arrays) for arrays in [*cases.values(), good]])
    for message, response in zip(cases, responses, strict=False):
        assert response.error.message().startswith(message)
    assert outputs(responses[-1])["INDEX"].shape == (1, 5)
