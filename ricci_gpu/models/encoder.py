"""Sentence vectors and token vectors of texts, from one forward pass of one transformer.

Texts are encoded as given: a model that wants a prefix such as ``query:`` gets it from the caller.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch.nn.functional import normalize

from ricci_gpu.errors import InputError, SettingError, missing
from ricci_gpu.models.folder import ModelFolder, find_model
from ricci_gpu.shapes import Float, Int, Tensor

logger = logging.getLogger(__name__)

# Texts are tokenised and sorted by length in windows of this many, which bounds the memory for
# token ids; within a window, texts of like length share a batch and little is padded.
WINDOW = 8192


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
    token_vectors: Float[Tensor, "T D"] | None
    token_offsets: Int[Tensor, "Mplus1"] | None
    truncated: int

    def packed_tokens(self) -> tuple[Float[Tensor, "T D"], Int[Tensor, "Mplus1"]]:
        """Token vectors and offsets, which must have been asked for."""
        if self.token_vectors is None or self.token_offsets is None:
            raise InputError("token vectors were not made. Encode with `tokens=True`.")
        return self.token_vectors, self.token_offsets


class Encoder:
    """A sentence-embedding model. Make one with `Encoder.load`.

    Attributes:
        name: the name it was asked for by.
        source: where its files came from, in words.
        max_tokens: longest input, special tokens included; longer texts are cut.
        width: length ``D`` of its vectors.
    """

    def __init__(self, name: str, folder: ModelFolder, model: Any, tokenizer: Any) -> None:
        self.name = name
        self.source = folder.source
        self.width: int = model.config.hidden_size
        self.max_tokens: int = folder.max_tokens or min(
            tokenizer.model_max_length, model.config.max_position_embeddings
        )
        self._folder = folder
        self._model = model
        self._tokenizer = tokenizer
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
    ) -> "Encoder":
        """Load a model from a package, a local folder, or the hub, in that order of preference.

        Args:
            name: name of a packaged model, path of a folder, or name on the hub.
            dtype: of weights and layers; results are float32 in any case.

        Raises:
            SettingError: the model is nowhere, or needs something that is not supported here.
            MissingDependencyError: without transformers.
        """
        with _quiet_transformers():
            from transformers import AutoModel, AutoTokenizer

            folder = find_model(name)
            tokenizer = AutoTokenizer.from_pretrained(folder.path, trust_remote_code=False)
            if not tokenizer.is_fast:
                raise SettingError(
                    f"{folder.path}: an encoder needs a fast tokenizer (`tokenizer.json`); this "
                    "one has only a slow one. Convert it, or choose another model."
                )
            model = AutoModel.from_pretrained(
                folder.path, use_safetensors=True, trust_remote_code=False
            )
        return cls(str(name), folder, model.to(device=device, dtype=dtype).eval(), tokenizer)

    @property
    def device(self) -> torch.device:
        return self._model.device

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the files and settings: encoders with equal ones give equal vectors."""
        return self._folder.fingerprint()

    @torch.no_grad()
    def encode(
        self,
        texts: Sequence[str],
        tokens: bool = False,
        batch_tokens: int = 16384,
        progress: Callable[[int, int], None] | None = None,
        log_truncated: bool = True,
    ) -> Encoded:
        """Encode texts; the vectors of a text do not depend on the other texts.

        Sentence vectors are pooled and normalised as the model says. Token vectors are the last
        hidden states, scaled to length 1, without the tokens that frame a text ([CLS], [SEP],
        padding), which are found by their ids. A text without words has no token vectors; it
        still has a sentence vector. Lone surrogates are read as ``?``.

        Args:
            tokens: also give the token vectors; the forward pass is the same.
            batch_tokens: padded tokens per forward pass (a single text may exceed it).
            progress: called with the number of texts done and their total.
            log_truncated: warn once, by logging, about texts that were cut; a caller that encodes
                piece by piece adds up `Encoded.truncated` instead.

        Raises:
            InputError: something that is no string among the texts.
            SettingError: ``batch_tokens`` is not positive.
        """
        _require_strings(texts)
        if batch_tokens < 1:
            raise SettingError(f"`batch_tokens` must be at least 1; got {batch_tokens}. Raise it.")
        vectors = torch.empty((len(texts), self.width), device=self.device)
        token_parts = [torch.empty((0, self.width), device=self.device)]
        token_counts = np.zeros(len(texts), dtype=np.int64)
        truncated = 0
        for start in range(0, len(texts), WINDOW):
            ids, cut = self._token_ids(texts[start : start + WINDOW])
            truncated += cut
            stop = start + len(ids)
            if tokens:
                token_counts[start:stop] = [np.count_nonzero(self._is_word(row)) for row in ids]
                offsets = _offsets(token_counts[start:stop])
                packed = torch.empty((int(offsets[-1]), self.width), device=self.device)
                token_parts.append(packed)
            done = start
            for rows in _buckets([len(row) for row in ids], batch_tokens):
                batch, lengths = self._pad([ids[row] for row in rows])
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
        if truncated and log_truncated:
            logger.warning(
                "%d of %d texts were cut to %d tokens", truncated, len(texts), self.max_tokens
            )
        return Encoded(
            vectors=vectors,
            token_vectors=torch.cat(token_parts) if tokens else None,
            token_offsets=torch.from_numpy(_offsets(token_counts)).to(self.device)
            if tokens
            else None,
            truncated=truncated,
        )

    def words(self, text: str) -> list[str]:
        """The tokens of a text as strings, one per token vector, in the same order."""
        _require_strings([text])
        [ids], _ = self._token_ids([text])
        return self._tokenizer.convert_ids_to_tokens(ids[self._is_word(ids)].tolist())

    def _token_ids(self, texts: Sequence[str]) -> tuple[list[np.ndarray], int]:
        """Token ids of each text, framed and cut, and how many texts were cut."""
        clean = [text.encode("utf-8", "replace").decode("utf-8").strip() for text in texts]
        if self._folder.lowercase:
            clean = [text.lower() for text in clean]
        encodings = self._tokenizer(clean, truncation=True, max_length=self.max_tokens).encodings
        ids = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        return ids, sum(bool(encoding.overflowing) for encoding in encodings)

    def _is_word(self, ids: np.ndarray) -> np.ndarray:
        return ~np.isin(ids, self._frame_ids)

    def _pad(self, ids: list[np.ndarray]) -> tuple[np.ndarray, Tensor]:
        """Ids padded on the right, and their lengths on the device."""
        lengths = np.array([len(row) for row in ids])
        batch = np.full((len(ids), lengths.max()), self._tokenizer.pad_token_id, dtype=np.int64)
        for row, values in enumerate(ids):
            batch[row, : len(values)] = values
        return batch, torch.from_numpy(lengths).to(self.device)

    def _last_hidden(self, batch: np.ndarray, lengths: Tensor) -> Float[Tensor, "b L D"]:
        ids = torch.from_numpy(batch).to(self.device)
        mask = _real(lengths, ids.shape[1])
        return self._model(input_ids=ids, attention_mask=mask.long()).last_hidden_state.float()

    def _pool(self, hidden: Float[Tensor, "b L D"], lengths: Tensor) -> Float[Tensor, "b D"]:
        if self._folder.pooling == "cls":
            pooled = hidden[:, 0]
        else:
            mask = _real(lengths, hidden.shape[1])
            pooled = torch.where(mask[..., None], hidden, 0).sum(dim=1) / lengths[:, None]
        return normalize(pooled, dim=-1) if self._folder.normalize else pooled


