"""Every kind of input, from files to answers: flat tables that are joined, ids in an index, ready
vectors, URLs."""

import gzip
import json
import sqlite3

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jobs.conftest import WORDS, answers, parts
from jobs.program import SlowEncoder

from ricci_gpu import Reranker
from ricci_gpu.batch import TokenPool
from ricci_gpu.config import Config
from ricci_gpu.corpus import CorpusStore, Passage
from ricci_gpu.errors import InputError
from ricci_gpu.jobs import join
from ricci_gpu.jobs.join import join_tables
from ricci_gpu.jobs.manifest import Job
from ricci_gpu.jobs.plan import plan_job
from ricci_gpu.pipeline import Pipeline, Pools, pack_documents

TEXTS = {f"d{i}": " ".join(WORDS[(i * j) % 10] for j in range(1, 5)) for i in range(12)}
QUERIES = {f"q{i}": f"{WORDS[i]} {WORDS[i + 1]}" for i in range(5)}
# q3 has no candidate; rows are not sorted by query
PAIRS = [(f"q{i % 3 if i % 3 != 2 else 4}", f"d{(5 * i) % 12}", 10.0 - i) for i in range(11)]


def pool_of(query: str) -> list[str]:
    return [passage for of, passage, _ in PAIRS if of == query]


@pytest.fixture
def corpus_index(tmp_path):
    folder = tmp_path / "corpus-index"
    passages = [Passage(name, "", text) for name, text in TEXTS.items()]
    CorpusStore.build(passages, SlowEncoder(), folder)
    return folder


@pytest.fixture
def tables(tmp_path):
    """The same tables in many formats."""
    write = {
        "queries.tsv": "".join(f"{name}\t{text}\n" for name, text in QUERIES.items()),
        "queries.jsonl": lines({"_id": name, "text": text} for name, text in QUERIES.items()),
        "run.trec": "".join(f"{q} Q0 {d} {i} {s} tag\n" for i, (q, d, s) in enumerate(PAIRS)),
        "named.tsv": "docid\tqid\tscore\n" + "".join(f"{d}\t{q}\t{s}\n" for q, d, s in PAIRS),
        "ids.jsonl": lines({"qid": q, "pid": d, "score": s} for q, d, s in PAIRS),
        "texts.jsonl": lines(
            {"query_id": q, "id": d, "text": TEXTS[d], "score": s} for q, d, s in PAIRS
        ),
        "top.tsv": "".join(f"{q}\t{d}\t{QUERIES[q]}\t{TEXTS[d]}\n" for q, d, _ in PAIRS),
        "corpus.jsonl": lines({"_id": name, "text": text} for name, text in TEXTS.items()),
        "corpus.tsv": "".join(f"{name}\t\t{text}\n" for name, text in TEXTS.items()),
        "nested.jsonl": lines(
            {
                "query_id": q,
                "query": text,
                "candidates": [
                    {"id": d, "text": TEXTS[d], "score": s} for of, d, s in PAIRS if of == q
                ],
            }
            for q, text in QUERIES.items()
        ),
        "nested-ids.jsonl": lines(
            {
                "query_id": q,
                "query": text,
                "candidates": [{"id": d, "score": s} for of, d, s in PAIRS if of == q],
            }
            for q, text in QUERIES.items()
        ),
    }
    for name, content in write.items():
        (tmp_path / name).write_text(content)
    columns = [dict(zip(("query_id", "docno", "score"), pair, strict=True)) for pair in PAIRS]
    pq.write_table(pa.Table.from_pylist(columns), tmp_path / "ids.parquet", row_group_size=3)
    (tmp_path / "ids.trec.gz").write_bytes(gzip.compress(write["run.trec"].encode()))
    return tmp_path


def lines(rows) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def run_job(batch, job, *options) -> list[dict]:
    status, said = batch("plan", job, *options, "--unit-rows", 2)
    assert status == 0, said
    assert batch("run", job)[0] == 0
    status, said = batch("verify", job)
    assert status == 0, said
    return answers(job)


def essence(rows: list[dict]) -> list[tuple]:
    """What must not depend on how the pools were given."""
    return [
        (
            row["query_id"],
            row["error"],
            [(hit["id"], hit["position"]) for hit in row["hits"]],
            [round(hit["score"], 4) for hit in row["hits"]],
            sorted(hit["id"] for hit in row["dropped"]),
        )
        for row in rows
    ]


