"""The web application: the Open Inference Protocol's paths, and those for people."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

import lametta
from lametta.serve import openapi
from lametta.serve.errors import NotFoundError, StoreError
from lametta.serve.gate import Bodies, Gate, failure, refusal
from lametta.serve.page import asset
from lametta.serve.service import VERSION, Service
from lametta.serve.stores import Store
from lametta.serve.tensors import BadRequest
from lametta.types import LamettaError

_SAFE = {  # nothing from elsewhere, no guessing of types, no frames
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def make_app(service: Service, bodies: Bodies, store: Store, *, threads: int = 8) -> ASGIApp:
    """Make the application that serves these models.

    Parameters
    ----------
    service : Service
        The models.
    bodies : Bodies
        What reads requests.
    store : Store
        Where their streams are kept.
    threads : int
        How many requests are computed at the same time.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="lametta")

    app = FastAPI(
        title="lametta",
        version=lametta.__version__,
        description="Corrects a frozen classifier's predictions at test time.",
        docs_url=None,  # these would load scripts from elsewhere
        redoc_url=None,
    )
    app.add_exception_handler(LamettaError, _refused)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(Exception, _broken)

    # First, since paths are tried in their order.
    @app.post("/v2/models/{model}/infer", **openapi.INFER)
    @app.post("/v2/models/{model}/versions/{version}/infer", **openapi.INFER_VERSION)
    async def infer(request: Request) -> Response:
        # Not as arguments, which FastAPI would take longer to check than all else here.
        model = request.path_params["model"]
        _find(service, model, request.path_params.get("version", VERSION))
        request.scope["model"] = model
        header_length = _header_length(request)
        length = bodies.length(request)
        with bodies.slot(), bodies.room(length):
            body = await bodies.read(request)
            loop, begun = asyncio.get_running_loop(), request.scope["begun"]
            job = loop.run_in_executor(pool, service.answer, model, body, header_length, begun)
            try:
                reply = await asyncio.shield(job)
            except asyncio.CancelledError:
                # Who has gone away may have been counted all the same: a slot is free when work is.
                await asyncio.wait([job])
                raise
        if reply.header_length is None:
            return Response(reply.body, media_type="application/json")
        headers = {openapi.HEADER_LENGTH: str(reply.header_length)}
        return Response(reply.body, headers=headers, media_type="application/octet-stream")

    @app.get("/v2", **openapi.SERVER)
    async def about() -> Response:
        extensions = ["binary_tensor_data", "sequence"]
        return _json(name="lametta", version=lametta.__version__, extensions=extensions)

    @app.get("/v2/health/live", **openapi.HEALTH)
    async def live() -> Response:
        return _json(live=True)

    @app.get("/v2/health/ready", **openapi.HEALTH)
    async def ready() -> Response:
        return await _ready()

    async def _ready() -> Response:
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(pool, store.check)
        except StoreError as error:
            return failure(503, str(error))
        return _json(ready=True)

    @app.get("/v2/models/{model}", **openapi.MODEL)
    @app.get("/v2/models/{model}/versions/{version}", **openapi.MODEL)
    async def model_metadata(model: str, version: str = VERSION) -> Response:
        _find(service, model, version)
        return _json(
            name=model,
            versions=[VERSION],
            platform="lametta",
            inputs=openapi.inputs_of(service),
            outputs=openapi.outputs_of(service),
        )

    @app.get("/v2/models/{model}/ready", **openapi.MODEL)
    @app.get("/v2/models/{model}/versions/{version}/ready", **openapi.MODEL)
    async def model_ready(model: str, version: str = VERSION) -> Response:
        _find(service, model, version)
        return await _ready()

    @app.get("/metrics", **openapi.METRICS)
    async def metrics() -> Response:
        return Response(service.monitor.text(), media_type="text/plain; version=0.0.4")

    @app.get("/status.json", **openapi.STATUS)
    async def status() -> Response:
        return _json(**service.monitor.status())

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return _file("index.html")

    @app.get("/static/{name}", include_in_schema=False)
    async def static(name: str) -> Response:
        return _file(name)

    return Gate(app, bodies.manners, service.monitor)


def _find(service: Service, model: str, version: str) -> None:
    service.find(model)
    if version != VERSION:
        raise NotFoundError(f"version of {model} must be {VERSION}, got {version[:50]!r}")


def _header_length(request: Request) -> int | None:
    given = request.headers.get(openapi.HEADER_LENGTH)
    if given is None:
        return None
    if not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise BadRequest(f"{openapi.HEADER_LENGTH} must be a number of bytes, got {given[:50]!r}")
    return int(given)


def _json(**content: Any) -> Response:
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, media_type="application/json")


def _file(name: str) -> Response:
    found = asset(name)
    if found is None:
        raise NotFoundError("there is no such file")
    content, kind = found
    return Response(content, media_type=kind, headers=_SAFE)


async def _refused(_: Request, error: Exception) -> Response:
    return refusal(error)


async def _failed(_: Request, error: Exception) -> Response:
    """A path or a method that there is not."""
    assert isinstance(error, HTTPException)
    return failure(error.status_code, str(error.detail), dict(error.headers or {}))


async def _broken(_: Request, __: Exception) -> Response:
    """Say nothing of why; the log has it."""
    return failure(500, "internal error")
