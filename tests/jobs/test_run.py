"""Whole jobs in this process: what comes out, and what happens to rows and units that fail."""

import json
import os
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs.conftest import answers, parts, write_log

from ricci_gpu import Reranker
from ricci_gpu.corpus import CorpusStore, Query
from ricci_gpu.errors import InputError
from ricci_gpu.jobs import rows as rows_module
from ricci_gpu.jobs import worker
from ricci_gpu.jobs.compute import UnitRanker
from ricci_gpu.jobs.folder import JobFolder
from ricci_gpu.jobs.leases import Holder
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.status import duration, job_status


def plan(batch, job, log, index, *options):
    status, said = batch("plan", job, "--queries", log, "--index", index, *options)
    assert status == 0, said


def test_a_job_gives_what_the_reranker_gives(batch, index, tmp_path, made):
    job, log = tmp_path / "job", write_log(tmp_path / "log.tsv", 23)
    plan(batch, job, log, index, "--unit-rows", 5)
    status, said = batch("run", job)
    assert (status, "units: 5 of 5 done" in said) == (0, True)
    rows = answers(job)
    assert [(row["file"], row["row"]) for row in rows] == [(str(log), i) for i in range(23)]
    queries = [Query(*line.split("\t")) for line in log.read_text().splitlines()]
    expected = Reranker("default").search(CorpusStore.open(index), queries)
    for row, ranking in zip(rows, expected, strict=True):
        want = ranking.to_dict()
        assert row["query_id"] == want["query_id"]
        assert row["error"] is None
        assert [hit["id"] for hit in row["hits"]] == [hit["id"] for hit in want["hits"]]
        for key in ("hits", "dropped"):
            scores = [[hit["score"] for hit in each[key]] for each in (row, want)]
            np.testing.assert_allclose(*scores, atol=1e-5)
    status, said = batch("verify", job)
    assert (status, said.splitlines()[0][:8]) == (0, "complete")


def test_other_workers_and_other_ways_give_the_same_bytes(batch, index, tmp_path):
    log = write_log(tmp_path / "log.tsv", 23)
    for name in ("one", "two"):
        plan(batch, tmp_path / name, log, index, "--unit-rows", 5, "--batch-tokens", 300)
    assert batch("run", tmp_path / "one")[0] == 0
    folder = JobFolder(tmp_path / "two")
    takers = [worker.Worker(folder, "cpu", 60.0) for _ in range(3)]
    for unit in (3, 0, 4, 1, 2):  # another order, another worker for each
        assert takers[unit % 3]._try(unit)
    assert parts(tmp_path / "two") == parts(tmp_path / "one")


def test_repeated_queries_are_computed_once_and_answered_each(batch, index, tmp_path, made):
    job, log = tmp_path / "job", tmp_path / "log.tsv"
    log.write_text("1\talpha\n1\tbeta\n2\talpha\n2\talpha\n")
    plan(batch, job, log, index)
    made.clear()
    assert batch("run", job)[0] == 0
    assert [sorted(call) for call in made[0].calls] == [["alpha", "beta"]]
    rows = answers(job)
    assert [row["query_id"] for row in rows] == ["1", "1", "2", "2"]
    assert rows[0]["hits"] == rows[2]["hits"] == rows[3]["hits"] != rows[1]["hits"]
    status, said = batch("verify", job)
    assert status == 0
    assert "2 rows repeat a query id, such as 1, 2; each has its own answer" in said


def test_repeated_queries_with_their_own_candidates_are_encoded_once(batch, tmp_path, made):
    pools = [[{"id": "a", "text": "beta"}, {"id": "b", "text": f"gamma {i}"}] for i in range(4)]
    rows = [{"id": i, "query": "alpha", "candidates": pool} for i, pool in enumerate(pools)]
    path = tmp_path / "pools.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--candidates", path, "--set", "runtime.batch_size=2"]
    assert batch("plan", tmp_path / "job", *options)[0] == 0
    made.clear()
    assert batch("run", tmp_path / "job")[0] == 0
    texts = [text for call in made[0].calls for text in call]
    assert texts.count("alpha") == 1
    plain = Reranker("default").rank_batch(["alpha"] * 4, [[c["text"] for c in p] for p in pools])
    found = answers(tmp_path / "job")
    for row, ranking in zip(found, plain, strict=True):
        assert [hit["position"] for hit in row["hits"]] == [hit.position for hit in ranking.hits]
        np.testing.assert_allclose(
            [hit["score"] for hit in row["hits"]], [hit.score for hit in ranking.hits], atol=1e-5
        )