@pytest.fixture
def expected(batch, tables):
    """The answers to nested pools with texts, in the order of the queries."""
    rows = essence(run_job(batch, tables / "nested", "--candidates", tables / "nested.jsonl"))
    assert [row[0] for row in rows] == list(QUERIES)
    assert [len(row[2]) + len(row[4]) for row in rows] == [len(pool_of(q)) for q in QUERIES]
    return rows


FLAT = ["run.trec", "ids.trec.gz", "named.tsv", "ids.jsonl", "ids.parquet"]


@pytest.mark.parametrize("candidates", FLAT)
def test_flat_candidates_with_queries_and_a_corpus(batch, tables, expected, candidates):
    for number, (queries, corpus) in enumerate(
        [("queries.tsv", "corpus.jsonl"), ("queries.jsonl", "corpus.tsv")]
    ):
        options = ["--candidates", tables / candidates, "--queries", tables / queries]
        found = run_job(batch, tables / f"{number}", *options, "--corpus", tables / corpus)
        assert essence(found) == expected


def test_flat_candidates_with_texts(batch, tables, expected):
    options = ["--candidates", tables / "texts.jsonl", "--queries", tables / "queries.tsv"]
    assert essence(run_job(batch, tables / "job", *options)) == expected
    assert not list((tables / "job").glob(".*"))  # neither the database nor a half file


@pytest.mark.parametrize("candidates", ["nested-ids.jsonl", *FLAT])
def test_ids_in_an_index(batch, tables, corpus_index, expected, candidates, made):
    options = ["--candidates", tables / candidates, "--index", corpus_index]
    if candidates != "nested-ids.jsonl":
        options += ["--queries", tables / "queries.tsv"]
    made.clear()
    found = run_job(batch, tables / "job", *options)
    encoded = {text for encoder in made for call in encoder.calls for text in call}
    assert encoded <= set(QUERIES.values())  # passages are not encoded again
    for row, want in zip(essence(found), expected, strict=True):
        # Token vectors of an index are kept in half precision.
        assert (row[0], row[1], sorted(row[2]), row[4]) == (want[0], None, sorted(want[2]), want[4])
        np.testing.assert_allclose(sorted(row[3]), sorted(want[3]), atol=2e-3)


def test_ms_marco_triples_bring_their_queries(batch, tables, expected):
    found = essence(run_job(batch, tables / "job", "--candidates", tables / "top.tsv"))
    asked = list(dict.fromkeys(of for of, *_ in PAIRS))  # those with candidates, as they come
    assert [row[0] for row in found] == asked
    by_id = {row[0]: row for row in expected}
    for row in found:  # without scores of a first stage, which decide nothing here
        assert row == by_id[row[0]]


def test_tables_by_url(batch, tables, expected):
    memory = fsspec.filesystem("memory")
    for name in ("run.trec", "queries.tsv", "corpus.jsonl", "nested.jsonl"):
        memory.pipe(f"/logs/{name}", (tables / name).read_bytes())
    options = ["--candidates", "memory://logs/run.trec", "--queries", "memory://logs/queries.tsv"]
    found = run_job(batch, tables / "job", *options, "--corpus", "memory://logs/corpus.jsonl")
    assert essence(found) == expected
    found = run_job(batch, tables / "again", "--candidates", "memory://logs/nested.jsonl")
    assert essence(found) == expected
    options = ["--candidates", f"file://{tables}/ids.parquet"]
    options += ["--queries", f"file://{tables}/queries.jsonl"]
    options += ["--corpus", f"file://{tables}/corpus.tsv"]
    assert essence(run_job(batch, tables / "files", *options)) == expected


def with_vectors(query: str) -> dict:
    """A nested row of embeddings and token vectors."""
    encoder = SlowEncoder()
    texts = [TEXTS[name] for name in pool_of(query)]
    encoded = encoder.encode([QUERIES[query], *texts], tokens=True)
    words = [
        part.tolist() for part in encoded.token_vectors.split(encoded.token_offsets.diff().tolist())
    ]
    vectors = encoded.vectors.tolist()
    return {
        "query_id": query,
        "query_embedding": vectors[0],
        "query_tokens": words[0],
        "candidates": [
            {"id": name, "embedding": vector, "tokens": tokens}
            for name, vector, tokens in zip(pool_of(query), vectors[1:], words[1:], strict=True)
        ],
    }


