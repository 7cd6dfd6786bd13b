"""A tiny random BERT in sentence-transformers layout, and a dataset that it can learn."""

import json

import pytest

SYNONYMS, WORDS = 5, 4
VOCABULARY = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    "[MASK]",
    *(f"ask{i}" for i in range(SYNONYMS)),
    *(f"say{i}" for i in range(SYNONYMS)),
    *(f"word{i}" for i in range(WORDS)),
    *("please", "tell", "so", "indeed"),
]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """Folder of an encoder with 16 numbers per token."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("tiny")
    (folder / "vocab.txt").write_text("\n".join(VOCABULARY) + "\n")
    tokenizer = transformers.BertTokenizerFast(str(folder / "vocab.txt"))
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
    )
    transformers.BertModel(config).save_pretrained(folder)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "pool", "type": "sentence_transformers.models.Pooling"},
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32}))
    (folder / "pool").mkdir()
    (folder / "pool" / "config.json").write_text(json.dumps({"pooling_mode_mean_tokens": True}))
    return folder


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """RICCI_GPU_DATA with one dataset: who asks for ``ask3 word1`` wants ``say3 word1``.

    There are 20 passages, so that every pool holds all of them; five are in no training question.
    """
    folder = tmp_path_factory.mktemp("data") / "pairs"
    folder.mkdir()
    pairs = [(i, j) for i in range(SYNONYMS) for j in range(WORDS)]
    write_jsonl(
        folder / "corpus.jsonl",
        [{"_id": f"p{i}{j}", "text": f"say{i} so word{j} indeed"} for i, j in pairs],
    )
    trained = [(i, j) for i, j in pairs if (i + j) % WORDS]
    for name, asked, copies in (("train_", trained, 8), ("", pairs, 2)):
        queries = [
            {"_id": f"{name or 'test_'}{i}{j}{c}", "text": f"{'please tell ' * c}ask{i} word{j}"}
            for i, j in asked
            for c in range(copies)
        ]
        write_jsonl(folder / f"{name}queries.jsonl", queries)
        rows = [f"{query['_id']}\tp{query['_id'][-3:-1]}\t1\n" for query in queries]
        header = "query-id\tcorpus-id\tscore\n"
        (folder / f"{name}qrels.tsv").write_text(header + "".join(rows))
    return folder.parent


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
