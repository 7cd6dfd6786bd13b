import gzip
import json

import pytest

from ricci_gpu.corpus import Passage, Query, count_unknown, read_corpus, read_qrels, read_queries
from ricci_gpu.errors import InputError, MissingDependencyError

PASSAGES = [Passage("1", "T", "one"), Passage("2", "", "two")]


def jsonl(rows):
    return "".join(json.dumps(row) + "\n" for row in rows)


def write(path, text, compress=False):
    path.parent.mkdir(parents=True, exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(data) if compress else data)
    return path


CORPUS_ROWS = [{"_id": "1", "title": "T", "text": "one"}, {"_id": "2", "title": "", "text": "two"}]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.jsonl", jsonl(CORPUS_ROWS)),
        ("c.jsonl.gz", jsonl(CORPUS_ROWS)),
        ("c.NDJSON", jsonl([{"id": 1, "title": "T", "text": "one"}, {"id": 2, "text": "two"}])),
        ("c.tsv", "1\tT\tone\n2\t\ttwo\n"),
        ("c.tsv.gz", "1\tT\tone\r\n\n2\t\ttwo"),
        ("c.tsv", "_id\ttext\ttitle\n1\tone\tT\n2\ttwo\t\n"),
    ],
)
def test_corpus_formats(tmp_path, name, text):
    path = write(tmp_path / name, text, compress=name.endswith(".gz"))
    assert read_corpus(path) == PASSAGES
    assert read_corpus(str(path)) == PASSAGES


def test_gzip_is_recognised_by_content_not_by_name(tmp_path):
    assert read_corpus(write(tmp_path / "c.jsonl", jsonl(CORPUS_ROWS), compress=True)) == PASSAGES
    assert read_corpus(write(tmp_path / "d.jsonl.gz", jsonl(CORPUS_ROWS))) == PASSAGES


def test_corpus_without_titles(tmp_path):
    path = write(tmp_path / "c.tsv", "id\ttext\n1\tone\n2\ttwo\n")
    assert read_corpus(path) == [Passage("1", "", "one"), Passage("2", "", "two")]


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "c.parquet"
    columns = {"id": [1, 2], "title": ["T", None], "text": ["one", "two"], "other": [0.5, 0.5]}
    pq.write_table(pa.table(columns), path)
    assert read_corpus(path) == PASSAGES
    assert read_queries(path) == [Query("1", "one"), Query("2", "two")]
    pq.write_table(pa.table({"id": [1], "body": ["one"]}), path)
    with pytest.raises(InputError, match=r"c.parquet, row 1: needs a field `text`; found `id`"):
        read_corpus(path)
    pq.write_table(pa.table({"id": [None], "text": ["one"]}), path)
    with pytest.raises(InputError, match=r"row 1: an id must be a non-empty string or an integer"):
        read_corpus(path)
    pq.write_table(pa.table({"id": pa.array([], "int64"), "text": pa.array([], "string")}), path)
    with pytest.raises(InputError, match="must hold at least one passage; the file is empty"):
        read_corpus(path)
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(InputError, match="not a readable Parquet file"):
        read_corpus(path)
    with pytest.raises(InputError, match="cannot be read"):
        read_corpus(tmp_path / "absent.parquet")


def test_parquet_without_pyarrow_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(MissingDependencyError, match=r"reading Parquet needs .*ricci-gpu\[io\]"):
        read_corpus(tmp_path / "c.parquet")


@pytest.mark.parametrize("qrels", ["qrels.tsv", "qrels/test.tsv"])
@pytest.mark.parametrize("corpus", ["corpus.jsonl", "corpus.jsonl.gz"])
def test_beir_folder(tmp_path, corpus, qrels):
    write(tmp_path / corpus, jsonl(CORPUS_ROWS), compress=corpus.endswith(".gz"))
    write(tmp_path / "queries.jsonl", jsonl([{"_id": "q", "text": "why", "answer": ["x"]}]))
    write(tmp_path / qrels, "query-id\tcorpus-id\tscore\nq\t1\t2\nq\tgone\t0\nlost\t2\t1\n")
    assert read_corpus(tmp_path) == PASSAGES
    assert read_queries(tmp_path) == [Query("q", "why")]
    judged = read_qrels(tmp_path)
    assert judged == {"q": {"1": 2, "gone": 0}, "lost": {"2": 1}}
    unknown = count_unknown(judged, {"q"}, ["1", "2"])
    assert (unknown.queries, unknown.passages) == (1, 1)


def test_folder_without_the_files(tmp_path):
    with pytest.raises(InputError, match=r"a folder of corpus must hold one of `corpus\.jsonl`"):
        read_corpus(tmp_path)
    with pytest.raises(InputError, match=r"one of `qrels\.tsv`, `qrels/test\.tsv`; it holds none"):
        read_qrels(tmp_path)


def test_query_log_keeps_odd_rows(tmp_path):
    path = write(tmp_path / "log.tsv", "1\tsame\n2\t Androgen receptor define \n3\tsame\n4\t\n5\t ")
    assert [query.text for query in read_queries(path)] == [
        *("same", "Androgen receptor define", "same", "", "")
    ]
    path = write(tmp_path / "log.jsonl", jsonl([{"id": 7, "text": " \n"}, {"id": 8, "text": None}]))
    assert read_queries(path) == [Query("7", " \n"), Query("8", "")]


def test_text_may_hold_any_character_but_the_line_feed(tmp_path):
    text = "a\u2028b\u0085c\x0b\ud83d\rd\x00"
    path = write(tmp_path / "c.jsonl", "\ufeff" + jsonl([{"id": "é", "text": text}]))
    assert read_corpus(path) == [Passage("é", "", text)]
    path = write(tmp_path / "c.tsv", "1\ta\u2028b\rc\x00\n")
    assert read_corpus(path) == [Passage("1", "", "a\u2028b\rc\x00")]


