"""``lametta serve`` in a process of its own, for tests, which may kill it and start it again."""

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.processes import Program

_PATIENCE = 120.0  # seconds for a start, on a machine that does much else


class Server:
    """A server on a port of its own, which it keeps when it is started again.

    Parameters
    ----------
    options : str or path
        Of ``lametta serve``, such as ``"--store", folder``; without a store, in memory.
    """

    def __init__(self, *options: Any) -> None:
        self.port = 0
        self._options = options if "--store" in options else (*options, "--store", "memory")
        self._program: Program | None = None

    @property
    def host(self) -> str:
        """The address with the port, as tritonclient takes it."""
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    @property
    def pid(self) -> int:
        assert self._program is not None
        return int(self._program.pid)

    def start(self) -> None:
        """Start it, and wait until it listens."""
        command = ("-m", "lametta", "serve", "--port", self.port, *self._options)
        self._program = Program(*command).start()
        end = time.monotonic() + _PATIENCE
        while (port := self._listens_on()) is None:
            if not self._program.is_alive() or time.monotonic() > end:
                said = self._program.stderr()
                self.kill()
                raise AssertionError(f"the server did not start: {said}")
            time.sleep(0.005)
        self.port = port

    def log(self) -> list[dict[str, Any]]:
        """What it has logged since its start; another's line may not be whole yet."""
        lines = self.text().splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("}\n")]

    def text(self) -> str:
        """What it has said on its error stream."""
        assert self._program is not None
        return str(self._program.stderr())

    def kill(self) -> None:
        """End it at once, as kill -9 does."""
        assert self._program is not None
        self._program.close()
        self._program = None

    def stop(self, timeout: float = 60) -> int:
        """Ask it to end, and give its exit code; one that hangs is killed, and raises."""
        assert self._program is not None
        self._program.terminate()
        try:
            return int(self._program.wait(timeout).returncode)
        finally:
            self.kill()

    def _listens_on(self) -> int | None:
        return next((line["port"] for line in self.log() if line["message"] == "listening"), None)


@contextmanager
def serving(*options: Any) -> Iterator[Server]:
    """A server that runs: ``with serving("--corrector", "lame") as server:``."""
    server = Server(*options)
    server.start()
    try:
        yield server
    finally:
        if server._program is not None:  # else it was killed
            server.stop()
