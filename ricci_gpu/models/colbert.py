"""Multi-vector models with a network of their own: Stanford ColBERT, PyLate, sentence-transformers.

Sources: Khattab and Zaharia 2020 (arXiv 2004.12832) for markers, query expansion and the skip list;
`colbert_folder` for what each layout writes down.
"""

import json
import logging
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import normalize

from ricci_gpu.errors import SettingError
from ricci_gpu.models.batching import (
    batches_by_length,
    offsets_of,
    pad_right,
    token_budget,
    windows,
)
from ricci_gpu.models.cache import EmbeddingCache, Record
from ricci_gpu.models.colbert_folder import ColbertFolder, Projection, read_colbert_folder
from ricci_gpu.models.folder import Located, fingerprint
from ricci_gpu.models.late_interaction import LateInteraction, Progress, TokenVectors
from ricci_gpu.models.pretrained import (
    load_network,
    load_tokenizer,
    longest_input,
    readable,
    require_strings,
)
from ricci_gpu.shapes import Float, Tensor

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Side:
    """How the texts of one side are read; lengths count special tokens."""

    name: str
    prompt: str
    marker: int | None
    max_tokens: int
    fill_to: int  # with expansion tokens
    skip: np.ndarray


class DenseLayer(nn.Module):
    """A linear layer with its activation, and its input added where the checkpoint does so."""

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        weights = _projection_weights(projection)
        self.linear = _linear(weights["linear.weight"], weights.get("linear.bias"))
        self.width = self.linear.out_features
        self.activation = getattr(nn, projection.activation)()
        self.residual: nn.Module | None = None
        if projection.residual:
            wide = weights.get("residual.weight")
            self.residual = nn.Identity() if wide is None else _linear(wide, None)

    def forward(self, hidden: Float[Tensor, "b L H"]) -> Float[Tensor, "b L D"]:
        out: Tensor = self.activation(self.linear(hidden))
        return out if self.residual is None else out + self.residual(hidden)


