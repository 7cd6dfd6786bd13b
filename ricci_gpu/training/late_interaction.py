"""The late-interaction ranker: token vectors, a linear projection, MaxSim.

Khattab and Zaharia 2020 (ColBERT): every token vector is projected to a small width and scaled to
length 1. With a frozen encoder only the projection is trained, on token vectors that were computed
once. Batches carry all that a step needs, so that they can be made by any process.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize

from ricci_gpu.errors import SettingError
from ricci_gpu.models.encoder import Encoded
from ricci_gpu.models.pretrained import readable
from ricci_gpu.ops.maxsim import maxsim
from ricci_gpu.shapes import Bool, Float, Int, Tensor
from ricci_gpu.training.collection import Collection
from ricci_gpu.training.draws import Batch
from ricci_gpu.training.losses import listwise_loss

ENCODER_RATE = 0.02  # of the learning rate of the projection
SAMPLE = 50_000  # token vectors that the first projection is computed from


class Packed(NamedTuple):
    """Token vectors of some texts, end to end."""

    vectors: Float[Tensor, "T D"]
    offsets: Int[Tensor, "nplus1"]


class TokenIds(NamedTuple):
    """Token ids of some texts, padded, for an encoder that is trained too."""

    ids: Int[Tensor, "n L"]
    mask: Bool[Tensor, "n L"]


class TokenBatch(NamedTuple):
    """Texts, and which question is scored against which document (-1: none)."""

    queries: Packed | TokenIds
    documents: Packed | TokenIds
    document_of: Int[Tensor, "B W"]
    relevant: Bool[Tensor, "B W"]


@runtime_checkable
class Texts(Protocol):
    """Where the tokens of questions and passages come from."""

    def questions(self, collection: int, rows: Sequence[int]) -> Packed | TokenIds: ...

    def passages(self, collection: int, rows: Sequence[int]) -> Packed | TokenIds: ...


class FrozenTexts:
    """Token vectors computed before the training.

    Args:
        encoded: for each collection, its `Collection.asked`, encoded with token vectors.
    """

    def __init__(self, collections: Sequence[Collection], encoded: Sequence[Encoded]) -> None:
        self._collections = collections
        self._asked = [Packed(*(part.cpu() for part in each.packed_tokens())) for each in encoded]

    def questions(self, collection: int, rows: Sequence[int]) -> Packed:
        return take(self._asked[collection], rows)

    def passages(self, collection: int, rows: Sequence[int]) -> Packed:
        vectors, offsets = self._collections[collection].store.token_slices(torch.tensor(rows))
        return Packed(vectors.float(), offsets)


class LiveTexts:
    """Token ids, for an encoder that changes at every step."""

    def __init__(self, collections: Sequence[Collection], tokenizer: Any, max_tokens: int) -> None:
        self._collections = collections
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def questions(self, collection: int, rows: Sequence[int]) -> TokenIds:
        asked = self._collections[collection].asked
        return self._ids([asked[row].text for row in rows])

    def passages(self, collection: int, rows: Sequence[int]) -> TokenIds:
        passages = self._collections[collection].store.passages
        return self._ids([passages[row].full_text for row in rows])

    def _ids(self, texts: list[str]) -> TokenIds:
        found = self._tokenizer(
            readable(texts),
            truncation=True,
            max_length=self._max_tokens,
            padding=True,
            return_tensors="pt",
        )
        return TokenIds(found["input_ids"], found["attention_mask"].bool())


class TokenBatches(torch.utils.data.Dataset[TokenBatch]):
    """Batches with their tokens.

    Args:
        in_batch: a question is also scored against the positive passages of the other questions
            of its batch, save those that are relevant to it.
    """

    def __init__(self, batches: Sequence[Batch], texts: Texts, in_batch: bool) -> None:
        self._batches = batches
        self._texts = texts
        self._in_batch = in_batch

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: int) -> TokenBatch:
        batch = self._batches[place]
        wanted = [list(draw.passages) for draw in batch.draws]
        if self._in_batch:
            positives = sorted({draw.passages[0] for draw in batch.draws})
            for row, draw in zip(wanted, batch.draws, strict=True):
                row += [p for p in positives if p not in draw.relevant and p not in draw.passages]
        rows = sorted({passage for row in wanted for passage in row})
        place_of = {passage: place for place, passage in enumerate(rows)}
        width = max(map(len, wanted))
        return TokenBatch(
            queries=self._texts.questions(
                batch.collection, [draw.question for draw in batch.draws]
            ),
            documents=self._texts.passages(batch.collection, rows),
            document_of=torch.tensor(
                [[*(place_of[p] for p in row), *[-1] * (width - len(row))] for row in wanted]
            ),
            relevant=torch.tensor(
                [
                    [*(p in draw.relevant for p in row), *[False] * (width - len(row))]
                    for row, draw in zip(wanted, batch.draws, strict=True)
                ]
            ),
        )


class LateInteractionRanker(nn.Module):
    """Scores by MaxSim of projected token vectors, divided by a temperature for the loss.

    Args:
        weight: the projection at the start, ``[width D]``.
        encoder: a transformer, for batches of token ids; None for batches of token vectors.
    """

    def __init__(
        self, weight: Float[Tensor, "W D"], temperature: float, encoder: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        self.linear.weight.data.copy_(weight)
        self.encoder = encoder
        self._temperature = temperature

    def forward(self, batch: TokenBatch) -> Float[Tensor, "B W"]:
        """MaxSim of each question with its documents; -inf where there is none."""
        queries, documents = self.project(batch.queries), self.project(batch.documents)
        return pool_maxsim(queries, documents, batch.document_of)

    def project(self, texts: Packed | TokenIds) -> Packed:
        """Projected vectors of length 1 of all tokens."""
        if isinstance(texts, Packed):
            return Packed(normalize(self.linear(texts.vectors), dim=-1), texts.offsets)
        if self.encoder is None:
            raise ValueError("token ids need an encoder; this ranker has none.")
        hidden = self.encoder(input_ids=texts.ids, attention_mask=texts.mask.long())
        vectors = normalize(self.linear(hidden.last_hidden_state[texts.mask]), dim=-1)
        counts = texts.mask.sum(dim=1)
        return Packed(vectors, torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def loss(
        self, scores: Float[Tensor, "B W"], relevant: Bool[Tensor, "B W"]
    ) -> Float[Tensor, ""]:
        return listwise_loss(scores / self._temperature, relevant)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        """The rate is that of the projection; a pretrained encoder moves more slowly."""
        groups: list[dict[str, Any]] = [{"params": [self.linear.weight], "lr": learning_rate}]
        if self.encoder is not None:
            rate = ENCODER_RATE * learning_rate
            groups.append({"params": list(self.encoder.parameters()), "lr": rate})
        return groups


def pool_maxsim(
    queries: Packed, documents: Packed, document_of: Int[Tensor, "B W"]
) -> Float[Tensor, "B W"]:
    """MaxSim of each query with its documents; -inf where there is none."""
    size, width = document_of.shape
    pair_query = torch.arange(size, device=document_of.device).repeat_interleave(width)
    scores = maxsim(*queries, *documents, pair_query, document_of.reshape(-1))
    return scores.reshape(size, width)


def take(packed: Packed, rows: Sequence[int]) -> Packed:
    """Some of the texts, packed in the order of ``rows``."""
    counts = packed.offsets.diff()[list(rows)]
    offsets = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
    bounds = [(int(packed.offsets[row]), int(packed.offsets[row + 1])) for row in rows]
    spans = [torch.arange(start, stop) for start, stop in bounds]
    return Packed(packed.vectors[torch.cat(spans)], offsets)


def principal_directions(tokens: Sequence[np.ndarray], width: int) -> Float[Tensor, "W D"]:
    """The projection that changes dot products of token vectors least, in the mean of squares.

    Its rows are the first eigenvectors of the second moments of a sample of token vectors:
    training starts from nearly the scores of the vectors as they are.

    Args:
        tokens: token vectors ``[T D]``, one array per dataset; each gives the same number.
        width: of the projection, at most ``D``.

    Raises:
        SettingError: the width is larger than that of the vectors.
    """
    largest = tokens[0].shape[1]
    if width > largest:
        raise SettingError(
            f"`width` must be at most {largest}, that of the base; got {width}. Lower it."
        )
    share = SAMPLE // len(tokens)
    parts = [each[:: max(1, len(each) // share)][:share].astype(np.float64) for each in tokens]
    sample = torch.from_numpy(np.concatenate(parts))
    _, vectors = torch.linalg.eigh(sample.mT @ sample)  # ascending
    return vectors[:, -width:].flip(1).mT.float()
