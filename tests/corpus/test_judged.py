"""Parts of judged datasets: disjoint, and without shared passages where that is promised."""

import json
from pathlib import Path

import pytest

from ricci_gpu.corpus.judged import PARTS, data_folder, judged_queries, part_of_passage
from ricci_gpu.errors import InputError


def write(folder: Path, name: str, rows: list[dict]) -> None:
    (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_qrels(folder: Path, name: str, rows: list[tuple[str, str, int]]) -> None:
    lines = [f"{query}\t{passage}\t{grade}" for query, passage, grade in rows]
    (folder / name).write_text("query-id\tcorpus-id\tscore\n" + "\n".join(lines) + "\n")


@pytest.fixture
def passages_only(tmp_path: Path) -> Path:
    write(tmp_path, "queries.jsonl", [{"_id": f"q{i}", "text": str(i)} for i in range(200)])
    write_qrels(tmp_path, "qrels.tsv", [(f"q{i}", f"p{i % 40}", 1) for i in range(200)])
    return tmp_path


def test_parts_share_no_passage_where_nothing_is_marked(passages_only: Path) -> None:
    parts = [judged_queries(passages_only, part) for part in PARTS]
    assert sum(len(part.queries) for part in parts) == 200
    homes = [{p for grades in part.qrels.values() for p in grades} for part in parts]
    assert all(homes)
    assert not homes[0] & homes[1]
    assert not homes[1] & homes[2]
    assert not homes[0] & homes[2]
    for name, part in zip(PARTS, parts, strict=True):
        assert [query.id for query in part.queries] == [f"q{row}" for row in part.rows]
        assert all(part_of_passage(p) == name for grades in part.qrels.values() for p in grades)


def test_a_query_whose_passages_lie_in_two_parts_is_left_out(passages_only: Path) -> None:
    other = next(f"p{i}" for i in range(40) if part_of_passage(f"p{i}") != part_of_passage("p0"))
    write_qrels(passages_only, "qrels.tsv", [("q0", "p0", 1), ("q0", other, 1), ("q1", "p0", 1)])
    kept = [query.id for part in PARTS for query in judged_queries(passages_only, part).queries]
    assert kept == ["q1"]


def test_training_queries_in_a_file_of_their_own(passages_only: Path) -> None:
    rows = [{"_id": f"t{i}", "text": "claim"} for i in range(50)]
    write(passages_only, "train_queries.jsonl", rows)
    write_qrels(passages_only, "train_qrels.tsv", [(f"t{i}", "p0", i % 5) for i in range(50)])
    fit, tune, test = (judged_queries(passages_only, part) for part in PARTS)
    # grade 0 is no relevance: ten of the fifty have nothing to find
    assert len(fit.queries) + len(tune.queries) == 40
    assert min(len(fit.queries), len(tune.queries)) > 10
    assert {query.id for query in fit.queries}.isdisjoint(query.id for query in tune.queries)
    assert set(fit.rows) == {-1}
    assert [query.id for query in test.queries] == [f"q{i}" for i in range(200)]


def test_training_queries_marked_by_a_field(passages_only: Path) -> None:
    rows = [{"_id": f"q{i}", "text": "", "split": "train" if i < 60 else "dev"} for i in range(200)]
    write(passages_only, "queries.jsonl", rows)
    fit, tune, test = (judged_queries(passages_only, part) for part in PARTS)
    assert sorted(fit.rows + tune.rows) == list(range(60))
    assert test.rows == list(range(60, 200))


def test_a_missing_data_folder_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RICCI_GPU_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InputError, match=r"RICCI_GPU_DATA; `.*nowhere` does not exist"):
        data_folder()