@pytest.mark.parametrize("half", [False, True])
def test_embeddings_and_token_vectors_need_no_model(batch, tables, expected, made, half):
    rows = [with_vectors(query) for query in QUERIES]
    (tables / "vectors.jsonl").write_text(lines(rows))
    number = pa.float16() if half else pa.float32()
    tokens = pa.list_(pa.list_(number, 16))
    candidate = pa.struct(
        [("id", pa.string()), ("embedding", pa.list_(number)), ("tokens", tokens)]
    )
    schema = pa.schema(
        [
            ("query_id", pa.string()),
            ("query_embedding", pa.list_(number, 16)),
            ("query_tokens", tokens),
            ("candidates", pa.list_(candidate)),
        ]
    )
    if half:
        for row in rows:
            halve(row)
    pq.write_table(pa.Table.from_pylist(rows, schema), tables / "vectors.parquet")
    made.clear()
    for name in ("vectors.jsonl", "vectors.parquet"):
        found = essence(run_job(batch, tables / name[-5:], "--candidates", tables / name))
        for row, want in zip(found, expected, strict=True):
            assert row[:3] == (*want[:2], want[2])
            np.testing.assert_allclose(row[3], want[3], atol=2e-3 if half else 2e-4)
    assert made == []


def halve(row: dict) -> None:
    """Numbers as half precision holds them, which is the type that Arrow asks for."""
    for name in ("query_embedding", "query_tokens", "embedding", "tokens"):
        if name in row:
            row[name] = list(np.array(row[name], dtype=np.float16))
    for one in row.get("candidates", ()):
        halve(one)


def test_vectors_in_flat_tables(batch, tables, expected, made):
    rows = [with_vectors(query) for query in QUERIES]
    keys = ("query_id", "query_embedding", "query_tokens")
    queries = [{key: row[key] for key in keys} for row in rows]
    pairs = [one | {"query_id": row["query_id"]} for row in rows[::-1] for one in row["candidates"]]
    pq.write_table(pa.Table.from_pylist(queries), tables / "q.parquet")
    pq.write_table(pa.Table.from_pylist(pairs), tables / "c.parquet")
    made.clear()
    options = ["--candidates", tables / "c.parquet", "--queries", tables / "q.parquet"]
    found = essence(run_job(batch, tables / "job", *options))
    for row, want in zip(found, expected, strict=True):
        assert [name for name, _ in row[2]] == [name for name, _ in want[2]]
        np.testing.assert_allclose(row[3], want[3], atol=2e-4)
    assert made == []


def test_given_token_vectors_are_compared_as_they_are(batch, tmp_path):
    """Against the pipeline, fed by hand with vectors that have no length in common."""
    rng = np.random.default_rng(0)
    shapes = [(3, [2, 4, 0]), (2, []), (1, [5])]
    rows, query_tokens, documents = [], [], []
    for at, (length, pool) in enumerate(shapes):
        query_tokens.append(rng.normal(size=(length, 4)).astype(np.float32))
        documents.append([rng.normal(size=(n, 4)).astype(np.float32) for n in pool])
        vectors = rng.normal(size=(1 + len(pool), 3))
        rows.append(
            {
                "query_id": str(at),
                "query_embedding": vectors[0].tolist(),
                "query_tokens": query_tokens[-1].tolist(),
                "candidates": [
                    {"id": str(c), "embedding": v.tolist(), "tokens": d.tolist(), "score": 1.0}
                    for c, (v, d) in enumerate(zip(vectors[1:], documents[-1], strict=True))
                ],
            }
        )
    (tmp_path / "rows.jsonl").write_text(lines(rows))
    found = run_job(batch, tmp_path / "job", "--candidates", tmp_path / "rows.jsonl")
    import torch

    flat = [torch.from_numpy(d) for pool in documents for d in pool]
    pools = Pools(
        query_ids=["0", "1", "2"],
        queries=[""] * 3,
        candidate_ids=[["0", "1", "2"], [], ["0"]],
        prior=[torch.ones(3), torch.ones(0), torch.ones(1)],
        tokens=TokenPool(
            torch.cat([torch.from_numpy(each) for each in query_tokens]),
            torch.tensor([0, 3, 5, 6]),
            torch.cat(flat),
            torch.tensor([0, 2, 6, 6, 11]),
            pack_documents([[0, 1, 2], [], [3]]),
        ),
    )
    for row, want in zip(found, Pipeline(Config.load("default")).rank(pools), strict=True):
        assert [hit["id"] for hit in row["hits"]] == [hit.id for hit in want.hits]
        scores = [[hit["score"] for hit in row["hits"]], [hit.score for hit in want.hits]]
        np.testing.assert_allclose(*scores, atol=1e-5)


