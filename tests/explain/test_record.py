import json
import platform

import pytest
import torch

from ricci_gpu import __version__
from ricci_gpu.cli import main
from ricci_gpu.config import Config
from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.explain.record import find_query, read_record

PASSAGES = {"d1": "the moon", "d2": "the tides", "d3": "a storm at sea", "d4": "a crab"}


@pytest.fixture
def files(tmp_path, monkeypatch, words):
    """A corpus and a log; the run is made by `rank`."""
    monkeypatch.setattr("ricci_gpu.models.encoder.Encoder.load", lambda *_: words)
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "corpus.jsonl", [{"id": i, "text": t} for i, t in PASSAGES.items()])
    queries = [{"id": "alpha", "text": "moon tides"}, {"id": "beta", "text": "crab"}]
    write_rows(tmp_path / "queries.jsonl", queries)
    return tmp_path


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def rank(*more, source=("--corpus", "corpus.jsonl")):
    arguments = ["rerank", *source, "--queries", "queries.jsonl", "--out", "run"]
    assert main([*arguments, "--format", "jsonl", *more]) == 0


def find(folder, query_id):
    return find_query(read_record(folder), query_id)


def test_the_record_says_everything_that_the_run_was_made_from(files):
    rank("--set", "filter.eta=0.5")
    tree = json.loads((files / "run" / "run.json").read_text())
    assert tree == {
        "format": "ricci_gpu run",
        "version": 1,
        "config": Config.load("default", ["filter.eta=0.5"]).to_tree(),
        "inputs": {
            "corpus": str(files / "corpus.jsonl"),
            "queries": str(files / "queries.jsonl"),
            "index": None,
            "candidates": None,
        },
        "model": {"name": "all-MiniLM-L6-v2", "source": "a test", "fingerprint": "words-1"},
        "versions": {
            "ricci_gpu": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "queries": 2,
    }
    assert sorted(each.name for each in (files / "run").iterdir()) == ["rankings.jsonl", "run.json"]


def test_a_corpus_folder_is_its_own_log(files):
    assert main(["rerank", "--corpus", ".", "--out", "run"]) == 0
    assert read_record("run").inputs["queries"] == files


def test_what_was_recorded_is_read_back(files):
    rank()
    recorded = find("run", "beta")
    assert recorded.run.config == Config.load("default")
    assert recorded.query.text == "crab"
    assert recorded.ranking.hits[0].id == "d4"
    assert [passage.text for passage in recorded.passages] == [
        PASSAGES[hit.id]
        for hit in sorted(
            recorded.ranking.hits + recorded.ranking.dropped, key=lambda hit: hit.position
        )
    ]


def test_no_run_there(files):
    with pytest.raises(InputError, match=r"holds `run.json`, and there is none\. Give the folder"):
        read_record(files)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format": "other", "version": 1}', "\x80"])
def test_a_record_that_cannot_be_read(files, text):
    (files / "run.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=r"must be a record of version 1 .* Run it again\."):
        read_record(files)


def test_a_record_with_settings_of_another_version(files):
    rank()
    path = files / "run" / "run.json"
    path.write_text(path.read_text().replace('"temperature"', '"warmth"'))
    with pytest.raises(SettingError, match="has no setting `warmth`"):
        read_record("run")


@pytest.mark.parametrize(
    ("query_id", "hint"),
    [("alpah", r"Did you mean `alpha`\?"), ("zzz", r"It has 2: `alpha`, `beta`\.")],
)
def test_an_unknown_query(files, query_id, hint):
    rank()
    with pytest.raises(InputError, match=f"the run has no query `{query_id}`. {hint}"):
        find("run", query_id)


def test_the_command_says_so_in_one_line(files, capsys):
    rank()
    assert main(["explain", "run", "--query", "alpah"]) == 1
    assert capsys.readouterr().err.splitlines()[-1] == (
        "error: run: the run has no query `alpah`. Did you mean `alpha`?"
    )


def test_a_run_without_jsonl(files):
    rank()
    (files / "run" / "rankings.jsonl").unlink()
    with pytest.raises(InputError, match=r"made from `rankings.jsonl`.*--format jsonl"):
        find("run", "alpha")


def test_rankings_of_other_making(files):
    rank()
    write_rows(files / "run" / "rankings.jsonl", [{"query_id": "alpha", "hits": [{"id": 3}]}])
    with pytest.raises(InputError, match=r"line 1: must be a ranking .* Run it again\."):
        find("run", "alpha")


@pytest.mark.parametrize("name", ["corpus", "queries"])
def test_an_input_that_moved(files, name):
    rank()
    (files / f"{name}.jsonl").rename(files / "elsewhere.jsonl")
    with pytest.raises(InputError, match=rf"{name}.jsonl: the {name} .* must still be there"):
        find("run", "alpha")


def test_a_corpus_that_lost_a_passage(files):
    rank()
    write_rows(files / "corpus.jsonl", [{"id": "d1", "text": "the moon"}])
    with pytest.raises(InputError, match=r"has changed: passage `d\d` of the run is not there"):
        find("run", "alpha")


def test_a_log_with_another_query_under_the_id(files):
    rank()
    write_rows(files / "queries.jsonl", [{"id": "alpha", "text": "something else"}])
    with pytest.raises(InputError, match="query `alpha` is not the one that was ranked"):
        find("run", "alpha")


@pytest.mark.parametrize(
    ("change", "says"),
    [({"query": "other"}, "query `q` is not the one"), ({"candidates": []}, "`q` are others")],
)
def test_candidates_that_changed(files, change, says):
    row = {"query_id": "q", "query": "moon", "candidates": [{"id": "a", "text": "the moon"}]}
    write_rows(files / "pools.jsonl", [row])
    assert main(["rerank", "--candidates", "pools.jsonl", "--out", "run"]) == 0
    write_rows(files / "pools.jsonl", [row | change])
    with pytest.raises(InputError, match=says):
        find("run", "q")
