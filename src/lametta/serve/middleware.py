"""Middleware: bearer tokens, rate limit, body size, timeouts, access log."""

import asyncio
import hashlib
import hmac
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import orjson
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from lametta.serve.monitoring import Monitor
from lametta.serve.protocol import (
    BadRequest,
    ForbiddenError,
    HTTPError,
    RequestLimits,
    RequestTimeoutError,
    TooLargeError,
    TooManyRequestsError,
    UnauthorizedError,
    UnsupportedError,
)
from lametta.types import LamettaError

logger = logging.getLogger("lametta.serve")

_OPEN = ("/v2/health/", "/static/")  # no token: probes, and the page without its numbers
# Those of a form or of plain text, which a page of another origin can send, are not among them.
_TYPES = ("application/json", "application/octet-stream")
_BUFFERED = 2**14  # bytes; a shorter answer fits in buffers and need not wait for its client
_CLIENTS = 10_000  # whose rates are remembered


@dataclass(frozen=True)
class ServerLimits:
    """Limits that a server sets its clients: who may ask, how often, how much, how slowly.

    Attributes
    ----------
    tokens : tuple of str
        Bearer tokens, one of which every request needs; none: everyone may ask.
    request : RequestLimits
        The largest request.
    rate : float
        Requests a second that a client (a token, or else an address) may send steadily; twice as
        many at once.
    queue : int
        Requests that may be in the server at a time.
    pending : int
        Bytes of requests that may be in the server at a time.
    deadline : float
        Seconds after which no answer is worth anything.
    patience : float
        Read and write timeout: seconds that a client may take to send a request, or to take an
        answer.
    head : int
        Bytes of a request's head: its line and its headers.
    hosts : tuple of str
        Names that ``Host`` may have, such as ``localhost`` or ``*.example.com``; none: any.
    """

    tokens: tuple[str, ...] = ()
    request: RequestLimits = field(default_factory=lambda: RequestLimits(2**24, 4096, 65_536))
    rate: float = math.inf
    queue: int = 256
    pending: int = 2**27
    deadline: float = 10.0
    patience: float = 10.0
    head: int = 2**14
    hosts: tuple[str, ...] = ()


class LimitMiddleware:
    """Middleware of all requests: admits them within the limits, answers for errors, logs."""

    def __init__(self, app: ASGIApp, limits: ServerLimits, monitor: Monitor) -> None:
        self.app, self.limits, self.monitor = app, limits, monitor
        self._tokens = Tokens(limits.tokens)
        self._rates: OrderedDict[bytes, tuple[float, float]] = OrderedDict()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            else:
                await send({"type": "websocket.close"})
            return
        begun, status = time.monotonic(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            if len(message.get("body", b"")) < _BUFFERED:
                await send(message)
                return
            # Servers wait for the bytes of one message before they take the next: an empty last
            # one says when those of the answer have left. `BoundedProtocol` hangs up before this.
            async with asyncio.timeout(self.limits.patience + 1):
                await send({**message, "more_body": True})
                if not message.get("more_body", False):
                    await send({"type": "http.response.body", "body": b""})

        scope["begun"] = begun
        try:
            try:
                self._admit(scope)
                await self.app(scope, receive, sending)
            except LamettaError as error:
                await _response_to(error)(scope, receive, sending)
        except Exception as error:
            if not status:
                logger.exception("a request failed")
                await error_response(500, "internal error")(scope, receive, sending)
            elif not isinstance(error, TimeoutError):
                raise
        finally:
            seconds = time.monotonic() - begun
            # In the loop's next turn: the bytes of the answer leave at the end of this one.
            loop = asyncio.get_running_loop()
            loop.call_soon(
                self.monitor.record_request, scope.get("model", ""), status or 499, seconds
            )
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "request",
                    extra={
                        "method": scope["method"],
                        "path": scope["path"][:200],
                        "status": status or 499,
                        "milliseconds": round(1000 * seconds, 3),
                    },
                )

    def _admit(self, scope: Scope) -> None:
        _check_origin(scope)
        path = scope["path"]
        if path == "/" or path.startswith(_OPEN):
            return
        client = (scope.get("client") or ("",))[0].encode()
        if self._tokens:
            token = self._tokens.find(Headers(scope=scope).get("authorization", ""))
            if token is None:
                self._consume_token(b"refused" + client)  # so that guessing is slow too
                raise UnauthorizedError("a bearer token is needed")
            client = token
        self._consume_token(client)

    def _consume_token(self, client: bytes) -> None:
        """Take a token from a client's bucket: two seconds' worth, refilled steadily."""
        rate = self.limits.rate
        if rate == math.inf:
            return
        now, most = time.monotonic(), max(2 * rate, 1.0)
        left, last = self._rates.pop(client, (most, now))
        left = min(most, left + rate * (now - last))
        self._rates[client] = max(left - 1, 0) if left >= 1 else left, now
        if len(self._rates) > _CLIENTS:
            self._rates.popitem(last=False)
        if left < 1:
            raise TooManyRequestsError(f"rate limit exceeded: {rate:g} requests per second")


