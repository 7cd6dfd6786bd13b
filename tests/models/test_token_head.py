import pytest
import torch
from checkpoints import PROMPTS, TEXTS, save_dense, save_head
from safetensors.torch import save_file
from torch.nn.functional import normalize

from ricci_gpu.errors import SettingError
from ricci_gpu.models import Encoder
from ricci_gpu.models.late_interaction import LateInteraction


@pytest.fixture(scope="module")
def weight():
    return torch.randn(6, 24, generator=torch.Generator().manual_seed(3))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_dense(tmp_path_factory.mktemp("base"), PROMPTS)


@pytest.fixture(scope="module")
def head(tmp_path_factory, base, weight):
    return save_head(tmp_path_factory.mktemp("head"), base, weight)


@pytest.mark.parametrize(
    ("side", "prompt"), [("encode_queries", "why "), ("encode_documents", "city ")]
)
def test_a_head_projects_the_token_vectors_of_its_base(base, head, weight, side, prompt):
    encoder = Encoder.load(base)
    words, offsets = encoder.encode([prompt + t for t in TEXTS], tokens=True).packed_tokens()
    model = LateInteraction.load(head)
    found = getattr(model, side)(TEXTS)
    assert torch.equal(found.offsets, offsets)
    assert (found.vectors - normalize(words @ weight.T, dim=1)).abs().max() < 1e-6
    assert (model.width, model.base) == (6, encoder.fingerprint)
    assert torch.equal(model.project(words), found.vectors)


def test_without_a_head_the_token_vectors_are_those_of_the_encoder(base):
    encoder = Encoder.load(base)
    model = LateInteraction.load(base)
    expected = encoder.encode(["why " + text for text in TEXTS], tokens=True)
    found = model.encode_queries(TEXTS)
    assert torch.equal(found.vectors, expected.token_vectors)
    assert torch.equal(found.offsets, expected.token_offsets)
    assert model.fingerprint == model.base == encoder.fingerprint


def test_a_loaded_base_is_taken(base, head, tmp_path):
    encoder = Encoder.load(base)
    assert LateInteraction.load(head, encoder=encoder)._encoder is encoder
    other = Encoder.load(save_dense(tmp_path))
    assert LateInteraction.load(head, encoder=other)._encoder is not other


def test_words_name_the_vectors(head):
    model = LateInteraction.load(head)
    for text in TEXTS:
        assert len(model.query_words(text)) == len(model.encode_queries([text]).vectors)
        assert len(model.document_words(text)) == len(model.encode_documents([text]).vectors)
    assert model.document_words("paris") == ["city", "paris"]


def test_vectors_do_not_depend_on_the_batch(head):
    model = LateInteraction.load(head)
    together = model.encode_documents(TEXTS)
    for text, expected in zip(
        TEXTS, together.vectors.split(together.offsets.diff().tolist()), strict=True
    ):
        assert (model.encode_documents([text]).vectors - expected).abs().max() < 1e-5


def test_fingerprint(base, head, weight, tmp_path):
    assert LateInteraction.load(head).fingerprint != Encoder.load(base).fingerprint
    same = save_head(tmp_path / "same", base, weight)
    assert LateInteraction.load(same).fingerprint == LateInteraction.load(head).fingerprint
    other = save_head(tmp_path / "other", base, weight + 1)
    assert LateInteraction.load(other).fingerprint != LateInteraction.load(head).fingerprint


def test_heads_that_do_not_fit(base, weight, tmp_path):
    folder = save_head(tmp_path, base, weight, base_fingerprint="0")
    with pytest.raises(SettingError, match=r"was trained over another .* its files differ\. Inst"):
        LateInteraction.load(folder)
    save_head(tmp_path, base, weight, width=7)
    with pytest.raises(SettingError, match=r"must have shape \(7, 24\).*; got \(6, 24\)\. Train"):
        LateInteraction.load(folder)
    save_head(tmp_path, base, weight)
    save_file({"weight": weight}, folder / "model.safetensors")
    with pytest.raises(SettingError, match=r"must hold `linear\.weight` alone; got weight\. Train"):
        LateInteraction.load(folder)
    (folder / "late_interaction.json").write_text('{"base": "x"}')
    with pytest.raises(SettingError, match=r"it lacks base_fingerprint, width\. Restore the file"):
        LateInteraction.load(folder)
