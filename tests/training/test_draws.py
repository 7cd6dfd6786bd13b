import pytest

from ricci_gpu.corpus.judged import part_of_passage
from ricci_gpu.evaluation.datasets import Dataset
from ricci_gpu.models.encoder import Encoder
from ricci_gpu.training.collection import open_collection
from ricci_gpu.training.draws import Draws

pytest.importorskip("faiss")
pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def collection(data, tiny_model, tmp_path_factory):
    encoder = Encoder.load(tiny_model)
    return open_collection(Dataset("pairs", data / "pairs"), encoder, tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="module")
def draws(collection, tiny_model):
    texts = [question.text for question in collection.asked]
    return Draws([collection], [collection.pools(Encoder.load(tiny_model).encode(texts).vectors)])


def test_an_epoch_draws_every_question_once(collection, draws):
    batches = draws.epoch(seed=0, epoch=0, batch=8, negatives=3)
    asked = [draw.question for batch in batches for draw in batch.draws]
    assert sorted(asked) == list(range(len(collection.questions.train)))
    assert {len(batch.draws) for batch in batches} <= {8, len(asked) % 8}


def test_the_positive_comes_first_and_negatives_are_of_fit(collection, draws):
    for batch in draws.epoch(0, 0, 8, 3):
        for draw in batch.draws:
            positive, *negatives = draw.passages
            names = [collection.store.passages[row].id for row in negatives]
            assert positive in draw.relevant
            assert len(set(negatives)) == 3
            assert not draw.relevant.intersection(negatives)
            assert all(part_of_passage(name) == "fit" for name in names)


def test_an_epoch_is_a_function_of_seed_and_number(draws):
    assert draws.epoch(1, 2, 8, 3) == draws.epoch(1, 2, 8, 3)
    assert draws.epoch(1, 2, 8, 3) != draws.epoch(1, 3, 8, 3)
    assert draws.epoch(1, 2, 8, 3) != draws.epoch(2, 2, 8, 3)


def test_fewer_negatives_than_asked_for_are_taken_as_they_are(draws):
    sizes = {len(d.passages) for batch in draws.epoch(0, 0, 8, 50) for d in batch.draws}
    assert max(sizes) < 21


def test_dev_pools_are_whole(collection, draws):
    found = [draw for batch in draws.dev(4) for draw in batch.draws]
    assert len(found) == len(collection.questions.dev)
    assert all(sorted(draw.passages) == list(range(20)) for draw in found)


def test_passages_that_are_read_are_known(collection, draws):
    read = draws.read_rows(0)
    for epoch in range(3):
        for batch in draws.epoch(0, epoch, 8, 5):
            assert all(read.issuperset(draw.passages) for draw in batch.draws)
    assert len(read) < 20
