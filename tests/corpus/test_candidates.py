import json

import numpy as np
import pytest

from ricci_gpu.corpus import Passage, Query, read_candidates
from ricci_gpu.errors import InputError

FULL = {
    "query_id": 1,
    "query": "why",
    "query_embedding": [1.0, 0.0],
    "candidates": [
        {"id": "a", "title": "T", "text": "one", "score": 2, "embedding": [0.5, 0.25]},
        {"id": 7, "text": "", "score": 1.5, "embedding": [0, 1]},
    ],
}


def write(tmp_path, *rows):
    path = tmp_path / "lists.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def without(row, *names):
    """The row and its candidates without some fields."""
    kept = {key: value for key, value in row.items() if key not in names}
    kept["candidates"] = [
        {key: value for key, value in one.items() if key not in names} for one in row["candidates"]
    ]
    return kept


def check_full(found):
    assert found.query == Query("1", "why")
    assert found.passages == [Passage("a", "T", "one"), Passage("7", "", "")]
    assert found.scores == [2.0, 1.5]
    assert found.has_text
    np.testing.assert_array_equal(found.query_embedding, np.float32([1, 0]))
    np.testing.assert_array_equal(found.embeddings, np.float32([[0.5, 0.25], [0, 1]]))
    assert found.embeddings.dtype == found.query_embedding.dtype == np.float32


def test_everything(tmp_path):
    [found] = read_candidates(write(tmp_path, FULL))
    check_full(found)


def test_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    empty = {"query_id": 2, "query": "none", "query_embedding": [0.0, 1.0], "candidates": []}
    strings = [one | {"id": str(one["id"])} for one in FULL["candidates"]]  # a column has one type
    table = pa.Table.from_pylist([FULL | {"candidates": strings}, empty])
    pq.write_table(table, tmp_path / "lists.parquet")
    found, none = read_candidates(tmp_path / "lists.parquet")
    check_full(found)
    assert none.passages == []
    assert none.embeddings.shape == (0, 2)


def test_texts_only(tmp_path):
    [found] = read_candidates(
        write(tmp_path, without(FULL, "embedding", "query_embedding", "score"))
    )
    assert found.has_text
    assert found.scores is found.embeddings is found.query_embedding is None
    assert [passage.id for passage in found.passages] == ["a", "7"]


def test_embeddings_only(tmp_path):
    [found] = read_candidates(write(tmp_path, without(FULL, "query", "text", "title")))
    assert not found.has_text
    assert found.query.text == ""
    assert found.embeddings.shape == (2, 2)


def test_empty_list_is_legal(tmp_path):
    [found] = read_candidates(write(tmp_path, {"id": "q", "query": "", "candidates": []}))
    assert found.query == Query("q", "")
    assert found.passages == []
    assert found.scores is None


def test_bad_numbers_in_embeddings_are_left_for_the_run(tmp_path):
    candidates = [{"id": "a", "embedding": [float("nan"), 1e300]}]
    row = {"id": "q", "query_embedding": [1, 1], "candidates": candidates}
    [found] = read_candidates(write(tmp_path, row))
    assert np.isnan(found.embeddings[0, 0])
    assert np.isinf(found.embeddings[0, 1])


def one(**candidate):
    return {"id": "q", "query": "x", "candidates": [candidate]}


def vector(query, candidate):
    return {
        "id": "q",
        "query_embedding": query,
        "candidates": [{"id": "a", "embedding": candidate}],
    }


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"query": "x", "candidates": []}, r"needs a field `query_id` or `_id` or `id`; found"),
        ({"id": "q", "query": "x"}, r"query `q`: needs a field `candidates`; found `id`, `query`"),
        ({"id": "q", "candidates": "a"}, r"`candidates` must be a list of objects; got a\. Write"),
        ({"id": "q", "candidates": ["a"]}, r"`candidates` must be a list of objects; got \['a'\]"),
        ({"id": "q", "candidates": []}, r"need texts, embeddings, or both; got neither\. Add"),
        (one(text="a"), r"query `q`: needs a field `id` or `_id`; found `text`"),
        (
            one(id="a"),
            r"all or none of the query and its candidates have `text`; got it for 1 of 2",
        ),
        (
            one(id="a", text="a", embedding=[1]),
            r"have `embedding`; got it for 1 of 2\. Complete it",
        ),
        (one(id="a", text="a", score="high"), r"a `score` must be a finite number; got 'high'"),
        (one(id="a", text="a", score=float("nan")), r"a finite number; got nan\. Correct it"),
        (one(id="a", text="a", score=True), r"a finite number; got True"),
        (one(id="a", text=3), r"`text` must be a string; got 3"),
        (without(FULL, "query") | {"query": 5}, r"`query` must be a string; got 5"),
        (FULL | {"query_embedding": [1]}, r"must be lists of numbers, all of one length; they are"),
        (FULL | {"query_embedding": ["a", "b"]}, r"must be lists of numbers, all of one length"),
        (vector(2, 1), r"non-empty list of numbers; got 2"),
        (vector([], []), r"non-empty list of numbers; got \[\]"),
        (
            {
                "id": "q",
                "query": "x",
                "candidates": [{"id": 1, "text": ""}, {"id": "1", "text": ""}],
            },
            r"line 1, query `q`: every candidate id must be unique .*: `1`",
        ),
        (
            {"id": "q", "query": "x", "candidates": [FULL["candidates"][0], {"id": 2, "text": ""}]},
            r"`embedding`; got it for 1 of 3",
        ),
        (
            without(FULL, "embedding", "query_embedding")
            | {"candidates": [{"id": 1, "text": "", "score": 1}, {"id": 2, "text": ""}]},
            r"all or none of the candidates have `score`; got it for 1 of 2",
        ),
    ],
)
def test_bad_rows(tmp_path, row, message):
    with pytest.raises(InputError, match=message) as caught:
        read_candidates(write(tmp_path, row))
    assert "lists.jsonl, line 1" in str(caught.value)


def test_query_ids_are_unique(tmp_path):
    with pytest.raises(InputError, match=r"every query id must be unique .*: `1`"):
        read_candidates(write(tmp_path, FULL, FULL | {"query_id": "1"}))


def test_embeddings_of_a_file_have_one_length(tmp_path):
    other = {"id": "q", "query_embedding": [1, 2, 3], "candidates": []}
    with pytest.raises(InputError, match=r"line 2: all embeddings of a file .* got 3 after 2"):
        read_candidates(write(tmp_path, FULL, other))


def test_empty_file_and_wrong_format(tmp_path):
    with pytest.raises(InputError, match="need at least one query; the file is empty"):
        read_candidates(write(tmp_path))
    with pytest.raises(
        InputError, match=r"one of `\.jsonl`, `\.ndjson`, `\.parquet` .*got `\.tsv`"
    ):
        read_candidates(tmp_path / "lists.tsv")
