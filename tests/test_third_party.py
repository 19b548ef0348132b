"""A package of a stranger: its methods and data sets run wherever lametta's own do."""

import json
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import numpy as np
import pytest

from lametta.bench.analysis.results import read_cells

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
assert "temperature" in methods.names()
"""

# Commands in one process, which loads them once: what each prints, and how it ended.
COMMANDS = """\
import json, sys
from lametta.cli import app

for arguments in json.loads(sys.argv[1]):
    try:
        app(arguments, prog_name="lametta")
    except SystemExit as end:
        print("ended with", end.code or 0)
"""


def _install(folder: Path) -> None:
    """A fresh environment that has the packages of this one, and the stranger's."""
    package = folder / "acme" / "src" / "acme"
    package.mkdir(parents=True)
    (folder / "acme" / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "methods.py").write_text(METHODS)
    (package / "data.py").write_text(DATA)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "venv/bin/python"), "--quiet"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    subprocess.run([*pip, "install", *options, str(folder / "acme")], check=True, timeout=300)


@pytest.fixture
def run(made_once, tmp_path):
    """Run commands in that environment, in one process."""
    python = made_once("acme", _install) / "venv" / "bin" / "python"

    def run(*commands: str, first: str = "") -> tuple[list[tuple[str, str]], str]:
        asked = json.dumps([command.split() for command in commands])
        command = [python, "-W", "error::DeprecationWarning", "-c", first + COMMANDS, asked]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        return re.findall(r"(.*?)ended with (\d)\n", done.stdout, flags=re.DOTALL), done.stderr

    return run


def test_its_methods_and_data_run_everywhere(run, tmp_path):
    (tmp_path / "acme.toml").write_text(EXPERIMENT)
    ended, said = run(
        "correct in.npz -o out.npz --method temperature --set t=3",
        "correct in.npz -o no.npz --method python:acme.methods:Temperature --set t=-1",
        "run acme.toml -o results",
        "list",
        first=USE,
    )
    assert [code for _, code in ended] == ["0", "2", "0", "0"], said
    expected = np.exp(np.load(tmp_path / "in.npz")["logits"] / 3)
    found = np.load(tmp_path / "out.npz")["probs"]
    assert np.allclose(found, expected / expected.sum(axis=1, keepdims=True), atol=1e-6)
    assert "--set t must be > 0, got -1" in said
    cells = read_cells(tmp_path / "results").select("method", "accuracy", "n").rows()
    rows = {method: (accuracy, n) for method, accuracy, n in cells}
    assert rows.keys() == {"Source", "Named", "Imported", "Hybrid"}
    assert rows["Source"] == rows["Named"] == rows["Imported"]  # a temperature changes no class
    assert rows["Source"][1] == 96
    for name in ("temperature", "t=2.0", "acme_digits"):
        assert name in ended[-1][0]


def test_a_dry_run_imports_nothing_of_it(run, tmp_path):
    text = EXPERIMENT.replace("python:acme.methods:Temperature", "python:acme.absent:Nothing")
    (tmp_path / "acme.toml").write_text(text)
    (planned, ran), said = run("run acme.toml --dry-run", "run acme.toml -o results")
    assert "Imported" in planned[0], said
    assert ran[1] == "2"
    assert "methods.Imported.kind" in said
    assert "No module named 'acme.absent'" in said
