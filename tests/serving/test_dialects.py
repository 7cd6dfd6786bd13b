import json

import pytest

DOCUMENTS = ["x y", "a b c", "a", "", "a b"]
QUERY = "a b"
RERANK = ["/v1/rerank", "/v2/rerank", "/rerank", "/infinity/rerank"]


@pytest.mark.parametrize("path", RERANK)
def test_what_every_client_finds(ask, path):
    response = ask(path, {"model": "rerank-v3.5", "query": QUERY, "documents": DOCUMENTS})
    assert response.status_code == 200
    body = response.json()
    assert body["model"] == "rerank-v3.5"
    assert body["object"] == "list"
    assert body["id"]
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] > 0
    assert body["meta"]["api_version"] == {"version": "2"}
    results = body["results"]
    assert sorted(each["index"] for each in results) == [0, 1, 2, 3, 4]
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    assert results[-1]["index"] == 3  # the empty one
    assert body["ricci"]["kept"] + 1 <= body["ricci"]["documents"] == 5
    assert all("ricci" not in each for each in results)


def test_documents_are_returned_as_each_client_wants_them(ask):
    body = {"query": QUERY, "documents": ["a b", {"text": "a", "page": 3}]}
    for path in ("/v1/rerank", "/v2/rerank"):
        assert all("document" not in each for each in ask(path, body).json()["results"])
        asked = ask(path, body | {"return_documents": True}).json()["results"]
        found = {each["index"]: each["document"] for each in asked}
        assert found == {0: {"text": "a b"}, 1: {"text": "a", "page": 3}}
    vllm = ask("/rerank", body).json()["results"]
    assert {each["index"]: each["document"]["text"] for each in vllm} == {0: "a b", 1: "a"}
    quiet = ask("/rerank", body | {"return_documents": False}).json()["results"]
    assert all("document" not in each for each in quiet)
    infinity = ask("/infinity/rerank", body | {"return_documents": True}).json()["results"]
    assert {each["index"]: each["document"] for each in infinity} == {0: "a b", 1: "a"}


def test_tei_answers_a_bare_list(ask):
    body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": False, "return_text": True}
    response = ask("/rerank", body)
    assert response.status_code == 200
    results = response.json()
    assert [set(each) for each in results] == [{"index", "score", "text"}] * 5
    assert {each["index"]: each["text"] for each in results} == dict(enumerate(DOCUMENTS))
    raw = ask("/rerank", body | {"raw_scores": True, "return_text": None}).json()
    assert [each["index"] for each in raw] == [each["index"] for each in results]
    assert all(each["score"] < 0 for each in raw)  # logarithms of mass
    assert "text" not in raw[0]


def test_score_is_in_the_order_of_the_request_and_needs_no_pool(ask):
    many = ask("/score", {"text_1": QUERY, "text_2": DOCUMENTS, "model": "m"}).json()
    assert many["object"] == "list"
    assert [each["index"] for each in many["data"]] == [0, 1, 2, 3, 4]
    scores = [each["score"] for each in many["data"]]
    assert scores[4] == pytest.approx(1, abs=1e-6)  # the same words
    assert scores[3] == 0  # no words
    alone = ask("/v1/score", {"queries": [QUERY], "documents": [DOCUMENTS[0]]}).json()
    assert alone["data"][0]["score"] == pytest.approx(scores[0], abs=1e-5)
    pairs = {"data_1": [QUERY, "x y"], "data_2": [DOCUMENTS[2], "x y"]}
    paired = [each["score"] for each in ask("/score", pairs).json()["data"]]
    assert paired == pytest.approx([scores[2], 1], abs=1e-5)
    items = {"queries": QUERY, "items": [{"text": "a"}]}
    assert ask("/score", items).json()["data"][0]["score"] == pytest.approx(scores[2], abs=1e-5)


@pytest.mark.parametrize("top_n", [None, 0, 1, 5, 50])
def test_top_n(ask, top_n):
    body = {"query": QUERY, "documents": DOCUMENTS, "top_n": top_n}
    results = ask("/v2/rerank", body).json()["results"]
    assert len(results) == min(top_n or 5, 5)


@pytest.mark.parametrize("top_n", [-1, "two", 2.5])
def test_impossible_top_n(ask, top_n):
    response = ask("/v2/rerank", {"query": QUERY, "documents": DOCUMENTS, "top_n": top_n})
    assert response.status_code == 400
    assert response.json()["message"].startswith("`top_n`: input should be")


