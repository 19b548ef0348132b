"""Programs beside the package, and the wheel: each runs in a process of its own."""

import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from tests.conftest import shared

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.name)
def test_examples_run(path, tmp_path):
    arguments = []
    if path.name == "silent_collapse.py":
        data = shared("data", "cifar10", "test-3000.zip").parents[1]
        arguments = ["--data", data, "--per-class", "8"]
    arguments += ["-o", tmp_path / "figure.png"]
    done = subprocess.run(
        [sys.executable, path, *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("name", "shows"),
    [
        ("lame.py", "times faster"),
        ("networks.py", "x a plain TENT"),
        ("extract.py", "to the larger"),
        ("many.py", "recall"),
    ],
)
def test_benchmarks_run(name, shows):
    done = subprocess.run(
        [sys.executable, ROOT / "benchmarks" / name, "--quick"],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert shows in done.stdout


def test_wheel_works_with_its_two_dependencies_alone(tmp_path):
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", wheels, ROOT], check=True, timeout=300)
    (wheel,) = wheels.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel]
    constraints = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    subprocess.run(install, check=True, timeout=300, env=constraints)
    freeze = [python, "-m", "pip", "freeze", "--disable-pip-version-check"]
    installed = subprocess.run(
        freeze, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    names = sorted(re.split(r"==| @ ", line)[0].lower() for line in installed.splitlines())
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
