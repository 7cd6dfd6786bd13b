"""Multi-vector checkpoints against the libraries that write them, on tiny random networks."""

import json
import logging
import string

import pytest
import torch
from checkpoints import LONG, TEXTS, edit_json, save_bert
from safetensors.torch import load_file, save_file

from ricci_gpu.errors import InputError, SettingError
from ricci_gpu.models.late_interaction import LateInteraction
from ricci_gpu.ops.maxsim import maxsim

MARKS = ("[Q] ", "[D] ")
QUERIES = [TEXTS[0], "why", LONG, "", "paris, the city!"]


def weights(rows, columns, seed=0):
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.3


def save_dense(path, rows=16, columns=24, kind="pylate.models.Dense.Dense", **settings):
    path.mkdir()
    tensors = {"linear.weight": weights(rows, columns)}
    if settings.get("bias"):
        tensors["linear.bias"] = weights(1, rows, seed=1)[0]
    if settings.get("use_residual") and rows != columns:
        tensors["residual.weight"] = weights(rows, columns, seed=2)
    save_file(tensors, path / "model.safetensors")
    identity = "torch.nn.modules.linear.Identity"
    config = {"in_features": columns, "out_features": rows, "bias": False}
    config |= {"activation_function": identity} | settings
    (path / "config.json").write_text(json.dumps(config))
    return {"path": path.name, "type": kind}


def save_modules(path, *modules):
    first = {"path": "", "type": "sentence_transformers.models.Transformer"}
    rows = [{"idx": i, "name": str(i)} | each for i, each in enumerate([first, *modules])]
    (path / "modules.json").write_text(json.dumps(rows))
    edit_json(path / "sentence_bert_config.json", max_seq_length=60, do_lower_case=False)


def save_pylate(path, dense=None, **settings):
    """As PyLate's `save` leaves it: marks in the tokenizer, Transformer and Dense."""
    save_bert(path, marks=MARKS)
    save_modules(path, save_dense(path / "1_Dense", **(dense or {})))
    config = {"model_type": "ColBERT", "query_prefix": MARKS[0], "document_prefix": MARKS[1]}
    config |= {"query_length": 20, "document_length": 30, "skiplist_words": [",", ";", "("]}
    config |= {"do_query_expansion": True, "attend_to_expansion_tokens": False, "prompts": {}}
    edit_json(path / "config_sentence_transformers.json", **(config | settings))
    return path


def save_stanford(path, **meta):
    save_bert(path)
    bert = load_file(path / "model.safetensors")
    tensors = {f"bert.{name}": tensor for name, tensor in bert.items()}
    tensors["linear.weight"] = weights(16, 24)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    edit_json(path / "config.json", architectures=["HF_ColBERT"])
    if meta:
        (path / "artifact.metadata").write_text(json.dumps(meta))
    return path


def split(found):
    return list(found.vectors.split(found.offsets.diff().tolist()))


def require_same(found, expected):
    """Every text has the same number of vectors, and they agree."""
    for mine, theirs in zip(split(found), expected, strict=True):
        assert mine.shape == theirs.shape
        assert (mine - torch.as_tensor(theirs)).abs().max() < 1e-5


def require_library(folder):
    """Vectors and MaxSim scores are those of sentence-transformers."""
    library = pytest.importorskip("sentence_transformers")
    peer = library.MultiVectorEncoder(str(folder), device="cpu")
    documents = [text.replace("\ud83d", "?") for text in TEXTS]
    their_queries = peer.encode_query(QUERIES, show_progress_bar=False)
    their_documents = peer.encode_document(documents, show_progress_bar=False)
    model = LateInteraction.load(folder)
    queries, mine = model.encode_queries(QUERIES), model.encode_documents(TEXTS)
    require_same(queries, their_queries)
    require_same(mine, their_documents)
    assert model.width == queries.vectors.shape[1]
    rows = torch.cartesian_prod(torch.arange(len(QUERIES)), torch.arange(len(TEXTS)))
    scores = maxsim(
        *(queries.vectors, queries.offsets, mine.vectors, mine.offsets),
        *(rows[:, 0].contiguous(), rows[:, 1].contiguous()),
    )
    expected = peer.similarity(their_queries, their_documents).flatten()
    assert (scores - expected).abs().max() < 1e-4  # sums of up to 60 products of length 1
    return model


