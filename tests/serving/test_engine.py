import numpy as np
import pytest
import torch

pytest.importorskip("fastapi")

from ricci_gpu import Reranker
from ricci_gpu.serving.engine import Engine
from ricci_gpu.serving.presets import Presets
from ricci_gpu.serving.scores import scored
from ricci_gpu.serving.tasks import Answer, Failure, Task, Vectors

PRESETS = Presets(["default", "ricci_filtration"])
POOLS = [
    ("a b", ("x y", "a b c", "a", "", "a b")),
    ("c", ("c d",)),
    ("d e f", tuple(f"d{i} e f" for i in range(40))),
    ("", ("a", "b")),
    ("a b", ("a b c", "a", "x " * 200)),
]


def tasks(words=POOLS, presets=("default", "ricci_filtration")):
    choices = [PRESETS.choose(name) for name in presets]
    return [
        Task(choice.config, choice.key, query, documents)
        for query, documents in words
        for choice in choices
    ]


@pytest.fixture
def engine(words):
    return Engine(PRESETS.choose().config, encoder=words)


def scores(answer, task):
    return {each.hit.position: each.score for each in scored(answer, task.config, raw=False)}


def places(answer):
    return [hit.position for hit in [*answer.ranking.hits, *answer.ranking.dropped]]


def require_same(one, other, task):
    assert places(one) == places(other)
    assert [h.kept for h in one.ranking.hits] == [h.kept for h in other.ranking.hits]
    assert scores(one, task) == pytest.approx(scores(other, task), abs=1e-5)


def test_together_is_as_alone(engine):
    work = tasks()
    for task, together in zip(work, engine.rank(work), strict=True):
        [alone] = engine.rank([task])
        assert isinstance(together, Answer)
        require_same(alone, together, task)


def test_as_the_library_ranks(engine, words):
    for preset in ("default", "ricci_filtration"):
        reranker = Reranker(preset, ["select.top_k=null"], encoder=words)
        for task in tasks(presets=(preset,)):
            [answer] = engine.rank([task])
            ranking = reranker.rank(task.query, list(task.documents))
            assert places(answer) == [h.position for h in [*ranking.hits, *ranking.dropped]]
            assert [h.reason for h in answer.ranking.hits] == [h.reason for h in ranking.hits]
            assert len(answer.ranking.hits) == len(ranking.hits)
            assert answer.ranking.abstention == pytest.approx(ranking.abstention, abs=1e-5)


def test_with_the_real_model_together_is_as_alone(encoder):
    engine = Engine(PRESETS.choose().config, encoder=encoder)
    pools = [
        ("which cells make insulin", ("beta cells make insulin", "trains run on rails", "Paris")),
        ("capital of France", ("Paris is the capital", "word " * 400, "the pancreas " * 30)),
        ("rails", ("trains run on rails", "", "cells")),
    ]
    work = tasks(pools)
    for task, together in zip(work, engine.rank(work), strict=True):
        [alone] = engine.rank([task])
        require_same(alone, together, task)
        long = task.query == "capital of France"
        assert together.cut == ((1,) if long else ())
        assert together.cut_at == 256  # some text of the batch was cut
        assert not together.query_cut


def test_what_fails_fails_alone(engine, words, caplog):
    choice = PRESETS.choose("ricci_filtration")
    work = tasks()
    work.insert(3, Task(choice.config, choice.key, "a", ("b",) * 200))  # the filter takes 127
    broken = words.vector

    def poisoned(word):
        if word == "poison":
            raise MemoryError("no room")
        return broken(word)

    words.vector = poisoned
    work.insert(7, Task(work[0].config, work[0].key, "a", ("b", "poison")))
    outcomes = engine.rank(work)
    failures = {place: each for place, each in enumerate(outcomes) if isinstance(each, Failure)}
    assert set(failures) == {3, 7}
    assert failures[3].fault == "input"
    assert failures[3].message.startswith("the ricci filter takes pools of at most 127")
    assert failures[7] == Failure("the server failed to rank this request", "server")
    assert "a task of 2 documents failed" in caplog.text
    assert "poison" not in caplog.messages[0]
    fresh = engine.rank(tasks())
    rest = [each for place, each in enumerate(outcomes) if place not in failures]
    for task, one, other in zip(tasks(), fresh, rest, strict=True):
        require_same(one, other, task)


