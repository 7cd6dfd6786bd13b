import json
import logging
from dataclasses import replace

import numpy as np
import pytest
import torch
from checkpoints import PROMPTS, save_bert, save_dense, save_head

from ricci_gpu import Config, Ranking, Reranker
from ricci_gpu.corpus import CandidateList, CorpusStore, Passage, Query
from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.models import CrossEncoder
from ricci_gpu.reranker import cosine, resolve_device

INSULIN = "Insulin is made by the beta cells of the pancreas."
DOCUMENTS = [
    "The pancreas lies behind the stomach.",
    INSULIN,
    "Paris is the capital of France.",
    "Beta cells release insulin when blood sugar rises.",
    "Trains run on rails.",
]
QUERY = "Which cells make insulin?"
TEXTS = [[], ["alone"], ["a b", "b c", "c a b"], ["a b c d"] * 17, ["x", "a"]]
QUERIES = ["a", "a b", "b c", "a d", "x"]


def made(words, *overrides, preset="default"):
    return Reranker(preset, overrides, encoder=words)


def ids(hits):
    return [hit.id for hit in hits]


def require_same(one, other):
    """Masks and reasons equal, scores within 1e-5."""
    assert (one.query, one.status) == (other.query, other.status)
    for mine, theirs in ((one.hits, other.hits), (one.dropped, other.dropped)):
        assert ids(mine) == ids(theirs)
        assert [hit.kept for hit in mine] == [hit.kept for hit in theirs]
        for a, b in zip(mine, theirs, strict=True):
            assert (a.score is None) == (b.score is None)
            assert a.score is None or a.score == pytest.approx(b.score, abs=1e-5)


def candidates(query_id="q", count=3, scores=False, embeddings=False, has_text=True, seed=0):
    rng = np.random.default_rng(seed)
    texts = ["a b", "b c", "c d", "d e", "e a"][:count] if has_text else [""] * count
    return CandidateList(
        query=Query(query_id, "a b c" if has_text else ""),
        passages=[Passage(f"d{i}", "", text) for i, text in enumerate(texts)],
        scores=[float(-i) for i in range(count)] if scores else None,
        query_embedding=rng.normal(size=16).astype(np.float32) if embeddings else None,
        embeddings=rng.normal(size=(count, 16)).astype(np.float32) if embeddings else None,
        has_text=has_text,
    )


def test_five_lines_with_the_real_model(encoder):
    reranker = Reranker("default", encoder=encoder)
    ranking = reranker.rank(QUERY, DOCUMENTS)
    assert isinstance(ranking, Ranking)
    assert ranking.hits[0].position == 1  # the answer to the question
    assert ids(ranking.hits) == [str(hit.position) for hit in ranking.hits]
    assert {"2", "4"} <= set(ids(ranking.dropped))
    assert all("low mass" in hit.reason for hit in ranking.dropped)
    assert ranking.abstention > 0
    assert ranking.status == "ok"


def test_the_paper_preset_with_the_real_model(encoder):
    ranking = Reranker("ricci_filtration", encoder=encoder).rank(QUERY, DOCUMENTS)
    assert len(ranking.hits) + len(ranking.dropped) == 5
    scores = [hit.score for hit in ranking.hits]
    assert scores == sorted(scores, reverse=True)


def test_texts_of_every_kind(encoder, caplog):
    documents = [
        INSULIN,
        INSULIN,
        "",
        " \n\t",
        "insulin " * 400,
        "half a pair \ud83d of insulin",
        "Insulin: 膵臓 — naïve café 😀",
    ]
    reranker = Reranker("default", ["select.top_k=null"], encoder=encoder)
    with caplog.at_level(logging.WARNING):
        ranking = reranker.rank(QUERY, documents)
    assert [r.getMessage() for r in caplog.records] == ["1 of 6 texts were cut to 256 tokens"]
    hits = {hit.position: hit for hit in [*ranking.hits, *ranking.dropped]}
    assert set(hits) == set(range(7))
    assert hits[0].score == pytest.approx(hits[1].score, abs=1e-5)
    assert hits[0].kept == hits[1].kept
    for empty in (2, 3):  # nothing in them that could match
        assert (hits[empty].kept, hits[empty].score) == (False, None)
    assert all(hits[full].score is not None for full in (4, 5, 6))
    assert ranking.status == "ok"
    for query in ("", "\udfff", "wieso? 😀"):
        assert reranker.rank(query, [INSULIN, "a b"]).status == "ok"