PYLATE = [
    {},
    {"attend_to_expansion_tokens": True},
    {"do_query_expansion": False},
    {"skiplist_words": []},
    {"prompts": {"query": "the ", "document": "insulin "}},
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("settings", PYLATE, ids=str)
def test_pylate_checkpoints(tmp_path, settings):
    model = require_library(save_pylate(tmp_path, **settings))
    counts = model.encode_queries(QUERIES).offsets.diff().tolist()
    if settings.get("do_query_expansion", True):
        assert counts == [20] * 5
        assert model.query_words("why").count("[MASK]") == 14 - ("prompts" in settings)
    else:
        assert counts[3] == 3  # [CLS], the marker, [SEP]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "dense",
    [
        {"bias": True, "activation_function": "torch.nn.modules.activation.Tanh"},
        {"use_residual": True},
        {"use_residual": True, "rows": 24},
    ],
    ids=str,
)
def test_projections(tmp_path, dense):
    require_library(save_pylate(tmp_path, dense))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "meta",
    [
        {},
        {"query_maxlen": 12, "doc_maxlen": 25, "attend_to_mask_tokens": True},
        {"mask_punctuation": False, "query_token_id": "[unused1]", "doc_token_id": "[unused0]"},
    ],
    ids=str,
)
def test_stanford_checkpoints(tmp_path, meta):
    model = require_library(save_stanford(tmp_path, **meta))
    assert model.query_words("why")[:2] == ["[CLS]", meta.get("query_token_id", "[unused0]")]
    if meta.get("mask_punctuation", True):
        assert not set(string.punctuation) & set(model.document_words("a, b! (c)"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("expansion", "skip_in"),
    [
        (None, "document"),
        ({"strategy": "fixed", "length": 16}, ["query", "document"]),
        ({"strategy": "min", "length": 16, "attend": True, "token": "[unused1]"}, "document"),
    ],
    ids=str,
)
def test_what_sentence_transformers_saves(tmp_path, expansion, skip_in):
    library = pytest.importorskip("sentence_transformers")
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.base.modules.dense import Dense
    from sentence_transformers.multi_vector_encoder.modules import MultiVectorMask

    transformer = Transformer(
        str(save_bert(tmp_path / "bert", marks=MARKS)), query_expansion=expansion
    )
    transformer.document_length = 40
    dense = Dense(
        24, 16, bias=False, activation_function=None, module_input_name="token_embeddings"
    )
    mask = MultiVectorMask([",", "!"], skiplist_tasks=skip_in)
    parts = [transformer, dense, mask, Normalize(module_input_name="token_embeddings")]
    prompts = {"query": MARKS[0], "document": "the cell: "}
    peer = library.MultiVectorEncoder(modules=parts, prompts=prompts, device="cpu")
    peer.save_pretrained(str(tmp_path / "saved"))
    require_library(tmp_path / "saved")


@pytest.mark.filterwarnings("ignore")
def test_a_bare_pair_of_transformer_and_dense(tmp_path):
    save_bert(tmp_path)
    kind = "sentence_transformers.models.Dense"
    save_modules(tmp_path, save_dense(tmp_path / "1_Dense", kind=kind))
    require_library(tmp_path)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return LateInteraction.load(save_pylate(tmp_path_factory.mktemp("pylate")))


@pytest.mark.parametrize("side", ["encode_queries", "encode_documents"])
def test_vectors_do_not_depend_on_the_batch(model, side, monkeypatch):
    encode = getattr(model, side)
    together = split(encode(TEXTS))
    for text, expected in zip(TEXTS, together, strict=True):
        assert (encode([text]).vectors - expected).abs().max() < 1e-5
    monkeypatch.setattr("ricci_gpu.models.batching.WINDOW", 3)
    for batch_tokens in (1, 50, 10**6):
        other = split(encode(TEXTS, batch_tokens))
        for mine, expected in zip(other, together, strict=True):
            assert (mine - expected).abs().max() < 1e-5


def test_words_name_the_vectors(model):
    for text in TEXTS:
        assert len(model.document_words(text)) == len(model.encode_documents([text]).vectors)
        assert len(model.query_words(text)) == len(model.encode_queries([text]).vectors)
    assert model.document_words("paris, (why)")[2] == "paris"  # [CLS] and the marker come first
    assert "," not in model.document_words("paris, (why)")


def test_progress_cut_texts_and_no_texts(model, caplog):
    seen = []
    with caplog.at_level(logging.WARNING):
        found = model.encode_documents(TEXTS, progress=lambda done, total: seen.append(done))
    assert found.truncated == 1
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 7 texts were cut to 30 tokens"
    ]
    assert seen[-1] == len(TEXTS)
    nothing = model.encode_queries([])
    assert (nothing.vectors.shape, nothing.offsets.tolist()) == ((0, 16), [0])


