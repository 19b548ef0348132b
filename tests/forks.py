"""A process that has loaded what is slow to load, and forks a program for everyone who asks.

``python -m tests.forks FD`` listens on an open socket, until the last client has gone.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
import traceback
import types
import warnings
import weakref
from contextlib import suppress
from pathlib import Path

LOADED = (
    # With PyTorch its compiler, which every program loads that makes an optimizer of PyTorch's.
    *("torch._dynamo", "scipy.ndimage", "matplotlib.pyplot", "PIL.Image"),
    *("lametta.bench.report", "lametta.bench.run", "lametta.cli", "lametta.torch"),
    *("lametta.serve.plan", "lametta.serve.server"),
    *("lametta.serve.stores.folder", "lametta.serve.stores.redis"),
    *("encodings.idna", "pydantic.v1", "uvicorn.lifespan.on", "uvloop"),  # of any server
)


class Forks:
    """What the process does: a client sends a line of JSON, and gets the pid, then the exit code.

    Both are numbers of four bytes. Where a client goes before the end, its program is killed.
    """

    def __init__(self, listener: socket.socket) -> None:
        self.selector = selectors.DefaultSelector()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.listener = listener
        ended, wakes = os.pipe()
        for descriptor in ended, wakes:
            os.set_blocking(descriptor, False)
        self.selector.register(ended, selectors.EVENT_READ, self.reap)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a program is ended by who asked for it
        signal.set_wakeup_fd(wakes)
        self.clients: dict[socket.socket, int | None] = {}  # and their programs

    def run(self) -> None:
        """Fork until the last client has gone; one that comes after that starts another process."""
        address = Path(self.listener.getsockname())
        served = False
        while self.clients or not served or self.selector.select(0):
            for key, _ in self.selector.select():
                key.data(key.fileobj)
            served = served or bool(self.clients)
            if served and not self.clients:
                address.unlink(missing_ok=True)

    def accept(self, listener: socket.socket) -> None:
        client, _ = listener.accept()
        self.clients[client] = None
        self.selector.register(client, selectors.EVENT_READ, self.answer)

    def answer(self, client: socket.socket) -> None:
        with client.makefile("rb") as file, suppress(ConnectionError):
            if asked := file.readline():
                pid = self.clients[client] = self.fork(json.loads(asked))
                client.sendall(pid.to_bytes(4, signed=True))
                return
        self.selector.unregister(client)
        client.close()
        if (pid := self.clients.pop(client)) is not None:
            os.kill(pid, signal.SIGKILL)

    def reap(self, ended: int) -> None:
        os.read(ended, 4096)
        with suppress(ChildProcessError):  # there are none
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                for client, pid in self.clients.items():
                    if pid == found[0]:
                        self.clients[client] = None
                        with suppress(ConnectionError):
                            code = os.waitstatus_to_exitcode(found[1])
                            client.sendall(code.to_bytes(4, signed=True))

    def fork(self, asked: list[object]) -> int:
        if pid := os.fork():
            return pid
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for held in (self.listener, *self.clients):
            held.close()
        self.selector.close()
        end = 1
        try:
            end = execute(*asked)
        finally:
            os._exit(end)


def execute(arguments, cwd, environment, path, files) -> int:
    """Run a program in this process, which is a fork, with its output in two files."""
    for number, file in enumerate(files, start=1):
        with Path(file).open("wb") as stream:
            os.dup2(stream.fileno(), number)
    sys.path[:] = path
    if (added := environment.get("PYTHONPATH")) != os.environ.get("PYTHONPATH"):
        # where there may be another lametta
        sys.path[:0] = added.split(os.pathsep)
        for name in [name for name in sys.modules if name.partition(".")[0] == "lametta"]:
            del sys.modules[name]
    if said := environment.get("PYTHONWARNINGS"):
        warnings._processoptions(said.split(","))
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd)
    kind, *sys.argv = arguments
    end = 0
    try:
        if kind == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            code, sys.argv[0] = sys.argv[0], "-c"
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            exec(code, vars(main))
        else:
            sys.path.insert(0, str(Path(kind).parent))
            sys.argv.insert(0, kind)
            runpy.run_path(kind, run_name="__main__")
    except SystemExit as error:
        end = error.code or 0
        if not isinstance(end, int):
            sys.stderr.write(f"{end}\n")
            end = 1
    except BaseException:
        traceback.print_exc()
        end = 1
    # As an interpreter does at its end, when pools end their workers.
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return end


def main() -> None:
    for name in LOADED:
        importlib.import_module(name)
    sys.modules["lametta.methods"].names()  # looks through all installed packages
    # Forks share what is here by now: they neither search it for garbage, which would copy it, nor
    # tear it down at their end.
    gc.collect()
    gc.freeze()
    for finalizer in weakref.finalize._registry:
        finalizer.atexit = False
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        Forks(listener).run()
    os._exit(0)  # nothing of it need be torn down


if __name__ == "__main__":
    main()
