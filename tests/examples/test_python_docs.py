import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "python_docs" / "build.py"
FILES = ["corpus.jsonl", "qrels.tsv", "queries.jsonl"]
# Judged names that CPython 3.10 or 3.13 lacks are left out of the qrels: a few, never many.
MISSING_AT_MOST = 0 if sys.version_info[:2] in {(3, 11), (3, 12)} else 10


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("python_docs_build", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def corpus(build: ModuleType) -> list[dict[str, str]]:
    return build.build_corpus()


def run_script(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )


def test_corpus_is_large_unique_and_not_empty(corpus):
    assert len(corpus) >= 2000
    assert len({passage["_id"] for passage in corpus}) == len(corpus)
    assert all(passage["text"].strip() and passage["title"].strip() for passage in corpus)


def test_passages_are_short(build, corpus):
    most = build.MAX_WORDS + build.TAIL_WORDS
    assert [passage["_id"] for passage in corpus if build.words(passage["text"]) > most] == []


def test_corpus_has_topics_and_qualified_names(corpus):
    titles = {passage["_id"]: passage["title"] for passage in corpus}
    assert titles["topic:assignment#2"] == "assignment"
    assert titles["itertools.chain.from_iterable"] == "itertools.chain.from_iterable method"
    assert titles["os.path.join"] == "os.path.join function"
    assert titles["str.partition"] == "str.partition method"
    assert titles["bisect.insort"] == "bisect.insort function"
    assert "bisect.insort_right" not in titles  # the same docstring, kept once


def test_split_keeps_headings_and_words(build):
    paragraph = " ".join(["word"] * 100)
    text = f"Title\n=====\n\n{paragraph}\n\n{paragraph}\n\nMore\n----\n\n{paragraph}\n\nshort tail"
    passages = build.split_passages(text)
    assert [build.words(passage) for passage in passages] == [102, 100, 104]
    assert passages[0].startswith("Title\n=====\n\nword")
    assert passages[2].startswith("More\n----\n\nword")
    assert passages[2].endswith("short tail")


def test_long_paragraph_is_split_at_lines(build):
    paragraph = "\n".join([" ".join(["word"] * 10)] * 40)
    assert [build.words(passage) for passage in build.split_passages(paragraph)] == [180, 180, 40]


def test_questions_are_judged_on_names_of_the_corpus(build, corpus):
    questions = build.read_questions()
    assert len({question["_id"] for question in questions}) == len(questions)
    assert len({question["text"] for question in questions}) == len(questions)
    judged = [question for question in questions if question["relevant"]]
    assert len(judged) >= 60
    assert len(questions) - len(judged) == 5
    missing = [
        (question["_id"], name)
        for question in judged
        for name in question["relevant"]
        if not build.resolve(name, corpus)
    ]
    assert len(missing) <= MISSING_AT_MOST, missing


def test_resolve_matches_whole_names_and_phrases(build):
    corpus = [
        {"_id": "re.sub", "text": "a"},
        {"_id": "re.subn", "text": "b"},
        {"_id": "topic:try#1", "text": "one\nor two"},
        {"_id": "topic:try#2", "text": "three"},
    ]
    assert build.resolve("re.sub", corpus) == ["re.sub"]
    assert build.resolve("topic:try", corpus) == ["topic:try#1", "topic:try#2"]
    assert build.resolve("topic:try ~ one or", corpus) == ["topic:try#1"]
    assert build.resolve("topic:try ~ four", corpus) == []


def test_build_is_deterministic(tmp_path):
    # In fresh processes: test runners replace some functions of the standard library.
    for seed in ("1", "2"):
        result = run_script(str(SCRIPT), str(tmp_path / seed), PYTHONHASHSEED=seed)
        assert result.returncode == 0, result.stderr
        assert result.stdout.count("\n") == 1
    assert sorted(path.name for path in (tmp_path / "1").iterdir()) == FILES
    for name in FILES:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "2" / name).read_bytes()


def test_files_fit_together(build, corpus, tmp_path, capsys):
    build.main(tmp_path)
    assert f"{len(corpus)} passages" in capsys.readouterr().out
    lines = {name: (tmp_path / name).read_text("utf-8").split("\n")[:-1] for name in FILES}
    assert [json.loads(line) for line in lines["corpus.jsonl"]] == corpus
    query_ids = {json.loads(line)["_id"] for line in lines["queries.jsonl"]}
    assert lines["qrels.tsv"][0] == "query-id\tcorpus-id\tscore"
    rows = [line.split("\t") for line in lines["qrels.tsv"][1:]]
    assert len({(query, passage) for query, passage, _ in rows}) == len(rows)
    assert {query for query, _, _ in rows} < query_ids
    assert {passage for _, passage, _ in rows} <= {passage["_id"] for passage in corpus}
    assert {grade for _, _, grade in rows} == {"1"}


def test_stripped_docstrings_are_refused(tmp_path):
    result = run_script("-OO", str(SCRIPT), str(tmp_path / "out"))
    assert result.returncode == 1
    assert "Python runs with -OO" in result.stderr
    assert "Run without it." in result.stderr
    assert not (tmp_path / "out").exists()
