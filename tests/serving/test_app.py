import asyncio
import json
import re

import numpy as np
import pytest

pytest.importorskip("fastapi")

from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.vectors import encode

DOCUMENTS = ["x y", "a b c", "a", "", "a b", "c d", "y z"]
BODY = {"query": "a b", "documents": DOCUMENTS}
BOTH = ["default", "ricci_filtration"]


def order(response):
    return [each["index"] for each in response.json()["results"]]


def message(response):
    return response.json()["message"]


def test_dropped_documents_come_last_and_are_flagged_or_left_out(ask):
    body = BODY | {"ricci": {"explain": True}}
    for preset in BOTH:
        body["ricci"]["preset"] = preset
        answer = ask("/v2/rerank", body).json()
        results = answer["results"]
        assert answer["ricci"]["preset"] == preset
        assert answer["ricci"]["status"] == "ok"
        kept = [each["ricci"]["kept"] for each in results]
        assert kept == sorted(kept, reverse=True)
        assert 0 < sum(kept) == answer["ricci"]["kept"] < len(results) == 7
        reasons = [each["ricci"]["reason"] for each in results]
        assert all(each.startswith("kept") == k for each, k in zip(reasons, kept, strict=True))
        dropped = ask("/v2/rerank", {**body, "ricci": body["ricci"] | {"drop": True}}).json()
        assert dropped["results"] == [each for each in results if each["ricci"]["kept"]]
        scores = [each["relevance_score"] for each in results]
        assert scores == sorted(scores, reverse=True)
        assert min(scores) >= 0


def test_without_explain_no_reason(ask):
    answer = ask("/v1/rerank", BODY | {"ricci": {}}).json()
    assert all(set(each["ricci"]) == {"kept"} for each in answer["results"])
    texts = {"query": "a b", "texts": DOCUMENTS, "ricci": {"explain": True}}
    assert "reason" in ask("/rerank", texts).json()[0]["ricci"]


def test_a_model_called_like_a_preset_is_that_preset(ask):
    answer = ask("/v1/rerank", BODY | {"model": "ricci_filtration"}).json()
    assert answer["ricci"]["preset"] == answer["model"] == "ricci_filtration"
    answer = ask("/v1/rerank", BODY | {"model": "../ricci_filtration.yaml"}).json()
    assert answer["ricci"]["preset"] == "default"
    listed = ask("/v1/rerank", BODY, presets=("ricci_filtration",)).json()
    assert listed["ricci"]["preset"] == "ricci_filtration"


def test_settings_of_a_request(ask):
    def kept(**extension):
        return ask("/v1/rerank", BODY | {"ricci": extension}).json()["ricci"]["kept"]

    assert kept(filter={"type": "fixed_k", "k": 3}) == 3
    assert kept(filter={"type": "none"}) == 7
    assert kept(filter={"minimum": 6}) == 6
    assert kept(filter={"eta": 900}) < kept()
    assert kept(preset="ricci_filtration", filter={"iterations": 0, "eta": 1.0}) == 7
    by_maxsim = ask("/v1/rerank", BODY | {"ricci": {"rerank": "maxsim"}}).json()["results"]
    assert by_maxsim[0]["relevance_score"] == pytest.approx(1, abs=1e-6)


IMPOSSIBLE = [
    ({"preset": "defualt"}, r"^unknown preset `defualt`\. Did you mean `default`\?"),
    ({"preset": "/etc/passwd.yaml"}, "^unknown preset `/etc/passwd.yaml`"),
    ({"filter": {"etta": 1}}, r"has no setting `etta`\. Did you mean `eta`\?"),
    ({"filter": {"type": "model"}}, "^unknown filter `model`"),
    ({"filter": {"eta": 1e9}}, "^numbers in the settings of a request must be between"),
    ({"filter": {"trace": True}}, "^`trace` is for `ricci-gpu explain`, not for a server"),
    ({"rerank": "cross_encoder"}, "^a request may choose the reranker of its preset"),
    ({"rerank": "/models/x"}, "^a request may choose the reranker of its preset"),
    ({"explian": True}, r"^`ricci\.explian`: extra inputs are not permitted"),
    ({"deadline_s": 0}, r"^`ricci\.deadline_s`: input should be greater than 0"),
    ({"vectors": {"documents": 7}}, "^`vectors` must hold `query_embedding` and `embeddings`, or"),
]


@pytest.mark.parametrize(("extension", "text"), IMPOSSIBLE)
def test_impossible_settings_are_explained(ask, extension, text):
    response = ask("/v1/rerank", BODY | {"ricci": extension})
    assert response.status_code == 400
    assert re.search(text, message(response))
    assert ask("/infinity/rerank", BODY | {"ricci": extension}).status_code == 422