@pytest.mark.parametrize("preset", ["default", "ricci_filtration"])
@pytest.mark.parametrize("batch_size", [1, 2, 100])
def test_a_query_alone_is_answered_as_in_a_batch(words, preset, batch_size):
    reranker = made(words, f"runtime.batch_size={batch_size}", preset=preset)
    together = reranker.rank_batch(QUERIES, TEXTS)
    assert len(together) == len(QUERIES)
    for query, documents, ranking in zip(QUERIES, TEXTS, together, strict=True):
        require_same(reranker.rank(query, documents), ranking)


def test_alone_and_in_a_batch_with_the_real_model(encoder):
    reranker = Reranker("default", encoder=encoder)
    queries = [QUERY, "What is the capital of France?"]
    together = reranker.rank_batch(queries, [DOCUMENTS, DOCUMENTS[1:4]])
    require_same(reranker.rank(queries[0], DOCUMENTS), together[0])
    require_same(reranker.rank(queries[1], DOCUMENTS[1:4]), together[1])


def test_empty_lists(words):
    reranker = made(words)
    assert reranker.rank_batch([], []) == []
    none, single, *_ = reranker.rank_batch(QUERIES, TEXTS)
    assert (none.hits, none.dropped, none.status) == ([], [], "too_few_nodes")
    assert (ids(single.hits), single.status) == (["0"], "too_few_nodes")
    assert reranker.rank("a", []).hits == []


def test_ids_and_repeated_texts(words):
    ranking = made(words).rank("a b", ["a b", "x y", "a b"], ids=["k", "l", "k2"])
    assert set(ids(ranking.hits)) == {"k", "k2"}
    assert ranking.hits[0].score == ranking.hits[1].score
    assert ids(ranking.hits) == ["k", "k2"]  # ties by position
    # each text is encoded once
    assert words.calls == [["a b"], ["a b", "x y"]]


def test_progress_counts_queries(words):
    seen = []
    made(words, "runtime.batch_size=2").rank_batch(
        QUERIES, TEXTS, progress=lambda done, total: seen.append((done, total))
    )
    assert seen == [(2, 5), (4, 5), (5, 5)]


@pytest.mark.parametrize(
    ("queries", "documents", "names", "message"),
    [
        (["a"], "a text", None, r"must hold one list of texts per query; got a string in place"),
        (
            ["a"],
            ["a text"],
            None,
            r"got a string in place of a list\. Use rank\(query, documents\)",
        ),
        (["a"], [], None, r"one list per query; got 0 lists for 1 queries"),
        (["a", "b"], [["x"]], None, r"one list per query; got 1 lists for 2 queries"),
        ("a", [["x"]], None, r"`queries` must be a list of texts; got one string\. Use rank\("),
        (["a"], [["x", "y"]], [["1"]], r"`ids` must hold one id per document of each query"),
        (["a"], [["x"]], [], r"`ids` must hold one id per document of each query"),
    ],
)
def test_lists_that_do_not_fit_together(words, queries, documents, names, message):
    with pytest.raises(InputError, match=message):
        made(words).rank_batch(queries, documents, names)
    assert words.calls == []


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_text_is_refused(encoder):
    reranker = Reranker("default", encoder=encoder)
    with pytest.raises(InputError, match=r"every text must be a string; text 1 is NoneType"):
        reranker.rank("a", ["x", None])
    with pytest.raises(InputError, match=r"got a string in place of a list"):
        reranker.rank("a", "x")


def test_given_scores_are_the_prior(words):
    keep_all = ("filter.type=none", "rerank.type=none")
    lists = [candidates("q1", scores=True), candidates("q2")]
    given, computed = made(words, *keep_all).rank_candidates(lists)
    assert [hit.score for hit in given.hits] == [0, -1, -2]
    vectors = words.encode([lists[1].query.text, *[p.text for p in lists[1].passages]]).vectors
    expected = {f"d{i}": float(vectors[0] @ vectors[i + 1]) for i in range(3)}
    for hit in computed.hits:
        assert hit.score == pytest.approx(expected[hit.id], abs=1e-6)
    cut = made(words, "filter.type=fixed_k", "filter.k=1")
    assert ids(next(cut.rank_candidates(lists)).hits) == ["d0"]


