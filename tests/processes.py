"""Python programs in processes of their own, forked from one that has loaded what is slow to load.

A fresh interpreter spends seconds on PyTorch alone. All workers of a test run share that process.
"""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from lametta._files import locked

_TESTS = os.environ.get("PYTEST_XDIST_TESTRUNUID", os.getpid())
_ADDRESS = Path(tempfile.gettempdir(), f"lametta-{_TESTS}.socket")


class Program:
    """``python *arguments``, already running: a file, ``-m module`` or ``-c code``, and options."""

    def __init__(self, *arguments, cwd=None, env=None):
        self.arguments = [str(argument) for argument in arguments]
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        _held()
        self._connection = _connect()
        environment = {**os.environ, **(env or {})}
        files = [str(file) for file in self._files]
        asked = [self.arguments, str(cwd or os.getcwd()), environment, sys.path, files]
        self._connection.sendall(json.dumps(asked).encode() + b"\n")
        self.pid = self._next()
        self._exitcode = None

    def stderr(self):
        """What it has said so far."""
        return self._files[1].read_text(encoding="utf-8")

    def is_alive(self):
        return not self._has_ended(0)

    def kill(self):
        if self.is_alive():
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout=300):
        """Wait for its end, and give what it printed."""
        if not self._has_ended(timeout):
            self.kill()
            raise subprocess.TimeoutExpired(self.arguments, timeout, stderr=self.stderr())
        out, err = (file.read_text(encoding="utf-8") for file in self._files)
        self._folder.cleanup()
        return subprocess.CompletedProcess(self.arguments, self._exitcode, out, err)

    def _has_ended(self, timeout):
        if self._exitcode is None and select.select([self._connection], [], [], timeout)[0]:
            self._exitcode = self._next()
            self._connection.close()
        return self._exitcode is not None

    def _next(self):
        said = self._connection.recv(4, socket.MSG_WAITALL)
        assert said, "the process that forks has ended"
        return int.from_bytes(said, signed=True)


def run(*arguments, **options):
    """Run a program to its end."""
    return Program(*arguments, **options).wait()


@cache
def _held():
    """A connection for as long as this process runs: it keeps the one that forks running too."""
    connection = _connect()
    atexit.register(connection.close)
    return connection


def _connect():
    """Connect to the process that forks; who finds none starts it."""
    connection = socket.socket(socket.AF_UNIX)
    with locked(_ADDRESS.with_suffix(".lock")):
        try:
            connection.connect(str(_ADDRESS))
        except OSError:  # none yet, or one was killed
            _ADDRESS.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(_ADDRESS))
                listener.listen()
                number = listener.fileno()
                command = [sys.executable, "-m", "tests.forks", str(number)]
                place = {"cwd": Path(__file__).parents[1], "stdin": subprocess.DEVNULL}
                server = subprocess.Popen(command, pass_fds=[number], **place)
                server.returncode = 0  # nobody waits for it, since it ends by itself
            connection.connect(str(_ADDRESS))
    return connection
