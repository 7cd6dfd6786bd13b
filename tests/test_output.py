import json
import math
import weakref
from contextlib import contextmanager

import numpy as np
import pytest

from ricci_gpu import output
from ricci_gpu.errors import InputError, MissingDependencyError, SettingError
from ricci_gpu.output import Hit, Ranking, write_rankings

pq = pytest.importorskip("pyarrow.parquet")


def hit(id_="a", score=1.0, position=0, kept=True, reason="kept", value=None):
    return Hit(position, id_, score, kept, reason, value)


def ranking(hits=(), dropped=(), query_id="q1", query="a query", abstention=None):
    return Ranking(query_id, query, list(hits), list(dropped), "ok", abstention)


def trec_scores(folder):
    return [float(line.split()[4]) for line in (folder / "run.trec").read_text().splitlines()]


def test_files_hold_what_was_given(tmp_path):
    lost = hit("c", 0.1, 1, False, "stretched: edge 1.27 > 1", 1.27)
    beyond = hit("d", 0.05, 3)
    rankings = [
        ranking([hit("b", 0.75, 2), hit("a", 0.5, 0)], [lost, beyond], abstention=0.25),
        ranking(query_id="q2"),
    ]
    paths = write_rankings(rankings, tmp_path / "new" / "folder", tag="mine")
    assert {path.name for path in (tmp_path / "new" / "folder").iterdir()} == {
        "rankings.parquet",
        "rankings.jsonl",
        "run.trec",
    }
    lines = [json.loads(line) for line in paths["jsonl"].read_text().splitlines()]
    assert lines == [each.to_dict() for each in rankings]
    assert lines[0]["abstention"] == 0.25
    assert lines[0]["dropped"][0] == {
        "position": 1,
        "id": "c",
        "score": 0.1,
        "kept": False,
        "reason": "stretched: edge 1.27 > 1",
        "filter_value": 1.27,
    }
    assert paths["trec"].read_text() == "q1 Q0 b 1 0.75 mine\nq1 Q0 a 2 0.5 mine\n"
    table = pq.read_table(paths["parquet"])
    assert table.column_names == [
        *("query_id", "rank", "id", "score", "kept", "reason", "filter_value", "position", "status")
    ]
    assert table["id"].to_pylist() == ["b", "a", "c", "d"]
    assert table["rank"].to_pylist() == [1, 2, None, None]
    assert table["kept"].to_pylist() == [True, True, False, True]
    assert table["filter_value"].to_pylist() == [None, None, 1.27, None]
    assert table["position"].to_pylist() == [2, 0, 1, 3]


def test_no_rankings_give_empty_files(tmp_path):
    paths = write_rankings([], tmp_path)
    assert pq.read_table(paths["parquet"]).num_rows == 0
    assert paths["jsonl"].read_text() == paths["trec"].read_text() == ""


def test_parquet_spans_row_groups(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "ROWS_PER_GROUP", 65)
    rankings = [
        ranking([hit(str(i), -float(i), i) for i in range(40)], query_id=f"q{q}") for q in range(3)
    ]
    path = write_rankings(rankings, tmp_path, formats=["parquet"])["parquet"]
    table = pq.read_table(path)
    assert pq.ParquetFile(path).num_row_groups == 2
    assert table["query_id"].to_pylist() == [f"q{q}" for q in range(3) for _ in range(40)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, None])
def test_numbers_that_are_not_finite_become_null(tmp_path, bad):
    paths = write_rankings([ranking([hit(score=bad, value=bad)], abstention=bad)], tmp_path)
    row = json.loads(paths["jsonl"].read_text())
    assert row["abstention"] is row["hits"][0]["score"] is row["hits"][0]["filter_value"] is None
    assert pq.read_table(paths["parquet"])["score"].to_pylist() == [None]
    assert trec_scores(tmp_path) == [1.0]


