import gzip
import json
import os
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs.conftest import write_log

from ricci_gpu.config import Config
from ricci_gpu.corpus import CorpusStore, Passage
from ricci_gpu.errors import InputError
from ricci_gpu.jobs.compute import UnitRanker
from ricci_gpu.jobs.files import expand
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.plan import plan_job
from ricci_gpu.jobs.rows import read_unit

CONFIG = Config.load("default")
POOL = [{"id": "a", "text": "alpha beta"}, {"id": "b", "text": "gamma"}]


def planned(index, *paths, **options):
    return plan_job(CONFIG, queries=[str(path) for path in paths], index=index, **options)


def rows_of(job):
    return [row for unit in job.units for row in read_unit(job, unit)]


def seen(job):
    return [(row.row, row.query_id, row.record.text) for row in rows_of(job)]


def as_parquet(path, ids, texts, group=4, names=("query_id", "query")):
    table = pa.table({names[0]: ids, names[1]: texts, "unused": [0.0] * len(ids)})
    pq.write_table(table, path, row_group_size=group)
    return path


def test_every_format_gives_the_same_rows(index, tmp_path):
    expected = [(i, str(i), f"alpha {i}") for i in range(9)]
    tsv = "".join(f"{i}\talpha {i}\n" for i in range(9))
    (tmp_path / "a.tsv").write_text(tsv)
    (tmp_path / "named.tsv").write_text(
        "query\tqid\r\n" + "".join(f"alpha {i}\t{i}\r\n\r\n" for i in range(9))
    )
    (tmp_path / "bom.tsv").write_bytes(b"\xef\xbb\xbf" + tsv.encode())
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(tsv.encode()))
    rows = [{"_id": i if i % 2 else str(i), "text": f"alpha {i}"} for i in range(9)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))  # no line end at the end
    texts = [f"alpha {i}" for i in range(9)]
    as_parquet(tmp_path / "integers.parquet", list(range(9)), texts)
    as_parquet(tmp_path / "strings.parquet", [str(i) for i in range(9)], texts, 5, ("qid", "text"))
    for path in sorted(tmp_path.iterdir()):
        job = planned(index, path, unit_rows=3)
        assert seen(job) == expected, path
        assert [unit.rows for unit in job.units].count(3) >= 1
        assert max(unit.rows for unit in job.units) <= 3


def test_units_of_parquet_lie_inside_row_groups(index, tmp_path):
    path = as_parquet(tmp_path / "a.parquet", list(range(10)), ["alpha"] * 10, group=7)
    units = planned(index, path, unit_rows=4).units
    assert [(u.first_row, u.rows, u.start, u.length) for u in units] == [
        (0, 4, 0, 0),
        (4, 3, 0, 4),
        (7, 3, 1, 0),
    ]


def test_files_by_glob_and_by_url(index, tmp_path):
    one, two = write_log(tmp_path / "b.tsv", 3), write_log(tmp_path / "a.tsv", 2)
    job = planned(index, tmp_path / "*.tsv")
    assert [each.path for each in job.inputs] == [str(two), str(one)]
    by_url = planned(index, f"file://{tmp_path}/*.tsv")
    assert [each.path for each in by_url.inputs] == [f"file://{two}", f"file://{one}"]
    assert seen(by_url) == seen(job)
    parquet = as_parquet(tmp_path / "c.parquet", [1, 2], ["x", "y"])
    assert seen(planned(index, f"file://{parquet}")) == [(0, "1", "x"), (1, "2", "y")]


def test_costs_count_the_passages_that_are_read(index, tmp_path):
    log = write_log(tmp_path / "log.tsv", 10)
    few = plan_job(CONFIG, [str(log)], index, unit_rows=5)
    many = plan_job(Config.load("default", ["retrieve.k=10"]), [str(log)], index, unit_rows=5)
    # 24 passages of 5 words: all or 10 of them for each of 5 queries
    assert few.units[0].cost - many.units[0].cost == 5 * 14 * 5


