"""Kill extractions and run them again, in a process of its own, since it forks.

Forked children die just before each call that touches a file, one after the other, or from outside
at random moments. Whatever they leave behind, the next run has to end in the same bytes.
"""

import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from lametta import Output
from lametta.data import loader
from lametta.data.bank import build, extract, shards
from lametta.data.dataset import Dataset, UnreadableImageError

N, BATCH = 10, 4
# Of all calls into C; __exit__ closes a file.
TOUCHES = {
    *("__exit__", "close", "flush", "fsync", "mkdir", "open", "rename", "replace", "rmdir"),
    *("scandir", "truncate", "unlink", "write"),
}
OWN = (f"{os.sep}lametta{os.sep}data{os.sep}bank{os.sep}", f"lametta{os.sep}_files.py", "pathlib")


def light():
    """Read without PyTorch, which takes no part in this: to fork with it loaded takes 20 ms."""

    def load_batches(dataset, parts, transform, *, on_error, **_):
        read = loader._Reader(dataset, transform)
        return loader._checked((read[np.asarray(part)] for part in parts), on_error)

    loader._stack = lambda rows: np.array(rows, np.float32)
    build.load_batches = load_batches


class Now:
    """Where and how the runs are to be, and what they have to end in."""

    root: Path
    pause: float = 0
    broken: tuple[int, ...] = ()
    expected = b""


class Rows:
    def __len__(self):
        return N

    def __getitem__(self, i):
        if i in Now.broken:
            raise UnreadableImageError(str(i))
        return np.full(3, i, np.float32)


def model(x):
    time.sleep(Now.pause)
    return Output(x, np.tile(x**2, (1, 1000)))  # a batch is larger than a file's buffer


def run(folder):
    keys = tuple(f"{i}.jpg" for i in range(N))
    data = Dataset("numbers", Rows(), np.arange(N) % 5, tuple("abcde"), keys)
    path = folder / "bank.safetensors"
    extract(model, data, None, path, batch_size=BATCH, workers=0, on_error="report")


def forked(folder, before=lambda: None):
    child = os.fork()
    if child == 0:
        before()
        run(folder)
        os._exit(0)
    return child


def dies(folder, event):
    """Whether a run that ends just before that call, with nothing flushed or closed, got there."""
    count = 0

    def profile(frame, kind, function):
        nonlocal count
        if kind == "c_call" and function.__name__ in TOUCHES:
            count += any(part in frame.f_code.co_filename for part in OWN)
            if count > event:
                os._exit(9)

    def watch():
        sys.setprofile(profile)
        threading.setprofile(profile)  # the thread that writes

    return os.waitpid(forked(folder, watch), 0)[1] != 0


def check(folder, what):
    run(folder)
    names = os.listdir(folder)
    assert names == ["bank.safetensors"], (what, names)
    assert (folder / "bank.safetensors").read_bytes() == Now.expected, what


def fresh(name):
    folder = Now.root / name
    folder.mkdir()
    return folder


def kill_at_every_call():
    event, died, draw = 0, True, random.Random(0)
    while died:
        folder = fresh(f"call{len(Now.broken)}-{event}")
        died = dies(folder, event)
        if event % 3 == 0:
            dies(folder, draw.randrange(60))  # the run after it, too
        check(folder, f"call {event}")
        event += 1
    return event


def kill_from_outside():
    kills, draw = 0, random.Random(0)
    for i in range(4):
        folder = fresh(f"kill{len(Now.broken)}-{i}")
        for Now.pause in (60, 0.02, 0.02, 0.02, 0.02):  # the first never ends by itself
            child = forked(folder)
            time.sleep(draw.uniform(0, 0.06))
            os.kill(child, signal.SIGKILL)
            kills += os.waitpid(child, 0)[1] == signal.SIGKILL
        check(folder, f"kill {i}")
    Now.pause = 0
    return kills


def main(folder):
    Now.root = Path(folder)
    shards._FLUSH_SECONDS = 0  # a shard after every batch
    light()
    for Now.broken in [(), (0, 1, 2, 3, 9)]:
        whole = fresh(f"whole{len(Now.broken)}")
        run(whole)
        Now.expected = (whole / "bank.safetensors").read_bytes()
        sys.stdout.write(f"{kill_at_every_call()} {kill_from_outside()}\n")
