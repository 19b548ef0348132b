"""What has to happen to whatever is tried: a result, or an error of ours, in time and memory."""

import re
import resource
import signal
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from typer.testing import CliRunner

from lametta import LamettaError
from lametta.cli import app

SECONDS = 60  # until an example counts as one that never ends


class Endless(BaseException):
    """An example took too long; nothing that expects exceptions catches this."""


@contextmanager
def deadline():
    """Raise in what does not end."""

    def ring(*_):
        raise Endless(f"no end after {SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def little_memory(megabytes=200):
    """Refuse allocations beyond this, so that what asks for a lot fails instead of the machine."""
    if megabytes is None:
        yield
        return
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    size = pages * resource.getpagesize() + megabytes * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def attempt(call, *args, **options):
    """What the call gives, or None where it refuses with an error of ours; all else is raised."""
    try:
        with deadline(), little_memory():
            return call(*args, **options)
    except LamettaError:
        return None


def check_probs(probs, shape):
    """Probability rows, of this shape."""
    x = probs.detach().double().numpy() if isinstance(probs, torch.Tensor) else np.asarray(probs)
    loose = 2e-2 if str(probs.dtype).endswith("float16") else 1e-4
    assert x.shape == tuple(shape)
    assert np.isfinite(x.astype(float)).all(), x
    assert (x >= 0).all(), x
    assert np.allclose(x.astype(float).sum(-1), 1, atol=loose), x


def command(*arguments, codes=(0, 2), memory=200):
    """Call the command: it ends with one of these codes, and with words instead of a traceback."""
    with deadline(), little_memory(memory):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in codes, result.output
    assert "Traceback" not in result.output
    if result.exit_code == 2 and not result.stderr.startswith("Usage:"):
        assert re.search(r"^lametta: .{10}", result.stderr, re.MULTILINE), result.stderr
    return result
