"""Sentence vectors and token vectors of texts, from one forward pass of one transformer.

Texts are encoded as given: what `Encoder.prompts` names is put in front of them by the caller, who
knows queries from passages (`ricci_gpu.models.sides` does).
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch.nn.functional import normalize

from ricci_gpu.errors import InputError
from ricci_gpu.models.batching import (
    batches_by_length,
    offsets_of,
    pad_right,
    real_tokens,
    token_budget,
    windows,
)
from ricci_gpu.models.cache import EmbeddingCache, Record
from ricci_gpu.models.folder import ModelFolder, Prompts, find_model
from ricci_gpu.models.pretrained import (
    load_network,
    load_tokenizer,
    longest_input,
    readable,
    require_strings,
)
from ricci_gpu.shapes import Float, Int, Tensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Encoded:
    """What `Encoder.encode` gives, on the device of the model, in the order of the texts.

    Args:
        vectors: one sentence vector per text.
        token_vectors: packed vectors of all tokens, each of length 1; those of text ``i`` are
            ``token_vectors[token_offsets[i]:token_offsets[i + 1]]``. None unless asked for.
        token_offsets: None unless token vectors were asked for.
        truncated: number of texts that were longer than the model reads.
    """

    vectors: Float[Tensor, "M D"]
    token_vectors: Float[Tensor, "T W"] | None
    token_offsets: Int[Tensor, "Mplus1"] | None
    truncated: int

    def packed_tokens(self) -> tuple[Float[Tensor, "T W"], Int[Tensor, "Mplus1"]]:
        """Token vectors and offsets, which must have been asked for."""
        if self.token_vectors is None or self.token_offsets is None:
            raise InputError("token vectors were not made. Encode with `tokens=True`.")
        return self.token_vectors, self.token_offsets


class Encoder:
    """A sentence-embedding model. Make one with `Encoder.load`.

    Attributes:
        name: the name it was asked for by.
        source: where its files came from, in words.
        prompts: what belongs in front of queries and of passages.
        max_tokens: longest input, special tokens included; longer texts are cut.
        width: length ``D`` of its vectors.
    """

    def __init__(
        self,
        name: str,
        folder: ModelFolder,
        model: Any,
        tokenizer: Any,
        cache: EmbeddingCache | None = None,
    ) -> None:
        self.name = name
        self.source = folder.source
        self.prompts: Prompts = folder.prompts
        self.width: int = model.config.hidden_size
        self.max_tokens: int = folder.max_tokens or longest_input(tokenizer, model)
        self._folder = folder
        self._model = model
        self._tokenizer = tokenizer
        self._cache = cache
        # [UNK] and [MASK] are special too, but stand for words of the text
        frame = (
            tokenizer.cls_token_id,
            tokenizer.sep_token_id,
            tokenizer.pad_token_id,
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
        )
        self._frame_ids = np.array(sorted({each for each in frame if each is not None}))

    @classmethod
    def load(
        cls,
        name: str | os.PathLike[str] = "all-MiniLM-L6-v2",
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache: str | os.PathLike[str] | None = None,
    ) -> "Encoder":
        """Load a model from a package, a local folder, or the hub, in that order of preference.

        Args:
            name: name of a packaged model, path of a folder, or name on the hub.
            dtype: of weights and layers; results are float32 in any case.
            cache: folder that keeps the vectors of texts (`EmbeddingCache`).

        Raises:
            SettingError: the model is nowhere, or needs something that is not supported here.
            MissingDependencyError: without transformers.
        """
        folder, purpose = find_model(name), "loading an encoder"
        tokenizer = load_tokenizer(folder.path, purpose)
        model = load_network(folder.path, "AutoModel", purpose, device, dtype)
        kept = None if cache is None else EmbeddingCache(cache)
        return cls(str(name), folder, model, tokenizer, kept)

    @property
    def device(self) -> torch.device:
        return self._model.device

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files and settings: encoders with equal ones give equal vectors."""
        return self._folder.fingerprint()

    def encode(
        self,
        texts: Sequence[str],
        tokens: bool = False,
        batch_tokens: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        log_truncated: bool = True,
    ) -> Encoded:
        """Encode texts; the vectors of a text do not depend on the other texts.

        Sentence vectors are pooled and normalised as the model says. Token vectors are the last
        hidden states, scaled to length 1, without the tokens that frame a text ([CLS], [SEP],
        padding), which are found by their ids. A text without words has no token vectors; it
        still has a sentence vector. Lone surrogates are read as ``?``.

        In other company a text's vectors move by the rounding of float32, below 1e-5.

        Args:
            tokens: also give the token vectors; the forward pass is the same.
            batch_tokens: padded tokens per forward pass (a single text may exceed it); by default
                what suits the device.
            progress: called with the number of texts done and their total.
            log_truncated: warn once, by logging, about texts that were cut; a caller that encodes
                piece by piece adds up `Encoded.truncated` instead.

        Raises:
            InputError: something that is no string among the texts.
            SettingError: ``batch_tokens`` is not positive.
        """
        require_strings(texts)
        if self._cache is None:
            encoded, _ = self._encode(texts, tokens, batch_tokens, progress)
        else:
            precision = str(self._model.dtype)
            asked = "sentence and tokens" if tokens else "sentence"
            records = self._cache.recall(
                f"{self.fingerprint} {precision} {asked}",
                texts,
                lambda new: _records(*self._encode(new, tokens, batch_tokens, None)),
                progress,
            )
            encoded = self._joined(records, tokens)
        if encoded.truncated and log_truncated:
            logger.warning(
                "%d of %d texts were cut to %d tokens",
                encoded.truncated,
                len(texts),
                self.max_tokens,
            )
        return encoded

    def words(self, text: str) -> list[str]:
        """The tokens of a text as strings, one per token vector, in the same order."""
        require_strings([text])
        [ids], _ = self._token_ids([text])
        return self._tokenizer.convert_ids_to_tokens(ids[self._is_word(ids)].tolist())

    @torch.no_grad()
    def _encode(
        self,
        texts: Sequence[str],
        tokens: bool,
        batch_tokens: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> tuple[Encoded, np.ndarray]:
        """What the network says, and which texts were cut."""
        budget = token_budget(batch_tokens, self.device)
        vectors = torch.empty((len(texts), self.width), device=self.device)
        token_parts = [torch.empty((0, self.width), device=self.device)]
        token_counts = np.zeros(len(texts), dtype=np.int64)
        cut = np.zeros(len(texts), dtype=bool)
        for window in windows(len(texts)):
            ids, cut[window] = self._token_ids(texts[window])
            start, done = window.start, window.start
            if tokens:
                token_counts[window] = [np.count_nonzero(self._is_word(row)) for row in ids]
                offsets = offsets_of(token_counts[window])
                packed = torch.empty((int(offsets[-1]), self.width), device=self.device)
                token_parts.append(packed)
            for rows in batches_by_length([len(row) for row in ids], budget):
                batch = pad_right([ids[row] for row in rows], self._tokenizer.pad_token_id)
                lengths = torch.tensor([len(ids[row]) for row in rows], device=self.device)
                hidden = self._last_hidden(batch, lengths)
                vectors[start + torch.from_numpy(rows)] = self._pool(hidden, lengths)
                if tokens:
                    # places of the words in the padded batch, and in the packed result
                    places = torch.from_numpy(np.flatnonzero(self._is_word(batch)))
                    spans = [np.arange(offsets[row], offsets[row + 1]) for row in rows]
                    targets = torch.from_numpy(np.concatenate(spans))
                    words = rearrange(hidden, "b L D -> (b L) D")[places.to(self.device)]
                    packed[targets.to(self.device)] = normalize(words, dim=-1)
                done += len(rows)
                if progress is not None:
                    progress(done, len(texts))
        encoded = Encoded(
            vectors=vectors,
            token_vectors=torch.cat(token_parts) if tokens else None,
            token_offsets=torch.from_numpy(offsets_of(token_counts)).to(self.device)
            if tokens
            else None,
            truncated=int(cut.sum()),
        )
        return encoded, cut

    def _joined(self, records: Sequence[Record], tokens: bool) -> Encoded:
        """Records of the cache as one result."""
        vectors = np.stack([r[0] for r in records]) if records else np.empty((0, self.width))
        words = [record[2] for record in records] if tokens else []
        nothing = np.empty((0, self.width), dtype=np.float32)
        counts = np.array([len(rows) for rows in words], dtype=np.int64)

        def on_device(array: np.ndarray) -> Tensor:
            return torch.from_numpy(array).to(self.device)

        return Encoded(
            vectors=on_device(vectors.astype(np.float32, copy=False)),
            token_vectors=on_device(np.concatenate([nothing, *words])) if tokens else None,
            token_offsets=on_device(offsets_of(counts)) if tokens else None,
            truncated=sum(bool(record[1][0]) for record in records),
        )

    def _token_ids(self, texts: Sequence[str]) -> tuple[list[np.ndarray], np.ndarray]:
        """Token ids of each text, framed and cut, and which texts were cut."""
        if not texts:  # a tokenizer takes no empty list
            return [], np.zeros(0, dtype=bool)
        clean = [text.strip() for text in readable(texts)]
        if self._folder.lowercase:
            clean = [text.lower() for text in clean]
        encodings = self._tokenizer(clean, truncation=True, max_length=self.max_tokens).encodings
        ids = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        return ids, np.array([bool(encoding.overflowing) for encoding in encodings])

    def _is_word(self, ids: np.ndarray) -> np.ndarray:
        return ~np.isin(ids, self._frame_ids)

    def _last_hidden(self, batch: np.ndarray, lengths: Tensor) -> Float[Tensor, "b L D"]:
        ids = torch.from_numpy(batch).to(self.device)
        mask = real_tokens(lengths, ids.shape[1])
        return self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()

    def _pool(self, hidden: Float[Tensor, "b L D"], lengths: Tensor) -> Float[Tensor, "b D"]:
        if self._folder.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = real_tokens(lengths, hidden.shape[1])
            pooled = torch.where(mask[..., None], hidden, 0).sum(dim=1) / lengths[:, None]
        return normalize(pooled, dim=-1) if self._folder.normalize else pooled


def _records(encoded: Encoded, cut: np.ndarray) -> list[Record]:
    """One record per text: sentence vector, whether it was cut, and the token vectors if any."""
    columns = [list(encoded.vectors.cpu().numpy()), list(cut[:, None])]
    if encoded.token_vectors is not None:
        packed, offsets = encoded.packed_tokens()
        columns.append(np.split(packed.cpu().numpy(), offsets[1:-1].cpu().numpy()))
    return list(zip(*columns, strict=True))
