"""Middleware: bearer tokens, rate limit, body size, timeouts, access log."""

import asyncio
import hashlib
import hmac
import logging
import math
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, NamedTuple, Self, TypeAlias

import orjson

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

# What servers and applications hand each other: https://asgi.readthedocs.io.
Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

logger = logging.getLogger("lametta.serve")

WHOLE = "lametta.whole"  # an extension of ASGI: a callable that says whether all of a body has come
_OPEN = ("/v2/health/", "/static/")  # no token: probes, and the page without its numbers
# Those of a form or of plain text, which a page of another origin can send, are not among them.
_TYPES = (b"application/json", b"application/octet-stream")
_HOST = re.compile(r"(\[[0-9a-f.:]+\]|[^:/@\[\]]+)(?::\d*)?")  # a name or an address, and a port
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


class Reply(NamedTuple):
    """What is answered: a status, a body, and headers in lowercase."""

    status: int
    body: bytes
    headers: list[tuple[bytes, bytes]]


class Request:
    """What handlers see of a request: its head, read once, and how to receive its body.

    Attributes
    ----------
    begun : float
        When it came, as `time.monotonic` has it.
    path : str
        Below where the application is mounted.
    query : bytes
        What came behind the path.
    headers : dict of bytes to bytes
        By their names in lowercase.
    client : str
        Its address.
    is_whole : callable
        Whether all of its body has come, if the server says so by the extension `WHOLE` of ASGI.
    model : str
        Which model it is for, once that is known.
    room : Room or None
        What it takes of the server until its answer has left.
    """

    __slots__ = (
        "begun",
        "client",
        "headers",
        "is_whole",
        "method",
        "model",
        "path",
        "query",
        "receive",
        "room",
    )

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.begun = time.monotonic()
        self.method: str = scope["method"]
        self.path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        self.query: bytes = scope.get("query_string", b"")
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.client: str = (scope.get("client") or ("",))[0]
        self.receive = receive
        self.is_whole: Callable[[], bool] = scope.get("extensions", {}).get(WHOLE, lambda: False)
        self.model = ""
        self.room: Room | None = None


