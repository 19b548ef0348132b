"""Debian's redis-server for tests, which may be killed and started again."""

import random
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import redis

from tests.conftest import installed

# Below the ports that the system gives to clients: one of them might take it while Redis is down.
_PORTS = range(20_000, 32_000)


class RedisServer:
    """A server on this machine that writes every command to the disk before it answers.

    ``with RedisServer(folder) as server:`` starts it and ends it; without the program the test is
    skipped. `kill` and `start` in between go on with the same port and the same data.
    """

    def __init__(self, folder: Path) -> None:
        program = installed("redis-server")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        options = {
            "--bind": "127.0.0.1",
            "--port": str(self.port),
            "--dir": str(folder),
            "--save": "",
            "--appendonly": "yes",
            "--appendfsync": "always",
            "--logfile": str(folder / "redis.log"),
        }
        self._command = [program, *(word for pair in options.items() for word in pair)]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL)
        with self.client() as client:
            for _ in range(1500):
                try:
                    client.ping()
                    return
                except redis.ConnectionError:  # also while it reads what it kept
                    assert self._process.poll() is None, self._command
                    time.sleep(0.02)
        raise AssertionError("Redis does not start")

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def client(self) -> "redis.Redis":
        """A client for a look inside; to be closed."""
        return redis.Redis.from_url(self.url)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process is not None:  # else it was killed
            self.kill()


def free_port() -> int:
    """A port on this machine that nothing listens on."""
    for port in random.SystemRandom().sample(_PORTS, 100):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("no port is free")
