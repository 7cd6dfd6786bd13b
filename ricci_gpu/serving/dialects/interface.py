"""What a dialect is, and what most of them do alike."""

import time
from collections.abc import Mapping
from typing import Any, ClassVar

from ricci_gpu.serving.calls import (
    Call,
    Reply,
    checked,
    extension_of,
    require_documents,
    text_of,
    text_of_query,
    vectors_of,
)
from ricci_gpu.serving.failures import Refusal
from ricci_gpu.serving.schemas import Body, Extension, RerankBody
from ricci_gpu.serving.scores import Scored

KINDS = {
    401: "authentication_error",
    413: "invalid_request_error",
    422: "invalid_request_error",
    400: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}


class Dialect:
    """Reads the body of one kind of client, and writes what it understands.

    Attributes:
        schema: of the body.
        invalid_status: of a request that breaks a rule.
        echo_by_default: return the documents unless told otherwise.
    """

    name: ClassVar[str]
    schema: ClassVar[type[Body]] = RerankBody
    invalid_status: ClassVar[int] = 400
    echo_by_default: ClassVar[bool] = False

    def parse(self, body: Mapping[str, Any]) -> Call:
        """The call that the body makes.

        Raises:
            Refusal: a body that breaks a rule.
        """
        given = checked(RerankBody, without_nulls(body))
        vectors = vectors_of(given)
        documents = require_documents(given.documents, "documents", vectors)
        fields = given.rank_fields or ()
        options = given.ricci or Extension()
        echo = self.echo_by_default if given.return_documents is None else given.return_documents
        return Call(
            query=text_of_query(given.query),
            documents=tuple(text_of(each, at, fields) for at, each in enumerate(documents)),
            originals=documents,
            model=given.model,
            top_n=given.top_n or None,
            echo=echo and bool(documents),
            raw=bool(given.raw_scores),
            truncate=options.truncate,
            vectors=vectors,
            options=options,
            extended=given.ricci is not None,
        )

    def head(self, call: Call, reply: Reply) -> dict[str, Any]:
        """The answer without its results."""
        meta: dict[str, Any] = {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
        }
        if reply.warnings:
            meta["warnings"] = reply.warnings
        return {
            "id": reply.id,
            "object": "list",
            "created": int(time.time()),
            "model": reply.model,
            "usage": {"prompt_tokens": reply.tokens, "total_tokens": reply.tokens},
            "meta": meta,
            "ricci": reply.extension(),
        }

    def result(self, call: Call, result: Scored) -> dict[str, Any]:
        """One document of the answer. ``document`` is left out rather than null."""
        place = result.hit.position
        made: dict[str, Any] = {"index": place, "relevance_score": result.score}
        if call.echo:
            made["document"] = self.document(call.originals[place], call.documents[place])
        return made | extension_of(call, result)

    def document(self, original: Any, text: str) -> Any:
        """A returned document: an object that has at least ``text``."""
        return {"text": text} | (original if isinstance(original, dict) else {})

    def render(self, call: Call, reply: Reply) -> Any:
        """The whole answer."""
        results = [self.result(call, each) for each in reply.results]
        return self.head(call, reply) | {"results": results}

    def status(self, refusal: Refusal) -> int:
        return self.invalid_status if refusal.status == 422 else refusal.status

    def error(self, refusal: Refusal) -> dict[str, Any]:
        """A body in which the clients of Cohere, Jina and vLLM find their message."""
        status = self.status(refusal)
        return {
            "message": refusal.message,
            "detail": refusal.message,
            "error": {
                "message": refusal.message,
                "type": KINDS.get(status, "server_error"),
                "param": None,
                "code": status,
            },
        }


def without_nulls(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body with the nulls of the extension left out too."""
    extension = body.get("ricci")
    if not isinstance(extension, Mapping):
        return dict(body)
    return {**body, "ricci": {k: v for k, v in extension.items() if v is not None}}