def test_too_much_for_the_ricci_filter(ask):
    body = {"query": "a", "documents": ["a"] * 128, "ricci": {"preset": "ricci_filtration"}}
    assert message(ask("/v1/rerank", body)).startswith("the Ricci filter takes at most 127 docu")
    body = {"query": "a", "documents": ["a"] * 127}
    body["ricci"] = {"preset": "ricci_filtration", "filter": {"iterations": 900}}
    response = ask("/v1/rerank", body)
    assert response.status_code == 413
    assert message(response).startswith("127 documents with 900 steps of the Ricci flow are too")


def test_limits(ask):
    small = {"max_body_mib": 0.001, "max_documents": 3, "max_chars": 10, "max_nesting": 4}

    def refused(body, status=413):
        response = ask("/v1/rerank", body, **small)
        assert response.status_code == status
        return message(response)

    too_large = "the body must have at most 0.001 MiB. Send fewer documents at once."
    assert refused({"query": "a" * 2000, "documents": ["a"]}) == too_large
    assert refused(b"[" * 2000) == too_large
    assert refused({"query": "a", "documents": ["a"] * 4}) == (
        "a request may have at most 3 documents; got 4."
    )
    deep = {"query": "a", "documents": ["a"], "x": [[[["deep"]]]]}
    assert refused(deep, 400) == "the body must have at most 4 levels of nesting."
    assert refused(b'{"x":' + b"[" * 900, 400).startswith("the body must be JSON in UTF-8: ")
    long = {"query": "a " * 9, "documents": ["b", "a " * 9]}
    answer = ask("/v1/rerank", long, **small).json()
    warnings = ["document 1 was cut to 10 characters", "the query was cut to 10 characters"]
    assert answer["meta"]["warnings"] == warnings
    refusing = long | {"ricci": {"truncate": False}}
    assert refused(refusing) == "document 1 must have at most 10 characters. Cut it."
    texts = {"query": "b", "texts": long["documents"], "truncate": False}
    assert ask("/rerank", texts, **small).json()["error_type"] == "Validation"
    assert ask("/score", {"text_1": "a", "text_2": ["b"] * 4}, **small).status_code == 413


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "^the body must be JSON in UTF-8: Expecting value"),
        (b"\xff\xfe{}", "^the body must be JSON in UTF-8"),
        (b'{"query": NaN}', "^the body must be JSON in UTF-8: NaN is not a JSON number"),
        (b'{"top_n": ' + b"9" * 5000 + b"}", "^the body must be JSON in UTF-8"),
        (b"[1]", "^the body must be a JSON object; got list"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "^the body must have at most 16 lev"),
    ],
)
def test_what_is_no_request(ask, body, text):
    response = ask("/v1/rerank", body)
    assert response.status_code == 400
    assert re.search(text, message(response))


def test_what_the_model_cuts_is_told_or_refused(serve, run, encoder):
    engine = Engine(Presets(["default"]).choose().config, encoder=encoder)
    body = {"query": "gpu rerank", "documents": ["gpu " * 3000, "gpu", "cpu"]}

    async def go():
        async with serve(engine, presets=("default",)) as (client, _):
            answer = (await client.post("/v2/rerank", json=body)).json()
            assert answer["meta"]["warnings"] == ["document 0 was read up to 256 tokens"]
            refusing = body | {"ricci": {"truncate": False}}
            response = await client.post("/v2/rerank", json=refusing)
            assert response.status_code == 413
            assert message(response).startswith("document 0 must be shorter than the 256 tokens")
            pairs = {"text_1": ["gpu", "cpu"], "text_2": ["cpu", "gpu " * 3000]}
            answer = await client.post("/score", json=pairs)
            assert "document 1 was read up to 256 tokens" in answer.text
            pairs["text_2"][1] = "gpu " * 20_000
            response = await client.post("/score", json=pairs | {"ricci": {"truncate": False}})
            assert response.status_code == 413
            assert message(response).startswith("document 1 must have at most")

    run(go())


def vectors(words, documents, *, embeddings=True, tokens=True):
    query, passages = (words.encode(texts, tokens=True) for texts in (["a b"], documents))
    made = {"documents": len(documents)}
    if embeddings:
        made["query_embedding"] = encode(query.vectors.numpy())
        made["embeddings"] = encode(passages.vectors.numpy())
    if tokens:
        made["query_tokens"] = encode(query.token_vectors.numpy())
        made["tokens"] = encode(passages.token_vectors.numpy())
        made["token_counts"] = passages.token_offsets.diff().tolist()
        made["token_width"] = 16
    return made


