"""SPLADE: a sparse vector over the vocabulary per text, from a masked-language model.

Source: Formal et al. 2021 (arXiv 2107.05720, and 2109.10086 for the maximum): the weight of a word
is log(1 + relu(logit)), and the largest over the tokens of the text.
"""

import logging
import os
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ricci_gpu.models.batching import (
    batches_by_length,
    pad_right,
    real_tokens,
    token_budget,
    windows,
)
from ricci_gpu.models.folder import Located, fingerprint, locate, require_safetensors
from ricci_gpu.models.pretrained import (
    load_network,
    load_tokenizer,
    longest_input,
    readable,
    require_strings,
)
from ricci_gpu.shapes import Float, Tensor

logger = logging.getLogger(__name__)


class Splade:
    """A SPLADE model. Make one with `Splade.load`.

    Attributes:
        name, source: what it was asked for by, and where its files came from.
        vocabulary: number of words, the width of its vectors.
        max_tokens: longest input, special tokens included; longer texts are cut.
    """

    def __init__(self, name: str, found: Located, model: Any, tokenizer: Any) -> None:
        self.name, self.source = name, found.source
        self.vocabulary: int = model.config.vocab_size
        self.max_tokens = longest_input(tokenizer, model)
        self._path: Path = found.path
        self._model = model
        self._tokenizer = tokenizer

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str] = "splade-tiny-msmarco",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> "Splade":
        """Load a masked-language model: the packaged one, a folder, or a name on the hub.

        Args:
            dtype: of weights and layers; results are float32 in any case.

        Raises:
            SettingError: the model is nowhere, or is no masked-language model in safetensors.
            MissingDependencyError: without transformers.
        """
        found, purpose = locate(name, "SPLADE model"), "loading a SPLADE model"
        require_safetensors(found.path)
        tokenizer = load_tokenizer(found.path, purpose)
        model = load_network(found.path, "AutoModelForMaskedLM", purpose, device, dtype)
        return cls(str(name), found, model, tokenizer)

    @property
    def device(self) -> torch.device:
        return self._model.device

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files and settings: models with equal ones give equal vectors."""
        return fingerprint({"max_tokens": self.max_tokens}, [self._path])

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        batch_tokens: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        log_truncated: bool = True,
    ) -> Float[Tensor, "M V"]:
        """Sparse CSR rows, one per text; products of rows are the scores.

        The row of a text does not depend on the others: in other company its weights move by the
        rounding of float32, below 1e-5.

        Args:
            batch_tokens: padded tokens per forward pass (a single text may exceed it); by default
                what suits the device.
            progress: called with the number of texts done and their total.
            log_truncated: warn once, by logging, about texts that were cut.

        Raises:
            InputError: something that is no string among the texts.
            SettingError: ``batch_tokens`` is not positive.
        """
        require_strings(texts)
        budget = token_budget(batch_tokens, self.device)
        rows: list[tuple[Tensor, Tensor]] = [(torch.empty(0), torch.empty(0))] * len(texts)
        done = truncated = 0
        for window in windows(len(texts)):
            encodings = self._tokenizer(
                readable(texts[window]), truncation=True, max_length=self.max_tokens
            ).encodings
            truncated += sum(bool(each.overflowing) for each in encodings)
            ids = [np.array(each.ids, dtype=np.int64) for each in encodings]
            for batch in batches_by_length([len(row) for row in ids], budget):
                weights = self._weights([ids[row] for row in batch])
                for row, weight in zip(batch, weights, strict=True):
                    columns = weight.nonzero()[:, 0]
                    rows[window.start + row] = (columns, weight[columns])
                done += len(batch)
                if progress is not None:
                    progress(done, len(texts))
        if truncated and log_truncated:
            logger.warning(
                "%d of %d texts were cut to %d tokens", truncated, len(texts), self.max_tokens
            )
        return self._csr(rows)

    def words(self, row: Float[Tensor, "V"]) -> dict[str, float]:
        """The words of a dense row with their weights, heaviest first."""
        columns = row.nonzero()[:, 0]
        order = columns[row[columns].argsort(descending=True, stable=True)]
        names = self._tokenizer.convert_ids_to_tokens(order.tolist())
        return dict(zip(names, row[order].tolist(), strict=True))

    def _weights(self, ids: list[np.ndarray]) -> Float[Tensor, "b V"]:
        batch = torch.from_numpy(pad_right(ids, self._tokenizer.pad_token_id)).to(self.device)
        lengths = torch.tensor([len(row) for row in ids], device=self.device)
        mask = real_tokens(lengths, batch.shape[1])
        logits = self._model(input_ids=batch, attention_mask=mask.long()).logits
        # log(1 + relu(x)) grows with x: the maximum of the logits decides
        largest = torch.where(mask[..., None], logits, -torch.inf).amax(dim=1)
        return largest.float().relu().log1p()

    def _csr(self, rows: Sequence[tuple[Tensor, Tensor]]) -> Float[Tensor, "M V"]:
        counts = torch.tensor([0, *(len(columns) for columns, _ in rows)])
        nothing = torch.empty(0, device=self.device)
        columns = torch.cat([nothing.long(), *(columns for columns, _ in rows)])
        weights = torch.cat([nothing, *(weights for _, weights in rows)])
        size = (len(rows), self.vocabulary)
        starts = counts.cumsum(0).to(self.device)
        with warnings.catch_warnings():  # torch says once per process that the layout is young
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
            return torch.sparse_csr_tensor(starts, columns, weights, size, check_invariants=True)