def test_bad_candidates_of_an_index_are_errors_of_their_row(batch, tables, corpus_index):
    rows = [
        {"query_id": "a", "query": "alpha", "candidates": [{"id": "d1"}, {"id": "d2"}]},
        {"query_id": "b", "query": "alpha", "candidates": [{"id": "nowhere"}, {"id": "d2"}]},
        {"query_id": "c", "candidates": [{"id": "d2"}]},
        {"query_id": "d", "query": "alpha", "candidates": []},
    ]
    (tables / "rows.jsonl").write_text(lines(rows))
    options = ["--candidates", tables / "rows.jsonl", "--index", corpus_index]
    found = run_job(batch, tables / "job", *options)
    assert [row["status"] for row in found] == ["ok", "error", "error", "too_few_nodes"]
    assert "must be a passage of the index; `nowhere` is not" in found[1]["error"]
    assert "candidates in an index need the text of their query" in found[2]["error"]


def test_rows_of_no_query_are_left_out_and_counted(batch, tables, caplog):
    queries = tables / "few.tsv"
    queries.write_text("q1\talpha beta\nq9\tgamma\nq1\talpha beta\n")  # an id twice is legal
    options = ["--candidates", tables / "texts.jsonl", "--queries", queries]
    assert batch("plan", tables / "job", *options)[0] == 0
    left = len(PAIRS) - len(pool_of("q1"))
    assert (
        f"{left} rows of candidates belong to no query of the table, and are left out"
        in caplog.text
    )
    assert batch("run", tables / "job")[0] == 0
    found = answers(tables / "job")
    assert [row["query_id"] for row in found] == ["q1", "q9", "q1"]
    assert found[0]["hits"] == found[2]["hits"]
    assert found[1]["hits"] == found[1]["dropped"] == []


def test_the_same_tables_give_the_same_job(batch, tables):
    options = ["--candidates", tables / "texts.jsonl", "--queries", tables / "queries.tsv"]
    run_job(batch, tables / "job", *options)
    whole = parts(tables / "job")
    assert batch("plan", tables / "job", *options, "--unit-rows", 2)[0] == 0  # nothing changes
    status, said = batch("plan", tables / "job", *options, "--unit-rows", 3)
    assert (status, "holds another job" in said) == (1, True)
    job = Job.load(tables / "job")
    assert [each["role"] for each in job.joined] == ["candidates", "queries"]
    assert [path.name for path in (tables / "job").glob("pools-*")] == [
        job.inputs[0].path.rsplit("/", 1)[1]
    ]
    assert batch("verify", tables / "job")[0] == 0
    assert parts(tables / "job") == whole


def test_row_groups_end_at_a_number_of_bytes(tables, monkeypatch):
    monkeypatch.setattr(join, "GROUP_BYTES", 100)
    join_tables(
        tables / "pools.parquet", [str(tables / "texts.jsonl")], [str(tables / "queries.tsv")]
    )
    groups = pq.ParquetFile(tables / "pools.parquet").metadata.num_row_groups
    assert 1 < groups <= len(QUERIES)


def test_the_join_reads_candidates_in_the_order_of_the_queries(tables, monkeypatch):
    """By way of indexes: without a sort, for which the database would hold everything again."""
    seen = []
    close = join._Database.close

    def explain(self):
        for source in ("c", "p"):
            plan = "EXPLAIN QUERY PLAN " + join.POOLS.format(source=source)
            seen.extend(row[3] for row in self._connection.execute(plan))
        close(self)

    monkeypatch.setattr(join._Database, "close", explain)
    join_tables(
        tables / "pools.parquet", [str(tables / "texts.jsonl")], [str(tables / "queries.tsv")]
    )
    assert any("USING INDEX candidates_of" in step for step in seen)
    assert not any("TEMP B-TREE" in step for step in seen), seen