class ColbertModel(LateInteraction):
    """A transformer whose hidden states are projected to token vectors."""

    def __init__(
        self,
        name: str,
        folder: ColbertFolder,
        network: Any,
        layers: Sequence[DenseLayer],
        tokenizer: Any,
        cache: EmbeddingCache | None = None,
    ) -> None:
        self.name, self.source = name, folder.source
        self.width = layers[-1].width if layers else network.config.hidden_size
        self._folder = folder
        self._network = network
        self._layers = layers
        self._tokenizer = tokenizer
        self._cache = cache
        expansion = folder.expansion
        self._attend = expansion is not None and expansion.attend
        self._fill = self._expansion_id()
        longest = longest_input(tokenizer, network)
        query_tokens = min(folder.query_length or longest, longest)
        if expansion is not None:
            limit = expansion.length if expansion.fixed else max(query_tokens, expansion.length)
            query_tokens = min(limit, longest)
        skip = self._skip_ids()
        self._query = _Side(
            name="query",
            prompt=folder.query_prompt,
            marker=self._marker_id(folder.query_marker),
            max_tokens=query_tokens,
            fill_to=0 if expansion is None else expansion.length,
            skip=skip if folder.skip_in_queries else skip[:0],
        )
        self._document = _Side(
            name="document",
            prompt=folder.document_prompt,
            marker=self._marker_id(folder.document_marker),
            max_tokens=min(folder.document_length or longest, longest),
            fill_to=0,
            skip=skip,
        )

    @cached_property
    def fingerprint(self) -> str:
        parts = [each.folder for each in self._folder.projections]
        placeless = [replace(each, folder=Path()) for each in self._folder.projections]
        bare = replace(self._folder, path=Path(), source="", projections=tuple(placeless))
        return fingerprint(asdict(bare), [self._folder.path, *parts])

    def encode_queries(
        self,
        texts: Sequence[str],
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        log_truncated: bool = True,
    ) -> TokenVectors:
        return self._recall(self._query, texts, batch_tokens, progress, log_truncated)

    def encode_documents(
        self,
        texts: Sequence[str],
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        log_truncated: bool = True,
    ) -> TokenVectors:
        return self._recall(self._document, texts, batch_tokens, progress, log_truncated)

    def query_words(self, text: str) -> list[str]:
        return self._words(self._query, text)

    def document_words(self, text: str) -> list[str]:
        return self._words(self._document, text)

    def _words(self, side: _Side, text: str) -> list[str]:
        require_strings([text])
        [ids], _ = self._token_ids(side, [text])
        ids = self._filled(side, ids)
        return self._tokenizer.convert_ids_to_tokens(ids[~np.isin(ids, side.skip)].tolist())

    def _recall(
        self,
        side: _Side,
        texts: Sequence[str],
        batch_tokens: int | None,
        progress: Progress | None,
        log_truncated: bool,
    ) -> TokenVectors:
        """Encode, or look up what a cache has."""
        require_strings(texts)
        if self._cache is None:
            found, _ = self._encode(side, texts, batch_tokens, progress)
        else:
            records = self._cache.recall(
                f"{self.fingerprint} {self._network.dtype} {side.name}",
                texts,
                lambda new: _records(*self._encode(side, new, batch_tokens, None)),
                progress,
            )
            found = self._joined(records)
        if found.truncated and log_truncated:
            logger.warning(
                "%d of %d texts were cut to %d tokens",
                found.truncated,
                len(texts),
                side.max_tokens,
            )
        return found

    @torch.no_grad()
    def _encode(
        self, side: _Side, texts: Sequence[str], batch_tokens: int | None, progress: Progress | None
    ) -> tuple[TokenVectors, np.ndarray]:
        """What the network says, and which texts were cut."""
        device = self._network.device
        budget = token_budget(batch_tokens, device)
        parts = [torch.empty((0, self.width), device=device)]
        counts = np.zeros(len(texts), dtype=np.int64)
        cut = np.zeros(len(texts), dtype=bool)
        for window in windows(len(texts)):
            ids, cut[window] = self._token_ids(side, texts[window])
            filled = [self._filled(side, row) for row in ids]
            scored = [~np.isin(row, side.skip) for row in filled]
            counts[window] = [np.count_nonzero(each) for each in scored]
            offsets = offsets_of(counts[window])
            packed = torch.empty((int(offsets[-1]), self.width), device=device)
            parts.append(packed)
            done = window.start
            for rows in batches_by_length([len(row) for row in filled], budget):
                seen = [len(filled[r]) if self._attend else len(ids[r]) for r in rows]
                hidden = self._vectors([filled[row] for row in rows], seen)
                spans = [np.arange(offsets[row], offsets[row + 1]) for row in rows]
                targets = torch.from_numpy(np.concatenate(spans)).to(device)
                mask = torch.from_numpy(pad_right([scored[row] for row in rows], 0) > 0)
                packed[targets] = hidden[mask.to(device)]
                done += len(rows)
                if progress is not None:
                    progress(done, len(texts))
        ends = torch.from_numpy(offsets_of(counts)).to(device)
        return TokenVectors(torch.cat(parts), ends, int(cut.sum())), cut

    def _vectors(self, rows: list[np.ndarray], seen: list[int]) -> Float[Tensor, "b L D"]:
        """Vectors of all places of a batch; the words see the first ``seen`` places of a row."""
        batch = torch.from_numpy(pad_right(rows, self._tokenizer.pad_token_id or 0))
        mask = torch.from_numpy(pad_right([np.ones(n, dtype=np.int64) for n in seen], 0))
        lacking = batch.shape[1] - mask.shape[1]
        mask = nn.functional.pad(mask, (0, lacking))
        device = self._network.device
        hidden = self._network(input_ids=batch.to(device), attention_mask=mask.to(device))
        vectors = hidden.last_hidden_state
        for layer in self._layers:
            vectors = layer(vectors)
        vectors = vectors.float()
        return normalize(vectors, dim=-1) if self._folder.normalize else vectors

    def _token_ids(self, side: _Side, texts: Sequence[str]) -> tuple[list[np.ndarray], np.ndarray]:
        """Token ids with marker, cut, without expansion; and which texts were cut."""
        if not texts:  # a tokenizer takes no empty list
            return [], np.zeros(0, dtype=bool)
        clean = [side.prompt + text for text in readable(texts)]
        if self._folder.lowercase:
            clean = [text.lower() for text in clean]
        room = side.max_tokens - (side.marker is not None)
        encodings = self._tokenizer(clean, truncation=True, max_length=room).encodings
        ids = [np.array(encoding.ids, dtype=np.int64) for encoding in encodings]
        if side.marker is not None:
            ids = [np.insert(row, min(1, len(row)), side.marker) for row in ids]
        return ids, np.array([bool(encoding.overflowing) for encoding in encodings])

    def _filled(self, side: _Side, ids: np.ndarray) -> np.ndarray:
        lacking = max(side.fill_to - len(ids), 0)
        return np.concatenate([ids, np.full(lacking, self._fill, dtype=np.int64)])

    def _expansion_id(self) -> int:
        tokenizer, expansion = self._tokenizer, self._folder.expansion
        if expansion is None:
            return -1  # nothing is filled up
        if expansion.token is not None:
            found = self._known_id(expansion.token)
        elif tokenizer.mask_token_id is not None:
            found = tokenizer.mask_token_id
        else:
            found = tokenizer.eos_token_id
        if found is None:
            raise SettingError(
                f"{self._folder.path}: query expansion needs a token that the tokenizer knows; "
                f"{json.dumps(expansion.token)} is none of its tokens, or it has neither mask nor "
                "end token. Restore the tokenizer of the checkpoint."
            )
        return found

    def _marker_id(self, marker: str | None) -> int | None:
        """Id of a marker: saved with its trailing blank by PyLate, without by Stanford."""
        if marker is None:
            return None
        found = self._known_id(marker)
        if found is None:
            found = self._known_id(marker.strip())
        if found is None:
            raise SettingError(
                f"{self._folder.path}: the marker {json.dumps(marker)} must be a token; the "
                "tokenizer does not know it. Restore the tokenizer of the checkpoint."
            )
        return found

    def _skip_ids(self) -> np.ndarray:
        known = (self._known_id(word) for word in self._folder.skip)
        return np.array([each for each in known if each is not None], dtype=np.int64)

    def _known_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.get_vocab().get(token)
        return found

    def _joined(self, records: Sequence[Record]) -> TokenVectors:
        nothing = np.empty((0, self.width), dtype=np.float32)
        vectors = np.concatenate([nothing, *(record[0] for record in records)])
        counts = np.array([len(record[0]) for record in records], dtype=np.int64)
        device = self._network.device
        return TokenVectors(
            torch.from_numpy(vectors).to(device),
            torch.from_numpy(offsets_of(counts)).to(device),
            sum(bool(record[1][0]) for record in records),
        )


