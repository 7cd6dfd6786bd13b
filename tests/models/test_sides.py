import pytest
import torch
from checkpoints import PROMPTS, TEXTS, edit_json, save_dense, save_head

from ricci_gpu.errors import SettingError
from ricci_gpu.models import Encoder, LateInteraction, SideEncoder
from ricci_gpu.models.folder import Prompts, read_folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_dense(tmp_path_factory.mktemp("base"), PROMPTS)


@pytest.fixture(scope="module")
def encoder(base):
    return Encoder.load(base)


@pytest.fixture(scope="module")
def head(tmp_path_factory, base):
    weight = torch.randn(6, 24, generator=torch.Generator().manual_seed(3))
    return LateInteraction.load(save_head(tmp_path_factory.mktemp("head"), base, weight))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return LateInteraction.load(save_dense(tmp_path_factory.mktemp("other")))


def test_each_side_has_its_prompt_as_sentence_transformers_has(base, encoder):
    library = pytest.importorskip("sentence_transformers")
    peer = library.SentenceTransformer(str(base), device="cpu")
    texts = [text.strip().replace("\ud83d", "?") for text in TEXTS]
    options = {"convert_to_tensor": True, "show_progress_bar": False}
    queries = SideEncoder("query", encoder).encode(TEXTS).vectors
    passages = SideEncoder("passage", encoder).encode(TEXTS).vectors
    assert (queries - peer.encode_query(texts, **options)).abs().max() < 1e-5
    assert (passages - peer.encode_document(texts, **options)).abs().max() < 1e-5
    assert (queries - passages).abs().max() > 0.01


def test_token_vectors_come_from_the_encoder_without_another_model(encoder):
    side = SideEncoder("query", encoder)
    found = side.encode(TEXTS, tokens=True)
    expected = encoder.encode(["why " + text for text in TEXTS], tokens=True)
    assert torch.equal(found.token_vectors, expected.token_vectors)
    assert side.token_model is encoder
    assert side.words("paris") == ["w", "##h", "##y", "paris"]


def test_a_head_over_the_encoder_shares_its_forward_pass(encoder, head, monkeypatch):
    calls = []
    forward = encoder._model.forward
    monkeypatch.setattr(
        encoder._model, "forward", lambda *a, **k: calls.append(1) or forward(*a, **k)
    )
    encoder.encode(TEXTS)
    needed = len(calls)
    side = SideEncoder("passage", encoder, head)
    found = side.encode(TEXTS, tokens=True)
    assert len(calls) == 2 * needed
    alone = head.encode_documents(TEXTS)
    assert torch.equal(found.token_vectors, alone.vectors)
    assert torch.equal(found.token_offsets, alone.offsets)
    assert torch.equal(found.vectors, SideEncoder("passage", encoder).encode(TEXTS).vectors)
    assert (side.fingerprint, side.token_model) == (encoder.fingerprint, head)


def test_another_model_encodes_the_tokens_by_itself(encoder, checkpoint):
    for name, encode in (
        ("query", checkpoint.encode_queries),
        ("passage", checkpoint.encode_documents),
    ):
        side = SideEncoder(name, encoder, checkpoint)
        found = side.encode(TEXTS, tokens=True)
        assert torch.equal(found.token_vectors, encode(TEXTS).vectors)
        assert torch.equal(found.vectors, SideEncoder(name, encoder).encode(TEXTS).vectors)
        assert side.encode(TEXTS).token_vectors is None


def test_prompts_by_name(tmp_path):
    def prompts(**config):
        folder = save_dense(tmp_path / str(len(list(tmp_path.iterdir()))))
        (folder / "config_sentence_transformers.json").unlink()
        if config:
            edit_json(folder / "config_sentence_transformers.json", **config)
        return read_folder(folder, "").prompts

    assert prompts() == prompts(prompts=None) == Prompts()
    both = {"corpus": "c: ", "passage": "p: ", "query": "q: "}
    assert prompts(prompts=both) == Prompts("q: ", "p: ")
    assert prompts(prompts=both | {"document": ""}) == Prompts("q: ", "p: ")
    assert prompts(prompts={"document": "", "x": "x: "}, default_prompt_name="x").passage == ""
    assert prompts(prompts={"x": "x: "}, default_prompt_name="x") == Prompts("x: ", "x: ")


def test_prompts_change_the_fingerprint_and_must_take_part_in_the_pooling(tmp_path):
    plain, prompted = save_dense(tmp_path / "a"), save_dense(tmp_path / "b", PROMPTS)
    assert read_folder(plain, "").fingerprint() != read_folder(prompted, "").fingerprint()
    edit_json(prompted / "1_Pooling" / "config.json", include_prompt=False)
    with pytest.raises(SettingError, match=r"the prompt must take part in the pooling; .* Choose"):
        read_folder(prompted, "")
