"""Ray Serve: the same application as replicas, which share the states of streams."""

import logging
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from lametta._checks import check_integer
from lametta.serve.config import ServerConfig
from lametta.serve.middleware import ASGIApp
from lametta.serve.server import log_to_stderr
from lametta.serve.stores import without_password
from lametta.types import LamettaError

if TYPE_CHECKING:  # Ray takes seconds to load
    from ray.serve import Application

_NAME = "lametta"
_PATIENCE = 5.0  # seconds for a cluster to let us in
_SHARED = ("redis://", "rediss://")  # a socket or a folder would be another one on each node

logger = logging.getLogger("lametta.serve")


def application(
    config: ServerConfig, *, replicas: int = 2, log_level: str = "INFO"
) -> "Application":
    """Make a Ray Serve application of a configuration, for those who run Ray Serve themselves.

    Each replica makes the server's application from the configuration. States are in the store: a
    request is committed there under the version of its stream, so that whichever replica gets the
    next one loads what it lacks. A replica that cannot reach the store stays up, and answers 503
    until it can. Limits on rate, queue and memory hold for each replica. Bodies wait in Ray's
    proxies until a replica has looked at their head.

    Parameters
    ----------
    config : ServerConfig
        What to serve. All nodes need lametta and the model's file. The cluster gets to know its
        tokens.
    replicas : int
        How many.
    log_level : str
        What the replicas log, to the files of their standard error.

    Examples
    --------
    >>> from lametta.serve.config import ServerConfig, CorrectorSpec
    >>> config = ServerConfig({"prudent": CorrectorSpec("prudent", {})}, store="redis://127.0.0.1")
    >>> ray.serve.run(application(config, replicas=3), name="lametta")  # doctest: +SKIP
    """
    check_integer("replicas", replicas, 1)
    if not config.store.startswith(_SHARED):
        raise LamettaError(
            "store must be one that all replicas share, redis://HOST:PORT/DB, got "
            f"{without_password(config.store)!r}"
        )
    from ray import serve

    limits = config.limits
    seconds = limits.deadline + 2 * limits.patience  # to read, to answer, to send

    if config.model is not None:
        config = replace(config, model=config.model.absolute())  # replicas start in other folders

    def make() -> ASGIApp:
        log_to_stderr(log_level)
        return config.app()

    deployment = serve.deployment(
        name=_NAME,
        num_replicas=replicas,
        # The replica's own queue comes first: its refusal says when to try again.
        max_ongoing_requests=2 * limits.queue,
        max_queued_requests=2 * limits.queue,
        graceful_shutdown_timeout_s=seconds,
        graceful_shutdown_wait_loop_s=0.2,
        logging_config={"encoding": "JSON", "enable_access_log": False},
    )(serve.ingress(make)())
    return deployment.bind()


def serve_on_ray(
    config: ServerConfig,
    address: str,
    *,
    replicas: int,
    host: str,
    port: int,
    log_level: str = "INFO",
) -> None:
    """Serve on a Ray cluster until a signal says to end.

    Ray Serve is started on the cluster, with a proxy at ``host`` and ``port`` of every node that
    has a replica, and shut down at the end.

    Parameters
    ----------
    config, replicas, log_level
        As for `application`.
    address : str
        Of the cluster: ``auto``, ``HEAD:6379``, ``ray://HEAD:10001``; ``local`` starts one here.
    host, port
        Where to listen.
    """
    check_integer("port", port, 1)  # a free one would be another on each node
    app = application(config, replicas=replicas, log_level=log_level)
    config.open_store().close()  # so that a wrong name is known before anything runs
    from ray import serve
    from ray.exceptions import RayError

    seconds = config.limits.deadline + 2 * config.limits.patience
    with _connected(address), _ended_by_signals():
        if serve.status().proxies:
            raise LamettaError(
                f"address must be a cluster on which Ray Serve does not run yet, got {address!r}, "
                "where it listens to an address of its own; `serve shutdown` ends it"
            )
        try:
            serve.start(http_options={"host": host, "port": port, "request_timeout_s": seconds})
            serve.run(app, name=_NAME)
            logger.info("listening", extra={"host": host, "port": port, "replicas": replicas})
            threading.Event().wait()
        except (RuntimeError, TimeoutError, RayError) as error:
            reason = str(error).strip().splitlines()[-1]  # after the trace of another process
            raise LamettaError(f"the replicas do not start: {reason}") from error
        finally:
            serve.delete(_NAME)  # what was accepted is answered
            serve.shutdown()  # type: ignore[no-untyped-call]


@contextmanager
def _connected(address: str) -> Iterator[None]:
    import ray

    try:
        _check_reachable(address)
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise LamettaError(f"no Ray cluster at {address!r}: {error}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise if nothing listens there: Ray would wait for minutes without a word."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM ends the block as Ctrl-C does: quietly."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except KeyboardInterrupt:
        logger.info("ending")
    finally:
        signal.signal(signal.SIGTERM, before)
