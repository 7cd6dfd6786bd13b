"""The models of ``deploy/triton`` in a real Triton Inference Server: `make check-triton`.

The server binary is the one that the package nvidia-pytriton carries, which needs an environment
of its own (numpy < 2). It runs on a machine without a GPU.
"""

import os
import shutil
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("pytriton")
pytest.importorskip("tritonclient")

import tritonclient.grpc as over_grpc
import tritonclient.http as over_http
from tritonclient.utils import InferenceServerException

from ricci_gpu import Reranker

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # of gevent, in the client
]

MODELS = Path(__file__).parents[2] / "deploy" / "triton"
QUERY = "Which cells make insulin?"
DOCUMENTS = [
    "The pancreas lies behind the stomach.",
    "Insulin is made by the beta cells of the pancreas.",
    "Paris is the capital of France.",
    "",
    "Trains run on rails. 😀",
]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def ports(tmp_path_factory):
    """A server with both models; its HTTP, gRPC and metrics ports."""
    import pytriton

    package = Path(pytriton.__file__).parent
    backends = tmp_path_factory.mktemp("backends") / "python"
    shutil.copytree(package / "tritonserver" / "backends" / "python", backends)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stub = package / "tritonserver" / "python_backend_stubs" / version
    shutil.copy(stub / "triton_python_backend_stub", backends)
    libraries = [sysconfig.get_config_var("LIBDIR"), str(package.parent / "nvidia_pytriton.libs")]
    environment = os.environ | {
        # The stub takes the python of PATH, and the library that this python was built with.
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": ":".join([*libraries, os.environ.get("LD_LIBRARY_PATH", "")]),
        "OMP_NUM_THREADS": "1",
    }
    found = [free_port() for _ in range(3)]
    command = [package / "tritonserver" / "bin" / "tritonserver", "--model-repository", MODELS]
    command += ["--backend-directory", backends.parent]
    for service, port in zip(("http", "grpc", "metrics"), found, strict=True):
        command += [f"--{service}-address", "127.0.0.1", f"--{service}-port", str(port)]
    log = (tmp_path_factory.mktemp("log") / "server.log").open("w+")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    client = over_http.InferenceServerClient(f"127.0.0.1:{found[0]}")
    end = time.monotonic() + 240

    def ready():
        try:
            return client.is_server_ready()
        except (OSError, InferenceServerException):
            return False

    try:
        while not ready():
            if process.poll() is not None or time.monotonic() > end:
                log.seek(0)
                pytest.fail("\n".join(line for line in log if line[:1] == "E" or "rror" in line))
            time.sleep(0.5)
        yield found
    finally:
        client.close()
        process.terminate()
        process.wait(60)
        log.close()


def tensor(kind, name, array, datatype):
    made = kind.InferInput(name, list(array.shape), datatype)
    made.set_data_from_numpy(array)
    return made


def text_inputs(kind, query, documents):
    return [
        tensor(kind, "QUERY", np.array([[query.encode()]], dtype=object), "BYTES"),
        tensor(
            kind,
            "DOCUMENTS",
            np.array([d.encode() for d in documents], dtype=object).reshape(1, -1),
            "BYTES",
        ),
    ]


def ask(kind, port, inputs, model="ricci_rerank"):
    with kind.InferenceServerClient(f"127.0.0.1:{port}") as client:
        answer = client.infer(model, inputs)
        return {name: answer.as_numpy(name)[0].tolist() for name in ("INDEX", "SCORE", "KEPT")}


@pytest.fixture(scope="module")
def reranker():
    return Reranker("default", ["select.top_k=null", "runtime.device=cpu"])


@pytest.mark.parametrize("kind", [over_http, over_grpc], ids=["http", "grpc"])
def test_texts(ports, reranker, kind):
    port = ports[0] if kind is over_http else ports[1]
    found = ask(kind, port, text_inputs(kind, QUERY, DOCUMENTS))
    ranking = reranker.rank(QUERY, DOCUMENTS)
    hits = [*ranking.hits, *ranking.dropped]
    assert found["INDEX"] == [hit.position for hit in hits]
    assert found["KEPT"] == [hit.kept for hit in hits]
    top = tensor(kind, "TOP_N", np.array([[1]], dtype=np.int32), "INT32")
    assert ask(kind, port, [*text_inputs(kind, QUERY, DOCUMENTS), top])["INDEX"] == [1]
    assert ask(kind, port, text_inputs(kind, "", []))["INDEX"] == []


@pytest.mark.parametrize("kind", [over_http, over_grpc], ids=["http", "grpc"])
def test_vectors(ports, reranker, kind):
    port = ports[0] if kind is over_http else ports[1]
    query = reranker.query_encoder.encode([QUERY], tokens=True)
    passages = reranker.passage_encoder.encode(DOCUMENTS, tokens=True)
    half = {
        "QUERY_EMBEDDING": query.vectors,
        "EMBEDDINGS": passages.vectors[None],
        "QUERY_TOKENS": query.token_vectors[None],
        "TOKENS": passages.token_vectors[None],
    }
    inputs = [tensor(kind, n, t.numpy().astype(np.float16), "FP16") for n, t in half.items()]
    counts = passages.token_offsets.diff().numpy()[None].astype(np.int32)
    inputs.append(tensor(kind, "TOKEN_COUNTS", counts, "INT32"))
    by_vector = ask(kind, port, inputs, "ricci_rerank_embeddings")
    by_text = ask(kind, port, text_inputs(kind, QUERY, DOCUMENTS))
    assert by_vector["INDEX"] == by_text["INDEX"]
    assert by_vector["SCORE"] == pytest.approx(by_text["SCORE"], abs=2e-3)
    with pytest.raises(InferenceServerException, match="send QUERY_TOKENS, TOKENS and TOKEN_COUN"):
        ask(kind, port, inputs[:-1], "ricci_rerank_embeddings")


def test_ragged_requests_share_batches_and_keep_their_answers(ports):
    import urllib.request

    gate = threading.Barrier(32)

    def one(number):
        documents = [f"{number} {word}" for word in ("alpha", "beta", "gamma", "delta")]
        documents = documents[: 1 + number % 4]
        gate.wait(30)
        found = ask(over_grpc, ports[1], text_inputs(over_grpc, f"{number} alpha", documents))
        return number, documents, found

    with ThreadPoolExecutor(32) as threads:
        answers = list(threads.map(one, range(32)))
    for number, documents, found in answers:
        assert sorted(found["INDEX"]) == list(range(len(documents)))
        alone = ask(over_grpc, ports[1], text_inputs(over_grpc, f"{number} alpha", documents))
        assert alone["INDEX"] == found["INDEX"]
        assert alone["SCORE"] == pytest.approx(found["SCORE"], abs=1e-5)
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[2]}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    value = {line.split(" ")[0]: line.split(" ")[1] for line in lines if line[:1] != "#"}
    named = {n: float(v) for n, v in value.items() if 'model="ricci_rerank",' in n}
    requests = sum(v for n, v in named.items() if n.startswith("nv_inference_request_success"))
    batches = sum(v for n, v in named.items() if n.startswith("nv_inference_exec_count"))
    assert batches < requests
    assert 'ricci_dropped_documents{model="ricci_rerank"}' in value
