import json

import pytest

from ricci_gpu.config import Config
from ricci_gpu.errors import InputError
from ricci_gpu.evaluation.answers import (
    RememberedAnswers,
    accepted_answers,
    answer_questions,
    conversation,
    normal_words,
    score_answer,
)
from ricci_gpu.evaluation.paper_protocol import systems
from ricci_gpu.evaluation.rerankers import maxsim_order


def test_scores_by_hand():
    assert normal_words("The  U.S. Army, an army") == ["us", "army", "army"]
    accuracy, precision, recall, f1 = score_answer(
        "It is the big Eiffel Tower", ["Eiffel Tower", "no"]
    )
    assert accuracy == 1
    assert (precision, recall) == (2 / 5, 1)
    assert f1 == pytest.approx(2 * 0.4 / 1.4)
    assert score_answer("Tower Eiffel", ["Eiffel Tower"])[0] == 0
    assert score_answer("", ["Rollo"]) == (0, 0, 0, 0)
    assert score_answer("unknown", ["the"]) == (0, 0, 0, 0)
    assert score_answer("A", ["the"]) == (1, 1, 1, 1)  # nothing left of either


def test_answers_of_a_dataset(tmp_path):
    rows = [
        {"_id": "1", "text": "", "answer": "one"},
        {"_id": "2", "text": "", "answer": ["two", "2"]},
        {"_id": "3", "text": "", "answer": []},
        {"_id": "4", "text": ""},
    ]
    (tmp_path / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert accepted_answers(tmp_path) == {"1": ["one"], "2": ["two", "2"]}


def test_an_answer_that_is_no_text_is_refused(tmp_path):
    for answer in ('{"text": ["one"]}', "3", '["one", null]'):
        line = f'{{"_id": "q7", "text": "", "answer": {answer}}}\n'
        (tmp_path / "queries.jsonl").write_text(line)
        with pytest.raises(InputError, match="`answer` of query `q7` must be a text or"):
            accepted_answers(tmp_path)


def test_every_system_is_asked_with_its_own_passages(pools_of, store):
    pools = pools_of("test", 12)
    asked = []

    class Reads:
        """Answers with the first word of the first passage."""

        def ask(self, conversations, max_tokens):
            asked.extend(conversations)
            return [each[1]["content"].split()[1] for each in conversations[:-1]] + [None]

    names = [query.id for query in pools.queries[:6]]
    compared = systems(Config(), {"MaxSim": maxsim_order})
    accepted = {name: [f"topic{name[1:].split('-')[0]}"] for name in names}
    rows = {
        row.system: row
        for row in answer_questions("small", store, pools, accepted, compared, Reads())
    }
    assert set(rows) == {system.name for system in compared}
    assert all(row.questions == 6 for row in rows.values())
    first = pools.rows.gather(1, pools.maxsim.argmax(dim=1, keepdim=True))[:5, 0]
    right = [
        store.passages[row].text.split()[0] == accepted[name][0]
        for row, name in zip(first.tolist(), names, strict=False)
    ]
    assert rows["MaxSim"].accuracy == sum(right) / 6  # the last answer is missing
    assert any(right)
    assert len(asked) == 6 * len(compared)
    assert answer_questions("small", store, pools, {}, compared, Reads()) == []


def test_answers_are_remembered(tmp_path):
    class Counts:
        asked = 0

        def ask(self, conversations, max_tokens):
            self.asked += len(conversations)
            texts = [each[0]["content"] for each in conversations]
            return [None if text == "none" else text.upper() for text in texts]

    def said(*texts):
        return [[{"role": "user", "content": text}] for text in texts]

    generator, path = Counts(), tmp_path / "kept" / "answers.jsonl"
    kept = RememberedAnswers(generator, "small", path)
    assert kept.ask(said("a", "none", "a", "b"), 8) == ["A", None, "A", "B"]
    assert generator.asked == 3
    assert RememberedAnswers(generator, "small", path).ask(said("b", "none"), 8) == ["B", None]
    assert generator.asked == 4  # what has no answer is asked for again
    RememberedAnswers(generator, "other", path).ask(said("b"), 8)
    kept.ask(said("b"), 9)
    assert generator.asked == 6


def test_passages_are_numbered_and_cut():
    [system, user] = conversation("who?", ["word " * 500, "short"])
    assert "unknown" in system["content"]
    lines = user["content"].splitlines()
    assert len(lines[0].split()) == 121
    assert lines[1] == "[2] short"
    assert lines[-1] == "Question: who?"
