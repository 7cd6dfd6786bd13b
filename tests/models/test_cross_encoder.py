import logging

import numpy as np
import pytest
import torch
from checkpoints import LONG, TEXTS, edit_json, save_bert

from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.models.cross_encoder import CrossEncoder

HEAD = "BertForSequenceClassification"
PAIRS = [(query, text) for query in (TEXTS[0], "", LONG) for text in TEXTS]
RAW = "torch.nn.modules.linear.Identity"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("one_label"), HEAD, num_labels=1)


@pytest.fixture(scope="module")
def model(folder):
    return CrossEncoder.load(folder)


@pytest.fixture(scope="module")
def scores(model):
    return model.score(PAIRS)


def readable(pairs):
    return [tuple(text.replace("\ud83d", "?") for text in pair) for pair in pairs]


@pytest.mark.parametrize("activation", [None, "torch.nn.modules.activation.Sigmoid", RAW])
def test_one_label_equals_sentence_transformers(tmp_path, activation):
    library = pytest.importorskip("sentence_transformers")
    folder = save_bert(tmp_path, HEAD, num_labels=1)
    if activation is not None:
        edit_json(folder / "config.json", sentence_transformers={"activation_fn": activation})
    expected = library.CrossEncoder(str(folder), device="cpu").predict(
        readable(PAIRS), show_progress_bar=False
    )
    found = CrossEncoder.load(folder).score(PAIRS)
    assert found.dtype == torch.float32
    assert np.ptp(expected) > 0.1
    assert np.abs(found.numpy() - expected).max() < 1e-5


def test_folders_that_sentence_transformers_wrote(tmp_path, folder):
    library = pytest.importorskip("sentence_transformers")
    peer = library.CrossEncoder(str(folder), device="cpu", max_length=20)
    peer.save_pretrained(str(tmp_path))
    expected = peer.predict(readable(PAIRS), show_progress_bar=False)
    assert np.abs(CrossEncoder.load(tmp_path).score(PAIRS).numpy() - expected).max() < 1e-5


def test_two_labels_give_the_probability_of_the_second_or_the_difference(tmp_path):
    library = pytest.importorskip("sentence_transformers")
    folder = save_bert(tmp_path, HEAD, num_labels=2)
    logits = torch.from_numpy(
        library.CrossEncoder(str(folder), device="cpu").predict(
            readable(PAIRS), show_progress_bar=False
        )
    )
    probability = CrossEncoder.load(folder).score(PAIRS)
    assert (probability - logits.softmax(dim=1)[:, 1]).abs().max() < 1e-5
    edit_json(folder / "config.json", sentence_transformers={"activation_fn": RAW})
    difference = CrossEncoder.load(folder).score(PAIRS)
    assert (difference - logits.diff(dim=1)[:, 0]).abs().max() < 1e-5


@pytest.mark.parametrize("batch_tokens", [1, 100, 10**6])
def test_a_score_does_not_depend_on_the_other_pairs(model, scores, batch_tokens):
    order = torch.randperm(len(PAIRS), generator=torch.Generator().manual_seed(0)).tolist()
    other = model.score([PAIRS[row] for row in order], batch_tokens)
    assert (other - scores[order]).abs().max() < 1e-5
    for row, pair in enumerate(PAIRS):
        assert (model.score([pair]) - scores[row]).abs().max() < 1e-5


def test_windows_are_joined_in_order_and_progress_counts_pairs(model, scores, monkeypatch):
    monkeypatch.setattr("ricci_gpu.models.batching.WINDOW", 4)
    seen = []
    other = model.score(PAIRS, progress=lambda done, total: seen.append((done, total)))
    assert (other - scores).abs().max() < 1e-5
    assert seen == sorted(seen)
    assert seen[-1] == (len(PAIRS), len(PAIRS))


def test_no_pairs(model):
    assert model.score([]).shape == (0,)


def test_cut_pairs_are_counted_and_logged_once(model, caplog):
    with caplog.at_level(logging.WARNING):
        model.score([("why", LONG), ("why", "paris"), (LONG, LONG)])
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 pairs were cut to 64 tokens"
    ]
    caplog.clear()
    model.score([("why", LONG)], log_truncated=False)
    assert caplog.records == []


def test_half_precision(folder, scores):
    half = CrossEncoder.load(folder, dtype=torch.bfloat16).score(PAIRS)
    assert half.dtype == torch.float32
    assert (half - scores).abs().max() < 0.2


def test_fingerprint(tmp_path, folder, model):
    assert CrossEncoder.load(folder).fingerprint == model.fingerprint
    other = save_bert(tmp_path, HEAD, num_labels=1)
    assert CrossEncoder.load(other).fingerprint == model.fingerprint
    edit_json(other / "config.json", sentence_transformers={"activation_fn": RAW})
    assert CrossEncoder.load(other).fingerprint != model.fingerprint


@pytest.mark.usefixtures("unchecked_shapes")
def test_bad_pairs(model):
    for bad in (("a", None), ("a",), "ab"):
        with pytest.raises(InputError, match=r"every pair must be \(query, document\), two str"):
            model.score([("a", "b"), bad])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id2label": {"0": "a", "1": "b", "2": "c"}}, r"one label or two; this one has 3\. Choo"),
        ({"architectures": ["BertModel"]}, r"must be a sequence classifier; this is `BertModel`"),
        (
            {"sentence_transformers": {"activation_fn": "torch.nn.Tanh"}},
            r'must be torch\'s Sigmoid or Identity; got "torch\.nn\.Tanh"\. Choose',
        ),
        ({"sentence_transformers": {"activation_fn": "mine.Sigmoid"}}, r'got "mine\.Sigmoid"'),
    ],
)
def test_other_checkpoints_are_refused(tmp_path, changes, message):
    folder = save_bert(tmp_path, HEAD, num_labels=1)
    edit_json(folder / "config.json", **changes)
    with pytest.raises(SettingError, match=message):
        CrossEncoder.load(folder)


def test_folders_without_model_or_with_pickles_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"must hold `config\.json`; it has none\. Give the fol"):
        CrossEncoder.load(tmp_path)
    save_bert(tmp_path, HEAD, num_labels=1)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(SettingError, match=r"must be safetensors files; found `pytorch_model\.bin"):
        CrossEncoder.load(tmp_path)