class Tokens:
    """Bearer tokens, of which nothing but hashes is kept."""

    def __init__(self, tokens: Iterable[str]) -> None:
        # Digests have one length: the time to compare them does not tell a token's length.
        self._digests = [_digest(token.encode()) for token in tokens]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def find(self, authorization: str) -> bytes | None:
        """The digest of the token that a header brings; None if it is not one of these."""
        kind, _, token = authorization.partition(" ")
        digest = _digest(token.strip().encode("latin-1", "replace"))
        known = [hmac.compare_digest(digest, one) for one in self._digests]  # all, always
        return digest if kind.lower() == "bearer" and any(known) else None


class BodyReader:
    """Reads the bodies of requests, within the limits on how many and how much at a time."""

    def __init__(self, limits: ServerLimits) -> None:
        self.limits = limits
        self.n_requests = self.n_bytes = 0

    @contextmanager
    def reserve(self, n_bytes: int) -> Iterator["Room"]:
        """Reserve a place in the queue and bytes for a body, if there are any left."""
        if self.n_requests >= self.limits.queue:
            raise TooManyRequestsError(f"{self.n_requests} requests are waiting, as many as may")
        if self.n_bytes + n_bytes > self.limits.pending:
            raise TooManyRequestsError("the requests that are waiting are too large together")
        self.n_requests += 1
        room = Room(self)
        try:
            room.grow(n_bytes)
            yield room
        finally:
            self.n_requests -= 1
            self.n_bytes -= room.n_bytes

    def length(self, request: Request) -> int:
        """How long the body will be, at most: nothing has been read yet."""
        most = self.limits.request.body
        headers = request.headers
        if encoding := headers.get("content-encoding"):
            raise UnsupportedError(f"the body must not be compressed, got {encoding[:50]!r}")
        kind = headers.get("content-type", _TYPES[0])
        if kind.partition(";")[0].strip().lower() not in _TYPES:
            raise UnsupportedError(
                f"Content-Type must be {' or '.join(_TYPES)}, got {kind[:50]!r} (curl: --json)"
            )
        given = headers.get("content-length")
        if given is None:
            return most
        if not (given.isascii() and given.isdecimal()):
            raise BadRequest(f"Content-Length must be a number, got {given[:50]!r}")
        # Count digits first: Python refuses to read a number of thousands of them.
        if len(given.lstrip("0")) > len(str(most)) or int(given) > most:
            raise TooLargeError(f"the body must have at most {most} bytes")
        return int(given)

    async def read(self, request: Request) -> bytes:
        """The body, unless it is too large or comes too slowly."""
        parts, n_bytes, most = [], 0, self.limits.request.body
        try:
            async with asyncio.timeout(self.limits.patience):
                more = True
                while more:
                    message = await request.receive()
                    if message["type"] == "http.disconnect":
                        raise BadRequest("the request was not sent to its end")
                    parts.append(message.get("body", b""))
                    n_bytes += len(parts[-1])
                    if n_bytes > most:
                        raise TooLargeError(f"the body must have at most {most} bytes")
                    more = message.get("more_body", False)
        except TimeoutError:
            raise RequestTimeoutError("the request took too long to come") from None
        return b"".join(parts)


class Room:
    """Bytes of a reader that a request takes, until its answer has left."""

    def __init__(self, reader: BodyReader) -> None:
        self._reader, self.n_bytes = reader, 0

    def grow(self, n_bytes: int) -> None:
        """Take at least as much; an answer is not refused, but others are while it is there."""
        more = max(n_bytes - self.n_bytes, 0)
        self.n_bytes += more
        self._reader.n_bytes += more


def error_response(status: int, message: str, headers: dict[str, str] | None = None) -> Response:
    """A reply that says in JSON what went wrong."""
    content = orjson.dumps({"error": message})
    return Response(content, status, headers, media_type="application/json")


def _response_to(error: Exception) -> Response:
    """The reply to a request that raised an error which its client should know."""
    status = error.status if isinstance(error, HTTPError) else 400
    headers = {}
    if isinstance(error, HTTPError) and error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status in (408, 413):
        headers["Connection"] = "close"  # the rest of the body is not wanted
    return error_response(status, str(error), headers)


def _check_origin(scope: Scope) -> None:
    """Raise for what a page of another origin sends: its reader's browser says where it is from."""
    headers = dict(scope["headers"])
    origin = headers.get(b"origin")
    if origin is not None and origin.rpartition(b"//")[2] != headers.get(b"host"):
        raise ForbiddenError("a page of another origin may not ask")


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