def test_batches_hold_a_number_of_tokens(index, tmp_path):
    log = write_log(tmp_path / "log.tsv", 10)
    job = planned(index, log, batch_tokens=480)  # a pool has all 24 passages of 5 words
    batches = UnitRanker(job, "cpu").batches(read_unit(job, job.units[0]))
    assert [len(batch) for batch in batches] == [4, 4, 2]
    few = replace(job, batch_rows=3)
    batches = UnitRanker(few, "cpu").batches(read_unit(job, job.units[0]))
    assert [len(batch) for batch in batches] == [3, 3, 3, 1]
    assert len(UnitRanker(planned(index, log), "cpu").batches(read_unit(job, job.units[0]))) == 1


def test_pools_of_like_size_share_a_batch(tmp_path):
    sizes = [3, 40, 2, 50, 1, 0, 20]
    texts = [
        {
            "query_id": i,
            "query": "alpha",
            "candidates": [{"id": c, "text": "beta " * 8} for c in range(size)],
        }
        for i, size in enumerate(sizes)
    ]
    path = candidates(tmp_path / "a.jsonl", texts)
    job = plan_job(CONFIG, candidates=[str(path)], batch_tokens=500)
    ranker = UnitRanker(job, "cpu")
    rows = read_unit(job, job.units[0])
    batches = ranker.batches(rows)
    assert [[item.candidates for item in batch] for batch in batches] == [
        [0, 1, 2, 3, 20],  # 11 tokens each
        [40],
        [50],
    ]
    assert len(list(ranker.answers(rows))) == len(sizes)
    assert (ranker.candidates, ranker.padded) == (sum(sizes), 4 * 15 + 31 + 63 + 63)


