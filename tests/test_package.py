"""What a user meets first: the import, the names, the README, the examples, the wheel."""

import contextlib
import io
import os
import re
import subprocess
import sys
import tomllib
import types
import venv
from pathlib import Path

import pytest

import lametta
from tests.conftest import shared

ROOT = Path(__file__).parents[1]


def run_python(code, **options):
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, **options)


def test_import_is_light():
    heavy = "'torch', 'jax', 'typer', 'rich', 'sklearn', 'safetensors'"
    code = f"import sys, lametta; print([m for m in ({heavy}) if m in sys.modules])"
    done = run_python(code)
    assert done.stdout.strip() == "[]", done.stderr


def test_public_names():
    assert sorted(lametta.__all__) == [
        "Adapter", "ClassMap", "Corrected", "Corrector", "LAME", "LameResult", "LamettaError",
        "Model", "Output", "Prediction", "Source", "__version__", "knn", "lame", "linear", "rbf",
        "testing",
    ]  # fmt: skip
    assert sorted(lametta.testing.__all__) == ["check_adapter", "check_corrector"]
    for name in lametta.__all__:
        assert hasattr(lametta, name)


def test_version_is_said_once_more_only():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == lametta.__version__
    assert f"version: {lametta.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert f"## [{lametta.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def readme_examples():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```\s*```text\n(.*?)```", text, flags=re.DOTALL)


def test_readme_has_examples():
    examples = readme_examples()
    assert len(examples) == 4
    lines = [line for line in examples[0][0].splitlines() if line]
    assert len(lines) == 10


@pytest.mark.parametrize(("code", "output"), readme_examples())
def test_readme(code, output):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "README.md", "exec"), {})
    assert printed.getvalue() == output


def test_docs_show_a_method_that_keeps_the_contract():
    text = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    # A module of its own, since pickle finds a class by its module's name.
    module = types.ModuleType("extending")
    sys.modules["extending"] = module
    try:
        exec(compile(code, "extending.md", "exec"), module.__dict__)
    finally:
        del sys.modules["extending"]


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
