import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")

from ricci_gpu.corpus.columns import batch_rows  # noqa: E402

ROWS = [
    {
        "id": 1,
        "query_embedding": [1.0, 2.0],
        "query_tokens": [[1.0, 2.0], [3.0, 4.0]],
        "candidates": [
            {"id": "a", "embedding": [1.0, 1.5], "tokens": [[0.5, 1.0]], "text": None},
            {"id": "b", "embedding": None, "tokens": [], "text": "x"},
            None,
        ],
    },
    {"id": 2, "query_embedding": None, "query_tokens": None, "candidates": None},
    {"id": 3, "query_embedding": [], "query_tokens": [[1.0], [2.0, 3.0]], "candidates": []},
    {
        "id": 4,
        "query_embedding": [5.0, 6.0],
        "query_tokens": [],
        "candidates": [{"id": "c", "embedding": [7.0], "tokens": [[8.0, 9.0]], "text": "y"}],
    },
]


def plain(value):
    """Arrays as lists again."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, dict):
        return {name: plain(each) for name, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def test_rows_are_what_pylist_gives_with_vectors_as_arrays():
    table = pa.Table.from_pylist(ROWS)
    for first, length in ((0, 4), (1, 3), (3, 1), (0, 1), (2, 0)):
        [batch] = table.slice(first, length).to_batches() or [table.to_batches()[0].slice(0, 0)]
        assert plain(list(batch_rows(batch))) == batch.to_pylist()
    [batch] = table.to_batches()
    rows = list(batch_rows(batch))
    assert isinstance(rows[0]["query_embedding"], np.ndarray)
    assert rows[0]["query_tokens"].shape == (2, 2)
    assert isinstance(rows[0]["candidates"][0]["tokens"], np.ndarray)
    assert isinstance(rows[2]["query_tokens"], list)  # ragged: for the reader to refuse


@pytest.mark.parametrize("number", [pa.float16(), pa.float32(), pa.float64(), pa.int8()])
def test_fixed_sizes_and_large_lists(number):
    values = [[1, 2], None, [3, 4]]
    for type_ in (pa.list_(number, 2), pa.large_list(number), pa.list_(number)):
        array = pa.array(values, type_)
        batch = pa.record_batch({"query_embedding": array})
        assert [plain(row["query_embedding"]) for row in batch_rows(batch)] == values
        assert [plain(row["query_embedding"]) for row in batch_rows(batch.slice(1))] == values[1:]
    matrices = [[[1, 2]], None, [[3, 4], [5, 6]]]
    array = pa.array(matrices, pa.list_(pa.list_(number, 2)))
    found = list(batch_rows(pa.record_batch({"tokens": array}).slice(1)))
    assert [plain(row["tokens"]) for row in found] == matrices[1:]
    assert found[1]["tokens"].dtype == number.to_pandas_dtype()
