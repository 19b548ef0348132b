"""uvicorn runner: JSON logs, bounded heads and connections, graceful shutdown."""

import asyncio
import logging
import logging.config
import weakref
from functools import partial
from importlib.util import find_spec
from socket import socket
from typing import TYPE_CHECKING, Any

import httptools
import orjson
import uvicorn
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from lametta.serve.middleware import WHOLE, ASGIApp, ServerLimits
from lametta.types import LamettaError

if TYPE_CHECKING:  # an extra
    from lametta.serve.grpc import GRPCServer

logger = logging.getLogger("lametta.serve")

_HEADERS = 100  # of a request, its trailers included; each takes ten times its length of memory
_TOO_MANY = f"the head must have at most {_HEADERS} headers"
_PROBES = (b"/v2/health/", b"/metrics")
_PIPELINED = 64  # requests that may wait behind another in a connection
_OTHER_FILES = 128  # descriptors that are left to the store, the model and the listener
_PLAIN = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}


class JsonLines(logging.Formatter):
    """A line of JSON for each message, with whatever was given as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": self.formatTime(record, "%Y-%m-%dT%H:%M:%S%z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: x for name, x in vars(record).items() if name not in _PLAIN}
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str).decode()


def log_to_stderr(level: str) -> None:
    """Send what is logged to the error stream, as lines of JSON; Python's warnings too."""
    logging.captureWarnings(True)
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": JsonLines}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "root": {"handlers": ["stderr"], "level": "WARNING"},  # of asyncio and all others
            "loggers": {"lametta": {"level": level}},
        }
    )