def test_vectors_instead_of_texts(ask, words):
    for preset in BOTH:
        texts = ask("/v1/rerank", BODY | {"ricci": {"preset": preset}})
        given = {"preset": preset, "vectors": vectors(words, DOCUMENTS)}
        alone = ask("/v1/rerank", {"ricci": given, "return_documents": True})
        assert alone.status_code == 200
        assert order(alone) == order(texts)
        for one, other in zip(alone.json()["results"], texts.json()["results"], strict=True):
            assert one["relevance_score"] == pytest.approx(other["relevance_score"], abs=2e-3)
        echoed = ask("/v1/rerank", BODY | {"ricci": given, "return_documents": True}).json()
        assert echoed["results"][0]["document"]["text"] in DOCUMENTS
    only = {"vectors": vectors(words, DOCUMENTS, embeddings=False)}
    assert order(ask("/v1/rerank", {"ricci": only})) == order(ask("/v1/rerank", BODY))


def test_bad_vectors(ask, words):
    good = vectors(words, DOCUMENTS)

    def refused(**changes):
        response = ask("/v1/rerank", {"ricci": {"vectors": good | changes}})
        assert response.status_code == 400
        return message(response)

    assert refused(tokens="*").startswith("`vectors.tokens` must be base64 of float16 numbers")
    assert refused(tokens="AAAA").startswith("`vectors.tokens` must hold float16 numbers; got 3 ")
    assert refused(tokens=None).startswith("`vectors` must hold both `query_tokens` and `tokens`")
    assert refused(token_width=None).startswith("`vectors.tokens` needs `token_width` and `token_")
    assert refused(token_counts=[1]).startswith("`vectors.token_counts` must have a number per do")
    assert refused(token_width=15).startswith("`vectors.tokens` must hold 12 rows of one width, 15")
    assert refused(embeddings=encode(np.ones((7, 8)))).startswith(
        "`vectors.embeddings` must have the width of the query, 16; got 8"
    )
    both = BODY | {"documents": ["a"], "ricci": {"vectors": good}}
    assert message(ask("/v1/rerank", both)).startswith("`documents` and `ricci.vectors` must have")
    lacking = vectors(words, DOCUMENTS, tokens=False)
    assert message(ask("/v1/rerank", {"ricci": {"vectors": lacking}})).startswith(
        "stage `token_transport` reads token vectors, and the request brings none."
    )
    nan = np.full((7, 16), np.nan)
    bad = {"preset": "ricci_filtration", "vectors": good | {"embeddings": encode(nan)}}
    answer = ask("/v1/rerank", {"ricci": bad}).json()
    assert answer["meta"]["warnings"][0].startswith("a vector is NaN, infinite or zero")


def test_results_as_a_stream_of_lines(ask):
    body = BODY | {"return_documents": True, "ricci": {"explain": True}}
    whole = ask("/v1/rerank", body).json()
    streamed = ask("/v1/rerank", {**body, "ricci": {"explain": True, "stream": True}})
    assert streamed.headers["content-type"] == "application/x-ndjson"
    head, *results = map(json.loads, streamed.text.splitlines())
    assert results == whole.pop("results")
    assert set(head) == set(whole)
    assert head["usage"] == whole["usage"]


def test_status_routes(serve, run):
    async def go():
        async with serve() as (client, service):
            assert (await client.get("/health")).json() == {"status": "ok"}
            assert (await client.get("/ready")).json() == {"ready": True, "workers": [True]}
            models = (await client.get("/v1/models")).json()["data"]
            assert [each["id"] for each in models] == BOTH
            assert (await client.get("/info")).json()["max_client_batch_size"] == 1000
            await client.post("/v2/rerank", json=BODY)
            await client.post("/v2/rerank", json={})
            text = (await client.get("/metrics")).text
            assert 'ricci_requests_total{code="200",route="/v2/rerank"} 1.0' in text
            assert 'ricci_requests_total{code="400",route="/v2/rerank"} 1.0' in text
            assert "ricci_workers_ready 1.0" in text
            assert "ricci_batch_pairs_sum 7.0" in text
            described = (await client.get("/openapi.json")).json()
            assert {"/v1/rerank", "/v2/rerank", "/rerank", "/score"} <= set(described["paths"])
            for name in ("RerankBody", "TextsBody", "ScoreBody", "Extension", "VectorsBody"):
                assert name in described["components"]["schemas"]
            assert (await client.get("/docs")).status_code == 200
            service.batcher.draining = True
            assert (await client.get("/ready")).status_code == 503
            assert (await client.post("/v2/rerank", json=BODY)).status_code == 503

    run(go())


