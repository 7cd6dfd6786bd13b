"""The cross-encoder: a transformer with one label reads question and passage together."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from ricci_gpu.models.batching import pad_right
from ricci_gpu.models.folder import locate, read_json
from ricci_gpu.models.pretrained import load_network, load_tokenizer, readable
from ricci_gpu.shapes import Bool, Float, Int, Tensor
from ricci_gpu.training.collection import Collection
from ricci_gpu.training.draws import Batch
from ricci_gpu.training.losses import listwise_loss, pointwise_loss

ATTENTION_DROPOUT = "attention_probs_dropout_prob"
PARTS = 4  # of like length, into which the pairs of a batch are cut: a third less padding


class PairBatch(NamedTuple):
    """Tokenised (question, passage) pairs, and which pair stands in which place (-1: none).

    The pairs come in parts, each padded by itself, and are counted through all parts.
    """

    inputs: list[dict[str, Tensor]]
    pair_of: Int[Tensor, "B W"]
    relevant: Bool[Tensor, "B W"]


class PairBatches(torch.utils.data.Dataset[PairBatch]):
    """Batches with their texts, tokenised."""

    def __init__(
        self,
        batches: Sequence[Batch],
        collections: Sequence[Collection],
        tokenizer: Any,
        max_tokens: int,
    ) -> None:
        self._batches = batches
        self._collections = collections
        self._tokenizer = tokenizer
        self._max_tokens = max_tokens

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: int) -> PairBatch:
        batch = self._batches[place]
        collection = self._collections[batch.collection]
        width = max(len(draw.passages) for draw in batch.draws)
        places: list[tuple[int, int]] = []
        questions: list[str] = []
        passages: list[str] = []
        relevant = torch.zeros((len(batch.draws), width), dtype=torch.bool)
        for row, draw in enumerate(batch.draws):
            for column, passage in enumerate(draw.passages):
                places.append((row, column))
                questions.append(collection.asked[draw.question].text)
                passages.append(collection.store.passages[passage].full_text)
                relevant[row, column] = passage in draw.relevant
        tokens = self._tokenizer(
            readable(questions), readable(passages), truncation=True, max_length=self._max_tokens
        )
        order = np.argsort([len(row) for row in tokens["input_ids"]], kind="stable")
        pair_of = torch.full((len(batch.draws), width), -1)
        for pair, place_of_pair in enumerate(order):
            pair_of[places[place_of_pair]] = pair
        parts = [part for part in np.array_split(order, PARTS) if len(part)]
        return PairBatch([self._pad(tokens, part) for part in parts], pair_of, relevant)

    def _pad(self, tokens: Any, rows: np.ndarray) -> dict[str, Tensor]:
        filler = {"input_ids": self._tokenizer.pad_token_id}
        return {
            name: torch.from_numpy(
                pad_right([np.asarray(values[row]) for row in rows], filler.get(name, 0))
            )
            for name, values in tokens.items()
        }


class CrossEncoderRanker(nn.Module):
    """Scores are the raw outputs of the only label."""

    def __init__(self, model: nn.Module, loss: str) -> None:
        super().__init__()
        self.model = model
        self._loss = listwise_loss if loss == "listwise" else pointwise_loss

    def forward(self, batch: PairBatch) -> Float[Tensor, "B W"]:
        """The score of each question with its passages; -inf where there is none."""
        logits = torch.cat([self.model(**part).logits[:, 0] for part in batch.inputs])
        return torch.where(batch.pair_of < 0, -torch.inf, logits[batch.pair_of.clamp(min=0)])

    def loss(
        self, scores: Float[Tensor, "B W"], relevant: Bool[Tensor, "B W"]
    ) -> Float[Tensor, ""]:
        return self._loss(scores, relevant)

    def parameter_groups(self, learning_rate: float) -> list[dict[str, Any]]:
        trained = [each for each in self.parameters() if each.requires_grad]
        return [{"params": trained, "lr": learning_rate}]


def load_classifier(name: str, max_tokens: int) -> tuple[Any, Any]:
    """A classifier with one new label over the base, ready for training, and its tokenizer.

    Raises:
        SettingError: the base is nowhere, or cannot be loaded from safetensors.
        MissingDependencyError: without transformers.
    """
    purpose = "training a cross-encoder"
    path = locate(name, "base").path
    tokenizer = load_tokenizer(path, purpose, model_max_length=max_tokens)
    settings = {"num_labels": 1}
    if ATTENTION_DROPOUT in read_json(path / "config.json"):
        settings[ATTENTION_DROPOUT] = 0  # torch's fast attention has none, and it is not missed
    model = load_network(
        path, "AutoModelForSequenceClassification", purpose, "cpu", torch.float32, **settings
    )
    return model.train(), tokenizer