class BoundedProtocol(HttpToolsProtocol):
    """HTTP/1.1 that bounds a head in bytes, and a connection in the time that it may be idle.

    uvicorn with httptools keeps any number of header bytes, cancels its own timer with any byte,
    waits for ever for the rest of a head, and flushes an answer for ever that nobody reads. Here
    a timer runs while a head is being sent, while the rest of a refused body comes, and while an
    answer waits to be taken; no byte restarts it. When there are too many connections, the one
    that has been idle the longest, or does not take its answer, makes room, so that probes are
    answered.

    `bounded_protocol` makes a class with the limits of a server.
    """

    max_head: int
    patience: float
    idle: dict["BoundedProtocol", None]  # connections that wait for clients, the longest first

    _timer: asyncio.TimerHandle | None = None
    _n_head = 0  # bytes of a head, or of anything else that is no body, so far
    _has_begun = False  # whether bytes of the next head have come
    _in_body = False
    _is_deaf = False  # whether bytes that still come are dropped
    _refusal: bytes | None = None  # to be sent after the answers to the requests before

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        limit = self.limit_concurrency
        if limit is not None and len(self.connections) >= limit and self.idle:
            longest = next(iter(self.idle))
            del self.idle[longest]
            self.connections.discard(longest)
            longest.transport.abort()
        self.idle[self] = None
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if not (self._has_begun or self._in_body) and self._is_answered():
            self._has_begun = True
            self._start_timer()
        rest: bytes | memoryview = data
        while rest and not self._is_deaf:
            end = self.max_head - self._n_head
            if len(rest) > end:
                rest = memoryview(rest)
            piece, rest = rest[:end], rest[end:]
            self._n_head += len(piece)
            self._parse(piece)
            if self._n_head >= self.max_head and not self._is_deaf:
                self._refuse(431, f"the head must have at most {self.max_head} bytes")
            if self._n_head and len(self.headers or ()) > _HEADERS and not self._is_deaf:
                self._refuse(431, _TOO_MANY)  # of a head, or trailers, that go on

    def _parse(self, piece: bytes | memoryview) -> None:
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            self._is_deaf = True  # another protocol would follow, which is not spoken here
        except httptools.HttpParserError as error:
            too_large = isinstance(error.__context__, _HeadTooLargeError)
            reason = str(error.__context__) if too_large else "this is no HTTP request"
            self._refuse(431 if too_large else 400, reason)

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _PIPELINED:
            raise _HeadTooLargeError(f"at most {_PIPELINED} requests may wait in a connection")
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if len(self.headers) > _HEADERS:
            raise _HeadTooLargeError(_TOO_MANY)
        self._n_head, self._has_begun = 0, False
        self._stop_timer()
        self.idle.pop(self, None)
        limit = self.limit_concurrency
        if self.url.startswith(_PROBES):  # answered although all places are taken
            self.limit_concurrency = None
        try:
            super().on_headers_complete()  # raises for an address that is none
        finally:
            self.limit_concurrency = limit
        self._in_body = True
        extensions: dict[str, Any] = {WHOLE: partial(_is_whole, weakref.ref(self.cycle))}
        self.scope["extensions"] = extensions  # which the cycle holds
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # answered in HTTP/1.1, and that is all

    def on_body(self, body: bytes) -> None:
        self._n_head = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._n_head, self._in_body = 0, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        is_last = not self.pipeline
        super().on_response_complete()
        if not is_last:
            return
        self.idle[self] = None
        if self._refusal is not None:
            self._send_last(self._refusal)
        elif self._in_body or self.transport.get_write_buffer_size():
            self._start_timer()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.idle.setdefault(self, None)  # it waits for its client, and nothing is lost with it
        if self._timer is None:
            self._start_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if not self._is_answered():
            self._stop_timer()
            self.idle.pop(self, None)

    def _is_answered(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(self.patience, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, status: int, message: str) -> None:
        """Refuse what comes, after the answers to all requests that were whole."""
        self._is_deaf = True
        logger.debug("refused", extra={"status": status, "reason": message})
        content = orjson.dumps({"error": message})
        head = STATUS_LINE[status] + b"content-type: application/json\r\nconnection: close\r\n"
        said = b"%bcontent-length: %d\r\n\r\n%b" % (head, len(content), content)
        if self._in_body and self.pipeline:
            self.pipeline.popleft()  # it ends in the middle
        elif self._in_body:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:  # another answer would be taken for a part of it
                self.transport.abort()
            else:
                self._send_last(said)
            return
        if self._is_answered():
            self._send_last(said)
        else:
            self._refusal = said

    def _send_last(self, said: bytes) -> None:
        """Send a refusal; close once it was read, since unread bytes of theirs would reset it."""
        if not self.transport.is_closing():
            self.transport.write(said)
            self.transport.write_eof()
            self._start_timer()


def _is_whole(request: "weakref.ref[RequestResponseCycle]") -> bool:
    cycle = request()
    return cycle is not None and not cycle.more_body


class _HeadTooLargeError(Exception):
    """A head has more headers, or a connection more requests, than are kept."""


def bounded_protocol(limits: ServerLimits) -> type[BoundedProtocol]:
    """The protocol of a server with these limits; its connections know each other."""

    class Protocol(BoundedProtocol):
        max_head, patience, idle = limits.head, limits.patience, {}

    return Protocol


def run(
    app: ASGIApp, host: str, port: int, limits: ServerLimits, grpc_port: int | None = None
) -> None:
    """Serve until a signal says to end; then answer what was accepted, and no more."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop" if find_spec("uvloop") else "asyncio",  # Windows has no uvloop
        http=bounded_protocol(limits),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anyone could claim to be any client
        limit_concurrency=_most_connections(4 * limits.queue),
        timeout_graceful_shutdown=int(limits.deadline + limits.patience),
    )
    server = _Server(config)
    if grpc_port is not None:
        from lametta.serve.grpc import GRPCServer

        server.beside = GRPCServer(app, host, grpc_port, limits)
    # Requests share the cores: threads of BLAS that wait for each other would only be in the way.
    with threadpool_limits(1, "blas"):
        server.run()
    if not server.started:
        raise SystemExit(1)


def _most_connections(wanted: int) -> int:
    """So many connections, or as many as the system allows beside the store's files."""
    if find_spec("resource") is None:  # Windows
        return wanted
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = wanted + _OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < enough:
        soft = enough if hard == resource.RLIM_INFINITY else min(hard, enough)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return max(min(wanted, soft - _OTHER_FILES), 8)
    return wanted


class _Server(uvicorn.Server):
    """Logs where it listens: with port 0 the system chooses."""

    beside: "GRPCServer | None" = None

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self.beside is not None:
            try:
                await self.beside.start()
            except LamettaError as error:
                logger.error("%s", error)
                await super().shutdown(sockets)
                raise SystemExit(1) from error
        for server in self.servers if self.started else []:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                logger.info("listening", extra={"host": host, "port": port})

    async def shutdown(self, sockets: list[socket] | None = None) -> None:
        if self.beside is not None:
            await self.beside.stop()
        await super().shutdown(sockets)
