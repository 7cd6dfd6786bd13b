"""The OpenAPI description: bodies are checked by the dialects, so their schemas are named here."""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from ricci_gpu import __version__
from ricci_gpu.serving.schemas import Body, RerankBody, ScoreBody, TextsBody

REFUSALS = {
    400: "a request that breaks a rule",
    401: "no key",
    413: "too large",
    422: "a request that breaks a rule, for clients of TEI and Infinity",
    429: "overloaded; see Retry-After",
    499: "the client has gone",
    503: "not ready, or stopping",
    504: "the deadline passed",
}


def body_of(*schemas: type[Body]) -> dict[str, Any]:
    """What `openapi_extra` says of a route that takes one of the bodies."""
    names = [{"$ref": f"#/components/schemas/{schema.__name__}"} for schema in schemas]
    schema = names[0] if len(names) == 1 else {"anyOf": names}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def responses() -> dict[int | str, dict[str, Any]]:
    """What a route answers besides 200."""
    return {status: {"description": what} for status, what in REFUSALS.items()}


def describe(app: FastAPI) -> None:
    """Give the app an ``openapi`` that has the schemas of the bodies."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            tree = get_openapi(title="ricci_gpu", version=__version__, routes=app.routes)
            _, named = models_json_schema(
                [(model, "validation") for model in (RerankBody, TextsBody, ScoreBody)],
                ref_template="#/components/schemas/{model}",
            )
            components = tree.setdefault("components", {}).setdefault("schemas", {})
            components.update(named["$defs"])
            app.openapi_schema = tree
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
