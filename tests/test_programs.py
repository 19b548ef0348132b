"""Programs beside the package, and the wheel: each runs in a process of its own."""

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests import processes
from tests.conftest import shared

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow(8)


SERVED = {"bytewax_flow.py", "http_client.py", "triton_client.py", "video.py"}  # see tests/serve
LOADED = {"huggingface.py"}  # run where what it imports is loaded: see tests/integrations
EXAMPLES = [
    path for path in sorted((ROOT / "examples").glob("*.py")) if path.name not in SERVED | LOADED
]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    arguments = []
    if path.name == "silent_collapse.py":
        data = shared("data", "cifar10", "test-3000.zip").parents[1]
        arguments = ["--data", data, "--per-class", "8"]
    arguments += ["-o", tmp_path / "figure.png"]
    done = processes.run(path, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("lame.py", "times faster"),
        ("networks.py", "x a plain TENT"),
        ("extract.py", "to the larger"),
        ("many.py", "recall"),
        ("streams.py", "state of Prudent: 259 kB"),
    ],
)
def test_benchmarks_run(name, shows):
    done = processes.run(ROOT / "benchmarks" / name, "--quick")
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout


def test_wheel_works_with_its_two_dependencies_alone(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel"]
    subprocess.run([*build, "--directory", tmp_path], check=True, timeout=300, cwd=ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "--quiet"]
    constraints = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run(
        [*pip, "install", "--no-compile", wheel], check=True, timeout=300, env=constraints
    )
    code = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"
    installed = subprocess.run(
        [python, "-c", code], capture_output=True, text=True, check=True, timeout=60
    ).stdout
    names = sorted(name.lower() for name in installed.split())
    assert names == ["array-api-compat", "lametta", "numpy"]
    code = """
import importlib.resources, numpy, lametta
features, probs = numpy.eye(6), numpy.full((6, 2), 0.5)
assert lametta.lame(features, probs).probs.shape == (6, 2)
lametta.testing.check_corrector(lametta.LAME())
assert importlib.resources.files("lametta").joinpath("py.typed").is_file()
"""
    subprocess.run([python, "-W", "error", "-c", code], check=True, timeout=120, cwd=tmp_path)
    command = [tmp_path / "venv" / "bin" / "lametta", "list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "pip install 'lametta[cli]'" in done.stderr
