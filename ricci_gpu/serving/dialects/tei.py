"""Hugging Face Text Embeddings Inference: ``/rerank`` with ``texts``, answered by a bare list."""

from collections.abc import Mapping
from typing import Any

from ricci_gpu.serving.calls import (
    Call,
    Reply,
    checked,
    extension_of,
    require_documents,
    vectors_of,
)
from ricci_gpu.serving.dialects.interface import Dialect, without_nulls
from ricci_gpu.serving.failures import Refusal, invalid
from ricci_gpu.serving.schemas import Extension, TextsBody
from ricci_gpu.serving.scores import Scored

KINDS = {400: "Empty", 401: "Unauthorized", 413: "Validation", 422: "Validation"}
KINDS |= {429: "Overloaded", 503: "Unhealthy", 504: "Backend"}


class TEI(Dialect):
    """``truncate`` null cuts, as the server's default."""

    name = "tei"
    schema = TextsBody
    invalid_status = 422

    def parse(self, body: Mapping[str, Any]) -> Call:
        given = checked(TextsBody, without_nulls(body))
        if (given.truncation_direction or "Right").lower() != "right":
            raise invalid("`truncation_direction` must be Right: models here read from the start.")
        vectors = vectors_of(given)
        texts = require_documents(given.texts, "texts", vectors)
        options = given.ricci or Extension()
        return Call(
            query=given.query,
            documents=tuple(texts),
            originals=texts,
            model=given.model,
            top_n=given.top_n or None,
            echo=bool(given.return_text) and bool(texts),
            raw=bool(given.raw_scores),
            truncate=options.truncate if given.truncate is None else given.truncate,
            vectors=vectors,
            options=options,
            extended=given.ricci is not None,
        )

    def result(self, call: Call, result: Scored) -> dict[str, Any]:
        place = result.hit.position
        made: dict[str, Any] = {"index": place, "score": result.score}
        if call.echo:
            made["text"] = call.documents[place]
        return made | extension_of(call, result)

    def render(self, call: Call, reply: Reply) -> Any:
        return [self.result(call, each) for each in reply.results]

    def error(self, refusal: Refusal) -> dict[str, Any]:
        kind = KINDS.get(self.status(refusal), "Backend")
        return {"error": refusal.message, "error_type": kind, "message": refusal.message}
