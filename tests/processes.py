"""Python programs in processes of their own, without the seconds that PyTorch takes to load.

They are forked by the standard library's fork server, which loads it once for all of them.
"""

import atexit
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from types import ModuleType

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload(
    [
        # With PyTorch its compiler, which every program loads that makes an optimizer of PyTorch's.
        *("torch._dynamo", "scipy.ndimage", "matplotlib.pyplot", "PIL.Image"),
        *("lametta.bench.report", "lametta.bench.running", "lametta.cli", "lametta.torch"),
        *("lametta.serve.config", "lametta.serve.server"),
        *("lametta.serve.stores.folder", "lametta.serve.stores.redis"),
        *("encodings.idna", "uvicorn.lifespan.on", "uvloop"),  # of any server
    ]
)


class Program:
    """``python *arguments``: a file, ``-m module`` or ``-c code``, and options.

    ``with Program(...) as program:`` starts it; at the end of the block nothing of it is left.
    Of ``env``, what an interpreter reads at its start (``PYTHONPATH``) comes too late.
    """

    def __init__(self, *arguments, cwd=None, env=None):
        self.arguments = [str(argument) for argument in arguments]
        self.cwd = str(cwd or os.getcwd())
        self.env = {**os.environ, **(env or {})}

    def start(self):
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        asked = (self.arguments, self.cwd, self.env, self._files)
        self._process = _FORKS.Process(target=_execute, args=asked)
        self._process.start()
        return self

    def close(self):
        """End it at once, as kill -9 does, and remove what it printed."""
        self.kill()
        self._process.close()
        self._folder.cleanup()

    __enter__ = start

    def __exit__(self, *_):
        self.close()

    @property
    def pid(self):
        return self._process.pid

    def stderr(self):
        """What it has said so far."""
        return self._files[1].read_text(encoding="utf-8")

    def is_alive(self):
        return self._process.is_alive()

    def kill(self):
        self._process.kill()
        self._process.join()

    def terminate(self):
        self._process.terminate()

    def wait(self, timeout=300):
        """Wait for its end, and give what it printed."""
        self._process.join(timeout)
        if self.is_alive():
            raise subprocess.TimeoutExpired(self.arguments, timeout, stderr=self.stderr())
        out, err = (file.read_text(encoding="utf-8") for file in self._files)
        return subprocess.CompletedProcess(self.arguments, self._process.exitcode, out, err)


def run(*arguments, **options):
    """Run a program to its end."""
    with Program(*arguments, **options) as program:
        return program.wait()


def _execute(arguments, cwd, env, files):
    """Run a program in this process, which is a fork, with its output in two files."""
    gc.freeze()  # to search what is shared with the fork server for garbage would copy it
    for finalizer in weakref.finalize._registry:  # the fork server's, to run at its own end
        finalizer.atexit = False
    for number, file in enumerate(files, start=1):
        with file.open("wb") as stream:
            os.dup2(stream.fileno(), number)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    kind, *sys.argv = arguments
    sys.path.insert(0, cwd if kind in ("-m", "-c") else str(Path(kind).parent))
    try:
        if kind == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            code, sys.argv[0] = sys.argv[0], "-c"
            main = sys.modules["__main__"] = ModuleType("__main__")
            exec(code, vars(main))
        else:
            sys.argv.insert(0, kind)
            runpy.run_path(kind, run_name="__main__")
    finally:
        atexit._run_exitfuncs()  # as an interpreter does at its end, when pools end their workers