def test_the_number_one_and_the_string_are_the_same_id(tmp_path):
    path = write(tmp_path / "c.jsonl", jsonl([{"id": 1, "text": "a"}, {"id": "1", "text": "b"}]))
    with pytest.raises(InputError, match=r"passage id must be unique .* more than once: `1`\. Rem"):
        read_corpus(path)


def test_duplicate_ids_name_the_first_few(tmp_path):
    path = write(tmp_path / "q.tsv", "".join(f"q{i % 9}\tx\n" for i in range(17)))
    with pytest.raises(InputError, match=r"q.tsv: every query id .*`q0`, .*`q4` and 3 more"):
        read_queries(path)


@pytest.mark.parametrize("name", ["c.jsonl", "c.tsv"])
def test_empty_files_are_refused(tmp_path, name):
    path = write(tmp_path / name, "\n \n")
    with pytest.raises(InputError, match="a corpus must hold at least one passage; the file is em"):
        read_corpus(path)
    with pytest.raises(InputError, match="a query log must hold at least one query"):
        read_queries(path)
    with pytest.raises(InputError, match="a file of judgements must hold at least one judgement"):
        read_qrels(path)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "c.jsonl",
            '{"id": 1, "text": "a"}\n{"id": 2, "te',
            r"line 2: each line .*cut off: write it",
        ),
        ("c.jsonl", "[" * 100_000, r"line 1: each line must be one JSON object; this one cannot"),
        (
            "c.jsonl",
            '["a"]\n',
            r"line 1: each line must be one JSON object; got list\. Write it as",
        ),
        ("c.jsonl", '{"id": 1, "body": "a"}', r"line 1: needs a field `text`; found `id`, `body`"),
        ("c.jsonl", '\n{"text": "a"}', r"line 2: needs a field `_id` or `id`; found `text`\. Add"),
        ("c.jsonl", "{}", r"line 1: needs a field `_id` or `id`; found nothing"),
        ("c.jsonl", '{"id": 1.0, "text": "a"}', r"an id must be a non-empty string .*; got 1\.0"),
        ("c.jsonl", '{"id": true, "text": "a"}', r"got True\. Give every row an id"),
        ("c.jsonl", '{"id": " ", "text": "a"}', r"got ' '\. Give every row an id"),
        ("c.jsonl", '{"id": 1, "text": 5}', r"`text` must be a string; got 5\. Convert"),
        ("c.jsonl", '{"id": 1, "text": "a", "title": []}', r"`title` must be a string; got \[\]"),
        (
            "c.jsonl",
            b'{"id": 1, "text": "\xe9"}',
            r"line 1: text must be UTF-8; found byte 0xe9 at",
        ),
        ("c.tsv", "1\ta\nno tab here\n", r"line 2: must be .*; got 1 cell: 'no tab here'\. Corr"),
        ("c.tsv", "1\ta\n2\tb\tc\n", r"line 2: must be `id<TAB>text` or .*; got 3 cells"),
        ("c.tsv", "\ta\n", r"line 1: an id must be a non-empty string"),
        ("c.csv", "1,a", r"must end in one of `\.jsonl`, .*; got `\.csv`\. Rename or convert it"),
        ("c", "1,a", r"must end in one of .*; got ``"),
    ],
)
def test_bad_rows_name_file_line_and_fix(tmp_path, name, text, message):
    with pytest.raises(InputError, match=message) as caught:
        read_corpus(write(tmp_path / name, text))
    assert str(tmp_path / name) in str(caught.value)


def test_queries_take_two_columns_only(tmp_path):
    with pytest.raises(InputError, match=r"line 1: must be `id<TAB>text`, the same .* got 3 cells"):
        read_queries(write(tmp_path / "q.tsv", "1\tsome query\t2026-01-01\n"))


def test_damaged_gzip_files(tmp_path):
    whole = gzip.compress("".join(f"{i}\ttext {i * i}\n" for i in range(20_000)).encode())
    with pytest.raises(InputError, match=r"after line \d+: the gzip file is damaged or cut off"):
        read_corpus(write(tmp_path / "cut.tsv.gz", whole[: len(whole) // 2]))
    damaged = whole[:2000] + bytes(200) + whole[2200:]
    with pytest.raises(InputError, match=r"damaged or cut off .* Copy or download it again"):
        read_corpus(write(tmp_path / "damaged.tsv.gz", damaged))


def test_missing_file(tmp_path):
    with pytest.raises(
        InputError, match=r"absent\.tsv: cannot be read \(No such file.*Check the p"
    ):
        read_queries(tmp_path / "absent.tsv")


def test_trec_qrels(tmp_path):
    path = write(tmp_path / "qrels.txt", "q1 0 d1 2\nq1 0 d2  -1\n\nq2\t0\td1\t0\nq2 0 d1 0\n")
    assert read_qrels(path) == {"q1": {"d1": 2, "d2": -1}, "q2": {"d1": 0}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("q d 1\nq d 2\n", r"line 2: .*`d` has grades 1 and 2 for query `q`\. Remove one"),
        ("q d high\n", r"line 1: a grade must be an integer; got 'high'\. Correct"),
        ("q d\n", r"line 1: a judgement is .*got \['q', 'd'\]"),
        ("q\t\t1\n", r"got \['q', '', '1'\]"),
    ],
)
def test_bad_qrels(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_qrels(write(tmp_path / "qrels.tsv", text))


def test_full_text_joins_title_and_text():
    assert [passage.full_text for passage in PASSAGES] == ["T one", "two"]