def test_bad_rows_carry_their_error(index, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(
        b'{"id": "q1", "text": "alpha"}\n'
        b"\xff\xfe\n"
        b'{"id": "q3", "text": \n'
        b'["q4"]\n'
        b'{"text": "beta"}\n'
        b'{"id": "q6", "text": 6}\n'
        b'{"id": "q7", "text": null}\n'
    )
    rows = rows_of(planned(index, path))
    assert [row.query_id for row in rows] == ["q1", None, None, None, None, "q6", "q7"]
    errors = [row.error for row in rows]
    assert errors[0] is None
    assert errors[6] is None
    assert "row 1: text must be UTF-8" in errors[1]
    assert "one JSON object; this one cannot be read" in errors[2]
    assert "one JSON object; got" in errors[3]
    assert "needs a field `query_id` or `qid` or `_id` or `id`; found `text`" in errors[4]
    assert "`text` must be a string; got 6" in errors[5]
    cells = tmp_path / "a.tsv"
    cells.write_text("q1\talpha\nq2\n\tbeta\n")
    rows = rows_of(planned(index, cells))
    assert "must be `id<TAB>text`; got 1 cell: 'q2'" in rows[1].error
    assert "an id must be a non-empty string" in rows[2].error


def candidates(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_candidates_with_texts_and_with_embeddings(tmp_path):
    texts = [{"query_id": i, "query": "alpha", "candidates": POOL} for i in range(4)]
    job = plan_job(CONFIG, candidates=[str(candidates(tmp_path / "a.jsonl", texts))], unit_rows=3)
    assert (job.kind, job.embedding_width, job.model["name"]) == ("candidates", None, "words")
    assert [row.record.query.id for row in rows_of(job)] == ["0", "1", "2", "3"]
    pq.write_table(pa.Table.from_pylist(texts), tmp_path / "a.parquet")
    nested = plan_job(CONFIG, candidates=[str(tmp_path / "a.parquet")])
    assert [row.record.passages for row in rows_of(nested)] == [
        row.record.passages for row in rows_of(job)
    ]

    vectors = {"query_embedding": [1.0, 0.0], "candidates": [{"id": "a", "embedding": [1.0, 1.0]}]}
    wrong = {"query_embedding": [1.0], "candidates": [{"id": "a", "embedding": [1.0]}]}
    rows = [{"query_id": "q0"} | vectors, {"query_id": "q1"} | wrong, texts[2]]
    given = [str(candidates(tmp_path / "b.jsonl", rows))]
    job = plan_job(Config.load("ricci_filtration", ["rerank.type=none"]), candidates=given)
    assert (job.embedding_width, job.model) == (2, None)
    errors = [row.error for row in rows_of(job)]
    assert errors[0] is None
    assert "began with embeddings of 2 numbers and this row has 1. Split" in errors[1]
    assert "this row has none" in errors[2]
    with pytest.raises(InputError, match="read token vectors, which need texts"):
        plan_job(CONFIG, candidates=given)


def test_the_manifest_comes_back_as_it_was(index, tmp_path):
    job = planned(index, write_log(tmp_path / "log.tsv"), unit_rows=6)
    job.save(tmp_path / "job")
    assert Job.load(tmp_path / "job") == job
    assert Job.load(tmp_path / "job").sha256 == job.sha256
    job.save(tmp_path / "job")  # the same job again


def test_refused_plans(index, tmp_path):
    log = write_log(tmp_path / "log.tsv")
    with pytest.raises(InputError, match="a job needs --queries with --index, or --candidates"):
        plan_job(CONFIG)
    with pytest.raises(InputError, match="give its folder with --index"):
        plan_job(CONFIG, queries=[str(log)])
    with pytest.raises(InputError, match="--unit-rows must be at least 1; got 0"):
        planned(index, log, unit_rows=0)
    with pytest.raises(InputError, match="no such file"):
        planned(index, tmp_path / "absent.tsv")
    with pytest.raises(InputError, match="was given more than once"):
        planned(index, log, tmp_path / "*.tsv")
    with pytest.raises(InputError, match="cannot be opened"):
        expand(["nosuchscheme://bucket/log.tsv"])
    (tmp_path / "empty.tsv").touch()
    with pytest.raises(InputError, match="at least one row; got none"):
        planned(index, tmp_path / "empty.tsv")
    with pytest.raises(InputError, match="must end in one of"):
        planned(index, index / "vectors.npy")
    with pytest.raises(InputError, match="not an index"):
        planned(tmp_path, log)
    rows = [{"id": 1, "candidates": None}]
    with pytest.raises(InputError, match=r"none of these rows can be read.*must be a list"):
        plan_job(CONFIG, candidates=[str(candidates(tmp_path / "c.jsonl", rows))])
    (tmp_path / "cut.tsv.gz").write_bytes(gzip.compress(b"q1\talpha\n" * 5000)[:-20])
    with pytest.raises(InputError, match="cannot be read to its end"):
        planned(index, tmp_path / "cut.tsv.gz")
    wrong = as_parquet(tmp_path / "w.parquet", [1], ["x"], names=("query_id", "words"))
    with pytest.raises(InputError, match="need a column `query` or `text`; found `query_id`"):
        planned(index, wrong)


def test_an_index_without_token_vectors_is_refused_where_they_are_read(tmp_path, made):
    from jobs.program import SlowEncoder

    folder = tmp_path / "index"
    CorpusStore.build([Passage("p", "", "x")], SlowEncoder(), folder, token_vectors=False)
    log = write_log(tmp_path / "log.tsv")
    with pytest.raises(InputError, match="read token vectors, and the index has none"):
        planned(folder, log)


def test_a_truncated_parquet_file_is_refused(index, tmp_path):
    path = as_parquet(tmp_path / "a.parquet", list(range(50)), ["alpha beta"] * 50)
    os.truncate(path, path.stat().st_size - 100)
    with pytest.raises(InputError, match="does not end in a footer"):
        planned(index, path)


def test_another_job_in_the_folder_is_refused(index, tmp_path):
    log = write_log(tmp_path / "log.tsv")
    planned(index, log).save(tmp_path / "job")
    other = plan_job(Config.load("default", ["retrieve.k=3"]), [str(log)], index)
    with pytest.raises(InputError, match="these parts differ: `config`, `units`"):
        other.save(tmp_path / "job")
    with pytest.raises(InputError, match="this one holds other files"):
        other.save(index)
    with pytest.raises(InputError, match="not a job"):
        Job.load(tmp_path)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('"k": 50', '"k": 21', "was changed after planning"),
        ('"ricci_gpu": "', '"ricci_gpu": "0.', "which may give other scores"),
        ('"format": "ricci_gpu batch job"', '"format": "?"', "must say that its format"),
        ("{\n", "", "cannot be read"),
    ],
)
def test_an_edited_manifest_is_refused(index, tmp_path, old, new, words):
    planned(index, write_log(tmp_path / "log.tsv")).save(tmp_path / "job")
    path = tmp_path / "job" / "job.json"
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InputError, match=words):
        Job.load(tmp_path / "job")
