"""Install a wheel in empty environments, one for each Python that it declares and that is here.

    python scripts/check_wheel.py dist/*.whl --extras cli,serve --constraint constraints.txt

Alone, it must work with NumPy and array-api-compat, and its command say what it needs. With an
extra, what that promises must import, and the command answer.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

ALONE = {"array-api-compat", "lametta", "numpy"}
MOST_BYTES = 3_000_000
# By extra: what of lametta imports with it, and with nothing else.
PROMISES = {
    "bench": "lametta.bench.running",
    "cli": "lametta.cli",
    "corruptions": "imagecorruptions",
    "data": "lametta.data.readers.digits",
    "faiss": "faiss",
    "grpc": "lametta.serve.grpc",
    "hf": "lametta.integrations.hf",
    "onnx": "lametta.integrations.onnx",
    "ray": "lametta.ray",
    "redis": "lametta.serve.stores.redis",
    "serve": "lametta.serve.app",
    "sklearn": "lametta.integrations.sklearn",
    "supervision": "lametta.integrations.supervision",
    "timm": "timm",
    "torch": "lametta.torch",
    "video": "av",
}
WORKS = """
import importlib.resources, numpy, lametta
features, probs = numpy.eye(6), numpy.full((6, 2), 0.5)
assert lametta.lame(features, probs).probs.shape == (6, 2)
assert lametta.Prudent().correct(features, probs).probs.shape == (6, 2)
lametta.testing.check_corrector(lametta.LAME())
assert importlib.resources.files("lametta").joinpath("py.typed").is_file()
"""
COMMAND = """
from lametta.cli import app
for arguments in (["list", "methods"], ["correct", "--help"]):
    try:
        app(arguments, prog_name="lametta")
    except SystemExit as end:
        assert not end.code, end.code
"""
NAMES = "import importlib.metadata as m; print(*(d.name for d in m.distributions()))"


def declared(wheel: Path) -> list[str]:
    """The versions of Python that the wheel's classifiers name."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode()
    return re.findall(r"^Classifier: Programming Language :: Python :: (3\.\d+)$", text, re.M)


def find_python(version: str) -> str | None:
    """A Python of this version: the one at work, on the path, or of pyenv."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return sys.executable
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = sorted(root.glob(f"{version}.*/bin/python"))
    return str(known[-1]) if known else shutil.which(f"python{version}")


class Environment:
    """An empty environment in a folder."""

    def __init__(self, python: str, folder: Path, constraint: Path | None) -> None:
        # Without pip, which is then asked for from outside.
        subprocess.run([python, "-m", "venv", "--without-pip", folder], check=True)
        self.bin = folder / ("Scripts" if os.name == "nt" else "bin")
        self.python = self.bin / ("python.exe" if os.name == "nt" else "python")
        # By its own pip, where it has one: an old one of ours does not run under a newer Python.
        has_pip = not subprocess.run([python, "-m", "pip", "-V"], capture_output=True).returncode
        runner = python if has_pip else sys.executable
        self.pip = [runner, "-m", "pip", "--python", str(self.python), "--quiet"]
        limits = {} if constraint is None else {"PIP_CONSTRAINT": str(constraint.resolve())}
        self.environ = {**os.environ, **limits, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

    def install(self, *what: str) -> None:
        command = [*self.pip, "install", "--no-compile", "--no-warn-conflicts", *what]
        subprocess.run(command, check=True, timeout=1800, env=self.environ)

    def run(self, *arguments: Any) -> "subprocess.CompletedProcess[str]":
        # Away from the sources, which would hide what is missing in the wheel.
        return subprocess.run(
            arguments, capture_output=True, text=True, timeout=300, cwd=self.bin.parent
        )

    def check(self, code: str, *options: str) -> str:
        """Run code, and give what it prints."""
        done = self.run(self.python, *options, "-c", code)
        if done.returncode:
            raise SystemExit(f"{code.strip()}\n{done.stdout}{done.stderr}")
        return done.stdout


def check(wheel: Path, python: str, extras: list[str], constraint: Path | None) -> None:
    """Install the wheel alone, then with each extra, in one environment, and try it."""
    with tempfile.TemporaryDirectory() as folder:
        there = Environment(python, Path(folder) / "venv", constraint)
        there.install(str(wheel))
        found = {name.lower().replace("_", "-") for name in there.check(NAMES).split()}
        if found != ALONE:
            raise SystemExit(f"must come with {sorted(ALONE)} alone, got {sorted(found)}")
        there.check(WORKS, "-W", "error")
        command = there.bin / "lametta"
        done = there.run(command, "list", "methods")
        if done.returncode != 1 or "pip install '.[cli]'" not in done.stderr:
            raise SystemExit(f"the command must say what it needs, got {done.stdout}{done.stderr}")
        for extra in extras:
            there.install(f"{wheel}[{extra}]")
            there.check(f"import {PROMISES[extra]}")
            if extra == "cli":
                there.check(COMMAND)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--extras", default="cli", help='with commas between, or "all"')
    parser.add_argument("--python", action="append", help="instead of those that are declared")
    parser.add_argument("--constraint", type=Path, help="versions to install, as pip reads them")
    chosen = parser.parse_args()
    wheel = chosen.wheel.resolve()
    if (size := wheel.stat().st_size) > MOST_BYTES:
        raise SystemExit(f"{wheel.name} must have at most {MOST_BYTES} bytes, got {size}")
    print(f"{wheel.name}: {size / 1e6:.2f} MB")
    extras = [extra for extra in chosen.extras.split(",") if extra]
    if extras == ["all"]:
        extras = sorted(PROMISES)
    pythons = {path: path for path in chosen.python or ()}
    for version in () if chosen.python else declared(wheel):
        pythons[f"Python {version}"] = find_python(version) or ""
    for name, python in pythons.items():
        if not python:
            print(f"{name}: not here")
            continue
        check(wheel, python, extras, chosen.constraint)
        print(f"{name}: works alone{''.join(f', with {extra}' for extra in extras)}", flush=True)


if __name__ == "__main__":
    main()