def _buckets(lengths: Sequence[int], batch_tokens: int) -> Iterator[np.ndarray]:
    """Rows of like length, longest first (memory trouble shows at once), within the budget."""
    order = np.argsort(-np.array(lengths), kind="stable")
    start = 0
    while start < len(order):
        size = max(1, batch_tokens // lengths[order[start]])
        yield order[start : start + size]
        start += size


def _offsets(counts: np.ndarray) -> np.ndarray:
    return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts, dtype=np.int64)])


def _real(lengths: Tensor, width: int) -> Tensor:
    return torch.arange(width, device=lengths.device)[None, :] < lengths[:, None]


def _require_strings(texts: Sequence[Any]) -> None:
    if isinstance(texts, str):
        raise InputError(
            f"`texts` must be a list of strings; got one string ({texts[:40]!r}). Put it in a list."
        )
    for row, text in enumerate(texts):
        if not isinstance(text, str):
            raise InputError(
                f"every text must be a string; text {row} is {type(text).__name__} ({text!r}). "
                "Convert it, or use an empty string."
            )


@contextmanager
def _quiet_transformers() -> Iterator[None]:
    """Silence progress bars and chatter while loading, and restore them afterwards."""
    try:
        from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
        from transformers.utils import logging as noise
    except ImportError as error:
        raise missing("transformers", "loading an encoder", "models") from error
    verbosity, bars = noise.get_verbosity(), noise.is_progress_bar_enabled()
    hub_bars = not are_progress_bars_disabled()
    noise.set_verbosity_error()
    noise.disable_progress_bar()  # also those of the hub
    try:
        yield
    finally:
        noise.set_verbosity(verbosity)
        if bars:
            noise.enable_progress_bar()
        elif hub_bars:
            enable_progress_bars()