def test_titles_are_read_with_the_text(words):
    one = replace(candidates(), passages=[Passage("d0", "a", "b"), Passage("d1", "", "x")])
    list(made(words).rank_candidates([one]))
    assert words.calls[1] == ["a b", "x"]


def test_ready_embeddings_need_no_encoder_and_are_used_as_they_are():
    reranker = Reranker("default", ["filter.type=ricci", "filter.iterations=2"])
    lists = [candidates(f"q{s}", 5, embeddings=True, has_text=False, seed=s) for s in range(3)]
    listed = list(reranker.rank_candidates(lists))
    bare = reranker.rank_embeddings(
        torch.tensor(np.stack([each.query_embedding for each in lists])),
        [torch.tensor(each.embeddings) for each in lists],
        ids=[[passage.id for passage in each.passages] for each in lists],
    )
    for one, other in zip(listed, bare, strict=True):
        require_same(one, other)
    assert reranker._encoder is None
    expected = np.float64(lists[0].embeddings @ lists[0].query_embedding)
    expected /= np.linalg.norm(lists[0].embeddings, axis=1)
    expected /= np.linalg.norm(lists[0].query_embedding)
    for hit in listed[0].hits:
        assert hit.score == pytest.approx(expected[hit.position], abs=1e-6)


def test_embeddings_with_texts_serve_a_token_filter(words):
    lists = [candidates("q1", 4, embeddings=True), candidates("q2", 2, embeddings=True, seed=1)]
    with_vectors = list(made(words).rank_candidates(lists))
    assert words.calls == [["a b c", "a b c"], ["a b", "b c", "c d", "d e"]]
    plain = [replace(each, embeddings=None, query_embedding=None) for each in lists]
    for one, other in zip(with_vectors, made(words).rank_candidates(plain), strict=True):
        require_same(one, other)  # the order is by token mass in both


def test_embeddings_without_texts_cannot_serve_a_token_filter(words):
    message = (
        r"stage `token_transport` reads token vectors, and these pools carry none\. Give texts"
    )
    lists = [candidates(embeddings=True, has_text=False)]
    with pytest.raises(InputError, match=message):
        list(made(words).rank_candidates(lists))
    with pytest.raises(InputError, match=message):
        made(words).rank_embeddings(torch.ones(1, 4), [torch.ones(2, 4)])
    assert words.calls == []


@pytest.mark.parametrize("batch_size", [1, 10])
def test_some_with_embeddings_and_some_without_are_refused(words, batch_size):
    reranker = made(words, f"runtime.batch_size={batch_size}")
    lists = [candidates("q1", embeddings=True), candidates("q2")]
    with pytest.raises(
        InputError,
        match=r"every query brings embeddings or none does; got 1 of 2 with them\. Split",
    ):
        list(reranker.rank_candidates(lists))
    assert words.calls == []


def test_bad_ready_embeddings_are_reported_per_query():
    reranker = Reranker("default", ["filter.type=ricci", "filter.iterations=1"])
    lists = [candidates(f"q{s}", 5, embeddings=True, has_text=False, seed=s) for s in range(3)]
    lists[0].embeddings[2] = np.nan
    lists[1].query_embedding[:] = 0
    first, second, third = reranker.rank_candidates(lists)
    assert [r.status for r in (first, second, third)] == ["bad_embedding", "bad_embedding", "ok"]
    [bad] = [hit for hit in first.dropped if hit.id == "d2"]
    assert (bad.score, bad.reason) == (None, "bad embedding: NaN, infinite or zero")
    assert len(second.hits) == 5


KEEP = ("filter.type=none", "rerank.type=none")


@pytest.mark.usefixtures("unchecked_shapes")
@pytest.mark.parametrize(
    ("query", "pools", "names", "message"),
    [
        (torch.ones(2, 4), [torch.ones(3, 4)], None, r"one tensor per query; got 1 for 2 queries"),
        (
            torch.ones(1, 4),
            [torch.ones(3, 5)],
            None,
            r"query 0: candidate vectors must have shape \(candidates, 4\).*; got \(3, 5\)",
        ),
        (
            torch.ones(1, 4),
            [torch.ones(4)],
            None,
            r"query 0: candidate vectors must have shape \(candidates, 4\).*; got \(4,\)",
        ),
        (torch.ones(1, 4), [torch.ones(3, 4)], [["a"]], r"`ids` must hold one id per candidate"),
    ],
)
def test_shapes_of_ready_embeddings(query, pools, names, message):
    with pytest.raises(InputError, match=message):
        Reranker("default", KEEP).rank_embeddings(query, pools, names)