def vectors_of(words, query, documents, embeddings=True, tokens=True):
    def matrices(texts):
        encoded = words.encode(texts, tokens=True)
        packed, offsets = encoded.packed_tokens()
        return encoded.vectors.numpy(), packed.numpy(), offsets.diff().numpy()

    query_vector, query_tokens, _ = matrices([query])
    vectors, packed, counts = matrices(documents)
    return Vectors(
        documents=len(documents),
        query_embedding=query_vector[0] if embeddings else None,
        embeddings=vectors if embeddings else None,
        query_tokens=query_tokens if tokens else None,
        tokens=packed if tokens else None,
        token_counts=counts if tokens else None,
    )


def test_vectors_rank_as_their_texts(engine, words):
    work = tasks()
    given = [
        Task(task.config, task.key, "", vectors=vectors_of(words, task.query, task.documents))
        for task in work
    ]
    answers = engine.rank([*work, *given])
    for task, text, vector in zip(work, answers, answers[len(work) :], strict=False):
        require_same(text, vector, task)
        assert (text.query_tokens, vector.query_tokens) == (vector.query_tokens,) * 2


def test_token_vectors_alone_do_for_token_transport(engine, words):
    [task] = tasks(POOLS[:1], ("default",))
    given = vectors_of(words, task.query, task.documents, embeddings=False)
    [text, vector] = engine.rank([task, Task(task.config, task.key, "", vectors=given)])
    require_same(text, vector, task)
    only = vectors_of(words, task.query, task.documents, tokens=False)
    [failure] = engine.rank([Task(task.config, task.key, "", vectors=only)])
    assert failure.fault == "input"
    assert failure.message.startswith("stage `token_transport` reads token vectors")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_bad_vectors_never_make_a_bad_score(engine, words, bad):
    for task in tasks(POOLS[:1]):
        given = vectors_of(words, task.query, task.documents)
        given.embeddings[1] = bad
        given.tokens[0] = bad
        [answer] = engine.rank([Task(task.config, task.key, "", vectors=given)])
        assert answer.ranking.status == "bad_embedding"
        for raw in (True, False):
            made = [each.score for each in scored(answer, task.config, raw)]
            assert np.isfinite(made).all()
            assert made == sorted(made, reverse=True)
            assert len(made) == 5


def test_work_is_estimated(engine):
    default, ricci = (PRESETS.choose(name) for name in ("default", "ricci_filtration"))
    texts = ("word " * 100,) * 20
    plain = Task(default.config, default.key, "a", texts)
    assert plain.cost == 20 * 127 + 2
    assert Task(ricci.config, ricci.key, "a", texts).cost == plain.cost + 112  # 3.5e-5 * 20^5
    largest = Task(ricci.config, ricci.key, "a", texts[:1] * 127)
    assert largest.flow_cost == pytest.approx(182_000, rel=0.01)


def test_settings_are_kept_up_to_a_number(engine):
    from ricci_gpu.serving import engine as module

    for k in range(1, module.PIPELINES + 10):
        choice = PRESETS.choose(filter_settings={"type": "fixed_k", "k": k})
        [answer] = engine.rank([Task(choice.config, choice.key, "a", ("a", "b"))])
        assert len(answer.ranking.hits) == min(k, 2)
    assert len(engine._pipelines) == module.PIPELINES


def test_warm_up_runs_every_preset(engine, words):
    engine.warm_up(PRESETS.configs)
    assert len(words.calls) == 8  # queries and documents, with and without words, per preset
    assert engine.device == torch.device("cpu")
