import sys

import numpy as np
import pytest
import torch

from ricci_gpu.corpus.index import DenseIndex
from ricci_gpu.errors import InputError, MissingDependencyError, SettingError

faiss = pytest.importorskip("faiss")


def unit(count, width=16, seed=0):
    rows = np.random.default_rng(seed).normal(size=(count, width))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return torch.from_numpy(rows.astype(np.float32))


def oracle(vectors, queries, k):
    """Exact search in float64, ties by lower row."""
    scores = queries.double().numpy() @ vectors.double().numpy().T
    rows = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return np.take_along_axis(scores, rows, 1), rows


@pytest.mark.parametrize("k", [1, 7, 500])
@pytest.mark.parametrize("width", [3, 16, 384])
def test_flat_is_exact(width, k):
    vectors, queries = unit(500, width), unit(50, width, seed=1)
    scores, rows = DenseIndex.build(vectors).search(queries, k)
    expected_scores, expected_rows = oracle(vectors, queries, k)
    assert np.abs(scores.numpy() - expected_scores).max() < 1e-6
    np.testing.assert_array_equal(rows.numpy(), expected_rows)
    assert scores.dtype == torch.float32
    assert rows.dtype == torch.int64


@pytest.mark.parametrize("k", [1, 3, 10, 40])
def test_ties_are_ordered_by_row_even_across_the_end(k):
    vectors = unit(20, 384)[torch.arange(20).repeat(30)]  # every vector thirty times
    queries = unit(25, 384, seed=2)
    index = DenseIndex.build(vectors)
    _, rows = index.search(queries, k)
    _, expected = oracle(vectors[:20], queries, 20)
    order = np.concatenate([expected[:, [i]] + 20 * np.arange(30) for i in range(20)], axis=1)
    np.testing.assert_array_equal(rows.numpy(), order[:, :k])


def test_answer_does_not_depend_on_the_other_queries():
    vectors, queries = unit(3000, 384), unit(64, 384, seed=3)
    index = DenseIndex.build(vectors)
    scores, rows = index.search(queries, 20)
    for start in (0, 5, 63):
        alone = index.search(queries[start : start + 1], 20)
        assert torch.equal(alone[0][0], scores[start])
        assert torch.equal(alone[1][0], rows[start])


def test_blocks_do_not_change_the_answer(monkeypatch):
    vectors, queries = unit(300), unit(40, seed=4)
    scores, rows = DenseIndex.build(vectors).search(queries, 5)
    monkeypatch.setattr("ricci_gpu.corpus.index.BLOCK", 100)
    small = DenseIndex.build(vectors).search(queries, 5)
    assert torch.equal(small[0], scores)
    assert torch.equal(small[1], rows)


def test_vectors_of_any_length():
    vectors = unit(200) * torch.linspace(0.01, 1000, 200)[:, None]
    queries = unit(10, seed=5) * 37
    _, rows = DenseIndex.build(vectors).search(queries, 12)
    np.testing.assert_array_equal(rows.numpy(), oracle(vectors, queries, 12)[1])


def test_k_above_the_size_gives_everything():
    vectors = unit(5)
    scores, rows = DenseIndex.build(vectors).search(vectors, 100)
    assert scores.shape == rows.shape == (5, 5)
    assert torch.equal(rows.sort(dim=1).values, torch.arange(5).expand(5, 5))


def test_no_queries():
    scores, rows = DenseIndex.build(unit(5)).search(unit(0), 3)
    assert scores.shape == rows.shape == (0, 3)


@pytest.mark.parametrize("kind", ["hnsw", "ivf"])
def test_approximate_kinds_find_nearly_all(kind):
    vectors, queries = unit(4000), unit(50, seed=6)
    scores, rows = DenseIndex.build(vectors, kind).search(queries, 10)
    expected_scores, expected = oracle(vectors, queries, 10)
    recall = np.mean([np.isin(e, r).mean() for e, r in zip(expected, rows.numpy(), strict=True)])
    # searched lists: 16 of 102 clusters for ivf, on data without clusters
    assert recall > {"hnsw": 0.98, "ivf": 0.6}[kind]
    exact = (queries.double()[:, None] * vectors.double()[rows]).sum(dim=-1)
    assert (scores - exact).abs().max() < 1e-6
    assert (scores.diff(dim=1) <= 0).all()
    assert (scores[:, 0].numpy() <= expected_scores[:, 0] + 1e-6).all()


def test_approximate_search_that_finds_fewer_than_k():
    index = DenseIndex.build(unit(4000), "ivf")
    index._index.nprobe = 1
    scores, rows = index.search(unit(5, seed=7), 500)
    assert rows.shape == (5, 500)
    lost = rows == -1
    assert lost[:, -1].all()
    assert not lost[:, 0].any()
    assert torch.equal(lost, torch.isneginf(scores))


