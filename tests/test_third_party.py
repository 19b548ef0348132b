"""A package of a stranger: its methods and data sets run wherever lametta's own do."""

import contextlib
import functools
import json
import zipfile

import pytest
from hatchling.build import build_wheel

from lametta.bench.results import read_cells
from tests import processes

pytestmark = pytest.mark.slow(3)

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "acme"
version = "1.0"

[project.entry-points."lametta.methods"]
temperature = "acme.methods:Temperature"

[project.entry-points."lametta.datasets"]
acme_digits = "acme.data:digits"
"""

METHODS = '''\
from dataclasses import dataclass

from lametta import LamettaError, Prediction


@dataclass
class Temperature:
    """Soften or sharpen every prediction."""

    t: float = 2.0

    def __post_init__(self):
        if not self.t > 0:
            raise LamettaError(f"t must be > 0, got {self.t}")

    def correct(self, features, probs, /):
        probs = probs ** (1 / self.t)
        return Prediction(probs / probs.sum(axis=1, keepdims=True), features)

    def reset(self):
        pass
'''

DATA = """\
import lametta.data


def digits(first: int = 100):
    data = lametta.data.load("embedded:digits_val")
    return data.take(range(first))
"""

EXPERIMENT = """\
name = "acme"

[models.net]
zoo = "embedded:digits"

[datasets.digits]
reader = "acme_digits"
options = { first = 96 }

[scenarios.iid]
dataset = "digits"

[methods.Source]
kind = "source"

[methods.Named]
kind = "temperature"
params = { t = 3 }

[methods.Imported]
kind = "python:acme.methods:Temperature"
params = { t = 3 }

[methods.Hybrid]
kind = "adabn+temperature+lame"
params = { t = 3, momentum = 0.2 }

[studies.main]
models = ["net"]
scenarios = ["iid"]
methods = ["Source", "Named", "Imported", "Hybrid"]
seeds = [0]
batch_sizes = [32]
"""

USE = """\
import json
import numpy as np
import torch
from acme.methods import Temperature
from lametta import methods
from lametta.testing import check_corrector
from lametta.torch import wrap, zoo

check_corrector(Temperature())
net = zoo.load("embedded:digits").net
x = torch.rand(8, 1, 8, 8)
source = wrap(net, "source")(x)
softened = wrap(net, "temperature", t=3)(x)
expected = source ** (1 / 3)
assert torch.allclose(softened, expected / expected.sum(1, keepdim=True), atol=1e-6)
rng = np.random.default_rng(0)
np.savez("in.npz", features=rng.normal(size=(20, 4)), logits=rng.normal(size=(20, 3)))
print(json.dumps(methods.names()))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run programs where the stranger's package is installed next to those that are here."""
    folder = tmp_path_factory.mktemp("acme")
    package = folder / "acme" / "src" / "acme"
    package.mkdir(parents=True)
    (folder / "acme" / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "methods.py").write_text(METHODS)
    (package / "data.py").write_text(DATA)
    with contextlib.chdir(folder / "acme"):
        wheel = build_wheel(str(folder))
    with zipfile.ZipFile(folder / wheel) as archive:  # all that it takes to install it
        archive.extractall(folder / "site")
    environment = {
        "PYTHONPATH": str(folder / "site"),
        "PYTHONWARNINGS": "error::DeprecationWarning",
    }
    return functools.partial(processes.run, env=environment)


def test_its_methods_and_data_run_everywhere(run, tmp_path):
    used = run("-c", USE, cwd=tmp_path)
    assert used.returncode == 0, used.stderr
    assert "temperature" in json.loads(used.stdout)

    corrected = run(
        *("-m", "lametta", "correct", "in.npz", "-o", "out.npz"),
        *("--method", "temperature", "--set", "t=3"), cwd=tmp_path,
    )  # fmt: skip
    assert corrected.returncode == 0, corrected.stderr
    refused = run(
        *("-m", "lametta", "correct", "in.npz", "-o", "no.npz"),
        *("--method", "python:acme.methods:Temperature", "--set", "t=-1"), cwd=tmp_path,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "--set t must be > 0, got -1" in refused.stderr

    (tmp_path / "acme.toml").write_text(EXPERIMENT)
    ran = run("-m", "lametta", "run", "acme.toml", "-o", "results", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    cells = read_cells(tmp_path / "results").select("method", "accuracy", "n").rows()
    rows = {method: (accuracy, n) for method, accuracy, n in cells}
    assert rows.keys() == {"Source", "Named", "Imported", "Hybrid"}
    assert rows["Source"] == rows["Named"] == rows["Imported"]  # a temperature changes no class
    assert rows["Source"][1] == 96

    listed = run("-m", "lametta", "list", cwd=tmp_path).stdout
    for name in ("temperature", "t=2.0", "acme_digits"):
        assert name in listed


def test_a_dry_run_imports_nothing_of_it(run, tmp_path):
    text = EXPERIMENT.replace("python:acme.methods:Temperature", "python:acme.absent:Nothing")
    (tmp_path / "acme.toml").write_text(text)
    planned = run("-m", "lametta", "run", "acme.toml", "--dry-run", cwd=tmp_path)
    assert "Imported" in planned.stdout, planned.stderr
    ran = run("-m", "lametta", "run", "acme.toml", "-o", "results", cwd=tmp_path)
    assert ran.returncode == 2
    assert "methods.Imported.kind" in ran.stderr
    assert "No module named 'acme.absent'" in ran.stderr
