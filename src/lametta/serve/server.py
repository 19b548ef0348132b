"""uvicorn runner: JSON logs, header timeout, graceful shutdown."""

import asyncio
import logging
import logging.config
from importlib.util import find_spec
from socket import socket

import orjson
import uvicorn
from starlette.types import ASGIApp
from threadpoolctl import threadpool_limits
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lametta.serve.middleware import ServerLimits

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
    """Send what is logged to the error stream, as lines of JSON."""
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "formatters": {"json": {"()": JsonLines}},
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "json"}},
            "loggers": {
                "lametta": {"handlers": ["stderr"], "level": level, "propagate": False},
                "uvicorn": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
                "py.warnings": {"handlers": ["stderr"], "level": "WARNING", "propagate": False},
            },
        }
    )


def header_timeout_protocol(seconds: float) -> type[HttpToolsProtocol]:
    """HTTP that hangs up on a client which takes longer to send a request's head.

    uvicorn waits forever for the rest of a head that has begun.
    """

    class HeaderTimeoutProtocol(HttpToolsProtocol):
        _timer: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._wait()

        def on_message_begin(self) -> None:
            self._wait()
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._stop()
            super().on_headers_complete()

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop()
            super().connection_lost(exc)

        def _wait(self) -> None:
            self._stop()
            self._timer = self.loop.call_later(seconds, self.transport.abort)

        def _stop(self) -> None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    return HeaderTimeoutProtocol


def run(app: ASGIApp, host: str, port: int, limits: ServerLimits) -> None:
    """Serve until a signal says to end; then answer what was accepted, and no more."""
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        loop="uvloop" if find_spec("uvloop") else "asyncio",  # Windows has no uvloop
        http=header_timeout_protocol(limits.patience),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,  # anyone could claim to be any client
        limit_concurrency=4 * limits.queue,  # connections, too many of which get 503
        timeout_graceful_shutdown=int(limits.deadline + limits.patience),
    )
    logging.captureWarnings(True)  # so that they are lines of JSON, too
    server = _Server(config)
    # Requests share the cores: threads of BLAS that wait for each other would only be in the way.
    with threadpool_limits(1, "blas"):
        server.run()
    if not server.started:
        raise SystemExit(1)


class _Server(uvicorn.Server):
    """Logs where it listens: with port 0 the system chooses."""

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        for server in self.servers if self.started else []:
            for listener in server.sockets:
                host, port = listener.getsockname()[:2]
                logging.getLogger("lametta.serve").info(
                    "listening", extra={"host": host, "port": port}
                )