def test_small_corpora_work_with_every_kind():
    for kind in ("flat", "hnsw", "ivf"):
        _, rows = DenseIndex.build(unit(1), kind).search(unit(1), 3)
        assert rows.tolist() == [[0]]


@pytest.mark.parametrize("kind", ["flat", "hnsw", "ivf"])
def test_saved_and_loaded(tmp_path, kind):
    index, queries = DenseIndex.build(unit(400), kind), unit(10, seed=8)
    index.save(tmp_path / "index.faiss")
    again = DenseIndex.load(tmp_path / "index.faiss")
    assert (again.kind, again.size, again.width) == (kind, 400, 16)
    for mine, other in zip(index.search(queries, 9), again.search(queries, 9), strict=True):
        assert torch.equal(mine, other)
    assert [path.name for path in tmp_path.iterdir()] == ["index.faiss"]


def test_failed_save_leaves_nothing(tmp_path, monkeypatch):
    def fail(index, path):
        with open(path, "w") as file:
            file.write("half")
        raise RuntimeError("disk full")

    monkeypatch.setattr(faiss, "write_index", fail)
    with pytest.raises(RuntimeError, match="disk full"):
        DenseIndex.build(unit(4)).save(tmp_path / "index.faiss")
    assert list(tmp_path.iterdir()) == []


def test_bad_files(tmp_path):
    path = tmp_path / "index.faiss"
    with pytest.raises(InputError, match=r"not a readable faiss index \(.*No such file"):
        DenseIndex.load(path)
    DenseIndex.build(unit(400)).save(path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match=r"not a readable faiss index .* Build the index again"):
        DenseIndex.load(path)
    faiss.write_index(faiss.IndexFlatL2(4), str(path))
    with pytest.raises(InputError, match="must be a flat, hnsw or ivf index by inner product"):
        DenseIndex.load(path)


def test_bad_vectors_are_named():
    vectors = unit(9)
    vectors[2] = 0
    vectors[4, 1] = torch.nan
    vectors[7, 0] = -torch.inf
    with pytest.raises(InputError, match=r"to index .* 3 of 9 are not \(rows 2, 4, 7\)\. Encode"):
        DenseIndex.build(vectors)
    with pytest.raises(InputError, match=r"to search .* 1 of 1 are not \(rows 0\)"):
        DenseIndex.build(unit(9)).search(vectors[4:5], 1)
    with pytest.raises(InputError, match=r"9 of 9 are not \(rows 0, 1, 2, 3, 4, \.\.\.\)"):
        DenseIndex.build(torch.zeros(9, 3))


def test_bad_settings_and_shapes():
    with pytest.raises(SettingError, match=r"unknown index kind `flatt`\. Did you mean `flat`"):
        DenseIndex.build(unit(3), "flatt")
    index = DenseIndex.build(unit(3))
    with pytest.raises(SettingError, match=r"`k` must be at least 1; got 0\. Raise it"):
        index.search(unit(1), 0)
    with pytest.raises(InputError, match=r"the width of the index, 16; got 8\. Encode the queries"):
        index.search(unit(1, 8), 1)
    with pytest.raises(InputError, match="an index needs at least one vector; got none"):
        DenseIndex.build(unit(0))


def test_without_faiss_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(MissingDependencyError, match=r"a dense index .*ricci-gpu\[faiss-cpu\]"):
        DenseIndex.build(unit(3))


KINDS = ("flat", "hnsw", "ivf")


@pytest.mark.parametrize("kind", KINDS)
def test_added_vectors_are_found(kind):
    vectors, more = unit(400), unit(30, seed=11)
    index = DenseIndex.build(vectors, kind)
    index.search(vectors[:1], 1)  # what is cached of the old vectors must not stay
    assert index.add(more * 3) == range(400, 430)
    assert (index.size, index.live) == (430, 430)
    _, rows = index.search(more, 1)
    assert rows[:, 0].tolist() == list(range(400, 430))


