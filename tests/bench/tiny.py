"""A small experiment as a file, to be changed at some of its keys."""

import copy
import tomllib

from lametta.bench.experiment.errors import to_key, to_toml

TINY = """
name = "tiny"
[models.net]
zoo = "embedded:digits"
[datasets.digits]
reader = "embedded:digits_val"
[scenarios.iid]
dataset = "digits"
[scenarios.sorted]
dataset = "digits"
order = "by_class"
[scenarios.timed]
dataset = "digits"
[methods.Source]
kind = "source"
[methods.LAME]
kind = "lame"
params = { weight = 1.0 }
grid = { affinity = ["knn", "rbf"], k = [1, 3, 5] }
[methods.TENT]
kind = "tent"
grid = { lr = [0.001, 0.01] }
[methods.Fixed]
kind = "tent"
params = { lr = 0.1 }
[validation]
models = ["net"]
scenarios = ["iid", "sorted"]
seeds = [0, 1]
[studies.main]
models = ["net"]
scenarios = ["iid", "sorted"]
seeds = [0, 1, 2]
[studies.sizes]
figure = "batch_size"
models = ["net"]
scenarios = ["iid"]
methods = ["Source", "LAME"]
seeds = [0]
batch_sizes = [16, 64]
[studies.cost]
figure = "runtime"
models = ["net"]
scenarios = ["timed"]
methods = ["Source", "Fixed"]
seeds = [0]
"""


_CONTENT = tomllib.loads(TINY)
SELECTED = {"LAME": {"weight": 1, "affinity": "rbf", "k": 3}, "TENT": {"lr": 0.01}}


def tiny(**changes):
    """The content of a small experiment, changed at dotted keys; None takes a key out."""
    content = copy.deepcopy(_CONTENT)
    for key, value in changes.items():
        *path, last = key.split("__")
        table = content
        for part in path:
            table = table.setdefault(part, {})
        if value is None:
            del table[last]
        else:
            table[last] = value
    return content


def write(path, content):
    path.write_text("".join(f"{to_key(k)} = {to_toml(v)}\n" for k, v in content.items()))
    return path


def selected(experiment):
    return {method: experiment.configurations(method)[0] for method in experiment.methods}
