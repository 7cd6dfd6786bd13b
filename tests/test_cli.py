import gzip
import json
import re
from contextlib import contextmanager

import pytest

from ricci_gpu import __version__, cli, output
from ricci_gpu.config import Config
from ricci_gpu.reranker import Reranker

pytest.importorskip("faiss")
pq = pytest.importorskip("pyarrow.parquet")

CORPUS = {"d1": "a b", "d2": "b c", "d3": "c d", "d4": "x y", "d5": "lone \ud83d half"}
QUERIES = {"q1": "a b", "q2": "x"}
FILES = {"rankings.parquet", "rankings.jsonl", "run.trec"}


@pytest.fixture(autouse=True)
def without_a_model(monkeypatch, words):
    """Commands load the words of the tests instead of a model."""
    monkeypatch.setattr(Reranker, "encoder", words)


def jsonl(path, rows, key="_id"):
    lines = [json.dumps({key: name, "text": text}) for name, text in rows.items()]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def corpus(tmp_path):
    return jsonl(tmp_path / "corpus.jsonl", CORPUS)


@pytest.fixture
def queries(tmp_path):
    return jsonl(tmp_path / "log.jsonl", QUERIES)


@pytest.fixture
def out(tmp_path):
    return tmp_path / "runs" / "first"


@pytest.fixture
def run(capsys):
    """Exit status, standard output and standard error of a command."""

    def call(*arguments):
        status = cli.main([str(each) for each in arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def fails(run, out):
    """A user error: status 1, one line that says so, and no file."""

    def call(*arguments):
        status, _, err = run(*arguments)
        assert status == 1
        assert "Traceback" not in err
        [line] = [line for line in err.splitlines() if line.startswith("error: ")]
        assert not err.partition(line)[2].strip()  # and nothing after it
        assert not out.exists() or list(out.iterdir()) == []
        return line

    return call


def hits_of(out):
    lines = (out / "rankings.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["query_id"]: [hit["id"] for hit in row["hits"]] for row in map(json.loads, lines)}


def test_rerank_a_corpus(run, corpus, queries, out):
    status, said, err = run("rerank", "--corpus", corpus, "--queries", queries, "--out", out)
    assert status == 0
    assert {path.name for path in out.iterdir()} == {*FILES, "run.json"}
    found = hits_of(out)
    assert list(found) == ["q1", "q2"]
    assert (found["q1"][0], found["q2"][0]) == ("d1", "d4")
    assert re.search(r"^2 queries; kept \d+ of 10 candidates \(\d\.\d per query\); 0 with", said)
    assert re.search(r"^  filter +[\d,]+ queries/s$", said, re.MULTILINE)
    assert said.splitlines()[-1] == str(out / "run.trec")
    assert "model: words from a test" in err
    rows = pq.read_table(out / "rankings.parquet").to_pylist()
    assert len(rows) == 10
    trec = [line.split() for line in (out / "run.trec").read_text().splitlines()]
    assert {row[0]: row[2] for row in reversed(trec)} == {"q1": "d1", "q2": "d4"}


def test_formats_presets_and_settings(run, corpus, queries, out):
    source = ("--corpus", corpus, "--queries", queries, "--out", out)
    status, _, _ = run("rerank", *source, "--format", "trec", "--set", "filter.type=none")
    assert status == 0
    assert {path.name for path in out.iterdir()} == {"run.trec", "run.json"}
    assert len((out / "run.trec").read_text().splitlines()) == 10
    arguments = ("--preset", "ricci_filtration", "--set", "filter.iterations=1")
    status, _, _ = run("rerank", *source, *arguments, "--set", "retrieve.k=2")
    assert status == 0
    assert all(len(hits) <= 2 for hits in hits_of(out).values())


def test_k_larger_than_the_corpus(run, corpus, queries, out):
    source = ("--corpus", corpus, "--queries", queries, "--out", out)
    assert run("rerank", *source, "--set", "retrieve.k=1000", "--set", "filter.type=none")[0] == 0
    assert {len(hits) for hits in hits_of(out).values()} == {5}


def test_tsv_gzip_and_beir(run, tmp_path, out):
    beir = tmp_path / "beir"
    beir.mkdir()
    text = "".join(f"{name}\t{words}\n" for name, words in list(CORPUS.items())[:4])
    (beir / "corpus.tsv.gz").write_bytes(gzip.compress(text.encode()))
    jsonl(beir / "queries.jsonl", QUERIES)
    assert run("rerank", "--corpus", beir, "--out", out)[0] == 0
    assert hits_of(out)["q2"][0] == "d4"
    (tmp_path / "log.tsv").write_text("id\ttext\n7\tc d\n")
    assert run("rerank", "--corpus", beir, "--queries", tmp_path / "log.tsv", "--out", out)[0] == 0
    assert hits_of(out) == {"7": ["d3"]}


def pools(path, embeddings=False, texts=True):
    def entry(row, place):
        vector = {"embedding": [1.0, row + 1.0, place]} if embeddings else {}
        return {"id": f"{row}{place}", **({"text": f"a {place}"} if texts else {}), **vector}

    with path.open("w") as file:
        for row, count in enumerate((4, 0, 1)):
            line = {"query_id": f"q{row}", "candidates": [entry(row, n) for n in range(count)]}
            line |= {"query": "a 1"} if texts else {}
            line |= {"query_embedding": [1.0, 1.0, 1.0]} if embeddings else {}
            file.write(json.dumps(line) + "\n")
    return path


def test_rerank_ready_candidates(run, tmp_path, out):
    file = pools(tmp_path / "pools.jsonl")
    status, said, _ = run("rerank", "--candidates", file, "--out", out)
    assert status == 0
    found = hits_of(out)
    assert found["q0"][0] == "01"
    assert (found["q1"], found["q2"]) == ([], ["20"])
    assert said.startswith("3 queries; kept ")


def test_rerank_ready_embeddings(run, tmp_path, out, words):
    file = pools(tmp_path / "pools.jsonl", embeddings=True, texts=False)
    arguments = ("--preset", "ricci_filtration", "--set", "rerank.type=none")
    assert run("rerank", "--candidates", file, "--out", out, *arguments)[0] == 0
    assert set(hits_of(out)) == {"q0", "q1", "q2"}
    assert words.calls == []


def test_index_then_search_and_rerank(run, corpus, queries, tmp_path, out):
    store = tmp_path / "index"
    status, said, _ = run("index", "--corpus", corpus, "--out", store)
    assert (status, said) == (0, f"5 passages indexed in {store}\n")
    status, said, _ = run("search", "--index", store, "x", "--set", "select.top_k=1")
    assert status == 0
    lines = said.splitlines()
    assert re.match(r"^  1  d4  -?\d", lines[0])
    assert lines[1] == "     x y"
    assert lines[2] == "4 of the pool are not shown; status: ok"
    assert run("rerank", "--index", store, "--queries", queries, "--out", out)[0] == 0
    from_index = hits_of(out)
    assert run("rerank", "--corpus", corpus, "--queries", queries, "--out", out)[0] == 0
    assert hits_of(out) == from_index


def test_search_prints_texts_that_no_terminal_can_show(run, corpus, tmp_path):
    run("index", "--corpus", corpus, "--out", tmp_path / "index")
    status, said, _ = run("search", "--index", tmp_path / "index", "lone")
    assert status == 0
    assert "lone ? half" in said


def test_print_config(run):
    for command in (
        ["rerank"],
        ["index", "--corpus", "x", "--out", "y"],
        ["search", "--index", "x", "q"],
    ):
        status, said, err = run(*command, "--print-config", "--set", "filter.eta=0.5")
        assert (status, err) == (0, "")
        assert said == Config.load("default", ["filter.eta=0.5"]).to_yaml()


def test_doctor(run):
    status, said, _ = run("doctor")
    assert status == 0
    lines = said.splitlines()
    assert lines[0].startswith(f"ricci-gpu {__version__}, python 3.")
    assert lines[1].startswith("torch ")
    assert any("cuda:0" in line or "no CUDA device" in line for line in lines)
    assert any(line.startswith("[x] faiss-cpu") for line in lines)
    assert all(re.match(r"\[[x ]\] \S+", line) for line in lines[3:])


def test_doctor_names_the_extra_of_what_is_missing(run, monkeypatch):
    from importlib.metadata import PackageNotFoundError

    def nothing(package):
        raise PackageNotFoundError(package)

    monkeypatch.setattr("ricci_gpu.doctor.version", nothing)
    _, said, _ = run("doctor")
    assert '[ ] pyarrow: Parquet; pip install "ricci-gpu[io]"' in said


def test_version_and_wrong_usage(capsys):
    for arguments, status in ([["--version"], 0], [[], 2], [["rerang"], 2], [["search"], 2]):
        with pytest.raises(SystemExit) as stop:
            cli.main(arguments)
        assert stop.value.code == status
    assert f"ricci-gpu {__version__}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("rerank", ["--corpus", "--queries", "--index", "--candidates", "--out", "--format"]),
        ("index", ["--corpus", "--out"]),
        ("search", ["query", "--index"]),
        ("doctor", []),
    ],
)
def test_help_mentions_every_option(command, options, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([command, "--help"])
    assert stop.value.code == 0
    said = capsys.readouterr().out
    settings = [] if command == "doctor" else ["--preset", "--set", "--print-config"]
    for option in options + settings:
        assert re.search(rf"^\s+{option}\b.*\n?.*\w", said, re.MULTILINE), option


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    said = capsys.readouterr().out
    for line in ("rerank ", "index ", "search ", "doctor "):
        assert f"\n    {line}" in said


def test_where_to_read_and_write(fails, corpus, queries, tmp_path, out):
    assert "name their folder with --out" in fails("rerank", "--corpus", corpus)
    one = "give exactly one of --corpus, --index and --candidates"
    assert one in fails("rerank", "--out", out)
    assert one in fails("rerank", "--out", out, "--corpus", corpus, "--index", tmp_path)
    assert "name the query log with --queries" in fails("rerank", "--out", out, "--corpus", corpus)
    ready = pools(tmp_path / "pools.jsonl")
    assert "leave out --queries" in fails(
        "rerank", "--out", out, "--candidates", ready, "--queries", queries
    )
    (tmp_path / "file").write_text("")
    assert "--out must name a folder" in fails(
        "rerank", "--corpus", corpus, "--queries", queries, "--out", tmp_path / "file"
    )


BAD_FILES = [
    (b"", "the file is empty"),
    (b'{"_id": "d1", "text": "a"}\n{"_id": "d2", "te', "probably cut off"),
    (b'{"_id": "d1", "text": "a"}\n{"_id": 1, "text": "b"}\n{"_id": "1"}', "needs a field `text`"),
    (b'{"_id": 1, "text": "a"}\n{"_id": "1", "text": "b"}\n', "come more than once: `1`"),
    (b'{"_id": "d1", "text": "\xff"}', "text must be UTF-8"),
    (b'{"_id": "d1", "text": 5}', "`text` must be a string; got 5"),
    (b'["d1"]', "must be one JSON object; got list"),
]


@pytest.mark.parametrize(("content", "message"), BAD_FILES)
def test_bad_corpora_and_logs(fails, corpus, queries, tmp_path, out, content, message):
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(content)
    assert message in fails("rerank", "--corpus", bad, "--queries", queries, "--out", out)
    assert message in fails("rerank", "--corpus", corpus, "--queries", bad, "--out", out)
    assert message in fails("index", "--corpus", bad, "--out", out)


def test_missing_files(fails, corpus, queries, tmp_path, out):
    gone = tmp_path / "gone.jsonl"
    assert "No such file" in fails("rerank", "--corpus", gone, "--queries", queries, "--out", out)
    assert "No such file" in fails("rerank", "--corpus", corpus, "--queries", gone, "--out", out)
    assert "No such file" in fails("rerank", "--candidates", gone, "--out", out)
    assert "not a corpus store" in fails("search", "--index", tmp_path / "none", "q")
    assert "must end in one of" in fails("index", "--corpus", tmp_path / "c.csv", "--out", out)


def test_an_index_is_never_written_over(fails, run, corpus, tmp_path, out):
    store = tmp_path / "index"
    run("index", "--corpus", corpus, "--out", store)
    before = {path.name: path.stat().st_mtime_ns for path in store.iterdir()}
    assert "written to a new or empty folder" in fails("index", "--corpus", corpus, "--out", store)
    assert {path.name: path.stat().st_mtime_ns for path in store.iterdir()} == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--set", "filter.etta=1"], "Did you mean `eta`?"),
        (["--set", "filter.eta"], "an override must read section.setting=value"),
        (["--set", "filter.eta=["], "is not valid YAML"),
        (["--set", "filter.eta=-1"], "`eta` must be greater than 0; got -1"),
        (["--set", "retrieve.index=flta"], "Did you mean `flat`?"),
        (["--preset", "defualt"], "Did you mean `default`?"),
        (["--preset", "missing.yaml"], "cannot read the settings file"),
        (["--set", "runtime.device=gpu"], "must name a torch device; got `gpu`"),
        (
            ["--set", "filter.type=ricci", "--set", "retrieve.k=200"],
            "at most 127 candidates; got 130. Retrieve fewer",
        ),
    ],
)
def test_impossible_settings(fails, queries, tmp_path, out, settings, message):
    corpus = jsonl(tmp_path / "many.jsonl", {f"d{n}": f"w{n}" for n in range(130)})
    source = ("--corpus", corpus, "--queries", queries, "--out", out)
    assert message in fails("rerank", *source, *settings)