def test_flat_stays_exact_after_adding():
    vectors, more, queries = unit(300), unit(200, seed=11) * 5, unit(40, seed=12)
    index = DenseIndex.build(vectors)
    index.search(queries, 3)
    index.add(more)
    _, rows = index.search(queries, 20)
    np.testing.assert_array_equal(rows.numpy(), oracle(torch.cat([vectors, more]), queries, 20)[1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mapped", [False, True])
def test_deleted_rows_are_passed_over_and_the_others_keep_their_numbers(tmp_path, kind, mapped):
    vectors, queries = unit(500), unit(25, seed=13)
    index = DenseIndex.build(vectors, kind)
    if kind == "ivf":
        index._index.nprobe = 1000  # every cluster: exact
    _, before = index.search(queries, 10)
    gone = sorted(set(before[:, :3].flatten().tolist()))
    index.delete(gone)
    assert index.live == 500 - len(gone)
    index.save(tmp_path / "index.faiss")
    for each in (index, DenseIndex.load(tmp_path / "index.faiss", mapped)):
        _, rows = each.search(queries, 10)
        assert not np.isin(rows.numpy(), gone).any()
        left = np.setdiff1d(np.arange(500), gone)
        expected = left[oracle(vectors[left], queries, 10)[1]]
        if kind == "hnsw":
            assert np.mean([np.isin(e, r) for e, r in zip(expected, rows, strict=True)]) > 0.95
        else:
            np.testing.assert_array_equal(rows.numpy(), expected)
        _, everything = each.search(queries[:1], 1000)
        assert everything.shape == (1, each.live)


def test_everything_deleted_finds_nothing():
    index = DenseIndex.build(unit(3))
    index.delete([0, 1, 2])
    scores, rows = index.search(unit(2), 5)
    assert scores.shape == rows.shape == (2, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_mapped_index_answers_alike_and_cannot_grow(tmp_path, kind):
    index, queries = DenseIndex.build(unit(600), kind), unit(10, seed=8)
    index.save(tmp_path / "index.faiss")
    mapped = DenseIndex.load(tmp_path / "index.faiss", mapped=True)
    for mine, other in zip(index.search(queries, 9), mapped.search(queries, 9), strict=True):
        assert torch.equal(mine, other)
    with pytest.raises(InputError, match=r"mapped from its file\. Load it with mapped=False"):
        mapped.add(unit(1))


def test_an_old_file_and_new_deletions_fit(tmp_path):
    index = DenseIndex.build(unit(20))
    index.save(tmp_path / "index.faiss")
    np.save(tmp_path / "index.faiss.deleted.npy", np.array([3, 25]))  # 25 was not written in time
    assert DenseIndex.load(tmp_path / "index.faiss").live == 19


def test_rows_and_vectors_that_do_not_fit():
    index = DenseIndex.build(unit(5))
    with pytest.raises(InputError, match=r"must lie between 0 and 4; got 5\. Correct it"):
        index.delete([1, 5])
    assert index.live == 5
    with pytest.raises(
        InputError, match=r"vectors to add must have the width of the index, 16; got"
    ):
        index.add(unit(2, width=3))
    with pytest.raises(InputError, match=r"vectors to add must be finite and not zero"):
        index.add(torch.zeros(1, 16))


def test_gpus_that_are_not_here():
    with pytest.raises(SettingError, match=r"hnsw on CPUs alone\. Use `flat` or `ivf` on GPUs"):
        DenseIndex.build(unit(5), "hnsw").copy_to_gpus()
    if not hasattr(faiss, "index_cpu_to_all_gpus") or faiss.get_num_gpus() == 0:
        with pytest.raises(SettingError, match=r"needs a GPU and faiss built for it; .*faiss-gpu"):
            DenseIndex.build(unit(5)).copy_to_gpus()


class FakeGpus:
    """Stands in for the GPU functions of faiss: the copy is the index itself."""

    class GpuMultipleClonerOptions:
        shard = False

    def __init__(self):
        self.shards = None

    def __getattr__(self, name):
        return getattr(faiss, name)

    def get_num_gpus(self):
        return 2

    def index_cpu_to_all_gpus(self, index, co):
        self.shards = co.shard
        return index


def test_a_copy_on_gpus_proposes_and_is_not_changed(monkeypatch):
    gpus = FakeGpus()
    monkeypatch.setattr("ricci_gpu.corpus.index._import_faiss", lambda: gpus)
    vectors, queries = unit(300), unit(9, seed=4)
    index = DenseIndex.build(vectors)
    index.copy_to_gpus()
    assert gpus.shards is True
    _, rows = index.search(queries, 7)
    np.testing.assert_array_equal(rows.numpy(), oracle(vectors, queries, 7)[1])
    for change in (lambda: index.add(unit(1)), lambda: index.delete([0])):
        with pytest.raises(InputError, match=r"copied to GPUs cannot be changed\. Load it again"):
            change()
    other = DenseIndex.build(vectors)
    other.delete([1])
    with pytest.raises(SettingError, match=r"with deleted rows stays on the CPU\. Build it again"):
        other.copy_to_gpus()
