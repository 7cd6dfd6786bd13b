"""Tiny random networks, saved as checkpoints of every kind that is read."""

import json
import string
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

LETTERS = [*string.ascii_lowercase, *(f"##{letter}" for letter in string.ascii_lowercase)]
WORDS = ["[PAD]", "[unused0]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS += [*LETTERS, *string.punctuation, "the", "cell", "makes", "insulin", "paris", "city"]

LONG = "the cell makes insulin, and paris (a city) does not; " * 9
TEXTS = [
    "the cell makes insulin",
    "why",
    LONG,
    "",
    "  paris, the city!  ",
    "half \ud83d a pair",
    "a literal [MASK] inside",
]


def save_bert(path: Path, head: str = "BertModel", marks: tuple[str, ...] = (), **settings):
    """A random BERT with a WordPiece vocabulary; the folder."""
    torch.manual_seed(len(head))
    words = [*WORDS, *marks]
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.5,  # vectors that differ
        **settings,
    )
    getattr(transformers, head)(config).eval().save_pretrained(path)
    vocabulary = {word: row for row, word in enumerate(WORDS)}
    tokenizer = transformers.BertTokenizerFast(vocab=vocabulary, do_lower_case=True)
    tokenizer.model_max_length = 64
    tokenizer.add_tokens(list(marks))
    tokenizer.save_pretrained(path)
    return path


def edit_json(path: Path, **changes) -> None:
    tree = json.loads(path.read_text()) if path.is_file() else {}
    path.write_text(json.dumps(tree | changes))


PROMPTS = {"query": "why ", "document": "city "}


def save_dense(path: Path, prompts: dict[str, str] | None = None) -> Path:
    """A random sentence encoder in the layout of sentence-transformers."""
    save_bert(path)
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    kind = "sentence_transformers.models."
    modules = [
        {"idx": i, "name": str(i), "path": kinds[each], "type": kind + each}
        for i, each in enumerate(kinds)
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    (path / "1_Pooling").mkdir()
    edit_json(
        path / "1_Pooling" / "config.json",
        word_embedding_dimension=24,
        pooling_mode_mean_tokens=True,
    )
    edit_json(path / "config_sentence_transformers.json", prompts=prompts or {})
    return path


def save_head(path: Path, base: Path, weight: torch.Tensor, **changes) -> Path:
    """A late-interaction head over a sentence encoder."""
    from safetensors.torch import save_file

    from ricci_gpu.models import Encoder

    path.mkdir(exist_ok=True)
    settings = {"base": str(base), "base_fingerprint": Encoder.load(base).fingerprint}
    edit_json(path / "late_interaction.json", **(settings | {"width": len(weight)} | changes))
    save_file({"linear.weight": weight}, path / "model.safetensors")
    return path