def test_no_ready_embeddings():
    reranker = Reranker("default", KEEP)
    assert reranker.rank_embeddings(torch.ones(0, 4), []) == []
    [empty] = reranker.rank_embeddings(torch.ones(1, 4), [torch.ones(0, 4)])
    assert empty.hits == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_cosine_of_zero_and_of_tiny_vectors_in_any_precision(dtype):
    query = torch.tensor([1e-3, 1e-3], dtype=dtype)
    found = cosine(query, torch.stack([query, -query, query * 0]))
    assert found.tolist() == pytest.approx([1, -1, 0])


def test_search_retrieves_filters_and_ranks(words):
    pytest.importorskip("faiss")
    texts = ["a b", "b c", "c d", "a b", "x y"]
    store = CorpusStore.build([Passage(f"p{i}", "", t) for i, t in enumerate(texts)], words)
    queries = [Query("q1", "a b"), Query("q2", "x")]
    for k, pool in ((3, 3), (100, 5)):  # a k larger than the corpus gives the whole corpus
        reranker = made(words, f"retrieve.k={k}", "runtime.batch_size=1")
        first, second = reranker.search(store, queries)
        assert (first.query_id, second.query_id) == ("q1", "q2")
        assert len(first.hits) + len(first.dropped) == pool
        assert ids(first.hits)[:2] == ["p0", "p3"]  # equal texts by position
        assert ids(second.hits)[0] == "p4"
        assert {"encode", "retrieve", "filter", "select"} <= set(reranker.pipeline.seconds)


def test_search_refuses_a_store_of_another_encoder(words):
    pytest.importorskip("faiss")
    store = CorpusStore.build([Passage("p", "", "a")], words)
    other = replace(words, fingerprint="other")
    with pytest.raises(InputError, match=r"again"):
        list(made(other).search(store, [Query("q", "a")]))


def test_a_store_without_token_vectors_says_so(words):
    pytest.importorskip("faiss")
    store = CorpusStore.build([Passage("p", "", "a")], words, token_vectors=False)
    with pytest.raises(InputError, match=r"this store was built without them"):
        list(made(words).search(store, [Query("q", "a")]))
    kept = made(words, *KEEP).search(store, [Query("q", "a")])
    assert ids(next(kept).hits) == ["p"]


def test_configurations_and_devices():
    config = Config.load("default", ["select.top_k=2"])
    assert Reranker(config).config is config
    with pytest.raises(SettingError, match=r"unknown preset `defalt`"):
        Reranker("defalt")
    assert resolve_device("cpu") == torch.device("cpu")
    with pytest.raises(InputError, match=r"`runtime\.device` must name a torch device; got `gpu`"):
        Reranker("default", ["runtime.device=gpu"])
    if not torch.cuda.is_available():
        assert resolve_device("auto") == torch.device("cpu")
        with pytest.raises(InputError, match=r"torch sees no CUDA device\. Use `cpu` or `auto`"):
            resolve_device("cuda")


def test_given_scores_and_texts_need_no_encoder(words):
    lists = [candidates("q1", scores=True), candidates("q2", scores=True)]
    list(made(words, *KEEP).rank_candidates(lists))
    assert words.calls == []


@pytest.fixture
def cross_encoder(tmp_path):
    return save_bert(tmp_path / "cross", "BertForSequenceClassification", num_labels=1)


def test_a_cross_encoder_scores_the_survivors(words, cross_encoder):
    settings = ("filter.type=fixed_k", "filter.k=2", "rerank.type=cross_encoder")
    reranker = made(words, *settings, f"rerank.model={cross_encoder}")
    rankings = reranker.rank_batch(QUERIES[1:4], TEXTS[1:4])
    model = CrossEncoder.load(cross_encoder)
    for query, documents, ranking in zip(QUERIES[1:4], TEXTS[1:4], rankings, strict=True):
        assert len(ranking.hits) == min(2, len(documents))
        for hit in ranking.hits:
            [expected] = model.score([(query, documents[hit.position])]).tolist()
            assert hit.score == pytest.approx(expected, abs=1e-5)
        scores = [hit.score for hit in ranking.hits]
        assert scores == sorted(scores, reverse=True)
        assert all(hit.score is None for hit in ranking.dropped)


