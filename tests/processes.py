"""Python programs in processes of their own, forked from one that has loaded all that tests load.

A fresh interpreter spends seconds on PyTorch alone.
"""

import atexit
import logging
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
import threading
import warnings
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

import pytest

QUIET = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
context = multiprocessing.get_context("forkserver")


def start_server():
    """Start the process that programs are forked from, as a fork of this one before any test."""

    def fork(path, arguments, descriptors):
        if pid := os.fork():
            return pid
        # As an interpreter is when it starts, whatever pytest and this function have changed.
        patch.undo()
        forkserver._forkserver.__init__()
        logging.root.handlers.clear()
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        warnings.resetwarnings()
        for category in QUIET:
            warnings.simplefilter("ignore", category)
        try:
            for number in set(map(int, os.listdir("/dev/fd"))) - {0, 1, 2, *descriptors}:
                with suppress(OSError):  # of the listing itself
                    os.close(number)  # or it would keep pipes open whose ends others wait for
            exec(arguments[-1])
        finally:
            os._exit(0)

    resource_tracker.ensure_running()
    with pytest.MonkeyPatch.context() as patch:  # where it would start an interpreter
        patch.setattr("multiprocessing.util.spawnv_passfds", fork)
        forkserver.ensure_running()


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
        end()


def end():
    """Do what an interpreter does at its end: with that, pools end their workers."""
    threading._shutdown()
    atexit._run_exitfuncs()
