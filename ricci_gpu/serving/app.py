"""The routes."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar
from uuid import uuid4

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse

from ricci_gpu import __version__
from ricci_gpu.output import printable
from ricci_gpu.serving.auth import require_key
from ricci_gpu.serving.calls import Call, Reply
from ricci_gpu.serving.dialects import TEI, VLLM, CohereV1, CohereV2, Dialect, Infinity
from ricci_gpu.serving.dialects.vllm import parse_score, render_score
from ricci_gpu.serving.failures import Refusal
from ricci_gpu.serving.limits import parse_json, read_body
from ricci_gpu.serving.openapi import body_of, describe, responses
from ricci_gpu.serving.schemas import RerankBody, ScoreBody, TextsBody
from ricci_gpu.serving.service import Service
from ricci_gpu.serving.settings import ServeSettings

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
T = TypeVar("T")
Answering = Callable[[dict[str, Any]], Awaitable[Response]]


def create_app(settings: ServeSettings, service: Service | None = None) -> FastAPI:
    """The server as an ASGI application. Its lifespan starts and stops the workers.

    Args:
        service: by default one with a worker process per device.
    """
    service = Service(settings) if service is None else service

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        await service.stop()

    app = FastAPI(title="ricci_gpu", version=__version__, lifespan=lifespan)
    app.state.service = service
    _add_rerank(app, service)
    _add_status(app, service)
    _add_guard(app, service)
    describe(app)
    return app


def _add_rerank(app: FastAPI, service: Service) -> None:
    cohere_v1, cohere_v2, vllm, tei = CohereV1(), CohereV2(), VLLM(), TEI()
    infinity = Infinity()

    def rerank(dialect: Dialect) -> Answering:
        async def answer(body: dict[str, Any]) -> Response:
            call = dialect.parse(body)
            reply = await service.answer(call)
            return _response(dialect, call, reply)

        return answer

    async def score(body: dict[str, Any]) -> Response:
        model, scores, tokens, warnings = await service.score(parse_score(body))
        return json_response(render_score(uuid4().hex, model, scores, tokens, warnings))

    def by_body(body: Mapping[str, Any]) -> Dialect:
        return tei if "texts" in body else vllm

    for path, choose, schemas in (
        ("/v1/rerank", lambda body: cohere_v1, (RerankBody,)),
        ("/v2/rerank", lambda body: cohere_v2, (RerankBody,)),
        ("/rerank", by_body, (RerankBody, TextsBody)),
        ("/infinity/rerank", lambda body: infinity, (RerankBody,)),
    ):
        app.add_api_route(
            path,
            _endpoint(service, path, choose, rerank),
            methods=["POST"],
            openapi_extra=body_of(*schemas),
            responses=responses(),
        )
    for path in ("/score", "/v1/score"):
        app.add_api_route(
            path,
            _endpoint(service, path, lambda body: vllm, lambda dialect: score),
            methods=["POST"],
            openapi_extra=body_of(ScoreBody),
            responses=responses(),
        )


def _endpoint(
    service: Service,
    path: str,
    choose: Callable[[Mapping[str, Any]], Dialect],
    answering: Callable[[Dialect], Answering],
) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """Reads the body, finds the dialect, and turns every outcome into a response."""
    settings, metrics = service.settings, service.metrics

    async def endpoint(request: Request) -> Response:
        start = time.monotonic()
        dialect = choose({})
        try:
            length = request.headers.get("content-length")
            body = parse_json(await read_body(request.stream(), length, settings), settings)
            dialect = choose(body)
            response = await _while_connected(request, answering(dialect)(body))
        except Refusal as refusal:
            response = _refused(dialect, refusal)
        except Exception:
            logger.exception("a request on %s failed", path)
            response = _refused(dialect, Refusal(500, "the server failed on this request"))
        metrics.requests.labels(path, str(response.status_code)).inc()
        metrics.seconds.labels(path).observe(time.monotonic() - start)
        return response

    return endpoint


async def _while_connected(request: Request, work: Awaitable[Response]) -> Response:
    """The response, unless the client goes away first: then the work is taken back."""
    answering = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({answering, watching}, return_when=asyncio.FIRST_COMPLETED)
        if answering.done():
            return answering.result()
        return Response(status_code=CLIENT_GONE)
    finally:
        for task in (answering, watching):
            if not task.done():
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


def _response(dialect: Dialect, call: Call, reply: Reply) -> Response:
    if not call.options.stream:
        return json_response(dialect.render(call, reply))

    def lines() -> Iterator[bytes]:
        yield _encoded(dialect.head(call, reply)) + b"\n"
        for each in reply.results:
            yield _encoded(dialect.result(call, each)) + b"\n"

    return StreamingResponse(lines(), media_type="application/x-ndjson")


def _refused(dialect: Dialect, refusal: Refusal) -> Response:
    response = json_response(dialect.error(refusal), dialect.status(refusal))
    if refusal.retry_after is not None:
        response.headers["retry-after"] = str(refusal.retry_after)
    if refusal.status == 401:
        response.headers["www-authenticate"] = "Bearer"
    return response


def json_response(tree: Any, status: int = 200) -> Response:
    """JSON without NaN and without halves of characters, which UTF-8 does not have."""
    return Response(_encoded(tree), status_code=status, media_type="application/json")


def _encoded(tree: Any) -> bytes:
    text = json.dumps(tree, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return printable(text).encode("utf-8")


def _add_status(app: FastAPI, service: Service) -> None:
    started = int(time.time())

    @app.get("/health")
    async def health() -> Response:
        """The process answers."""
        return json_response({"status": "ok"})

    @app.get("/ready", responses={503: {"description": "no worker is warm, or stopping"}})
    async def ready() -> Response:
        """At least one worker is warm and alive."""
        return json_response(
            {"ready": service.ready, "workers": [worker.ready for worker in service.workers]},
            200 if service.ready else 503,
        )

    @app.get("/v1/models")
    async def models() -> Response:
        """The presets, which requests name in ``model`` or ``ricci.preset``."""
        names = service.presets.configs
        data = [
            {"id": name, "object": "model", "created": started, "owned_by": "ricci_gpu"}
            for name in names
        ]
        return json_response({"object": "list", "data": data})

    @app.get("/info")
    async def info() -> Response:
        """What clients of TEI ask for."""
        model = service.presets.configs[service.presets.default].model
        return json_response(
            {
                "model_id": model.name,
                "model_dtype": model.dtype,
                "model_type": {"reranker": {"id2label": {}, "label2id": {}}},
                "max_client_batch_size": service.settings.max_documents,
                "max_concurrent_requests": service.settings.queue_requests,
                "auto_truncate": True,
                "version": __version__,
            }
        )

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counters for Prometheus."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")


def _add_guard(app: FastAPI, service: Service) -> None:
    keys = service.settings.keys
    if not keys:
        return

    class Guard:
        """Refuses requests without a key, whatever the route."""

        def __init__(self, app: Any) -> None:
            self.app = app

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                headers = dict(scope["headers"])
                given = headers.get(b"authorization", b"").decode("latin-1")
                try:
                    require_key(keys, scope["path"], given)
                except Refusal as refusal:
                    await _refused(VLLM(), refusal)(scope, receive, send)
                    return
            await self.app(scope, receive, send)

    app.add_middleware(Guard)