def test_half_precision(tmp_path, model):
    half = LateInteraction.load(save_pylate(tmp_path), dtype=torch.bfloat16)
    found, exact = half.encode_documents(TEXTS), model.encode_documents(TEXTS)
    assert found.vectors.dtype == torch.float32
    assert (found.vectors * exact.vectors).sum(dim=1).min() > 0.9


def test_fingerprint_depends_on_files_and_settings_and_not_on_the_place(tmp_path, model):
    assert LateInteraction.load(save_pylate(tmp_path / "a")).fingerprint == model.fingerprint
    other = save_pylate(tmp_path / "b", query_length=21)
    assert LateInteraction.load(other).fingerprint != model.fingerprint
    dense = other / "1_Dense" / "model.safetensors"
    edit_json(other / "config_sentence_transformers.json", query_length=20)
    assert LateInteraction.load(other).fingerprint == model.fingerprint
    dense.write_bytes(dense.read_bytes()[:-1] + b"\x7f")
    assert LateInteraction.load(other).fingerprint != model.fingerprint


@pytest.mark.usefixtures("unchecked_shapes")
def test_what_is_no_text_is_refused(model):
    with pytest.raises(InputError, match=r"every text must be a string; text 1 is NoneType"):
        model.encode_queries(["a", None])


def spoil_module(path, kind):
    save_modules(path, {"path": "1_Dense", "type": f"sentence_transformers.models.{kind}"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: spoil_module(f, "LSTM"), r"and MultiVectorMask; this one has `LSTM`\. Choose"),
        (
            lambda f: edit_json(f / "1_Dense/config.json", module_input_name="sentence_embedding"),
            r"must read token embeddings; this one reads `sentence_embedding`",
        ),
        (
            lambda f: edit_json(f / "1_Dense/config.json", activation_function="mine.Act"),
            r'Identity, Tanh, GELU or ReLU of torch\.nn; got "mine\.Act"\. Choose',
        ),
        (
            lambda f: save_file({"x": torch.ones(1)}, f / "1_Dense/model.safetensors"),
            r"among the weights as `linear\.weight`; it does not\. Restore",
        ),
        (
            lambda f: edit_json(f / "config_sentence_transformers.json", query_prefix="[X] "),
            r'the marker "\[X\] " must be a token; the tokenizer does not know it\. Restore',
        ),
        (
            lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"),
            r"must be safetensors files; found `pytorch_model\.bin`",
        ),
        (lambda f: (f / "modules.json").unlink(), r"\(Stanford\); this is 'BertModel'\. Choose"),
    ],
)
def test_other_checkpoints_are_refused(tmp_path, spoil, message):
    folder = save_pylate(tmp_path)
    spoil(folder)
    with pytest.raises(SettingError, match=message):
        LateInteraction.load(folder)


def test_expansion_without_its_mask_is_refused(tmp_path):
    save_bert(tmp_path)
    save_modules(tmp_path, save_dense(tmp_path / "1_Dense"))
    expansion = {"strategy": "fixed", "length": 16, "token": "[nowhere]"}
    edit_json(tmp_path / "sentence_bert_config.json", query_expansion=expansion)
    edit_json(tmp_path / "config_sentence_transformers.json", model_type="MultiVectorEncoder")
    with pytest.raises(SettingError, match=r"needs a MultiVectorMask module.* Save it again with"):
        LateInteraction.load(tmp_path)
    mask = tmp_path / "2_Mask"
    mask.mkdir()
    edit_json(mask / "config.json", keep_only_token_ids=[7])
    kind = "sentence_transformers.multi_vector_encoder.modules.MultiVectorMask"
    save_modules(tmp_path, {"path": "1_Dense", "type": "x.Dense"}, {"path": "2_Mask", "type": kind})
    with pytest.raises(SettingError, match=r"`keep_only_token_ids`\) is not supported\. Choose"):
        LateInteraction.load(tmp_path)
    edit_json(mask / "config.json", keep_only_token_ids=None)
    with pytest.raises(SettingError, match=r'that the tokenizer knows; "\[nowhere\]" is none of'):
        LateInteraction.load(tmp_path)


def test_folders_that_are_no_model(tmp_path):
    with pytest.raises(SettingError, match=r"`modules\.json` or `config\.json`; it has none of th"):
        LateInteraction.load(tmp_path)
