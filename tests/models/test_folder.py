import json
import shutil
from importlib.metadata import PackageNotFoundError

import pytest
import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.models import Encoder
from ricci_gpu.models.folder import find_model, read_folder

transformers = pytest.importorskip("transformers")

PREFIX = "sentence_transformers.models."
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cell", "makes", "insulin", "Big"]


def save(path, pooling, kinds=("Transformer", "Pooling"), subfolder="", **settings):
    """A tiny random encoder in the layout of sentence-transformers."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=12,
    )
    transformers.BertModel(config).save_pretrained(path / subfolder)
    (path / subfolder / "vocab.txt").write_text("\n".join(WORDS))
    vocabulary = {word: row for row, word in enumerate(WORDS)}
    transformers.BertTokenizerFast(vocab=vocabulary, do_lower_case=False).save_pretrained(
        path / subfolder
    )
    places = {"Transformer": subfolder, "Pooling": "1_Pooling"}
    modules = [{"path": places.get(kind, kind), "type": PREFIX + kind} for kind in kinds]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    if settings:
        (path / subfolder / "sentence_bert_config.json").write_text(json.dumps(settings))
    return path


def hidden_states(encoder, text):
    inputs = encoder._tokenizer(text, return_tensors="pt")
    return encoder._model(**inputs).last_hidden_state[0].detach()


def test_mean_pooling_without_normalisation(tmp_path):
    encoder = Encoder.load(save(tmp_path, {"pooling_mode_mean_tokens": True}))
    found = encoder.encode(["the cell", "the cell makes insulin"])
    expected = hidden_states(encoder, "the cell").mean(dim=0)
    assert (found.vectors[0] - expected).abs().max() < 1e-6
    assert encoder.source == f"folder {tmp_path}"
    assert encoder.max_tokens == 12  # the positions that the model has


@pytest.mark.parametrize(
    "pooling",
    [{"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, {"pooling_mode": "cls"}],
)
def test_cls_pooling_with_normalisation(tmp_path, pooling):
    kinds = ("Transformer", "Pooling", "Normalize")
    encoder = Encoder.load(save(tmp_path, pooling, kinds, subfolder="0_Transformer"))
    first = hidden_states(encoder, "the cell")[0]
    found = encoder.encode(["the cell makes insulin", "the cell"]).vectors[1]
    assert (found - first / first.norm()).abs().max() < 1e-6


def test_settings_of_the_folder_are_followed(tmp_path):
    pooling = {"pooling_mode_mean_tokens": True}
    encoder = Encoder.load(save(tmp_path, pooling, max_seq_length=4, do_lower_case=True))
    assert encoder.words("Big CELL makes") == ["[UNK]", "cell"]
    assert encoder.encode(["the cell makes"]).truncated == 1
    assert encoder.encode(["the cell"]).truncated == 0


def test_fingerprint_depends_on_the_model_and_not_on_its_place(tmp_path):
    one = save(tmp_path / "one", {"pooling_mode": "mean"})
    two = shutil.copytree(one, tmp_path / "two")
    assert read_folder(one, "a").fingerprint() == read_folder(two, "b").fingerprint()
    (two / "1_Pooling" / "config.json").write_text('{"pooling_mode": "cls"}')
    assert read_folder(one, "a").fingerprint() != read_folder(two, "b").fingerprint()
    three = shutil.copytree(one, tmp_path / "three")
    weights = three / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x7f")
    assert read_folder(one, "a").fingerprint() != read_folder(three, "b").fingerprint()
    assert Encoder.load(one).fingerprint == read_folder(one, "a").fingerprint()


@pytest.mark.parametrize(
    ("pooling", "message"),
    [
        ({"pooling_mode_max_tokens": True}, r"must be one of `mean`, `cls`; got `pooling_mode_max"),
        ({"pooling_mode": "lasttoken"}, r"got `lasttoken`\. Choose another model"),
        ({"pooling_mode": ["mean", "cls"]}, r"got `mean`, `cls`\. Choose"),
        ({"word_embedding_dimension": 8}, r"got none\. Choose"),
    ],
)
def test_other_poolings_are_refused(tmp_path, pooling, message):
    with pytest.raises(SettingError, match=message):
        read_folder(save(tmp_path, pooling), "")


def test_other_modules_are_refused(tmp_path):
    kinds = ("Transformer", "Pooling", "Dense")
    with pytest.raises(SettingError, match=r"Normalize; this one has `Dense`\. Choose a model"):
        read_folder(save(tmp_path / "a", {"pooling_mode": "mean"}, kinds), "")
    with pytest.raises(SettingError, match=r"needs a Pooling module; `modules\.json` names none"):
        read_folder(save(tmp_path / "b", {"pooling_mode": "mean"}, ("Transformer",)), "")


def test_pickled_weights_are_refused(tmp_path):
    save(tmp_path, {"pooling_mode": "mean"})
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(SettingError, match="must be safetensors files; found none"):
        read_folder(tmp_path, "")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(SettingError, match=r"found `pytorch_model\.bin`\. Convert them"):
        read_folder(tmp_path, "")


def test_folders_without_settings_are_refused(tmp_path):
    with pytest.raises(SettingError, match=r"must hold `modules\.json`, .* it has none\. Save the"):
        find_model(tmp_path)
    (tmp_path / "modules.json").write_text("[{")
    with pytest.raises(SettingError, match=r"modules\.json: cannot be read as JSON .* Restore"):
        find_model(tmp_path)


def not_installed(name):
    raise PackageNotFoundError(name)


def test_hub_comes_last(tmp_path, monkeypatch):
    asked = []
    folder = save(tmp_path / "0a1b2c", {"pooling_mode": "mean"})

    def download(name, **_):
        asked.append(name)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert find_model("sentence-transformers/all-MiniLM-L6-v2").source.startswith("package ")
    assert find_model(folder).source == f"folder {folder}"
    assert asked == []
    assert find_model("some/model").source == "hub some/model at 0a1b2c"
    monkeypatch.setattr("ricci_gpu.models.folder.distribution", not_installed)
    found = find_model("all-MiniLM-L6-v2")
    assert found.source == "hub sentence-transformers/all-MiniLM-L6-v2 at 0a1b2c"


def test_model_that_is_nowhere(monkeypatch):
    def fail(name, **_):
        raise OSError("no route to host\nand more")

    monkeypatch.setattr("huggingface_hub.snapshot_download", fail)
    with pytest.raises(SettingError, match=r"encoder `all-MiniLM-L6`: not in .*\(no route to host"):
        find_model("all-MiniLM-L6")
    with pytest.raises(SettingError, match=r"Did you mean `all-MiniLM-L6-v2`\?"):
        find_model("all-MiniLM-L6")
    monkeypatch.setattr("ricci_gpu.models.folder.distribution", not_installed)
    with pytest.raises(SettingError, match=r'pip install "ricci-gpu\[minilm\]"'):
        find_model("all-MiniLM-L6-v2")


def test_names_that_the_hub_refuses():
    with pytest.raises(SettingError, match="the hub did not give it"):
        find_model("not a name/at/all")
