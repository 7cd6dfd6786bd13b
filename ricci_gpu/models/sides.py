"""Queries and passages as the models want them: each side with its prompt and its token vectors.

A dense encoder may want a prompt before queries and another before passages, and a
late-interaction model reads the two sides in ways of its own. Whoever encodes for a store or a
reranker takes a `SideEncoder` and need not know.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, Protocol, runtime_checkable

from ricci_gpu.models.encoder import Encoded
from ricci_gpu.models.folder import Prompts
from ricci_gpu.models.late_interaction import LateInteraction
from ricci_gpu.models.pretrained import require_strings


@runtime_checkable
class TokenModel(Protocol):
    """What made token vectors: those of models with other fingerprints do not compare."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...


class SideEncoder:
    """Encodes the texts of one side. What a store takes as its encoder.

    Sentence vectors come from the dense encoder; token vectors from the late-interaction model,
    or, where there is none, from the dense encoder. A model that builds on the dense encoder's
    token vectors shares its forward pass.

    Args:
        encoder: an `Encoder`, or whatever else encodes like one; without ``prompts`` it has none.
        late_interaction: makes the token vectors; None for those of the encoder.
    """

    def __init__(
        self,
        side: Literal["query", "passage"],
        encoder: Any,
        late_interaction: LateInteraction | None = None,
    ) -> None:
        prompts: Prompts = getattr(encoder, "prompts", Prompts())
        self._prompt = prompts.query if side == "query" else prompts.passage
        self._side = side
        self._encoder = encoder
        self._late = late_interaction

    @property
    def name(self) -> str:
        return str(self._encoder.name)

    @property
    def source(self) -> str:
        return str(self._encoder.source)

    @property
    def fingerprint(self) -> str:
        """Of the dense encoder: of the sentence vectors."""
        return str(self._encoder.fingerprint)

    @property
    def token_model(self) -> TokenModel:
        """The model that the token vectors come from."""
        model: TokenModel = self._encoder if self._late is None else self._late
        return model

    def encode(self, texts: Sequence[str], tokens: bool = False, **options: Any) -> Encoded:
        """As `Encoder.encode`, with the prompt of the side; ``options`` go to it as they are."""
        require_strings(texts)
        prompted = [self._prompt + text for text in texts] if self._prompt else list(texts)
        late = self._late
        shared = late is None or late.base == self.fingerprint
        encoded: Encoded = self._encoder.encode(prompted, tokens=tokens and shared, **options)
        if not tokens or late is None:
            return encoded
        if shared:
            vectors, offsets = encoded.packed_tokens()
            return replace(encoded, token_vectors=late.project(vectors))
        side = late.encode_queries if self._side == "query" else late.encode_documents
        vectors, offsets, _ = side(texts, **options)
        return replace(encoded, token_vectors=vectors, token_offsets=offsets)

    def words(self, text: str) -> list[str]:
        """The tokens of a text as strings, one per token vector, in the same order."""
        if self._late is None:
            words: list[str] = self._encoder.words(self._prompt + text)
            return words
        side = self._late.query_words if self._side == "query" else self._late.document_words
        return side(text)
