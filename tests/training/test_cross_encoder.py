import pytest
import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.evaluation.datasets import Dataset
from ricci_gpu.models.encoder import Encoder
from ricci_gpu.training.collection import open_collection
from ricci_gpu.training.cross_encoder import CrossEncoderRanker, PairBatches, load_classifier
from ricci_gpu.training.draws import Batch, Draw

pytest.importorskip("faiss")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def collection(data, tiny_model, tmp_path_factory):
    encoder = Encoder.load(tiny_model)
    return open_collection(Dataset("pairs", data / "pairs"), encoder, tmp_path_factory.mktemp("c"))


def test_every_pair_is_scored_in_its_place_whatever_its_length(collection, tiny_model):
    torch.manual_seed(0)
    model, tokenizer = load_classifier(str(tiny_model), max_tokens=12)
    ranker = CrossEncoderRanker(model, "listwise").eval()
    draws = (Draw(7, (0, 5, 19), frozenset({5})), Draw(0, (3,), frozenset()))
    batch = PairBatches([Batch(0, draws)], [collection], tokenizer, max_tokens=12)[0]
    assert batch.relevant.tolist() == [[False, True, False], [False, False, False]]
    scores = ranker(batch)
    assert scores.shape == (2, 3)
    for row, draw in enumerate(draws):
        for column, passage in enumerate(draw.passages):
            inputs = tokenizer(
                collection.asked[draw.question].text,
                collection.store.passages[passage].full_text,
                truncation=True,
                max_length=12,
                return_tensors="pt",
            )
            expected = model(**inputs).logits[0, 0]
            torch.testing.assert_close(scores[row, column], expected, rtol=0, atol=1e-5)
    assert scores[1, 1:].tolist() == [-torch.inf] * 2


def test_a_base_that_is_nowhere_is_named(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(SettingError, match=r"cannot be loaded|tokenizer"):
        load_classifier(str(tmp_path), max_tokens=12)
