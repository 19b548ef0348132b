"""The web application: the Open Inference Protocol's paths, and those for people."""

from functools import partial

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

import lametta
from lametta.serve import openapi
from lametta.serve.errors import NotFoundError, StoreError
from lametta.serve.gate import Bodies, Gate, failure, refusal
from lametta.serve.page import asset
from lametta.serve.service import VERSION, Service
from lametta.serve.stores import Store
from lametta.serve.tensors import BadRequest
from lametta.serve.workers import Kind, Workers
from lametta.types import LamettaError

_SAFE = {  # nothing from elsewhere, no guessing of types, no frames
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class _Answer(Response):
    """A reply with known headers: checking and lowercasing them takes longer than sending them."""

    def __init__(self, body: bytes, header_length: int | None) -> None:
        self.status_code, self.body, self.background = 200, body, None
        self.raw_headers = [(b"content-length", b"%d" % len(body))]
        if header_length is None:
            self.raw_headers.append((b"content-type", b"application/json"))
        else:
            length = openapi.HEADER_LENGTH.lower().encode(), b"%d" % header_length
            self.raw_headers += [(b"content-type", b"application/octet-stream"), length]


class _Plain(APIRoute):
    """A path whose function takes the request and gives the answer, without FastAPI's own work.

    Finding the function's arguments and passing the layers around it would take longer than
    everything but the correction.
    """

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] not in (self.methods or ()):
            await super().handle(scope, receive, send)  # answers which methods there are
            return
        response: Response = await self.endpoint(Request(scope, receive, send))
        await response(scope, receive, send)


class _Front:
    """An application whose plain paths are tried first, without its layers."""

    def __init__(self, app: FastAPI) -> None:
        self.app = app
        self.routes = [route for route in app.routes if isinstance(route, _Plain)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for route in self.routes if scope["type"] == "http" else ():
            match, found = route.matches(scope)
            if match is Match.FULL:
                scope.update(found)
                await route.handle(scope, receive, send)
                return
        await self.app(scope, receive, send)


def make_app(
    service: Service, bodies: Bodies, store: Store, *, threads: int | None = None
) -> ASGIApp:
    """Make the application that serves these models.

    Parameters
    ----------
    service : Service
        The models.
    bodies : Bodies
        What reads requests.
    store : Store
        Where their streams are kept.
    threads : int or None
        As for `lametta.serve.workers.Workers`.
    """
    workers = Workers(threads, waits=store.waits)

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

    async def infer(request: Request) -> Response:
        model = request.path_params["model"]
        _find(service, model, request.path_params.get("version", VERSION))
        request.scope["model"] = model
        header_length = _header_length(request)
        length = bodies.length(request)
        with bodies.room(length):
            body = await bodies.read(request)
            job = partial(service.answer, model, body, header_length, request.scope["begun"])
            kind = Kind(model, len(body).bit_length())
            reply = await workers.do(kind, job)
        return _Answer(*reply)

    for path, words in (
        ("/v2/models/{model}/infer", openapi.INFER),
        ("/v2/models/{model}/versions/{version}/infer", openapi.INFER_VERSION),
    ):
        app.router.add_api_route(
            path, infer, methods=["POST"], route_class_override=_Plain, **words
        )

    @app.get("/v2", **openapi.SERVER)
    async def about() -> Response:
        extensions = ["binary_tensor_data", "sequence"]
        return _json(name="lametta", version=lametta.__version__, extensions=extensions)

    @app.get("/v2/health/live", **openapi.HEALTH)
    async def live() -> Response:
        return _json(live=True)

    @app.get("/v2/health/ready", **openapi.HEALTH)
    async def ready() -> Response:
        try:
            await workers.do(Kind("", 0), store.check)
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
        return await ready()

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

    return Gate(_Front(app), bodies.manners, service.monitor)


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


def _json(**content: object) -> Response:
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
    """Answer for a path or a method that does not exist."""
    assert isinstance(error, HTTPException)
    return failure(error.status_code, str(error.detail), dict(error.headers or {}))


async def _broken(_: Request, __: Exception) -> Response:
    """Answer without the reason, which is in the log."""
    return failure(500, "internal error")
