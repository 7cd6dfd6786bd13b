import json

import pytest

from ricci_gpu.cli import main
from ricci_gpu.errors import InputError
from ricci_gpu.explain.page import render
from ricci_gpu.explain.record import find_query, read_record
from ricci_gpu.explain.replay import replay

PASSAGES = {f"d{row}": f"the moon and word{row} with tides{row % 3} at sea" for row in range(12)}
QUERIES = {"a": "word3 of the moon", "b": "tides2 at word7"}


@pytest.fixture
def rank(tmp_path, monkeypatch, words):
    monkeypatch.setattr("ricci_gpu.models.encoder.Encoder.load", lambda *_: words)
    monkeypatch.chdir(tmp_path)
    for name, rows in (("corpus", PASSAGES), ("queries", QUERIES)):
        lines = [json.dumps({"id": key, "text": text}) + "\n" for key, text in rows.items()]
        (tmp_path / f"{name}.jsonl").write_text("".join(lines))

    def run(source, *settings, preset="default"):
        arguments = ["rerank", *source, "--queries", "queries.jsonl", "--out", "run"]
        arguments += ["--preset", preset, "--format", "jsonl", "--set", "retrieve.k=6"]
        for setting in settings:
            arguments += ["--set", setting]
        assert main(arguments) == 0

    return run


def again(query_id="a"):
    return replay(find_query(read_record("run"), query_id))


def decisions(ranking):
    hits = [*ranking.hits, *ranking.dropped]
    return [(hit.position, hit.id, hit.kept, hit.reason) for hit in hits]


@pytest.mark.parametrize("preset", ["default", "ricci_filtration"])
@pytest.mark.parametrize("query_id", ["a", "b"])
@pytest.mark.parametrize("source", ["corpus", "index"])
def test_the_run_comes_out_again(rank, preset, query_id, source):
    pytest.importorskip("faiss")
    if source == "index":
        assert main(["index", "--corpus", "corpus.jsonl", "--out", "index"]) == 0
    rank([f"--{source}", "index" if source == "index" else "corpus.jsonl"], preset=preset)
    made = again(query_id)
    assert decisions(made.ranking) == decisions(made.recorded.ranking)
    assert len(made.recorded.passages) == 6
    assert made.changed == []
    assert made.largest_difference < 1e-5


def test_matches_are_the_maxima_of_the_pipeline(rank):
    pytest.importorskip("faiss")
    rank(["--corpus", "corpus.jsonl"])
    made = again()
    assert made.reading is not None
    maxima = made.batch.maxima[0]
    for column, matches in enumerate(made.reading.matches):
        for word, match in zip(made.reading.query, matches, strict=True):
            best = maxima[list(word.tokens), column].mean()
            assert match.similarity == pytest.approx(float(best), abs=1e-6)
    moon = [word.text for word in made.reading.query].index("moon")
    for matches, passage in zip(made.reading.matches, made.reading.passages, strict=True):
        assert [passage[place].text for place in matches[moon].words] == ["moon"]


def test_a_decision_that_differs_is_said(rank):
    pytest.importorskip("faiss")
    rank(["--corpus", "corpus.jsonl"])
    path = read_record("run").folder / "rankings.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    last = lines[0]["dropped"].pop()
    lines[0]["hits"].append(last | {"kept": True, "reason": "kept: by hand"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    made = again()
    assert made.changed == [last["position"] + 1]
    page = render(made)
    assert 'role="alert"' in page
    assert f"the decision on chunk {last['position'] + 1} came out otherwise" in page
    assert "kept: by hand" in page


def test_a_text_that_changed_is_said_where_decisions_stand(rank, tmp_path):
    pytest.importorskip("faiss")
    rank(["--corpus", "corpus.jsonl"], "filter.minimum=6")
    assert 'role="alert"' not in render(again())
    path = tmp_path / "corpus.jsonl"
    path.write_text(path.read_text().replace("the moon and word3", "an old moon and word3"))
    page = render(again())
    assert "all decisions are those of the run, but filter values differ by up to" in page


def test_another_model_under_the_same_name(rank, words):
    pytest.importorskip("faiss")
    rank(["--corpus", "corpus.jsonl"])
    words.fingerprint = "words-2"
    with pytest.raises(InputError, match=r"that name now gives other files .* or run again\."):
        again()


def test_a_device_that_is_not_here_does_not_matter(rank, tmp_path):
    pytest.importorskip("faiss")
    rank(["--corpus", "corpus.jsonl"])
    path = tmp_path / "run" / "run.json"
    path.write_text(path.read_text().replace('"device": "auto"', '"device": "cuda:7"'))
    assert again().changed == []


def test_the_real_model_reads_words_in_pieces(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("ricci_gpu.models.encoder.Encoder.load", lambda *_: encoder)
    texts = ["Spring tides come at syzygy, when pulls add up.", "Neap tides are weak."]
    candidates = [{"id": str(row), "text": text} for row, text in enumerate(texts)]
    row = {"query_id": "q", "query": "What is Syzygy?", "candidates": candidates}
    (tmp_path / "pools.jsonl").write_text(json.dumps(row))
    run = str(tmp_path / "run")
    assert main(["rerank", "--candidates", str(tmp_path / "pools.jsonl"), "--out", run]) == 0
    made = replay(find_query(read_record(run), "q"))
    assert made.reading is not None
    assert [word.text for word in made.reading.query] == ["What", "is", "Syzygy", "?"]
    assert len(made.reading.query[2].tokens) > 1
    best = made.reading.matches[0][2]
    assert [made.reading.passages[0][place].text for place in best.words] == ["syzygy"]
    assert best.similarity > made.reading.matches[1][2].similarity
