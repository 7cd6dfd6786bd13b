import logging
import multiprocessing

import numpy as np
import pytest
import torch
from checkpoints import LONG, TEXTS, save_dense

from ricci_gpu.errors import InputError
from ricci_gpu.models import Encoder, LateInteraction
from ricci_gpu.models.cache import FILE, EmbeddingCache


def record(text):
    rng = np.random.default_rng(len(text))
    return rng.normal(size=4).astype(np.float32), np.array([len(text) > 2])


def remembered(folder, texts, made, space="m"):
    def make(new):
        made.extend(new)
        return [record(text) for text in new]

    return EmbeddingCache(folder).recall(space, texts, make)


def require_records(found, texts):
    for mine, text in zip(found, texts, strict=True):
        for array, expected in zip(mine, record(text), strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)


def test_each_text_is_made_once_per_model(tmp_path):
    texts, made = ["a", "bb", "a", "ccc", "\ud83d", "?"], []
    require_records(remembered(tmp_path, texts, made), texts)
    assert made == ["a", "bb", "ccc", "\ud83d", "?"]
    require_records(remembered(tmp_path, texts[::-1], made), texts[::-1])
    assert len(made) == 5
    remembered(tmp_path, ["a", "new"], made)
    assert made[5:] == ["new"]
    remembered(tmp_path, ["a"], made, space="other")
    assert made[6:] == ["a"]
    assert remembered(tmp_path, [], made) == []


def test_a_crash_loses_one_slice_at_most(tmp_path, monkeypatch):
    monkeypatch.setattr("ricci_gpu.models.cache.SLICE", 2)
    seen = []

    def make(new):
        if "d" in new:
            raise KeyboardInterrupt
        return [record(text) for text in new]

    cache = EmbeddingCache(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cache.recall("m", list("abcdef"), make, lambda done, total: seen.append((done, total)))
    assert seen == [(2, 6)]
    made = []
    remembered(tmp_path, list("abcdef"), made)
    assert made == list("cdef")


def fill(folder, start):
    texts = [str(number) for number in range(start, start + 300)]
    require_records(remembered(folder, texts, []), texts)


def test_processes_write_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=fill, args=(tmp_path, 100 * each)) for each in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    made = []
    remembered(tmp_path, [str(number) for number in range(500)], made)
    assert made == []


def test_a_damaged_file_says_what_to_do(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database" * 500)
    with pytest.raises(InputError, match=r"the embedding cache cannot be used \(.*\)\. Delete it"):
        remembered(tmp_path, ["a"], [])
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"cannot be used .* set `model\.cache` to null"):
        remembered(tmp_path / "file", ["a"], [])


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return save_dense(tmp_path_factory.mktemp("base"))


def test_an_encoder_gives_the_same_from_the_cache(tmp_path, base, caplog):
    plain, folder = Encoder.load(base), tmp_path / "cache"
    for tokens in (False, True):
        expected = plain.encode(TEXTS, tokens)
        for _ in range(2):
            encoder = Encoder.load(base, cache=folder)
            caplog.clear()
            with caplog.at_level(logging.WARNING):
                found = encoder.encode([*TEXTS, TEXTS[0]], tokens)
            assert [r.getMessage() for r in caplog.records] == [
                "1 of 8 texts were cut to 64 tokens"
            ]
            assert (found.vectors[:-1] - expected.vectors).abs().max() < 1e-5
            assert torch.equal(found.vectors[0], found.vectors[-1])
            if tokens:
                assert torch.equal(found.token_offsets[:-1], expected.token_offsets)
                count = len(expected.token_vectors)
                assert (found.token_vectors[:count] - expected.token_vectors).abs().max() < 1e-5


def test_known_texts_need_no_forward_pass(tmp_path, base, monkeypatch):
    Encoder.load(base, cache=tmp_path).encode([LONG, "why"], tokens=True)
    encoder = Encoder.load(base, cache=tmp_path)

    def fail(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(encoder._model, "forward", fail)
    assert encoder.encode(["why", LONG], tokens=True).truncated == 1
    assert encoder.encode([], tokens=True).token_vectors.shape == (0, 24)
    with pytest.raises(AssertionError, match="the network was asked"):
        encoder.encode(["new"], tokens=True)


def test_another_precision_is_another_vector(tmp_path, base):
    exact = Encoder.load(base, cache=tmp_path).encode(["why"]).vectors
    rough = Encoder.load(base, dtype=torch.bfloat16, cache=tmp_path).encode(["why"]).vectors
    assert 0 < (exact - rough).abs().max() < 0.1


def test_a_late_interaction_model_gives_the_same_from_the_cache(tmp_path):
    from checkpoints import edit_json, save_bert
    from safetensors.torch import load_file, save_file

    folder = save_bert(tmp_path / "colbert")
    tensors = {f"bert.{k}": v for k, v in load_file(folder / "model.safetensors").items()}
    tensors["linear.weight"] = torch.randn(8, 24)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    edit_json(folder / "config.json", architectures=["HF_ColBERT"])
    plain = LateInteraction.load(folder)
    for _ in range(2):
        cached = LateInteraction.load(folder, cache=tmp_path / "cache")
        for side in ("encode_queries", "encode_documents"):
            found, expected = getattr(cached, side)(TEXTS), getattr(plain, side)(TEXTS)
            assert torch.equal(found.offsets, expected.offsets)
            assert (found.vectors - expected.vectors).abs().max() < 1e-5
            assert found.truncated == expected.truncated
