"""A package of a stranger: its methods and data sets run wherever lametta's own do."""

import json
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from lametta.bench.results import read_cells

pytestmark = pytest.mark.slow(8)

ROOT = Path(__file__).parents[1]

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


# In the fresh environment: what is slow to load is loaded once, lametta in each program's own fork.
LOADED = """\
import json, multiprocessing, os, sys, warnings
import polars, pydantic, rich, scipy.ndimage, torch, typer
from tests import forks

def execute(arguments, cwd, files):
    warnings.simplefilter("error", DeprecationWarning)
    os._exit(forks.execute(arguments, cwd, dict(os.environ), sys.path, files))

assert "lametta" not in sys.modules
for line in sys.stdin:
    process = multiprocessing.get_context("fork").Process(target=execute, args=json.loads(line))
    process.start()
    process.join(300)
    print(process.exitcode, flush=True)
    process.kill()
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run programs in a fresh environment that has the packages of this one, and the stranger's."""
    folder = tmp_path_factory.mktemp("acme")
    package = folder / "acme" / "src" / "acme"
    package.mkdir(parents=True)
    (folder / "acme" / "pyproject.toml").write_text(PYPROJECT)
    (package / "__init__.py").touch()
    (package / "methods.py").write_text(METHODS)
    (package / "data.py").write_text(DATA)
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv" / "bin" / "python"
    (site,) = (folder / "venv" / "lib").glob("python*/site-packages")
    here = sysconfig.get_path("purelib")
    (site / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "install"]
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--no-compile"]
    subprocess.run([*pip, *options, str(folder / "acme")], check=True, timeout=300)
    files = [folder / name for name in ("stdout", "stderr")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([python, "-c", LOADED], cwd=ROOT, **pipes) as loaded:

        def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
            asked = [arguments, str(cwd), [str(file) for file in files]]
            loaded.stdin.write(json.dumps(asked) + "\n")
            loaded.stdin.flush()
            code = int(loaded.stdout.readline())
            return subprocess.CompletedProcess(arguments, code, *(f.read_text() for f in files))

        yield run


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
