import sys
from types import SimpleNamespace

import pytest

from ricci_gpu.corpus.readers import read_corpus, read_qrels, read_queries
from ricci_gpu.errors import InputError, MissingDependencyError
from ricci_gpu.evaluation.datasets import Dataset, find_datasets, open_store


def test_every_beir_folder_is_a_dataset(data, tmp_path):
    (data / "not-a-dataset").mkdir()
    assert find_datasets(data, None, tmp_path) == [Dataset("small", data / "small")]
    assert find_datasets(data, ["small"], tmp_path) == [Dataset("small", data / "small")]
    path = str(data / "small")
    assert find_datasets(tmp_path, [path], tmp_path) == [Dataset("small", data / "small")]


def test_what_cannot_be_found_is_named(data, tmp_path):
    with pytest.raises(InputError, match=r"`.*empty` holds no BEIR folder\. Put some there"):
        find_datasets(tmp_path / "empty", None, tmp_path)
    with pytest.raises(InputError, match=r"dataset `large`: neither a folder in .* `irds:`"):
        find_datasets(data, ["large"], tmp_path)


def test_a_sample_keeps_the_judged_passages(dataset):
    sample = Dataset(dataset.name, dataset.folder, passages=20, queries=2)
    assert [len(sample.part(part).queries) for part in ("fit", "tune", "test")] == [2, 2, 2]
    judged = {
        passage
        for part in ("fit", "tune", "test")
        for query in sample.part(part).queries
        for passage in sample.part(part).qrels[query.id]
    }
    passages = [passage.id for passage in sample.corpus()]
    assert len(passages) == 20
    assert judged <= set(passages)
    everything = [passage.id for passage in dataset.corpus()]
    assert passages == [name for name in everything if name in passages]


def test_a_corpus_is_encoded_once(dataset, words, tmp_path):
    first = open_store(dataset, words, tmp_path / "cache")
    calls = len(words.calls)
    again = open_store(dataset, words, tmp_path / "cache")
    assert len(words.calls) == calls
    assert again.passages == first.passages
    words.fingerprint = "words-2"
    open_store(dataset, words, tmp_path / "cache")
    assert len(words.calls) > calls


def _collection():
    docs = [
        SimpleNamespace(doc_id="d1", title="T", text="one"),
        SimpleNamespace(doc_id="d2", default_text=lambda: "two"),
    ]
    queries = [SimpleNamespace(query_id="q1", text="which")]
    qrels = [SimpleNamespace(query_id="q1", doc_id="d2", relevance=2)]
    return SimpleNamespace(
        docs_iter=lambda: iter(docs),
        queries_iter=lambda: iter(queries),
        qrels_iter=lambda: iter(qrels),
    )


def test_an_ir_datasets_id_becomes_a_beir_folder(monkeypatch, tmp_path):
    calls = []

    def load(name):
        calls.append(name)
        if name != "toy/test":
            raise KeyError(name)
        return _collection()

    monkeypatch.setitem(sys.modules, "ir_datasets", SimpleNamespace(load=load))
    [dataset] = find_datasets(tmp_path, ["irds:toy/test"], tmp_path / "cache")
    assert dataset.name == "toy-test"
    assert [p.full_text for p in read_corpus(dataset.folder)] == ["T one", "two"]
    assert [q.text for q in read_queries(dataset.folder)] == ["which"]
    assert read_qrels(dataset.folder) == {"q1": {"d2": 2}}
    find_datasets(tmp_path, ["irds:toy/test"], tmp_path / "cache")
    assert calls == ["toy/test"]
    with pytest.raises(InputError, match="ir_datasets knows no dataset `other`"):
        find_datasets(tmp_path, ["irds:other"], tmp_path / "cache")


def test_without_ir_datasets_the_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingDependencyError, match=r"`toy`.*`ir_datasets`.*ricci-gpu\[irds\]"):
        find_datasets(tmp_path, ["irds:toy"], tmp_path)