def test_integers_and_strings_as_ids_give_the_same_answers(batch, index, tmp_path):
    texts = ["alpha beta", "gamma", "delta"]
    found = []
    for name, ids in (("integers", [7, 8, 9]), ("strings", ["7", "8", "9"])):
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table({"query_id": ids, "query": texts}), path)
        plan(batch, tmp_path / name, path, index)
        assert batch("run", tmp_path / name)[0] == 0
        assert batch("verify", tmp_path / name)[0] == 0
        rows = answers(tmp_path / name)
        found.append([row | {"file": ""} for row in rows])
    assert found[0] == found[1]
    assert [row["query_id"] for row in found[0]] == ["7", "8", "9"]


def test_embeddings_need_no_model(batch, tmp_path, made):
    rng = np.random.default_rng(0)
    rows = [
        {
            "query_id": f"q{i}",
            "query_embedding": rng.normal(size=4).tolist(),
            "candidates": [{"id": c, "embedding": rng.normal(size=4).tolist()} for c in range(5)],
        }
        for i in range(6)
    ]
    rows[2]["candidates"] = []
    rows[4]["query_embedding"][0] = float("nan")
    path = tmp_path / "pools.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["--preset", "ricci_filtration", "--set", "rerank.type=none"]
    assert batch("plan", tmp_path / "job", "--candidates", path, *settings)[0] == 0
    assert batch("run", tmp_path / "job")[0] == 0
    found = answers(tmp_path / "job")
    assert [len(row["hits"] + row["dropped"]) for row in found] == [5, 5, 0, 5, 5, 5]
    assert [found[2]["status"], found[4]["status"]] == ["too_few_nodes", "bad_embedding"]
    assert [row["error"] for row in found] == [None] * 6
    assert made == []
    assert batch("verify", tmp_path / "job")[0] == 0