def load_colbert(
    name: str,
    found: Located,
    device: torch.device | str,
    dtype: torch.dtype,
    cache: str | os.PathLike[str] | None,
) -> ColbertModel:
    """Load a multi-vector checkpoint in any layout of `colbert_folder`."""
    folder, purpose = read_colbert_folder(found), "loading a late-interaction model"
    tokenizer = load_tokenizer(folder.path, purpose)
    network = load_network(folder.path, "AutoModel", purpose, device, dtype)
    layers = [DenseLayer(each).to(device=device, dtype=dtype) for each in folder.projections]
    kept = None if cache is None else EmbeddingCache(cache)
    return ColbertModel(name, folder, network, layers, tokenizer, kept)


def _projection_weights(projection: Projection) -> dict[str, Tensor]:
    """The projection's tensors, wherever among a folder's files they are."""
    from safetensors import safe_open

    names = ("linear.weight", "linear.bias", "residual.weight")
    found: dict[str, Tensor] = {}
    for path in sorted(projection.folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            known = set(file.keys())
            found |= {name: file.get_tensor(name) for name in names if name in known}
    if "linear.weight" not in found:
        raise SettingError(
            f"{projection.folder}: the projection must lie among the weights as `linear.weight`; "
            "it does not. Restore the files of the checkpoint."
        )
    return found


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    if bias is not None:
        layer.bias = nn.Parameter(bias.float(), requires_grad=False)
    return layer


def _records(found: TokenVectors, cut: np.ndarray) -> list[Record]:
    """One record per text: its token vectors, and whether it was cut."""
    rows = np.split(found.vectors.cpu().numpy(), found.offsets[1:-1].cpu().numpy())
    return list(zip(rows, list(cut[:, None]), strict=True))