class LimitMiddleware:
    """The application: admits requests within the limits, answers for errors, sends, logs.

    It is one function from the server to the handler and back, without a framework's layers.
    """

    def __init__(
        self,
        handler: Callable[[Request], Awaitable[Reply]],
        limits: ServerLimits,
        monitor: Monitor,
    ) -> None:
        self.handler, self.limits, self.monitor = handler, limits, monitor
        self._tokens = Tokens(limits.tokens)
        self._rates: OrderedDict[bytes, tuple[float, float]] = OrderedDict()
        self._is_ours = lru_cache(maxsize=64)(partial(is_one_of, hosts=limits.hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _decline(scope, receive, send)
            return
        request, status = Request(scope, receive), 499
        try:
            try:
                self._admit(request)
                reply = await self.handler(request)
            except LamettaError as error:
                reply = _reply_to(error)
            except Exception:
                logger.exception("a request failed")
                reply = error_reply(500, "internal error")
            status = reply.status
            await self._send(reply, send)
        finally:
            if request.room is not None:
                request.room.release()
            seconds = time.monotonic() - request.begun
            # In the loop's next turn: the bytes of the answer leave at the end of this one.
            loop = asyncio.get_running_loop()
            loop.call_soon(self.monitor.record_request, request.model, status, seconds)
            if logger.isEnabledFor(logging.DEBUG):
                logger.debug(
                    "request",
                    extra={
                        "method": request.method,
                        "path": request.path[:200],
                        "status": status,
                        "milliseconds": round(1000 * seconds, 3),
                    },
                )

    async def _send(self, reply: Reply, send: Send) -> None:
        status, body, headers = reply
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if len(body) < _BUFFERED:
            await send({"type": "http.response.body", "body": body})
            return
        # Servers wait for the bytes of one message before they take the next: an empty last one
        # says when those of the answer have left. `BoundedProtocol` hangs up before this.
        with suppress(TimeoutError):
            async with asyncio.timeout(self.limits.patience + 1):
                await send({"type": "http.response.body", "body": body, "more_body": True})
                await send({"type": "http.response.body", "body": b""})

    def _admit(self, request: Request) -> None:
        headers, path = request.headers, request.path
        host, origin = headers.get(b"host", b""), headers.get(b"origin")
        # A page of another origin, or of one that calls this address its own: DNS rebinding.
        if origin is not None and origin.rpartition(b"//")[2] != host:
            raise ForbiddenError("a page of another origin may not ask")
        if self.limits.hosts and not self._is_ours(host):
            raise BadRequest(f"Host must be a name of this server, got {_shown(host)}")
        if path == "/" or path.startswith(_OPEN):
            return
        client = request.client.encode()
        if self.limits.tokens:
            token = self._tokens.find(headers.get(b"authorization", b"").decode("latin-1"))
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

    def reserve(self, n_bytes: int) -> "Room":
        """Reserve a place in the queue and bytes for a body, if there are any left."""
        if self.n_requests >= self.limits.queue:
            raise TooManyRequestsError(f"{self.n_requests} requests are waiting, as many as may")
        if self.n_bytes + n_bytes > self.limits.pending:
            raise TooManyRequestsError("the requests that are waiting are too large together")
        return Room(self, n_bytes)

    def length(self, headers: Mapping[bytes, bytes]) -> int:
        """How long the body will be, at most: nothing has been read yet."""
        most = self.limits.request.body
        if encoding := headers.get(b"content-encoding"):
            raise UnsupportedError(f"the body must not be compressed, got {_shown(encoding)}")
        kind = headers.get(b"content-type", _TYPES[0])
        if kind not in _TYPES and kind.partition(b";")[0].strip().lower() not in _TYPES:
            known = " or ".join(one.decode() for one in _TYPES)
            raise UnsupportedError(
                f"Content-Type must be {known}, got {_shown(kind)} (curl: --json)"
            )
        given = headers.get(b"content-length")
        if given is None:
            return most
        if not given.isdigit():
            raise BadRequest(f"Content-Length must be a number, got {_shown(given)}")
        # Count digits first: Python refuses to read a number of thousands of them.
        if len(given.lstrip(b"0")) > len(str(most)) or int(given) > most:
            raise TooLargeError(f"the body must have at most {most} bytes")
        return int(given)

    async def read(self, request: Request) -> bytes:
        """The body, unless it is too large or comes too slowly."""
        if request.is_whole():  # so that there is nothing to wait for
            return await self._read(request.receive)
        try:
            async with asyncio.timeout(self.limits.patience):
                return await self._read(request.receive)
        except TimeoutError:
            raise RequestTimeoutError("the request took too long to come") from None

    async def _read(self, receive: Receive) -> bytes:
        parts, n_bytes, most = [], 0, self.limits.request.body
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadRequest("the request was not sent to its end")
            parts.append(message.get("body", b""))
            n_bytes += len(parts[-1])
            if n_bytes > most:
                raise TooLargeError(f"the body must have at most {most} bytes")
            more = message.get("more_body", False)
        return b"".join(parts)


class Room:
    """A place in a reader's queue and bytes, which a request takes until its answer has left."""

    def __init__(self, reader: BodyReader, n_bytes: int) -> None:
        self._reader, self.n_bytes = reader, n_bytes
        self._n_holders = 1
        reader.n_requests += 1
        reader.n_bytes += n_bytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def grow(self, n_bytes: int) -> None:
        """Take at least as much; an answer is not refused, but others are while it is there."""
        more = max(n_bytes - self.n_bytes, 0)
        self.n_bytes += more
        self._reader.n_bytes += more

    def hold(self) -> None:
        """Keep it until it was released once more: what is computed for it goes on."""
        self._n_holders += 1

    def release(self) -> None:
        """Let it go, if nobody else holds it."""
        self._n_holders -= 1
        if not self._n_holders:
            self._reader.n_requests -= 1
            self._reader.n_bytes -= self.n_bytes


def json_reply(content: object, status: int = 200) -> Reply:
    """A reply in JSON."""
    body = orjson.dumps(content, option=orjson.OPT_SERIALIZE_NUMPY)
    return bytes_reply(body, b"application/json", status)


def bytes_reply(body: bytes, kind: bytes, status: int = 200) -> Reply:
    """A reply of a Content-Type."""
    return Reply(status, body, [(b"content-length", b"%d" % len(body)), (b"content-type", kind)])


def error_reply(status: int, message: str) -> Reply:
    """A reply that says in JSON what went wrong."""
    return json_reply({"error": message}, status)


def _reply_to(error: LamettaError) -> Reply:
    """The reply to a request that raised an error which its client should know."""
    status = error.status if isinstance(error, HTTPError) else 400
    reply = error_reply(status, str(error))
    if isinstance(error, HTTPError) and error.retry_after is not None:
        reply.headers.append((b"retry-after", b"%d" % error.retry_after))
    if status == 401:
        reply.headers.append((b"www-authenticate", b"Bearer"))
    if status in (408, 413):
        reply.headers.append((b"connection", b"close"))  # the rest of the body is not wanted
    return reply


async def _decline(scope: Scope, receive: Receive, send: Send) -> None:
    """What is no HTTP request: servers say when they begin and end, others want a web socket."""
    if scope["type"] != "lifespan":
        await send({"type": "websocket.close"})
        return
    for event in ("startup", "shutdown"):
        await receive()
        await send({"type": f"lifespan.{event}.complete"})


def is_one_of(host: bytes, hosts: Iterable[str]) -> bool:
    """Whether a ``Host`` header has one of these names, with whatever port.

    Examples
    --------
    >>> hosts = "localhost", "[::1]", "*.example.com"
    >>> [is_one_of(host, hosts) for host in (b"LOCALHOST:80", b"[::1]:80", b"a.example.com")]
    [True, True, True]
    >>> [is_one_of(host, hosts) for host in (b"example.com", b"a.example.com.evil.org", b"")]
    [False, False, False]
    """
    found = _HOST.fullmatch(host.decode("latin-1").lower())
    return found is not None and any(
        found[1].endswith(one[1:]) if one.startswith("*") else found[1] == one.lower()
        for one in hosts
    )


def _shown(value: bytes) -> str:
    """What a header says, for messages."""
    return repr(value[:50].decode("latin-1"))


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