def test_bad_candidate_lists(fails, tmp_path, out):
    file = pools(tmp_path / "pools.jsonl", embeddings=True, texts=False)
    assert "stage `token_transport` reads token vectors" in fails(
        "rerank", "--candidates", file, "--out", out
    )
    mixed = file.read_text() + '{"query_id": "t", "query": "a", "candidates": []}\n'
    file.write_text(mixed)
    assert "every query brings embeddings or none does; got 3 of 4" in fails(
        "rerank", "--candidates", file, "--out", out, "--set", "runtime.batch_size=1"
    )
    file.write_text('{"query_id": "q", "query": "a", "candidates": [{"id": "d"}]}')
    assert "either all or none" in fails("rerank", "--candidates", file, "--out", out)


def test_strict_mode_names_the_queries(fails, tmp_path, out):
    file = pools(tmp_path / "pools.jsonl", embeddings=True, texts=False)
    file.write_text(file.read_text().replace("[1.0, 1.0, 2]", "[1.0, 1.0, NaN]"))
    arguments = ["--set", "filter.type=ricci", "--set", "runtime.strict=true"]
    assert "1 queries ended as bad_embedding: q0." in fails(
        "rerank", "--candidates", file, "--out", out, *arguments
    )


def test_ids_that_trec_cannot_hold(fails, run, corpus, tmp_path, out):
    log = jsonl(tmp_path / "log.jsonl", {"query one": "a"})
    source = ("--corpus", corpus, "--queries", log, "--out", out)
    assert "leave `trec` out of the formats" in fails("rerank", *source)
    assert run("rerank", *source, "--format", "jsonl", "--format", "parquet")[0] == 0
    assert "query one" in hits_of(out)


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failure_in_the_middle_leaves_nothing(
    run, corpus, queries, out, monkeypatch, failure, capsys
):
    @contextmanager
    def half(path, tag):
        path.write_text("half a li")
        yield lambda ranking: None
        raise failure

    monkeypatch.setitem(output._WRITERS, "trec", ("run.trec", half))
    status, _, err = run("rerank", "--corpus", corpus, "--queries", queries, "--out", out)
    if isinstance(failure, OSError):
        assert status == 1
        assert err.splitlines()[-1] == "error: [Errno 28] No space left on device"
    else:
        assert status == 130
        assert err.splitlines()[-1] == "interrupted; nothing was written under a final name"
    assert list(out.iterdir()) == []


