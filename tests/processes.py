"""Python programs in processes of their own, forked from one that has loaded what is slow to load.

A fresh interpreter spends seconds on PyTorch alone.
"""

import atexit
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(
    [
        *("torch._dynamo", "scipy.ndimage", "matplotlib.pyplot", "PIL.Image"),
        *("lametta.bench.report", "lametta.bench.run", "lametta.cli", "lametta.torch"),
        *("lametta.serve.plan", "lametta.serve.server", "lametta.serve.stores.redis"),
    ]
)


class Program:
    """``python *arguments``, already running: a file, ``-m module`` or ``-c code``, and its own."""

    def __init__(self, *arguments, cwd=None, env=None):
        self.arguments = [str(argument) for argument in arguments]
        self._folder = tempfile.TemporaryDirectory()
        self._files = [Path(self._folder.name, name) for name in ("stdout", "stderr")]
        for file in self._files:
            file.touch()
        self._process = context.Process(
            target=execute,
            args=(self.arguments, cwd, {**os.environ, **(env or {})}, self._files),
        )
        self._process.start()
        self.pid = self._process.pid

    def stderr(self):
        """What it has said so far."""
        return self._files[1].read_text(encoding="utf-8")

    def is_alive(self):
        return self._process.is_alive()

    def kill(self):
        self._process.kill()

    def wait(self, timeout=300):
        """Wait for its end, and give what it printed."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.arguments, timeout, stderr=self.stderr())
        out, err = (file.read_text(encoding="utf-8") for file in self._files)
        self._folder.cleanup()
        return subprocess.CompletedProcess(self.arguments, self._process.exitcode, out, err)


def run(*arguments, **options):
    """Run a program to its end."""
    return Program(*arguments, **options).wait()


def execute(arguments, cwd, environment, files):
    """Run a program in this process, which is a fork, with its output in two files."""
    for number, file in enumerate(files, start=1):
        with file.open("wb") as stream:
            os.dup2(stream.fileno(), number)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(cwd or os.getcwd())
    if "PYTHONPATH" in environment:  # where there may be another lametta
        sys.path[:0] = environment["PYTHONPATH"].split(os.pathsep)
        for name in [name for name in sys.modules if name.partition(".")[0] == "lametta"]:
            del sys.modules[name]
    kind, *sys.argv = arguments
    try:
        if kind == "-m":
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        elif kind == "-c":
            code, sys.argv[0] = sys.argv[0], "-c"
            exec(code, {"__name__": "__main__"})
        else:
            sys.path.insert(0, str(Path(kind).parent))
            sys.argv.insert(0, kind)
            runpy.run_path(kind, run_name="__main__")
    finally:
        # As an interpreter at its end: with that, pools end their workers.
        threading._shutdown()
        atexit._run_exitfuncs()
