"""Late interaction: a vector per token, for MaxSim and token transport.

`LateInteraction.load` tells the kinds of checkpoints apart by their files:

=========================  ======================================================================
in the folder              what it is
=========================  ======================================================================
``late_interaction.json``  a projection trained over a dense encoder (`token_head`)
``modules.json``           PyLate or sentence-transformers: with a Pooling module a dense encoder,
                           whose token vectors are taken, else a multi-vector model (`colbert`)
``config.json`` alone      Stanford ColBERT, by its architecture ``HF_ColBERT`` (`colbert`)
=========================  ======================================================================
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from ricci_gpu.errors import SettingError
from ricci_gpu.models.folder import Located, locate, read_json
from ricci_gpu.shapes import Float, Int, Tensor

if TYPE_CHECKING:
    from ricci_gpu.models.encoder import Encoder

TRAINED_HERE = {"minilm-128": "minilm_128"}  # folders in `trained`, by the names users say

Progress = Callable[[int, int], None]


class TokenVectors(NamedTuple):
    """Packed token vectors of some texts, in their order, on the device of the model.

    Those of text ``i`` are ``vectors[offsets[i]:offsets[i + 1]]``: exactly the tokens that MaxSim
    sums over and that share the mass of token transport, expansion tokens included where the
    checkpoint scores them, tokens of its skip list left out.
    """

    vectors: Float[Tensor, "T D"]
    offsets: Int[Tensor, "Mplus1"]
    truncated: int  # number of texts that were longer than the model reads


class LateInteraction(ABC):
    """Makes token vectors of queries and of documents.

    Attributes:
        name, source: what it was asked for by, and where its files came from.
        width: length ``D`` of its vectors.
        base: fingerprint of the dense encoder whose token vectors `project` takes, so that one
            forward pass gives sentence and token vectors; None for a network of its own.
    """

    name: str
    source: str
    width: int
    base: str | None = None

    @staticmethod
    def load(
        name: str | os.PathLike[str],
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        cache: str | os.PathLike[str] | None = None,
        encoder: "Encoder | None" = None,
    ) -> "LateInteraction":
        """Load by path, by the name of a packaged or trained model, or by hub name.

        Args:
            dtype: of weights and layers; vectors are float32 in any case.
            cache: folder that keeps the vectors of texts (`EmbeddingCache`).
            encoder: a loaded encoder, taken instead of another copy where it is the base.

        Raises:
            SettingError: the model is nowhere, or is none that can be read here.
            MissingDependencyError: without transformers.
        """
        found = _find(name)
        if (found.path / "late_interaction.json").is_file():
            from ricci_gpu.models.token_head import load_head

            return load_head(str(name), found, device, dtype, cache, encoder)
        if _is_dense(found.path):
            from ricci_gpu.models.token_head import load_dense

            return load_dense(str(name), found, device, dtype, cache, encoder)
        from ricci_gpu.models.colbert import load_colbert

        return load_colbert(str(name), found, device, dtype, cache)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """SHA-256 of the files and settings: models with equal ones give equal vectors."""

    @abstractmethod
    def encode_queries(
        self,
        texts: Sequence[str],
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        log_truncated: bool = True,
    ) -> TokenVectors:
        """Token vectors of queries, each of length 1; those of a text do not depend on the others.

        Args:
            batch_tokens: padded tokens per forward pass (a single text may exceed it); by default
                what suits the device.
            progress: called with the number of texts done and their total.
            log_truncated: warn once, by logging, about texts that were cut.

        Raises:
            InputError: something that is no string among the texts.
            SettingError: ``batch_tokens`` is not positive.
        """

    @abstractmethod
    def encode_documents(
        self,
        texts: Sequence[str],
        batch_tokens: int | None = None,
        progress: Progress | None = None,
        log_truncated: bool = True,
    ) -> TokenVectors:
        """As `encode_queries`, for documents."""

    @abstractmethod
    def query_words(self, text: str) -> list[str]:
        """The tokens of a query as strings, one per token vector, in the same order."""

    @abstractmethod
    def document_words(self, text: str) -> list[str]:
        """The tokens of a document as strings, one per token vector, in the same order."""

    def project(self, token_vectors: Float[Tensor, "T B"]) -> Float[Tensor, "T D"]:
        """This model's vectors from the token vectors of its base, which it must have."""
        raise NotImplementedError(f"{self.name} has a network of its own")


def _find(name: str | os.PathLike[str]) -> Located:
    if str(name) in TRAINED_HERE:
        path = Path(__file__).parent / "trained" / TRAINED_HERE[str(name)]
        return Located(path, f"ricci_gpu, {name}")
    return locate(name, "late-interaction model")


def _is_dense(path: Path) -> bool:
    """Whether the folder pools its token vectors into one."""
    if (path / "modules.json").is_file():
        return any(m["type"].endswith(".Pooling") for m in read_json(path / "modules.json"))
    if (path / "config.json").is_file():
        return False
    raise SettingError(
        f"{path}: a late-interaction model must hold `late_interaction.json`, `modules.json` or "
        "`config.json`; it has none of them. Give the folder of a checkpoint."
    )
