"""Token vectors of a dense encoder, as they are or through a trained linear projection.

A trained head is a folder with two files, beside its model card:

``late_interaction.json``
    ``{"base": name as `model.name`, "base_fingerprint": Encoder.fingerprint, "width": 128}``
``model.safetensors``
    ``linear.weight``, of shape (width, width of the base): a token vector is W h, scaled to
    length 1. Whether h is the hidden state or the same scaled to length 1 makes no difference.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import torch
from torch.nn.functional import linear, normalize

from ricci_gpu.errors import SettingError, missing
from ricci_gpu.models.encoder import Encoder
from ricci_gpu.models.folder import Located, fingerprint, read_json, require_safetensors
from ricci_gpu.models.late_interaction import LateInteraction, Progress, TokenVectors
from ricci_gpu.models.pretrained import require_strings
from ricci_gpu.shapes import Float, Tensor


class DenseTokens(LateInteraction):
    """The token vectors of an encoder, projected where there is a head."""

    def __init__(
        self,
        name: str,
        source: str,
        encoder: Encoder,
        weight: Float[Tensor, "D B"] | None = None,
        folder: Path | None = None,
    ) -> None:
        self.name, self.source = name, source
        self.base = encoder.fingerprint
        self.width = encoder.width if weight is None else len(weight)
        self._encoder = encoder
        self._weight = weight
        self._folder = folder

    @cached_property
    def fingerprint(self) -> str:
        if self._folder is None:
            return self._encoder.fingerprint
        return fingerprint({"base": self.base}, [self._folder])

    def encode_queries(
        self,
        texts: Sequence[str],
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        log_truncated: bool = True,
    ) -> TokenVectors:
        prompt = self._encoder.prompts.query
        return self._encode(prompt, texts, batch_tokens, progress, log_truncated)

    def encode_documents(
        self,
        texts: Sequence[str],
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        log_truncated: bool = True,
    ) -> TokenVectors:
        prompt = self._encoder.prompts.passage
        return self._encode(prompt, texts, batch_tokens, progress, log_truncated)

    def _encode(
        self,
        prompt: str,
        texts: Sequence[str],
        batch_tokens: int | None,
        progress: Progress | None,
        log_truncated: bool,
    ) -> TokenVectors:
        require_strings(texts)
        prompted = [prompt + text for text in texts]
        encoded = self._encoder.encode(prompted, True, batch_tokens, progress, log_truncated)
        vectors, offsets = encoded.packed_tokens()
        return TokenVectors(self.project(vectors), offsets, encoded.truncated)

    def project(self, token_vectors: Float[Tensor, "T B"]) -> Float[Tensor, "T D"]:
        if self._weight is None:
            return token_vectors
        return normalize(linear(token_vectors, self._weight.to(token_vectors.device)), dim=-1)

    def query_words(self, text: str) -> list[str]:
        return self._encoder.words(self._encoder.prompts.query + text)

    def document_words(self, text: str) -> list[str]:
        return self._encoder.words(self._encoder.prompts.passage + text)


def load_dense(
    name: str,
    found: Located,
    device: torch.device | str,
    dtype: torch.dtype,
    cache: str | os.PathLike[str] | None,
    encoder: Encoder | None,
) -> DenseTokens:
    """The token vectors of a dense encoder as they are."""
    if encoder is None or encoder.name != name:
        encoder = Encoder.load(name, device, dtype, cache)
    return DenseTokens(name, found.source, encoder)


def load_head(
    name: str,
    found: Located,
    device: torch.device | str,
    dtype: torch.dtype,
    cache: str | os.PathLike[str] | None,
    encoder: Encoder | None,
) -> DenseTokens:
    """A trained head and its base.

    Raises:
        SettingError: the base has other files than the head was trained over, or the weights do
            not fit.
    """
    settings = read_json(found.path / "late_interaction.json")
    lacking = sorted({"base", "base_fingerprint", "width"} - set(settings))
    if lacking:
        raise SettingError(
            f"{found.path}: late_interaction.json must name base, base_fingerprint and width; it "
            f"lacks {', '.join(lacking)}. Restore the file, or train the head again."
        )
    if encoder is None or encoder.fingerprint != settings["base_fingerprint"]:
        encoder = Encoder.load(settings["base"], device, dtype, cache)
    if encoder.fingerprint != settings["base_fingerprint"]:
        raise SettingError(
            f"{found.path}: was trained over another `{settings['base']}` than the one found "
            f"({encoder.source}): its files differ. Install the model it was trained over, or "
            "train it again."
        )
    weight = _read_weight(found.path).to(device)
    wanted = (settings["width"], encoder.width)
    if tuple(weight.shape) != wanted:
        raise SettingError(
            f"{found.path}: `linear.weight` must have shape {wanted}, its width and that of the "
            f"base; got {tuple(weight.shape)}. Train it again."
        )
    return DenseTokens(name, found.source, encoder, weight, found.path)


def _read_weight(folder: Path) -> Tensor:
    require_safetensors(folder)
    try:
        from safetensors.torch import load_file
    except ImportError as error:
        raise missing("safetensors", "a late-interaction head", "models") from error
    weights = load_file(folder / "model.safetensors")
    if set(weights) != {"linear.weight"}:
        raise SettingError(
            f"{folder}: a head must hold `linear.weight` alone; got {', '.join(sorted(weights))}. "
            "Train it again."
        )
    return weights["linear.weight"].float()