def test_a_bad_row_does_not_fail_its_unit(batch, index, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text('{"id": 1, "text": "alpha"}\n{"id": 2}\nnot json\n{"id": 4, "text": "beta"}\n')
    plan(batch, tmp_path / "job", log, index)
    assert batch("run", tmp_path / "job")[0] == 0
    rows = answers(tmp_path / "job")
    assert [row["status"] for row in rows] == ["ok", "error", "error", "ok"]
    assert "needs a field `query` or `text`" in rows[1]["error"]
    assert rows[2]["query_id"] is None
    assert rows[1]["hits"] == rows[1]["dropped"] == []
    status, said = batch("verify", tmp_path / "job")
    assert (status, "4 rows in the output, 2 of them with an error" in said) == (0, True)


def test_a_row_that_breaks_its_batch_is_found(batch, tmp_path):
    """A pool of 130 is too large for the Ricci filter; the others of its batch are answered."""
    rng = np.random.default_rng(0)
    rows = [
        {
            "query_id": i,
            "query_embedding": rng.normal(size=4).tolist(),
            "candidates": [{"id": c, "embedding": rng.normal(size=4).tolist()} for c in range(n)],
        }
        for i, n in enumerate([4, 130, 4])
    ]
    path = tmp_path / "pools.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["--preset", "ricci_filtration", "--set", "rerank.type=none"]
    assert batch("plan", tmp_path / "job", "--candidates", path, *settings)[0] == 0
    assert batch("run", tmp_path / "job")[0] == 0
    found = answers(tmp_path / "job")
    assert [row["status"] for row in found] == ["ok", "error", "ok"]
    assert "at most 127 candidates; got 130" in found[1]["error"]


def test_settings_that_no_row_can_bear_are_no_fault_of_the_rows(batch, tmp_path):
    job, path = tmp_path / "job", tmp_path / "pools.jsonl"
    settings = ["--preset", "ricci_filtration", "--set", "rerank.type=none"]
    pools = [{"id": c, "embedding": [1.0, float(c)]} for c in range(130)]
    rows = [{"id": i, "query_embedding": [1.0, 0.0], "candidates": pools} for i in range(3)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert batch("plan", job, "--candidates", path, *settings)[0] == 0
    status, said = batch("run", job)
    assert status == 1
    assert "UnitError: all 3 rows of the unit fail, the first with: the ricci filter" in said


def test_a_unit_that_always_fails_is_quarantined(batch, index, tmp_path):
    job, log = tmp_path / "job", write_log(tmp_path / "log.tsv", 12)
    log.write_text(log.read_text().replace("q5\t", "q5\tpoison "))
    plan(batch, job, log, index, "--unit-rows", 4)
    status, said = batch("run", job)
    assert status == 1
    where = f"{log}, rows 4 to 7: RuntimeError: poison in the batch"
    assert f"quarantined unit 1 after 3 attempts: {where}" in said
    assert sorted(parts(job)) == ["unit-00000000.parquet", "unit-00000002.parquet"]
    trace = json.loads(JobFolder(job).failure(1, 2).read_text())["trace"]
    assert "jobs/compute.py" in trace
    status, said = batch("verify", job)
    assert status == 1
    assert f"missing: unit 1 ({log}, rows 4 to 7) is quarantined after 3 attempts" in said
    assert "1 quarantined" in batch("status", job)[1]
    status, said = batch("merge", job, "--out", tmp_path / "out")
    assert (status, "the job is not complete: missing: unit 1" in said) == (1, True)
    assert batch("merge", job, "--out", tmp_path / "out", "--partial")[0] == 0
    assert pq.read_metadata(tmp_path / "out" / "merged.parquet").num_rows == 8
    status, said = batch("run", job)  # it stays set aside ...
    assert (status, len(JobFolder(job).failures(1))) == (1, 3)
    status, said = batch("run", job, "--retry-quarantined")  # ... until it is asked for
    assert (status, "1 quarantined units are tried again" in said) == (1, True)


def test_a_unit_that_kills_its_workers_is_quarantined(batch, index, tmp_path):
    job, log = tmp_path / "job", write_log(tmp_path / "log.tsv", 8)
    plan(batch, job, log, index, "--unit-rows", 4)
    folder = JobFolder(job)
    folder.make()
    gone = os.fork()
    if gone == 0:
        os._exit(0)
    os.waitpid(gone, 0)
    from ricci_gpu.jobs.leases import this_machine

    for generation in range(worker.MAX_VANISHED):
        holder = Holder("dead", this_machine(), gone, 60.0, 3, False)
        folder.lease(0, generation).write_bytes(holder.to_line())
    status, said = batch("run", job)
    assert status == 1
    assert "quarantined unit 0 after 5 attempts" in said
    assert "the worker that held it vanished without a word" in said
    assert batch("run", job, "--retry-quarantined")[0] == 0
    assert batch("verify", job)[0] == 0


def test_several_failing_units_stop_the_worker(batch, index, tmp_path):
    job, log = tmp_path / "job", write_log(tmp_path / "log.tsv", 8, first="poison ")
    plan(batch, job, log, index, "--unit-rows", 2)
    status, said = batch("run", job)
    assert status == 1
    assert "3 units failed one after the other, the last with RuntimeError: poison" in said
    assert "If the machine is at fault, mend it" in said
    assert job_status(JobFolder(job), Job.load(job)).quarantined == []


@pytest.mark.parametrize("name", ["log.tsv", "log.parquet"])
def test_a_changed_input_is_refused(batch, index, tmp_path, name):
    job, log = tmp_path / "job", tmp_path / name
    rows = {"query_id": ["a", "b"], "query": ["alpha", "beta"]}
    if name.endswith("tsv"):
        log.write_text("a\talpha\nb\tbeta\n")
    else:
        pq.write_table(pa.table(rows), log)
    plan(batch, job, log, index, "--unit-rows", 1)
    if name.endswith("tsv"):
        log.write_text("a\talphx\nb\tbeta\n")  # as long as before
    else:
        pq.write_table(pa.table(rows | {"query": ["alphx", "beta"]}), log)
    status, said = batch("run", job)
    assert (status, "was changed after the job was planned" in said) == (1, True)
    assert parts(job) == {}
    assert JobFolder(job).failed_units() == set()
    log.unlink()
    status, said = batch("run", job)
    assert (status, "cannot be read" in said) == (1, True)
    assert batch("verify", job)[0] == 1


def test_another_model_or_index_is_refused(batch, index, tmp_path, monkeypatch):
    job, log = tmp_path / "job", write_log(tmp_path / "log.tsv", 4)
    plan(batch, job, log, index)
    from jobs.program import SlowEncoder

    from ricci_gpu.models.encoder import Encoder

    with monkeypatch.context() as patch:
        patch.setattr(Encoder, "load", lambda *a: SlowEncoder(fingerprint="words-2"))
        status, said = batch("run", job)
        assert (status, "is not the one of the plan: its files differ" in said) == (1, True)
    manifest = Job.load(job)
    other = Job(**manifest.__dict__ | {"index": manifest.index | {"meta_sha256": "0"}})
    with pytest.raises(InputError, match="was built again after the job was planned"):
        UnitRanker(other, "cpu")


def test_a_damaged_part_is_named(batch, index, tmp_path):
    job, log = tmp_path / "job", write_log(tmp_path / "log.tsv", 12)
    plan(batch, job, log, index, "--unit-rows", 4)
    assert batch("run", job)[0] == 0
    whole = parts(job)
    folder = JobFolder(job)
    os.truncate(folder.part(1), 300)
    status, said = batch("verify", job)
    assert (status, f"missing: unit 1 ({log}, rows 4 to 7)" in said) == (1, True)
    assert "it cannot be read" in said
    folder.part(1).unlink()
    status, said = batch("verify", job)
    assert (status, "rows 4 to 7) is not done; run the job again" in said) == (1, True)
    assert batch("run", job)[0] == 0
    assert parts(job) == whole
    folder.part(1).write_bytes(whole["unit-00000002.parquet"])
    assert "it belongs to another job or unit" in batch("verify", job)[1]
    table = pq.read_table(pa.BufferReader(whole["unit-00000001.parquet"]))
    pq.write_table(table.take([0, 1, 1, 3]), folder.part(1))
    said = batch("verify", job)[1]
    assert f"it lacks row 6 of {log}; it has more than once row 5 of {log}" in said
    pq.write_table(table.take([1, 0, 2, 3]), folder.part(1))
    assert "its rows are not in the order of the input" in batch("verify", job)[1]
    folder.part(1).write_bytes(whole["unit-00000001.parquet"])
    folder.part(9).write_bytes(b"")
    status, said = batch("verify", job)
    assert (status, "belongs to no unit of the job. Remove it" in said) == (1, True)


def test_merge_keeps_the_order_and_writes_a_run(batch, index, tmp_path):
    one, two = write_log(tmp_path / "b.tsv", 5), write_log(tmp_path / "a.tsv", 3)
    two.write_text(two.read_text().replace("q", "r"))
    job = tmp_path / "job"
    plan(batch, job, one, index, "--queries", two, "--unit-rows", 2)
    assert batch("run", job)[0] == 0
    assert batch("merge", job, "--out", tmp_path / "out", "--trec")[0] == 0
    merged = pq.read_table(tmp_path / "out" / "merged.parquet").to_pylist()
    assert merged == answers(job)
    assert [row["query_id"] for row in merged] == ["q0", "q1", "q2", "q3", "q4", "r0", "r1", "r2"]
    run = [line.split() for line in (tmp_path / "out" / "run.trec").read_text().splitlines()]
    assert list(dict.fromkeys(cells[0] for cells in run)) == [row["query_id"] for row in merged]
    for row in merged:
        mine = [cells for cells in run if cells[0] == row["query_id"]]
        assert [cells[2] for cells in mine] == [hit["id"] for hit in row["hits"]]
        written = np.array([float(cells[4]) for cells in mine], dtype=np.float32)
        assert (np.diff(written) < 0).all()
        raw = [hit["score"] for hit in row["hits"]]
        assert raw == sorted(raw, reverse=True)
        np.testing.assert_allclose(written, raw, atol=1e-5)


def test_a_run_cannot_hold_an_id_twice(batch, index, tmp_path):
    log = tmp_path / "log.tsv"
    log.write_text("1\talpha\n1\tbeta\n")
    plan(batch, tmp_path / "job", log, index)
    assert batch("run", tmp_path / "job")[0] == 0
    status, said = batch("merge", tmp_path / "job", "--out", tmp_path / "out", "--trec")
    assert (status, "a TREC run holds each query once" in said) == (1, True)
    assert list((tmp_path / "out").iterdir()) == []
    assert batch("merge", tmp_path / "job", "--out", tmp_path / "out")[0] == 0


def test_status_counts(batch, index, tmp_path):
    job, log = tmp_path / "job", write_log(tmp_path / "log.tsv", 12)
    plan(batch, job, log, index, "--unit-rows", 4)
    said = batch("status", job)[1]
    assert "0 of 3 done, 0 in work, 3 in the queue, 0 quarantined" in said
    assert "left" not in said
    folder = JobFolder(job)
    mine = worker.Worker(folder, "cpu", 60.0)
    assert mine._try(0)
    with mine._leases.take(1):
        said = batch("status", job)[1]
    assert "1 of 3 done, 1 in work, 1 in the queue" in said
    assert "rows:  4 of 12 done" in said
    assert "rows/s (1 at work)" in said
    assert "left:" in said
    assert [duration(each) for each in (3.6, 75.0, 7320.0)] == ["4 s", "1 min 15 s", "2 h 02 min"]


def test_calibration_says_how_long_it_will_take(batch, index, tmp_path):
    log = write_log(tmp_path / "log.tsv", 12)
    options = ["--queries", log, "--index", index, "--unit-rows", 4, "--calibrate", 0.05]
    status, said = batch("plan", tmp_path / "job", *options)
    assert status == 0
    assert "rows/s per worker" in said
    assert "of one worker, divided by the number of workers" in said
    assert "memory:" in said
    assert parts(tmp_path / "job") == {}


def test_costly_units_come_first(batch, index, tmp_path, monkeypatch):
    log = tmp_path / "log.tsv"
    log.write_text("1\talpha\n2\tbeta " + "gamma " * 50 + "\n3\tdelta epsilon\n")
    plan(batch, tmp_path / "job", log, index, "--unit-rows", 1)
    order = []
    write = worker.write_part
    monkeypatch.setattr(worker, "write_part", lambda *a: (order.append(a[2]), write(*a)))
    assert batch("run", tmp_path / "job")[0] == 0
    assert order == [1, 2, 0]


def test_reading_a_unit_reads_no_more(batch, index, tmp_path, monkeypatch):
    """Memory does not grow with the log."""
    log = write_log(tmp_path / "log.tsv", 5000)
    plan(batch, tmp_path / "job", log, index, "--unit-rows", 10)
    job = Job.load(tmp_path / "job")
    with rows_module.open_text(str(log)) as file:
        sizes = []
        reader = SimpleNamespace(seek=file.seek, read=lambda n: sizes.append(n) or file.read(n))
        monkeypatch.setattr(rows_module, "open_text", lambda path: nullcontext(reader))
        rows = rows_module.read_unit(job, job.units[-1])
    assert [row.row for row in rows] == list(range(4990, 5000))
    assert sizes == [job.units[-1].length]
    assert sizes[0] < log.stat().st_size / 100


def test_refused_options(batch, index, tmp_path):
    log = write_log(tmp_path / "log.tsv", 4)
    plan(batch, tmp_path / "job", log, index)
    assert (
        "--workers must be at least 1; got 0" in batch("run", tmp_path / "job", "--workers", 0)[1]
    )
    said = batch("run", tmp_path / "job", "--lease-seconds", 0)[1]
    assert "--lease-seconds must be positive; got 0.0" in said
    said = batch("status", "s3://bucket/job")[1]
    assert "must be a path on a (shared) file system; got the URL" in said
