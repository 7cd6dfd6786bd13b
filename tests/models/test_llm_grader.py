import json
import logging
import threading
import time

import pytest

from ricci_gpu.errors import InputError
from ricci_gpu.models.chat_endpoint import ChatEndpoint
from ricci_gpu.models.llm_grader import EndpointGrader, RememberedGrades, read_grade

httpx = pytest.importorskip("httpx")

PAIRS = [("who wrote emma", text) for text in ("Jane Austen wrote Emma.", "A novel.", "Rain.")]


class Server:
    """Answers by the passage; records what it is asked, and how many requests come at once."""

    def __init__(self, answers):
        self.answers, self.requests, self.now, self.most = answers, [], 0, 0
        self.lock = threading.Lock()

    def __call__(self, request):
        body = json.loads(request.content)
        with self.lock:
            self.requests.append((body, dict(request.headers)))
            self.now += 1
            self.most = max(self.most, self.now)
        time.sleep(0.01)
        asked = body["messages"]
        passage = asked[1]["content"].split("Passage: ")[1].split("\n")[0]
        turn = sum(message["role"] == "assistant" for message in asked)
        answer = self.answers[passage]
        answer = answer[turn] if isinstance(answer, list) else answer
        with self.lock:
            self.now -= 1
        if isinstance(answer, Exception):
            raise answer
        if isinstance(answer, httpx.Response):
            return answer
        return httpx.Response(200, json={"choices": [{"message": {"content": answer}}]})


def endpoint(answers, **settings):
    server = Server(answers)
    transport = httpx.MockTransport(server)
    chat = ChatEndpoint(
        *("judge", "http://model.test/v1/"), pause=0.001, transport=transport, **settings
    )
    return EndpointGrader(chat), server


def test_grades_of_an_endpoint():
    grader, server = endpoint({PAIRS[0][1]: "3", PAIRS[1][1]: "Grade: 1.", PAIRS[2][1]: " 0\n"})
    seen = []
    assert grader.grade(PAIRS, lambda done, total: seen.append((done, total))) == [3, 1, 0]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    body, _ = server.requests[0]
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("judge", 0, 16)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert "who wrote emma" in body["messages"][1]["content"]
    assert grader.grade([]) == []


@pytest.mark.parametrize(
    ("answer", "grade"),
    [
        ("2", 2.0),
        ("Grade: 3 (three)", 3.0),
        ("3, yes 3", 3.0),
        ("2/3", None),
        ("2.5", None),
        ("4", None),
        ("03", None),
        ("", None),
        ("relevant", None),
    ],
)
def test_what_is_read_as_a_grade(answer, grade):
    assert read_grade(answer) == grade


def test_malformed_answers_are_repaired_once_and_then_missing(caplog):
    grader, server = endpoint(
        {
            PAIRS[0][1]: ["It is relevant.", "3"],
            PAIRS[1][1]: ["between 1 and 2", "still unsure"],
            PAIRS[2][1]: "0",
        }
    )
    with caplog.at_level(logging.WARNING):
        assert grader.grade(PAIRS) == [3, None, 0]
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 answers were no grade; 1 of them still were none when asked again"
    ]
    assert len(server.requests) == 5
    repaired = [body["messages"] for body, _ in server.requests if len(body["messages"]) > 2]
    assert {messages[2]["content"] for messages in repaired} == {
        "It is relevant.",
        "between 1 and 2",
    }
    assert all("one digit" in messages[3]["content"] for messages in repaired)


def test_trouble_on_the_way_is_retried_and_then_missing(caplog):
    class Flaky(Server):
        def __call__(self, request):
            response = super().__call__(request)
            return response if len(self.requests) > 2 else httpx.Response(503, text="busy")

    server = Flaky({PAIRS[0][1]: "3"})
    chat = ChatEndpoint("judge", "http://x/v1", pause=0.001, transport=httpx.MockTransport(server))
    assert EndpointGrader(chat).grade(PAIRS[:1]) == [3]
    assert len(server.requests) == 3

    grader, server = endpoint(
        {
            PAIRS[0][1]: "3",
            PAIRS[1][1]: httpx.Response(429, headers={"retry-after": "0.002"}, text="slow down"),
            PAIRS[2][1]: httpx.ReadTimeout("too slow"),
        },
        retries=1,
        concurrency=1,
    )
    with caplog.at_level(logging.WARNING):
        assert grader.grade(PAIRS) == [3, None, None]
    assert "2 of 3 requests got no answer: ReadTimeout: too slow" in caplog.text
    assert len(server.requests) == 5


