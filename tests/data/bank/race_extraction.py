"""Let two extractions of one bank race, in a process of its own, since it forks.

Both sleep for a random moment before calls that touch a file. However they interleave, both have to
end with the whole bank, byte for byte, and with nothing beside it. Every third race has one of them
killed on its way, every fourth begins with another bank to be updated.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np

from lametta import Output, _files
from lametta.data.bank import extract, shards
from lametta.data.dataset import Dataset
from tests.data.bank.kill_extraction import OWN, TOUCHES, light

N, BATCH = 10, 4


class Rows:
    def __init__(self, changed=()):
        self.changed = changed

    def __len__(self):
        return N

    def __getitem__(self, i):
        return np.full(3, i + 100 * (i in self.changed), np.float32)

    def file_versions(self):
        return tuple(f"{i in self.changed}" for i in range(N))


def run(folder, changed=()):
    keys = tuple(f"{i}.jpg" for i in range(N))
    data = Dataset("numbers", Rows(changed), np.arange(N) % 5, tuple("abcde"), keys)
    path = folder / "bank.safetensors"
    bank = extract(lambda x: Output(x, x**2), data, None, path, batch_size=BATCH, workers=0)
    expected = [i + 100 * (i in changed) for i in range(N)]
    assert np.asarray(bank.features)[:, 0].tolist() == expected


def racer(folder, seed, *, slow):
    child = os.fork()
    if child == 0:
        draw = random.Random(seed)

        def profile(frame, kind, function):
            touches = kind == "c_call" and function.__name__ in TOUCHES | {"flock"}
            if touches and any(part in frame.f_code.co_filename for part in OWN):
                time.sleep(draw.random() ** 3 * slow)

        sys.setprofile(profile)
        try:
            run(folder)
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return child


def race(folder, seed, expected):
    folder.mkdir()
    draw = random.Random(seed)
    if seed % 4 == 0:
        run(folder, changed=(2, 7))
    children = [racer(folder, 2 * seed + i, slow=draw.choice((0.002, 0.01))) for i in range(2)]
    if seed % 3 == 0:
        time.sleep(draw.uniform(0, 0.1))
        os.kill(children[0], signal.SIGKILL)
    ended = [os.waitpid(child, 0)[1] for child in children]
    assert ended[1] == 0, (seed, ended)
    assert ended[0] == 0 or (seed % 3 == 0 and ended[0] == signal.SIGKILL), (seed, ended)
    if ended[0]:
        run(folder)  # it may have been killed last, with the lock still there
    assert os.listdir(folder) == ["bank.safetensors"], (seed, os.listdir(folder))
    assert (folder / "bank.safetensors").read_bytes() == expected, seed


def main(folder, n):
    shards._FLUSH_SECONDS = 0  # a shard after every batch
    _files._POLL = 0.001
    light()
    whole = Path(folder, "whole")
    whole.mkdir()
    run(whole)
    content = (whole / "bank.safetensors").read_bytes()
    for number in range(n):
        race(Path(folder, f"race{number}"), number, content)
    sys.stdout.write(f"{n}\n")
