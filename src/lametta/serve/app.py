"""Routes of the Open Inference Protocol, the live page and metrics; thread-pool offloading.

The page is plain files, which hold no data and may be given without a token: it asks for one where
``status.json`` is refused with 401. All its addresses are relative, and ``default-src 'self'`` is
all that it needs of a Content-Security-Policy.
"""

import asyncio
import itertools
import math
import os
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.resources import files
from typing import Any, NamedTuple, NoReturn, TypeVar

import orjson

import lametta
from lametta.serve.middleware import (
    BodyReader,
    LimitMiddleware,
    Reply,
    Request,
    Room,
    bytes_reply,
    error_reply,
    json_reply,
)
from lametta.serve.protocol import (
    HEADER_LENGTH,
    BadRequest,
    Codec,
    Deadline,
    DeadlineError,
    InferRequest,
    NotFoundError,
)
from lametta.serve.rows import SEQUENCE
from lametta.serve.service import VERSION, Service
from lametta.serve.stores import Store

T = TypeVar("T")

_QUICK = 0.003  # seconds that all others may have to wait for what is computed at once
_SLOW = 10 * _QUICK  # what takes less is tried at once now and then: it may have become quick
_RETRY = 64  # requests between two such tries
_SLOWER, _QUICKER = 1 / 5, 1 / 16  # weights of a time in the average: of two slow ones one is slow
_SMALL = 2**16  # bytes of JSON that are read at once, to know what is asked
_POLL = 0.25  # seconds after which a request's own timeout is noticed
_AGAIN = 4  # times as long as it took, what came too late is not tried again