def test_an_interrupted_index_leaves_nothing(run, corpus, out, words, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(words, "encode", interrupt)
    assert run("index", "--corpus", corpus, "--out", out)[0] == 130
    assert list(out.parent.iterdir()) == []


def test_a_folder_that_may_not_be_written(fails, corpus, queries, out, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(out))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    line = fails("rerank", "--corpus", corpus, "--queries", queries, "--out", out)
    assert "Permission denied" in line


def test_progress_without_rich_is_silent(run, corpus, queries, out, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "rich.console", None)
    status, _, err = run("rerank", "--corpus", corpus, "--queries", queries, "--out", out)
    assert (status, err) == (0, "model: words from a test\n")


def test_no_bar_where_nobody_watches(run, corpus, queries, out):
    _, _, err = run("rerank", "--corpus", corpus, "--queries", queries, "--out", out)
    assert err == "model: words from a test\n"


def test_ids_that_a_trec_run_cannot_hold_are_refused_before_work(tmp_path, fails, out, monkeypatch):
    pools = tmp_path / "pools.jsonl"
    pools.write_text('{"query_id": "a b", "query": "x", "candidates": []}\n')
    monkeypatch.setattr(Reranker, "rank_candidates", lambda *_: pytest.fail("the work began"))
    line = fails("rerank", "--candidates", pools, "--out", out)
    assert "query id must be non-empty and without whitespace; got 'a b'" in line
