"""Whatever comes in, no answer is a 500, and every answer is JSON without NaN.

``RICCI_GPU_FUZZ`` sets the number of random bodies.
"""

import asyncio
import json
import os
import random

import pytest

pytest.importorskip("schemathesis")
pytest.importorskip("fastapi")

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings

PATHS = ["/v1/rerank", "/v2/rerank", "/rerank", "/infinity/rerank", "/score", "/v1/score"]
BODIES = int(os.environ.get("RICCI_GPU_FUZZ", "400"))
LARGEST = {"max_body_mib": 0.05, "max_documents": 12, "max_chars": 200}


def no_constant(name):
    raise AssertionError(f"{name} in an answer")


def require_sound(response):
    assert response.status_code < 500, response.text
    for line in response.text.splitlines():
        json.loads(line, parse_constant=no_constant)


FIELDS = [
    *("query", "documents", "texts", "model", "top_n", "return_documents", "rank_fields"),
    *("raw_scores", "return_text", "truncate", "truncation_direction", "ricci", "text_1"),
    *("text_2", "queries", "items", "data_1", "data_2", "max_tokens_per_doc", "priority"),
]
OPTIONS = [
    *("preset", "filter", "rerank", "drop", "explain", "stream", "truncate", "deadline_s"),
    *("priority", "vectors"),
]
VECTORS = ["documents", "query_embedding", "embeddings", "query_tokens", "tokens"]
VECTORS += ["token_counts", "token_width"]
ATOMS = [
    *(None, True, False, 0, 1, -1, 2, 3, 10**30, 0.5, -2.5, 1e308, "", "a", "a b", "\ud83d"),
    *("\x00", "😀", "default", "ricci_filtration", "none", "maxsim", "ricci", "fixed_k"),
    *("../../etc/passwd", "AAAA", "PADwAA==", "AHwAfAB8AHw=", "Right", "x" * 300, [], {}),
]


def anything(rng, depth=0):
    choice = rng.random()
    if depth > 3 or choice < 0.6:
        return rng.choice(ATOMS)
    if choice < 0.8:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(5))]
    return {str(rng.choice(ATOMS)): anything(rng, depth + 1) for _ in range(rng.randrange(4))}


def texts(rng):
    return [rng.choice(["", "a", "a b", "\ud83d", {"text": "b"}, "c " * 50]) for _ in range(4)]


def filters(rng):
    names = ["type", "k", "eta", "iterations", "step", "alpha", "p", "solver", "minimum", "steps"]
    names += ["percentile", "temperature", "maximum", "graph", "rule", "lengths", "neighbours"]
    types = ["ricci", "fixed_k", "none", "z_score", "otsu", "random", "degree", "knee", "autocut"]
    made = {rng.choice(names): anything(rng, 3) for _ in range(rng.randrange(4))}
    return made | ({"type": rng.choice(types)} if rng.random() < 0.7 else {})


def vectors(rng):
    made = {"documents": 2, "token_width": 2, "token_counts": [1, 1]}
    names = ["query_embedding", "embeddings", "query_tokens", "tokens"]
    floats = ["ADwAPA==", "ADwAPAA8ADw=", "AHwAPAB+ADw=", "AAAAAA==", "AAAAAAAAAAA="]
    made |= {name: rng.choice(floats) for name in names if rng.random() < 0.9}
    for _ in range(rng.randrange(2)):
        made[rng.choice(VECTORS)] = anything(rng, 3)
    return made


def body(rng):
    if rng.random() < 0.05:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
    tree = {"query": "a b", "documents": texts(rng)}
    if rng.random() < 0.3:
        tree = {"query": "a b", "texts": ["a", "", "b \ud83d", "c"]}
    if rng.random() < 0.2:
        tree |= {"text_1": "a", "text_2": texts(rng)}
    if rng.random() < 0.7:
        tree["ricci"] = {rng.choice(OPTIONS): anything(rng) for _ in range(rng.randrange(3))}
        if rng.random() < 0.5:
            tree["ricci"]["filter"] = filters(rng)
        if rng.random() < 0.3:
            tree["ricci"]["vectors"] = vectors(rng)
            tree.pop("documents", None)
        if rng.random() < 0.5:
            tree["ricci"]["preset"] = rng.choice(["default", "ricci_filtration"])
    for _ in range(rng.randrange(3)):
        tree[rng.choice(FIELDS)] = anything(rng)
    encoded = json.dumps(tree).encode()
    if rng.random() < 0.05:
        encoded = encoded[: rng.randrange(len(encoded))]
    return encoded


def test_random_bodies(serve, run, unchecked_shapes):
    rng = random.Random(0)
    statuses = {}

    async def go():
        async with serve(**LARGEST) as (client, _):
            for start in range(0, BODIES, 16):
                batch = [body(rng) for _ in range(min(16, BODIES - start))]
                waits = [client.post(rng.choice(PATHS), content=each) for each in batch]
                for sent, response in zip(batch, await asyncio.gather(*waits), strict=True):
                    assert response.status_code < 500, (sent, response.text)
                    require_sound(response)
                    statuses[response.status_code] = statuses.get(response.status_code, 0) + 1

    run(go(), seconds=60.0 + BODIES)
    print(json.dumps({"requests": sum(statuses.values()), "statuses": statuses}))
    assert statuses[200] > BODIES / 10  # the bodies are not all nonsense
    assert statuses[400] > BODIES / 10


def test_bodies_after_our_own_description(serve, unchecked_shapes):
    examples = max(5, BODIES // 40)
    with asyncio.Runner() as runner:
        server = serve(**LARGEST)
        client, _ = runner.run(server.__aenter__())
        schema = schemathesis.openapi.from_dict(runner.run(client.get("/openapi.json")).json())
        seen = 0
        for operation in schema.get_all_operations():
            call = operation.ok()

            @settings(
                max_examples=examples if call.method.upper() == "POST" else 2,
                deadline=None,
                database=None,
                derandomize=True,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(case=call.as_strategy())
            def check(case):
                nonlocal seen
                made = case.as_transport_kwargs(base_url="http://test")
                made = {k: v for k, v in made.items() if k not in ("cookies",)}
                response = runner.run(client.request(**made))
                seen += 1
                assert response.status_code < 500, (made, response.text)

            check()
        runner.run(server.__aexit__(None, None, None))
    assert seen > examples
