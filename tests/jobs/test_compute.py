"""Texts that come again, and work done one step ahead."""

import threading
import time

import pytest
import torch
from conftest import WordEncoder
from jobs.conftest import write_log

from ricci_gpu.config import Config
from ricci_gpu.jobs import compute
from ricci_gpu.jobs.compute import RepeatedTexts, UnitRanker
from ricci_gpu.jobs.plan import plan_job
from ricci_gpu.jobs.prefetch import one_ahead
from ricci_gpu.jobs.rows import read_unit

BATCHES = [["a b", "c", "a b"], ["c", "d"], ["c", "a b", "e"], ["f"]]


def encode_all(texts: RepeatedTexts, tokens: bool) -> None:
    """Every batch gives what the encoder itself gives."""
    for batch in BATCHES:
        got, want = texts.encode(batch, tokens=tokens), WordEncoder().encode(batch, tokens=tokens)
        torch.testing.assert_close(got.vectors, want.vectors)
        if tokens:
            torch.testing.assert_close(got.token_vectors, want.token_vectors)
            assert got.token_offsets.tolist() == want.token_offsets.tolist()


@pytest.mark.parametrize("tokens", [False, True])
def test_a_text_that_comes_again_is_encoded_once(tokens):
    encoder = WordEncoder()
    texts = RepeatedTexts(encoder, most_tokens=100)
    texts.expect(map(set, BATCHES))
    encode_all(texts, tokens)
    assert encoder.calls == [["a b", "c"], ["d"], ["e"], ["f"]]
    assert texts._kept == {}  # each was let go after its last batch
    assert texts._tokens == 0


def test_no_more_is_kept_than_is_allowed():
    encoder = WordEncoder()
    texts = RepeatedTexts(encoder, most_tokens=1)  # room for "c", not for "a b"
    texts.expect(map(set, BATCHES))
    encode_all(texts, tokens=True)
    assert encoder.calls == [["a b", "c"], ["d"], ["a b", "e"], ["f"]]
    encode_all(texts, tokens=True)  # also where more is asked than was expected


def test_one_ahead_makes_one_item_and_no_more():
    made = []

    def items():
        for item in range(5):
            made.append((item, threading.current_thread().name))
            yield item

    seen = []
    for item in one_ahead(items()):
        time.sleep(0.02)
        assert len(made) <= item + 2
        seen.append(item)
    assert seen == [0, 1, 2, 3, 4]
    assert {name for _, name in made} == {"ahead_0"}


def test_one_ahead_raises_in_its_place_and_ends_its_thread():
    def items():
        yield 1
        raise ValueError("second")

    ahead = one_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="second"):
        next(ahead)
    ahead = one_ahead(iter(range(9)))
    assert next(ahead) == 0
    ahead.close()
    assert not [each for each in threading.enumerate() if each.name.startswith("ahead")]


def test_answers_are_the_same_when_batches_are_made_ahead(index, tmp_path, monkeypatch):
    """As on a GPU, whose stream is stood in for here."""

    class Stream:
        waits = 0

        def synchronize(self):
            self.waits += 1

    log = write_log(tmp_path / "log.tsv", 30)
    job = plan_job(Config.load("default"), [str(log)], index, batch_tokens=400)
    rows = read_unit(job, job.units[0])
    plain = list(UnitRanker(job, "cpu").answers(rows))
    ranker = UnitRanker(job, "cpu")
    ranker._stream = stream = Stream()
    monkeypatch.setattr(compute.torch.cuda, "stream", lambda stream: memoryview(b""))
    assert list(ranker.answers(rows)) == plain
    assert stream.waits == len(ranker.batches(rows)) > 1