@pytest.mark.parametrize(
    "raw",
    [
        [0.5, 0.5, 0.5, 0.4],
        [0.0, 0.0, 0.0],
        [1.0, 1.0 - 1e-12, 1.0 - 2e-12],  # differ in float64, tie in float32
        [-1.0, -1.0],
        [3.0, None, 1.0],
        [1.0, 2.0],
        [1e300, 1.0, 1.0],
        [0.1] * 3000,
    ],
)
def test_trec_scores_decrease_strictly_in_single_precision(tmp_path, raw):
    hits = [hit(str(i), score, i) for i, score in enumerate(raw)]
    write_rankings([ranking(hits)], tmp_path, formats=["trec"])
    scores = np.array(trec_scores(tmp_path), dtype=np.float32)
    assert len(scores) == len(raw)
    assert (np.diff(scores) < 0).all()


def test_trec_keeps_raw_scores_that_already_decrease(tmp_path):
    raw = [12.5, 0.625, -3.25]
    hits = [hit(str(i), score, i) for i, score in enumerate(raw)]
    write_rankings([ranking(hits)], tmp_path, formats=["trec"])
    assert trec_scores(tmp_path) == raw


@pytest.mark.parametrize("name", ["two words", "", "tab\there", "line\n", "narrow\u2009space"])
def test_trec_refuses_ids_with_whitespace(tmp_path, name):
    for rankings in ([ranking([hit(name)])], [ranking(query_id=name)]):
        with pytest.raises(InputError, match=r"without whitespace; got .*Rename it, or leave"):
            write_rankings(rankings, tmp_path)
    with pytest.raises(InputError, match="the tag must be non-empty"):
        write_rankings([], tmp_path, tag=name)
    assert list(tmp_path.iterdir()) == []  # nor the formats that came before it
    write_rankings([ranking([hit(name)], query_id=name)], tmp_path, formats=["jsonl", "parquet"])


def test_trec_refuses_ids_given_twice(tmp_path):
    with pytest.raises(InputError, match=r"query `q1`, passage id 'a' comes twice\. Make the ids"):
        write_rankings([ranking([hit("a"), hit("a", 0.5)])], tmp_path)
    with pytest.raises(InputError, match="query id 'q1' comes twice"):
        write_rankings([ranking(), ranking()], tmp_path)


def test_unknown_format_is_refused_with_a_suggestion(tmp_path):
    with pytest.raises(SettingError, match=r"unknown output format `parket`\. Did you mean"):
        write_rankings([], tmp_path, formats=["parket"])


def test_lone_surrogates_become_replacement_characters(tmp_path):
    given = ranking([hit("d\ud800", reason="x\udfff")], query="\u00e9 \ud83d", query_id="q\udc00")
    paths = write_rankings([given], tmp_path)
    row = json.loads(paths["jsonl"].read_text(encoding="utf-8"))
    assert row["query"] == "\u00e9 \ufffd"
    assert row["query_id"] == "q\ufffd"
    assert row["hits"][0]["id"] == "d\ufffd"
    assert pq.read_table(paths["parquet"])["reason"].to_pylist() == ["x\ufffd"]
    assert paths["trec"].read_text(encoding="utf-8").startswith("q\ufffd Q0 d\ufffd 1 ")


def test_rankings_are_gone_through_once_and_not_kept(tmp_path):
    """Each is gone when the one after the next is asked for, in all formats at once."""
    alive = []

    def made():
        for number in range(50):
            one = ranking([hit(f"d{number}")], query_id=f"q{number}")
            alive.append(weakref.ref(one))
            assert sum(each() is not None for each in alive) <= 2
            yield one

    paths = write_rankings(made(), tmp_path)
    assert len(paths["jsonl"].read_text().splitlines()) == 50
    assert len(paths["trec"].read_text().splitlines()) == 50
    assert pq.read_table(paths["parquet"])["id"].to_pylist() == [f"d{n}" for n in range(50)]


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
def test_failure_leaves_the_old_files_and_no_new_ones(tmp_path, monkeypatch, failure):
    write_rankings([ranking([hit("old")])], tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    @contextmanager
    def fail(path, tag):
        def write(ranking):
            path.write_text("half a li")
            raise failure

        yield write

    monkeypatch.setitem(output._WRITERS, "trec", ("run.trec", fail))
    with pytest.raises(type(failure)):
        write_rankings([ranking([hit("new")])], tmp_path)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"writing Parquet needs .*ricci-gpu\[io\]"):
        write_rankings([], tmp_path, formats=["parquet"])
    assert list(tmp_path.iterdir()) == []
