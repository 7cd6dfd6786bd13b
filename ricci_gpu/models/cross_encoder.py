"""Cross-encoders: one network reads query and document together and says how well they fit."""

import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.models.batching import (
    batches_by_length,
    pad_right,
    real_tokens,
    token_budget,
    windows,
)
from ricci_gpu.models.folder import Located, fingerprint, locate, read_json, require_safetensors
from ricci_gpu.models.pretrained import (
    load_network,
    load_tokenizer,
    longest_input,
    readable,
    require_pairs,
)
from ricci_gpu.shapes import Float, Tensor

logger = logging.getLogger(__name__)

SIGMOID, RAW = "sigmoid", "raw"
_ACTIVATIONS = {
    "Sigmoid": SIGMOID,
    "Identity": RAW,
}  # classes of torch.nn, as checkpoints name them


@dataclass(frozen=True)
class _Settings:
    """What a checkpoint says about its scores."""

    activation: str
    max_tokens: int | None


class CrossEncoder:
    """A model that scores (query, document) pairs. Make one with `CrossEncoder.load`.

    With one label the logit is the score's margin, with two it is the logit of label 1 less that
    of label 0. The activation that the checkpoint names (``sentence_transformers.activation_fn``
    in ``config.json``, or its older name) is applied to the margin: the sigmoid, which for two
    labels is the softmax probability of label 1, or nothing. Where it names none the sigmoid is
    taken, as sentence-transformers does for one label.

    Attributes:
        name, source: what it was asked for by, and where its files came from.
        activation: ``sigmoid`` or ``raw``.
        max_tokens: longest pair, special tokens included; of longer ones the longer side is cut.
    """

    def __init__(
        self, name: str, found: Located, settings: _Settings, model: Any, tokenizer: Any
    ) -> None:
        self.name, self.source = name, found.source
        self.activation = settings.activation
        self.max_tokens = settings.max_tokens or longest_input(tokenizer, model)
        self._path = found.path
        self._model = model
        self._tokenizer = tokenizer

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "CrossEncoder":
        """Load a sequence classifier with one label or two: a folder, or a name on the hub.

        Args:
            dtype: of weights and layers; scores are float32 in any case.

        Raises:
            SettingError: the model is nowhere, has other labels or another activation, or is not
                a sequence classifier in safetensors.
            MissingDependencyError: without transformers.
        """
        found, purpose = locate(name, "cross-encoder"), "loading a cross-encoder"
        settings = _read_settings(found.path)
        tokenizer = load_tokenizer(found.path, purpose)
        head = "AutoModelForSequenceClassification"
        model = load_network(found.path, head, purpose, device, dtype)
        return cls(str(name), found, settings, model, tokenizer)

    @property
    def device(self) -> torch.device:
        return self._model.device

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files and settings: models with equal ones give equal scores."""
        settings = {"max_tokens": self.max_tokens, "activation": self.activation}
        return fingerprint(settings, [self._path])

    @torch.no_grad()
    def score(
        self,
        pairs: Sequence[tuple[str, str]],
        batch_tokens: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        log_truncated: bool = True,
    ) -> Float[Tensor, "P"]:
        """Score (query, document) pairs, larger is better, on the device of the model.

        The score of a pair does not depend on the others: in other company it moves by the
        rounding of float32, below 1e-5.

        Args:
            batch_tokens: padded tokens per forward pass (a single pair may exceed it); by default
                what suits the device.
            progress: called with the number of pairs done and their total.
            log_truncated: warn once, by logging, about pairs that were cut.

        Raises:
            InputError: something that is not a pair of strings.
            SettingError: ``batch_tokens`` is not positive.
        """
        require_pairs(pairs)
        budget = token_budget(batch_tokens, self.device)
        scores = torch.empty(len(pairs), device=self.device)
        done = truncated = 0
        for window in windows(len(pairs)):
            encodings = self._tokenized(pairs[window])
            truncated += sum(bool(each.overflowing) for each in encodings)
            ids = [np.array(each.ids, dtype=np.int64) for each in encodings]
            sides = [np.array(each.type_ids, dtype=np.int64) for each in encodings]
            for rows in batches_by_length([len(row) for row in ids], budget):
                logits = self._logits([ids[row] for row in rows], [sides[row] for row in rows])
                margin = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
                score = torch.sigmoid(margin) if self.activation == SIGMOID else margin
                scores[window.start + torch.from_numpy(rows)] = score
                done += len(rows)
                if progress is not None:
                    progress(done, len(pairs))
        if truncated and log_truncated:
            logger.warning(
                "%d of %d pairs were cut to %d tokens", truncated, len(pairs), self.max_tokens
            )
        return scores

    def _tokenized(self, pairs: Sequence[tuple[str, str]]) -> list[Any]:
        queries = readable([query for query, _ in pairs])
        documents = readable([document for _, document in pairs])
        longest_first = {"truncation": True, "max_length": self.max_tokens}
        encodings: list[Any] = self._tokenizer(queries, documents, **longest_first).encodings
        return encodings

    def _logits(self, ids: list[np.ndarray], sides: list[np.ndarray]) -> Float[Tensor, "b labels"]:
        batch = torch.from_numpy(pad_right(ids, self._tokenizer.pad_token_id)).to(self.device)
        lengths = torch.tensor([len(row) for row in ids], device=self.device)
        inputs = {
            "input_ids": batch,
            "attention_mask": real_tokens(lengths, batch.shape[1]).long(),
            "token_type_ids": torch.from_numpy(pad_right(sides, 0)).to(self.device),
        }
        wanted = self._tokenizer.model_input_names  # not every network tells query from document
        logits = self._model(**{key: inputs[key] for key in inputs if key in wanted}).logits
        return logits.float()


def _read_settings(path: Path) -> _Settings:
    if not (path / "config.json").is_file():
        raise SettingError(
            f"{path}: a cross-encoder folder must hold `config.json`; it has none. Give the folder "
            "that save_pretrained wrote, or choose another model."
        )
    require_safetensors(path)
    config = read_json(path / "config.json")
    architecture = (config.get("architectures") or ["unknown"])[0]
    if not architecture.endswith("ForSequenceClassification"):
        raise SettingError(
            f"{path}: a cross-encoder must be a sequence classifier; this is `{architecture}`. "
            "Choose another model."
        )
    labels = len(config["id2label"]) if "id2label" in config else config.get("num_labels", 2)
    if labels not in (1, 2):
        raise SettingError(
            f"{path}: a cross-encoder must have one label or two; this one has {labels}. "
            "Choose another model."
        )
    file = path / "sentence_bert_config.json"
    limit = read_json(file).get("max_seq_length") if file.is_file() else None
    return _Settings(_activation(path, config), limit)


def _activation(path: Path, config: dict[str, Any]) -> str:
    named = (config.get("sentence_transformers") or {}).get("activation_fn")
    named = named or config.get("sbert_ce_default_activation_function")
    if named is None:
        return SIGMOID
    known = _ACTIVATIONS.get(named.rsplit(".", 1)[-1])
    if known is None or not named.startswith("torch."):
        raise SettingError(
            f"{path}: the activation of a cross-encoder must be torch's Sigmoid or Identity; got "
            f"{json.dumps(named)}. Choose another model."
        )
    return known