def test_unknown_and_null_fields_are_accepted(ask):
    body = {"query": QUERY, "documents": DOCUMENTS, "max_tokens_per_doc": None, "new": {"a": []}}
    body |= {"top_n": None, "return_documents": None, "rank_fields": None, "ricci": None}
    assert ask("/v2/rerank", body).status_code == 200
    texts = {"query": QUERY, "texts": DOCUMENTS, "truncate": None, "truncation_direction": "Right"}
    assert ask("/rerank", texts | {"top_n": 2, "unknown": 1}).status_code == 200
    assert ask("/v1/rerank", body | {"ricci": {"preset": None}}).status_code == 200


def test_objects_as_documents(ask):
    documents = [{"text": "a b"}, {"title": "a", "body": "b"}, {"n": 3}]
    for fields in (None, ["title"]):
        body = {"query": QUERY, "documents": documents, "rank_fields": fields}
        response = ask("/v1/rerank", body)
        assert response.status_code == 400
        assert response.json()["message"].startswith("document 2 must be a string, or an object")
    pair = {"query": "a", "documents": [{"title": "a", "body": "x y"}, "a x"]}
    asked = ask("/v1/rerank", pair | {"rank_fields": ["title"]}).json()["results"]
    assert asked[0]["index"] == 0
    assert ask("/v1/rerank", pair | {"query": {"text": "a"}}).status_code == 200
    response = ask("/v1/rerank", pair | {"query": {"image": "a"}})
    assert response.json()["message"].startswith("`query` must be a string, or an object with")


def test_duplicates_stay_and_score_alike(ask):
    body = {"query": "gpu", "documents": ["a", "a", "gpu", "a"]}
    results = ask("/v2/rerank", body).json()["results"]
    assert [each["index"] for each in results] == [2, 0, 1, 3]
    assert len({round(each["relevance_score"], 6) for each in results[1:]}) == 1


def test_odd_texts(ask):
    texts = ["😀👩‍👩‍👧 a", "e\u0301 vs é", "\ud83d", "שלום a", "\x00a", "", "   ", "\u200b"]
    body = {"query": "a \udfff", "documents": texts, "return_documents": True}
    for preset in ("default", "ricci_filtration"):
        response = ask("/v1/rerank", body | {"ricci": {"preset": preset}})
        assert response.status_code == 200
        results = json.loads(response.content.decode("utf-8"))["results"]
        assert sorted(each["index"] for each in results) == list(range(8))
        assert {each["index"]: each["document"]["text"] for each in results}[2] == "\ufffd"


ERRORS = [
    ("/v2/rerank", {"query": "a", "documents": []}, 400, "`documents` must not be empty."),
    ("/v2/rerank", {"query": "a"}, 400, "`documents` is missing: send a list of texts."),
    ("/infinity/rerank", {"query": "a"}, 422, "`documents` is missing: send a list of texts."),
    ("/rerank", {"query": "a", "texts": []}, 400, "`texts` must not be empty."),
    ("/v1/rerank", {"query": "a", "documents": [3]}, 400, "`documents.0.str`: input should be"),
    ("/score", {"text_1": "a"}, 400, "`/score` needs `text_1` and `text_2`, `queries` and"),
    ("/score", {"text_1": [], "text_2": "a"}, 400, "`text_1` and `text_2` must not be empty."),
    ("/score", {"text_1": ["a"] * 2, "text_2": ["a"] * 3}, 400, "`text_1` must have one text, or"),
    (
        "/rerank",
        {"query": "a", "texts": ["a"], "truncation_direction": "Left"},
        422,
        "`truncation_direction` must be Right",
    ),
]


@pytest.mark.parametrize(("path", "body", "status", "message"), ERRORS)
def test_errors_as_each_client_reads_them(ask, path, body, status, message):
    response = ask(path, body)
    assert response.status_code == status
    error = response.json()
    assert error["message"].startswith(message)
    if "texts" in body:
        assert error["error"] == error["message"]
        assert error["error_type"] in ("Empty", "Validation")
    else:
        assert error["detail"] == error["error"]["message"] == error["message"]
        assert error["error"]["code"] == status
        assert error["error"]["type"] == "invalid_request_error"
