"""Both trainings from files to a model folder, with a model so small that it takes seconds."""

import json
from dataclasses import replace

import pytest
import torch

from ricci_gpu.cli import main
from ricci_gpu.models.encoder import Encoder
from ricci_gpu.training.recipes import train_cross_encoder, train_late_interaction
from ricci_gpu.training.settings import CrossEncoderSettings, LateInteractionSettings

pytest.importorskip("lightning")
pytest.importorskip("faiss")
pytest.importorskip("ir_measures")

HEAD = LateInteractionSettings(
    data=("pairs",), epochs=6, batch=4, learning_rate=0.03, width=8, accelerator="cpu"
)
CROSS = CrossEncoderSettings(
    data=("pairs",), epochs=2, batch=4, learning_rate=0.003, accelerator="cpu", max_tokens=32
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _data(monkeypatch, data):
    monkeypatch.setenv("RICCI_GPU_DATA", str(data))


@pytest.fixture(scope="module")
def head(tiny_model, data, cache, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RICCI_GPU_DATA", str(data))
        out = tmp_path_factory.mktemp("head")
        return train_late_interaction(replace(HEAD, base=str(tiny_model)), out, cache)


def test_a_head_learns_what_raw_token_vectors_do_not_know(head):
    rows = {(row.part, row.questions): row for row in head.gains}
    test = rows["test", "all"]
    assert test.count == 40
    assert set(test.ndcg) == {"dense", "raw tokens", "untrained", "trained"}
    assert test.gain == pytest.approx(test.ndcg["trained"] - test.ndcg["raw tokens"])
    assert test.low > 0.05
    assert 0 < rows["test", "unseen"].count < 40


def test_the_head_is_in_the_format_of_this_library(head, tiny_model):
    from safetensors.torch import load_file

    note = json.loads((head.model / "late_interaction.json").read_text())
    base = Encoder.load(tiny_model)
    assert note == {"base": str(tiny_model), "base_fingerprint": base.fingerprint, "width": 8}
    weights = load_file(head.model / "model.safetensors")
    assert {name: value.shape for name, value in weights.items()} == {"linear.weight": (8, 16)}
    assert {each.name for each in head.model.iterdir()} == {
        *("late_interaction.json", "model.safetensors", "README.md", "curve.svg", "run")
    }


def test_the_card_says_what_it_was_trained_on(head):
    card = (head.model / "README.md").read_text()
    assert "Trained here" in card
    assert "| pairs | " in card
    assert "seed 0" in card
    assert f"{head.gains[0].gain:+.4f}" in card


def test_a_run_of_the_command_ends_with_one_line_of_json(tiny_model, cache, tmp_path, capsys):
    arguments = ["train", "late-interaction", "--data", "pairs", "--epochs", "1", "--width", "4"]
    arguments += ["--base", str(tiny_model), "--cache", str(cache), "--accelerator", "cpu"]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 0
    lines = capsys.readouterr().out.splitlines()
    document = json.loads(lines[-1])
    assert document["baseline"] == "raw tokens"
    assert [(row["part"], row["count"]) for row in document["gains"] if row["questions"] == "all"]
    assert lines[0].startswith("| dataset | part |")
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 1
    assert "holds a run already" in capsys.readouterr().err


def test_the_head_loads_and_gives_the_vectors_it_was_trained_with(head, tiny_model):
    from ricci_gpu.models.late_interaction import LateInteraction

    texts = ["please tell ask1 word2", "say4 so word3 indeed"]
    base = Encoder.load(tiny_model).encode(texts, tokens=True)
    weight = load_weight(head.model / "model.safetensors")
    expected = torch.nn.functional.normalize(base.token_vectors @ weight.mT, dim=-1)
    found = LateInteraction.load(head.model).encode_queries(texts)
    assert torch.equal(found.offsets, base.token_offsets)
    torch.testing.assert_close(found.vectors, expected, rtol=0, atol=1e-6)


def test_a_trained_encoder_is_a_multi_vector_model(tiny_model, cache, tmp_path):
    from ricci_gpu.models.late_interaction import LateInteraction

    settings = replace(HEAD, base=str(tiny_model), train_encoder=True, epochs=2, max_tokens=32)
    trained = train_late_interaction(settings, tmp_path, cache)
    assert trained.baseline == "dense"
    texts = ["please tell ask1 word2", "say4 so word3 indeed"]
    found = LateInteraction.load(trained.model).encode_documents(texts)
    assert found.offsets.tolist() == [0, 6, 12]  # [CLS] and [SEP] are scored too
    library = pytest.importorskip("sentence_transformers")
    peer = library.MultiVectorEncoder(str(trained.model), device="cpu")
    expected = torch.cat(peer.encode_document(texts))
    torch.testing.assert_close(found.vectors, expected, rtol=0, atol=1e-5)
    before = load_weight(tiny_model / "model.safetensors", "encoder.layer.0.output.dense.weight")
    after = load_weight(trained.model / "model.safetensors", "encoder.layer.0.output.dense.weight")
    assert not torch.equal(before, after)


@pytest.mark.parametrize("loss", ["listwise", "pointwise"])
def test_a_cross_encoder_is_read_by_others_as_it_was_trained(loss, tiny_model, cache, tmp_path):
    from ricci_gpu.models.cross_encoder import CrossEncoder

    settings = replace(CROSS, base=str(tiny_model), retriever=str(tiny_model), loss=loss)
    trained = train_cross_encoder(settings, tmp_path, cache)
    assert trained.baseline == "dense"
    assert set(trained.gains[0].ndcg) == {"dense", "trained"}
    pairs = [("please tell ask1 word2", "say4 so word3 indeed"), ("ask1", "say1 so word1")]
    library = pytest.importorskip("sentence_transformers")
    peer = library.CrossEncoder(str(trained.model), device="cpu")
    expected = torch.from_numpy(peer.predict(pairs, show_progress_bar=False))
    found = CrossEncoder.load(trained.model).score(pairs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    words = "bert.embeddings.word_embeddings.weight"
    before = load_weight(tiny_model / "model.safetensors", "embeddings.word_embeddings.weight")
    assert torch.equal(load_weight(trained.model / "model.safetensors", words), before)
    name = {"listwise": "Identity", "pointwise": "Sigmoid"}[loss]
    assert type(peer.activation_fn).__name__ == name
    assert peer.max_seq_length == 32


def load_weight(path, name="linear.weight"):
    from safetensors.torch import load_file

    return load_file(path)[name]