def test_an_endpoint_that_gives_nothing_is_an_error():
    for answer in (httpx.ConnectError("refused"), httpx.Response(200, json={"choices": []})):
        grader, _ = endpoint({pair[1]: answer for pair in PAIRS}, retries=0)
        with pytest.raises(
            InputError, match=r"answered none of 3 requests; the last trouble: .* Ch"
        ):
            grader.grade(PAIRS)


def test_a_refused_request_is_an_error_at_once():
    refusal = httpx.Response(401, text="no such key")
    grader, server = endpoint({pair[1]: refusal for pair in PAIRS}, concurrency=1)
    with pytest.raises(
        InputError, match=r"refuses the request \(status 401: no such key\)\. Check"
    ):
        grader.grade(PAIRS)
    assert len(server.requests) <= 2  # the rest was called off


def test_concurrency_is_bounded_and_the_key_is_sent(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    pairs = [("q", f"passage {i}") for i in range(12)]
    grader, server = endpoint({text: "1" for _, text in pairs}, concurrency=3)
    assert grader.grade(pairs) == [1.0] * 12
    assert 1 < server.most <= 3
    assert server.requests[0][1]["authorization"] == "Bearer secret"
    monkeypatch.delenv("OPENAI_API_KEY")
    grader, server = endpoint({text: "1" for _, text in pairs})
    grader.grade(pairs)
    assert "authorization" not in server.requests[0][1]


class Counting:
    """Grades by length; a passage `none` gets no grade."""

    fingerprint = "counting-1"

    def __init__(self):
        self.asked = []

    def grade(self, pairs, progress=None):
        self.asked += pairs
        return [None if text == "none" else float(len(text) % 4) for _, text in pairs]


def test_grades_are_remembered(tmp_path):
    path = tmp_path / "deep" / "answers.jsonl"
    pairs = [("q", "a"), ("q", "none"), ("q", "bb"), ("q", "a")]
    first = Counting()
    assert RememberedGrades(first, path).grade(pairs) == [1, None, 2, 1]
    assert first.asked == [("q", "a"), ("q", "none"), ("q", "bb")]
    second, seen = Counting(), []
    again = RememberedGrades(second, path)
    assert again.grade(pairs, lambda done, total: seen.append((done, total))) == [1, None, 2, 1]
    assert second.asked == [("q", "none")]
    assert seen == [(4, 4)]
    other = Counting()
    other.fingerprint = "counting-2"
    RememberedGrades(other, path).grade(pairs[:1])
    assert other.asked == pairs[:1]


def test_remembered_grades_survive_a_crash(tmp_path, monkeypatch):
    path = tmp_path / "answers.jsonl"
    monkeypatch.setattr("ricci_gpu.models.llm_grader.SLICE", 1)

    class Crashing(Counting):
        def grade(self, pairs, progress=None):
            if len(self.asked) == 2:
                raise KeyboardInterrupt
            return super().grade(pairs)

    pairs = [("q", "a"), ("q", "bb"), ("q", "ccc")]
    with pytest.raises(KeyboardInterrupt):
        RememberedGrades(Crashing(), path).grade(pairs)
    path.write_bytes(path.read_bytes()[:-5])  # the last line was cut short
    grader = Counting()
    assert RememberedGrades(grader, path).grade(pairs) == [1, 2, 3]
    assert grader.asked == pairs[1:]
    grader = Counting()
    RememberedGrades(grader, path).grade(pairs)
    assert grader.asked == []


def test_without_httpx_the_extra_is_named(monkeypatch):
    import sys

    from ricci_gpu.errors import MissingDependencyError

    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingDependencyError, match=r"`httpx`.*ricci-gpu\[llm\]"):
        ChatEndpoint("m", "http://x/v1")
