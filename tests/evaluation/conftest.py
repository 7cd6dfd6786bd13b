"""A small judged dataset in BEIR layout, written here, and its pools under a word encoder."""

import json
from pathlib import Path

import numpy as np
import pytest

from ricci_gpu.evaluation.datasets import Dataset, open_store
from ricci_gpu.evaluation.pools import CorpusIdf, dense_pools, encode_queries

TOPICS = 24
PASSAGES = 4  # of each topic


def write_rows(path: Path, rows: list[dict]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_dataset(folder: Path) -> Path:
    """Topics of four passages; a question names its topic and one or two of its passages."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    filler = [f"word{i}" for i in range(40)]

    def text(*words: str) -> str:
        return " ".join([*words, *rng.choice(filler, size=6)])

    corpus = [
        {"_id": f"p{t}-{i}", "title": "", "text": text(f"topic{t}", f"fact{t}x{i}")}
        for t in range(TOPICS)
        for i in range(PASSAGES)
    ]
    queries, qrels = [], ["query-id\tcorpus-id\tscore"]
    for t in range(TOPICS):
        for i in range(PASSAGES):
            two = i % 2 == 0
            facts = [f"fact{t}x{i}"] + [f"fact{t}x{i + 1}"] * two
            name = f"q{t}-{i}"
            queries.append(
                {
                    "_id": name,
                    "text": " ".join(["which", f"topic{t}", *facts]),
                    "split": "train" if t % 2 else "test",
                }
            )
            qrels += [f"{name}\tp{t}-{i + step}\t1" for step in range(1 + two)]
    write_rows(folder / "corpus.jsonl", corpus)
    write_rows(folder / "queries.jsonl", queries)
    (folder / "qrels.tsv").write_text("\n".join(qrels) + "\n")
    return folder


@pytest.fixture
def data(tmp_path):
    """A folder with one dataset, `small`."""
    write_dataset(tmp_path / "data" / "small")
    return tmp_path / "data"


@pytest.fixture
def dataset(data):
    return Dataset("small", data / "small")


@pytest.fixture
def store(dataset, words, tmp_path):
    return open_store(dataset, words, tmp_path / "cache")


@pytest.fixture
def pools_of(dataset, words, store):
    idf = CorpusIdf(store, words)

    def make(part="test", size=20):
        return dense_pools(store, encode_queries(dataset.part(part), words, idf), size)

    return make