def test_a_cross_encoder_reads_the_passages_of_a_store(words, cross_encoder):
    pytest.importorskip("faiss")
    passages = [Passage("p0", "a", "b"), Passage("p1", "", "b c"), Passage("p2", "", "x")]
    store = CorpusStore.build(passages, words, token_vectors=False)
    settings = ("filter.type=none", "rerank.type=cross_encoder", f"rerank.model={cross_encoder}")
    [ranking] = made(words, *settings).search(store, [Query("q", "a b")])
    model = CrossEncoder.load(cross_encoder)
    for hit in ranking.hits:
        [expected] = model.score([("a b", passages[int(hit.id[1])].full_text)]).tolist()
        assert hit.score == pytest.approx(expected, abs=1e-5)


def test_ready_embeddings_cannot_serve_a_cross_encoder(words):
    reranker = made(words, "filter.type=none", "rerank.type=cross_encoder", "rerank.model=m")
    with pytest.raises(
        InputError, match=r"stage `cross_encoder` reads texts, and these pools carr"
    ):
        reranker.rank_embeddings(torch.ones(1, 4), [torch.ones(2, 4)])


def test_a_language_model_grades_the_survivors(words, tmp_path, monkeypatch):
    httpx = pytest.importorskip("httpx")

    def answer(request):
        content = json.loads(request.content)["messages"][1]["content"]
        grade = "3" if "Passage: a b" in content else "no idea" if "x" in content else "1"
        return httpx.Response(200, json={"choices": [{"message": {"content": grade}}]})

    plain = httpx.Client
    monkeypatch.setattr(
        "httpx.Client", lambda **k: plain(**k | {"transport": httpx.MockTransport(answer)})
    )
    answers = tmp_path / "answers.jsonl"
    settings = ("filter.type=none", "rerank.type=llm", "rerank.model=judge", "rerank.retries=0")
    settings += ("rerank.base_url=http://test/v1", f"rerank.answers={answers}")
    ranking = made(words, *settings).rank("a", ["b", "x", "a b"])
    assert [(hit.position, hit.score) for hit in ranking.hits] == [(2, 3), (0, 1), (1, None)]
    assert ranking.hits[2].reason == "kept; the reranker gave no score"
    assert len(answers.read_text().split()) > 2


def test_only_rerankers_of_texts_have_a_scorer(words):
    with pytest.raises(
        SettingError, match=r"the reranker `none` scores no pairs of texts\. Choose"
    ):
        made(words).score_pairs([("a", "b")])


def test_a_late_interaction_model_makes_the_token_vectors(tmp_path):
    pytest.importorskip("faiss")
    base = save_dense(tmp_path / "base", PROMPTS)
    weight = torch.randn(6, 24, generator=torch.Generator().manual_seed(0))
    head = save_head(tmp_path / "head", base, weight)
    texts = ["the cell makes insulin", "paris", "the city, paris!"]
    passages = [Passage(str(i), "", text) for i, text in enumerate(texts)]
    settings = (f"model.name={base}", "rerank.type=maxsim", f"model.cache={tmp_path / 'cache'}")
    plain = Reranker("default", settings)
    late = Reranker("default", [*settings, f"model.late_interaction={head}"])
    assert late.late_interaction._encoder is late.encoder
    store = CorpusStore.build(passages, late.passage_encoder, tmp_path / "store")
    assert store.tokens.shape[1] == 6
    assert store.meta.token_model == str(head)
    [found] = late.search(CorpusStore.open(tmp_path / "store"), [Query("q", "the city")])
    direct = {hit.id: hit.score for hit in late.rank("the city", texts).hits}
    assert {hit.id: hit.score for hit in found.hits} == pytest.approx(direct, abs=0.01)  # float16
    with pytest.raises(
        InputError, match=r"Set `model\.late_interaction` to it, or build the store"
    ):
        list(plain.search(store, [Query("q", "the city")]))
    scores = {hit.id: hit.score for hit in plain.rank("the city", texts).hits}
    assert any(abs(hit.score - scores.get(hit.id, 0)) > 0.02 for hit in found.hits)