def test_a_full_disk_while_joining(tables, monkeypatch):
    def full(*arguments):
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(join._Database, "read", full)
    with pytest.raises(OSError, match=r"cannot be joined on disk .database or disk is full"):
        join_tables(tables / "pools.parquet", [str(tables / "texts.jsonl")])
    assert not list(tables.glob(".*"))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.trec", "q1 Q0 d1 1 0.5\n", "`qid Q0 docno rank score tag`; got 5 words"),
        ("c.trec", "q1 Q0 d1 1 high tag\n", "a `score` must be a number; got 'high'"),
        ("c.tsv", "q1\td1\t3\n", "or begin with a line of names, .*; got 3 cells"),
        ("c.jsonl", '{"query_id": "q1"}\n', "candidates need a field `id` or .*; found `query_id`"),
        ("c.jsonl", '{"qid": "q1", "id": " "}\n', "an id must be a non-empty string"),
        ("c.jsonl", '{"qid": "x", "id": "d"}\n', "must share query ids; of 5 queries and 1 rows"),
        (
            "c.jsonl",
            '{"qid": "q1", "id": "d", "embedding": [1, 2]}\n'
            '{"qid": "q1", "id": "e", "embedding": [1]}\n',
            r"line 2: `embedding` must be a list of numbers, of one length .*here 2.; got \[1\]",
        ),
        (
            "c.jsonl",
            '{"qid": "q1", "id": "d", "tokens": [1, 2]}\n',
            "`tokens` must be a list of lists of numbers",
        ),
    ],
)
def test_bad_rows_of_a_table_are_named(tables, name, content, words):
    path = tables / name
    path.write_text(content)
    with pytest.raises(InputError, match=words):
        join_tables(tables / "pools.parquet", [str(path)], [str(tables / "queries.tsv")])
    assert not (tables / "pools.parquet").exists()


def test_tables_that_do_not_belong_together(tables, corpus_index):
    config = Config.load("default")

    def plan(*candidates, **options):
        paths = [str(tables / name) for name in candidates]
        return plan_job(config, candidates=paths, folder=tables / "job", **options)

    queries, corpus = [str(tables / "queries.tsv")], [str(tables / "corpus.jsonl")]
    with pytest.raises(InputError, match="every row of candidates brings the text of its query"):
        plan("texts.jsonl")
    with pytest.raises(InputError, match=r"all nested .* or all flat .*; got both"):
        plan("texts.jsonl", "nested.jsonl", queries=queries)
    with pytest.raises(InputError, match="nested candidates bring their own queries and texts"):
        plan("nested.jsonl", queries=queries)
    with pytest.raises(InputError, match=r"from --index or from --corpus. Leave one of them out"):
        plan("run.trec", queries=queries, corpus=corpus, index=corpus_index)
    with pytest.raises(InputError, match="and leave out --corpus"):
        plan_job(config, queries=queries, corpus=corpus, index=corpus_index)
    with pytest.raises(InputError, match="joined in the folder of the job; none was given"):
        plan_job(config, queries=queries, candidates=[str(tables / "texts.jsonl")])
    (tables / "part.tsv").write_text("d0\talpha\n")
    with pytest.raises(InputError, match=r"must be a passage of the corpus; `d5`, .* and others"):
        plan("run.trec", queries=queries, corpus=[str(tables / "part.tsv")])
    (tables / "twice.tsv").write_text("d0\talpha\nd0\tbeta\n")
    with pytest.raises(InputError, match="must be unique in a corpus; `d0` comes twice"):
        plan("run.trec", queries=queries, corpus=[str(tables / "twice.tsv")])
    (tables / "two.tsv").write_text("q1\td1\talpha\tx\nq1\td2\tbeta\ty\n")
    with pytest.raises(InputError, match="the same `query` text; query `q1` comes with two"):
        plan("two.tsv")
    with pytest.raises(InputError, match=r"these candidates are ids only. Give the index"):
        plan("run.trec", queries=queries)
    assert not list((tables / "job").iterdir())  # what was joined for a refused job is gone
    (tables / "bare.jsonl").write_text('{"qid": "q1"}\n')
    with pytest.raises(InputError, match=r"a query needs a text .* or a `query_embedding`; got n"):
        plan("texts.jsonl", queries=[str(tables / "bare.jsonl")])
    (tables / "other").mkdir()
    (tables / "other" / "file").touch()
    with pytest.raises(InputError, match="this one holds other files"):
        plan_job(
            config,
            candidates=[str(tables / "texts.jsonl")],
            queries=queries,
            folder=tables / "other",
        )


def test_the_reranker_agrees(tables, expected):
    reranker = Reranker("default")
    for row in expected:
        pool = pool_of(row[0])
        ranking = reranker.rank(QUERIES[row[0]], [TEXTS[name] for name in pool], pool)
        assert [hit.id for hit in ranking.hits] == [name for name, _ in row[2]]
