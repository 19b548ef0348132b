"""Routes of the Open Inference Protocol, the live page and metrics, and threads that compute.

The page is plain files, which hold no data and may be given without a token: it asks for one where
``status.json`` is refused with 401. All its addresses are relative, and ``default-src 'self'`` is
all that it needs of a Content-Security-Policy.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import NamedTuple, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp, Receive, Scope, Send

import lametta
from lametta.serve import openapi
from lametta.serve.middleware import Bodies, Gate, failure, refusal
from lametta.serve.protocol import BadRequest, NotFoundError, StoreError
from lametta.serve.service import VERSION, Service
from lametta.serve.stores import Store
from lametta.types import LamettaError

T = TypeVar("T")

_QUICK = 0.003  # seconds that all others may have to wait for what is computed at once
_SLOW = 10 * _QUICK  # what takes less is tried at once now and then: it may have become quick
_RETRY = 64  # requests between two such tries
_LATELY = 16  # requests that an average goes back
_SMALL = 2**16  # bytes of a request that counts as quick until one was timed

_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
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
        As for `Workers`.
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


class Kind(NamedTuple):
    """Requests that take about as long as each other.

    Attributes
    ----------
    model : str
        What they ask.
    n_bits : int
        The magnitude of their length.
    """

    model: str
    n_bits: int


class Workers:
    """Compute requests, while the thread that reads them may go on reading.

    Threads that compute small things take the interpreter's lock from each other with every array,
    which makes each of them several times slower; and the way to a thread and back takes as long as
    the correction of a frame. So the thread that reads a request also computes it, if requests like
    it are quick and nothing that takes long is being computed, for which it might have to wait.

    Parameters
    ----------
    threads : int or None
        Threads, which compute everything; None: one a core, for what is not quick.
    waits : bool
        Whether a job may wait for another machine; then threads compute everything, too.
    """

    def __init__(self, threads: int | None, *, waits: bool = False) -> None:
        self._at_once = threads is None and not waits
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, "lametta")
        self._seconds: dict[Kind, float] = {}  # lately
        self._n_asked = itertools.count(1)
        self._n_running = self._n_slow = 0  # in threads

    def computes_at_once(self, kind: Kind) -> bool:
        """Whether such a request does not go to a thread now."""
        if not self._at_once or self._n_slow:
            return False
        return self._is_quick(kind) or (
            self._seconds.get(kind, _SLOW) < _SLOW and next(self._n_asked) % _RETRY == 0
        )

    async def do(self, kind: Kind, job: Callable[[], T]) -> T:
        """Do a job to its end, even if the client has gone: its stream may have moved on."""
        if self.computes_at_once(kind):
            return self.timed(kind, job)
        is_slow = not self._is_quick(kind)
        self._n_running += 1
        self._n_slow += is_slow
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, self.timed, kind, job)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        finally:
            del future  # else it and a failure's traceback hold each other, with all the data
            self._n_running -= 1
            self._n_slow -= is_slow

    def timed(self, kind: Kind, job: Callable[[], T]) -> T:
        """Do a job, and remember how long one of this kind takes."""
        begun, others = time.perf_counter(), self._n_running > 1
        try:
            return job()
        finally:
            seconds = max(time.perf_counter() - begun, 1e-9)  # some clocks stand still for longer
            if not (others or self._n_running > 1):  # else this is not its own time
                before = self._seconds.get(kind, seconds)
                # The geometric mean, to which a single stall of the machine matters little.
                self._seconds[kind] = before * (seconds / before) ** (1 / _LATELY)

    def _is_quick(self, kind: Kind) -> bool:
        seconds = self._seconds.get(kind)
        return kind.n_bits <= _SMALL.bit_length() if seconds is None else seconds < _QUICK


def asset(name: str) -> tuple[bytes, str] | None:
    """The content and the type of one of the page's files; None if there is no such file.

    Examples
    --------
    >>> content, kind = asset("index.html")
    >>> kind
    'text/html; charset=utf-8'
    >>> asset("../app.py") is None
    True
    """
    if name not in _KINDS:
        return None
    return files(__package__).joinpath("page", name).read_bytes(), _KINDS[name]


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