_KINDS = {
    "index.html": "text/html; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "charts.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_SAFE = [  # nothing from elsewhere, no guessing of types, no frames
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]
_HEADER_LENGTH = HEADER_LENGTH.lower().encode()


class Route(NamedTuple):
    """What answers at a path, by which methods."""

    methods: tuple[str, ...]
    handler: Callable[[Request], Awaitable[Reply]]


def make_app(
    service: Service, reader: BodyReader, store: Store, *, threads: int | None = None
) -> LimitMiddleware:
    """Make the application that serves these models.

    Parameters
    ----------
    service : Service
        The models.
    reader : BodyReader
        What reads the bodies of requests.
    store : Store
        Where their streams are kept.
    threads : int or None
        As for `Executor`.
    """
    executor = Executor(threads, blocking=store.blocking, deadline=service.deadline)
    handlers = Handlers(service, reader, store, executor)
    return LimitMiddleware(handlers, reader.limits, service.monitor)


class Handlers:
    """What each path does; errors are raised, for the middleware to answer.

    Attributes
    ----------
    routes : dict of str to Route
        By path: there is one for each model, version and file.
    """

    def __init__(
        self, service: Service, reader: BodyReader, store: Store, executor: "Executor"
    ) -> None:
        self.service, self.reader, self.store, self.executor = service, reader, store, executor
        self.codec = Codec(reader.limits.request)
        get = partial(Route, ("GET", "HEAD"))
        self.routes = {
            "/v2": get(self.about),
            "/v2/health": get(self.health),
            "/v2/health/live": get(self.live),
            "/v2/health/ready": get(self.ready),
            "/metrics": get(self.metrics),
            "/status.json": get(self.status),
            "/openapi.json": get(self.openapi),
            "/": get(partial(self.file, "index.html")),
        }
        self.routes |= {f"/static/{name}": get(partial(self.file, name)) for name in _KINDS}
        for model in service.sessions:
            for path in (f"/v2/models/{model}", f"/v2/models/{model}/versions/{VERSION}"):
                self.routes[path] = get(partial(self.model_metadata, model))
                self.routes[f"{path}/ready"] = get(self.ready)
                self.routes[f"{path}/infer"] = Route(("POST",), partial(self.infer, model))

    async def __call__(self, request: Request) -> Reply:
        path = request.path
        route = self.routes.get(path) or self.routes.get(path.rstrip("/"))
        if route is None:
            self._refuse(path)
        if request.method not in route.methods:
            reply = error_reply(405, "Method Not Allowed")
            reply.headers.append((b"allow", ", ".join(route.methods).encode()))
            return reply
        return await route.handler(request)

    def _refuse(self, path: str) -> NoReturn:
        """Raise for a path that there is not: which part of it is wrong."""
        parts = path.split("/")
        if parts[:3] == ["", "v2", "models"] and len(parts) > 3:
            self.service.find(parts[3])
            if parts[4:5] == ["versions"] and parts[5:6] != [VERSION]:
                given = "/".join(parts[5:6])[:50]
                raise NotFoundError(f"version of {parts[3]} must be {VERSION}, got {given!r}")
        raise NotFoundError("Not Found")

    async def infer(self, model: str, request: Request) -> Reply:
        request.model = model
        if request.query:  # a stream that is named there would have no memory
            raise BadRequest(
                "the address of a request must end with its path, got "
                f"{'?' + request.query.decode('latin-1')[:50]!r}; parameters belong into the "
                "body's parameters"
            )
        header_length = _header_length(request)
        room = request.room = self.reader.reserve(self.reader.length(request.headers))
        body = await self.reader.read(request)
        deadline = Deadline(self.service.deadline, request.begun)
        handler = partial(self.service.infer, model, deadline)
        n_json = len(body) if header_length is None else header_length
        job: Callable[[], tuple[bytes, int | None]]
        kind: RequestClass | None
        if self.executor.may_run_inline and n_json <= _SMALL and len(body) <= 2**20:
            asked = self.codec.decode(body, header_length)
            kind = RequestClass.of(model, asked) if self.service.is_at_hand(model, asked) else None
            job = partial(self.codec.answer, asked, handler)
        else:
            kind = RequestClass(model, (len(body).bit_length(),), is_bounded=False)
            job = partial(self.codec.respond, body, header_length, handler)
        content, length = await self.executor.submit(kind, job, deadline, room)
        room.grow(len(content))
        if length is None:
            return bytes_reply(content, b"application/json")
        reply = bytes_reply(content, b"application/octet-stream")
        reply.headers.append((_HEADER_LENGTH, b"%d" % length))
        return reply

    async def about(self, _: Request) -> Reply:
        extensions = ["binary_tensor_data", "sequence"]
        about = {"name": "lametta", "version": lametta.__version__, "extensions": extensions}
        return json_reply(about)

    async def live(self, _: Request) -> Reply:
        return json_reply({"live": True})

    async def health(self, _: Request) -> Reply:
        """What an operator should know; probes need less, and no token."""
        await asyncio.to_thread(self.store.check)  # as for `ready`
        warnings = await asyncio.to_thread(self.store.warnings)
        state = {"live": True, "ready": True, "warnings": warnings}
        return json_reply(state | {"damaged_streams": self.store.damaged})

    async def ready(self, _: Request) -> Reply:
        await asyncio.to_thread(self.store.check)  # not behind requests that wait for a thread
        return json_reply({"ready": True})

    async def model_metadata(self, model: str, _: Request) -> Reply:
        return json_reply(self.service.metadata(model))

    async def metrics(self, _: Request) -> Reply:
        await asyncio.sleep(0)  # so that what was answered before is counted
        text = self.service.monitor.text()
        return bytes_reply(text, b"text/plain; version=0.0.4; charset=utf-8")

    async def status(self, _: Request) -> Reply:
        await asyncio.sleep(0)
        return json_reply(self.service.monitor.status())

    async def openapi(self, _: Request) -> Reply:
        return json_reply(_openapi())

    async def file(self, name: str, _: Request) -> Reply:
        found = asset(name)
        if found is None:
            raise NotFoundError("there is no such file")
        content, kind = found
        reply = bytes_reply(content, kind.encode())
        reply.headers.extend(_SAFE)
        return reply


class RequestClass(NamedTuple):
    """Requests of one model and of about one shape, which take about as long as each other.

    Attributes
    ----------
    model : str
        What they ask.
    shape : tuple of int
        The magnitudes of their number of rows, and of the numbers in their first tensors.
    is_bounded : bool
        Whether the shape says how much work there is; it does not for files of images.
    """

    model: str
    shape: tuple[int, ...]
    is_bounded: bool = True

    @classmethod
    def of(cls, model: str, request: InferRequest) -> "RequestClass":
        """The class of a request."""
        rows, bounded = 0, True
        sizes: list[int] = []
        for name, array in request.inputs.items():
            if name in SEQUENCE:  # as many streams as rows, at most
                sizes.insert(0, -1)
                continue
            rows |= len(array)
            sizes.append(array.size.bit_length())
            bounded = bounded and array.dtype.kind != "O"
        return cls(model, (rows.bit_length(), *sizes[:3]), bounded)


class Executor:
    """Thread pool for requests, with quick ones run inline, by the thread that reads them.

    Threads that compute small things take the interpreter's lock from each other with every array,
    which makes each of them several times slower; and the way to a thread and back takes as long as
    the correction of a frame. So the thread that reads a request also computes it, if requests like
    it were quick and nothing that takes long is being computed, for which it might have to wait.

    Parameters
    ----------
    threads : int or None
        Threads, which compute everything; None: one a core, for what is not known to be quick.
    blocking : bool
        Whether a job may wait for another machine; then threads compute everything, too.
    deadline : float
        Seconds of computing after which a job like it is refused, for a while.

    Attributes
    ----------
    may_run_inline : bool
        Whether anything is run inline.
    """

    def __init__(
        self, threads: int | None, *, blocking: bool = False, deadline: float = math.inf
    ) -> None:
        self.may_run_inline = threads is None and not blocking
        self.deadline = deadline
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, "lametta")
        self._seconds: dict[RequestClass, float] = {}  # lately
        self._refused_until: dict[RequestClass | None, float] = {}
        self._n_asked = itertools.count(1)
        self._n_slow = 0  # in threads

    def runs_inline(self, kind: RequestClass | None) -> bool:
        """Whether such a request is computed at once, and not in the pool."""
        if kind is None or not (self.may_run_inline and kind.is_bounded) or self._n_slow:
            return False
        return self._is_quick(kind) or (
            self._seconds.get(kind, _SLOW) < _SLOW and next(self._n_asked) % _RETRY == 0
        )

    async def submit(
        self,
        kind: RequestClass | None,
        job: Callable[[], T],
        deadline: Deadline | None = None,
        room: Room | None = None,
    ) -> T:
        """Run a job to its end, even if the client has gone: its stream may have moved on.

        Nothing is known, or remembered, of a job whose kind is None, as where a stream's state has
        to be loaded first. At the deadline the job is given up: `DeadlineError` is raised, and the
        room is held until the job sees that and ends.
        """
        deadline = Deadline() if deadline is None else deadline
        if self.runs_inline(kind):
            return self.timed(kind, job)
        if time.monotonic() < self._refused_until.get(kind, 0.0):
            raise DeadlineError("a request like this took longer than the deadline just now")
        is_slow = not self._is_quick(kind)
        self._n_slow += is_slow
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, self.timed, kind, job)
        future.add_done_callback(partial(self._end, is_slow))
        try:
            while not (await asyncio.wait([future], timeout=min(deadline.left() or _POLL, _POLL)))[
                0
            ]:
                if deadline.left() <= 0 and deadline.expire():
                    if room is not None:
                        room.hold()
                        future.add_done_callback(lambda _: room.release())
                    deadline.check()
            return future.result()
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise
        finally:
            del future  # else it and a failure's traceback hold each other, with all the data

    def _end(self, is_slow: bool, future: "asyncio.Future[object]") -> None:
        self._n_slow -= is_slow
        if not future.cancelled():
            future.exception()  # of a job that was given up, nobody else asks for it

    def timed(self, kind: RequestClass | None, job: Callable[[], T]) -> T:
        """Run a job, and remember how long one of this kind takes."""
        if kind is None:
            return job()
        begun = time.thread_time()  # its own: others, and other programs, do not count
        try:
            return job()
        finally:
            seconds = max(time.thread_time() - begun, 1e-9)  # some clocks stand still for longer
            before = self._seconds.get(kind, seconds)
            # The geometric mean, to which a single one matters little.
            weight = _SLOWER if seconds > before else _QUICKER
            self._seconds[kind] = before * (seconds / before) ** weight
            if seconds > self.deadline:
                self._refused_until[kind] = time.monotonic() + _AGAIN * seconds

    def _is_quick(self, kind: RequestClass | None) -> bool:
        """Whether such requests were quick; what was never seen is not believed to be."""
        return kind is not None and kind.is_bounded and self._seconds.get(kind, math.inf) < _QUICK


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


def _header_length(request: Request) -> int | None:
    given = request.headers.get(_HEADER_LENGTH)
    if given is None:
        return None
    if not (given.isdigit() and len(given) < 20):
        shown = given[:50].decode("latin-1")
        raise BadRequest(f"{HEADER_LENGTH} must be a number of bytes, got {shown!r}")
    return int(given)


def _openapi() -> dict[str, Any]:
    """What the paths take and give, as OpenAPI says it."""
    document: dict[str, Any] = orjson.loads(
        files(__package__).joinpath("openapi.json").read_bytes()
    )
    document["info"]["version"] = lametta.__version__
    return document