def test_keys(serve, run):
    async def go():
        async with serve(keys=("first-key", "second-key")) as (client, _):
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/ready")).status_code == 200
            for path in ("/metrics", "/v1/models", "/openapi.json", "/docs"):
                assert (await client.get(path)).status_code == 401
            for value in ("", "Bearer", "Bearer first", "Basic first-key", "Bearer \xff"):
                headers = {"authorization": value.encode("latin-1")}
                response = await client.post("/v1/rerank", json=BODY, headers=headers)
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == "Bearer"
                assert message(response).startswith("this server needs a key: send `Authorizatio")
            for key in ("first-key", "second-key"):
                headers = {"authorization": f"Bearer {key}"}
                response = await client.post("/v1/rerank", json=BODY, headers=headers)
                assert response.status_code == 200

    run(go())


def test_the_cache_is_off_by_default_and_keyed_by_content(serve, run, words):
    async def go():
        async with serve(cache_entries=2) as (client, service):

            async def encoded(body):
                before = len(words.calls)
                assert (await client.post("/v1/rerank", json=body)).status_code == 200
                return len(words.calls) > before

            assert await encoded(BODY)
            assert not await encoded(BODY | {"top_n": 2, "ricci": {"drop": True}})
            assert not await encoded(BODY | {"model": "another"})
            assert await encoded(BODY | {"query": "a"})
            assert await encoded({"query": "ab", "documents": ["c", "d"]})
            assert await encoded({"query": "a", "documents": ["bc", "d"]})  # not the same letters
            assert len(service.cache) == 2
            assert await encoded(BODY)  # the oldest made room
            assert await encoded(BODY | {"ricci": {"filter": {"eta": 0.5}}})
        async with serve() as (client, service):
            await client.post("/v1/rerank", json=BODY)
            before = len(words.calls)
            await client.post("/v1/rerank", json=BODY)
            assert len(words.calls) > before
            assert len(service.cache) == 0

    run(go())


def test_no_text_of_a_request_is_logged_unless_asked(serve, run, caplog):
    secret = BODY | {"query": "secret", "documents": ["secret", "a"]}

    async def go(**settings):
        async with serve(**settings) as (client, _):
            await client.post("/v1/rerank", json=secret)
            await client.post("/v1/rerank", json=secret | {"top_n": -1})

    with caplog.at_level("INFO", logger="ricci_gpu"):
        run(go())
        assert "secret" not in caplog.text
        run(go(log_texts=True))
        assert "'secret' with 2 documents" in caplog.text


def test_under_load_every_client_gets_its_own_answer(serve, run):
    """Ragged requests at once, some of which break, some of whose clients leave."""
    bodies = [
        {"query": f"a q{n}", "documents": [f"q{n} d{i} a" for i in range(1 + n % 7)]}
        | {"ricci": {"preset": BOTH[n % 2], "deadline_s": 20}}
        for n in range(64)
    ]

    async def go():
        async with serve(max_wait_ms=5.0) as (client, service):
            alone = [await client.post("/v1/rerank", json=body) for body in bodies[:16]]
            waits = [asyncio.create_task(client.post("/v1/rerank", json=body)) for body in bodies]
            broken = asyncio.create_task(
                client.post("/v1/rerank", json={"query": "a", "documents": [None]})
            )
            await asyncio.sleep(0.01)
            for each in waits[20:25]:
                each.cancel()
            answers = await asyncio.gather(*waits, return_exceptions=True)
            assert (await broken).status_code == 400
            for place, (body, answer) in enumerate(zip(bodies, answers, strict=True)):
                if 20 <= place < 25:
                    continue
                assert answer.status_code == 200
                assert len(order(answer)) == len(body["documents"])
            for one, other in zip(alone, answers[:16], strict=True):
                assert order(one) == order(other)
                for mine, theirs in zip(
                    one.json()["results"], other.json()["results"], strict=True
                ):
                    assert mine["relevance_score"] == pytest.approx(
                        theirs["relevance_score"], abs=1e-5
                    )
            assert service.batcher.unfinished == 0
            sizes = service.metrics.registry.get_sample_value("ricci_batch_requests_sum")
            batches = service.metrics.registry.get_sample_value("ricci_batch_requests_count")
            assert sizes / batches > 1.5

    run(go())


class Broken(Engine):
    """An engine that breaks its promise not to raise."""

    def rank(self, tasks):
        raise RuntimeError("secret details")


def test_a_broken_server_says_so_without_details(serve, run, words, caplog):
    engine = Broken(Presets(["default"]).choose().config, encoder=words)

    async def go():
        async with serve(engine) as (client, service):
            response = await client.post("/v1/rerank", json=BODY)
            assert response.status_code == 500
            assert message(response) == "the worker died over this request"
            assert service.metrics.registry.get_sample_value("ricci_worker_restarts_total") >= 1
        assert "a worker failed; another starts" in caplog.text

    run(go())
