"""Each diff of CONTRIBUTING.md on a copy of the tree: what it adds is there, everywhere."""

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import polars as pl
import pytest

from tests.conftest import run_python

pytestmark = pytest.mark.slow(4)

ROOT = Path(__file__).parents[1]
METHODS = ROOT / "src" / "lametta" / "torch" / "methods"

EXPERIMENT = """\
name = "added"

[models.net]
zoo = "embedded:digits"

[datasets.digits]
reader = "embedded:digits_val"
part = [0, 4]

[scenarios.iid]
dataset = "digits"

[methods.Source]
kind = "source"

[methods.Sharpen]
kind = "sharpen"
params = { power = 3 }

[methods.Hybrid]
kind = "adabn+sharpen"

[methods.Ones]
kind = "lame"
params = { affinity = "ones", row_sum = 2.0 }

[studies.main]
figure = "dots"
models = ["net"]
scenarios = ["iid"]
methods = ["Source", "Sharpen", "Hybrid", "Ones"]
seeds = [0]
"""

USE = """\
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

import lametta
from lametta.cli import app
from lametta.correctors.sharpen import Sharpen
from lametta.data import load
from lametta.methods import find
from lametta.testing import check_adapter, check_corrector
from lametta.torch import Classifier, wrap, zoo

check_corrector(Sharpen())
net = zoo.load("embedded:digits").net
x = torch.rand(8, 1, 8, 8)
expected = wrap(net, "source")(x) ** 3
found = wrap(net, "sharpen", power=3)(x)
assert torch.allclose(found, expected / expected.sum(1, keepdim=True), atol=1e-6)
assert wrap(net, "lame", affinity="ones", row_sum=1.0)(x).shape == (8, 10)
for name in ("rpl", "rpl+sharpen", "dua", "centroids", "dua+centroids"):
    net = zoo.load("embedded:digits").net
    assert wrap(net, name)(x).shape == (8, 10)
for name in ("rpl", "dua", "centroids"):
    net = Classifier(zoo.load("embedded:digits").net)
    check_adapter(find(name).build(net, {}), torch.rand(16, 1, 8, 8))
for name in ("owl", "tit"):
    Path("data/birds", name).mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(f"data/birds/{name}/1.jpg")
assert load("birds", "data").classes == ("owl", "tit")
rng = np.random.default_rng(0)
np.savez("in.npz", features=rng.normal(size=(20, 4)), logits=rng.normal(size=(20, 3)))
print(lametta.__file__)

correct = ["correct", "in.npz", "-o", "out.npz"]
for arguments in (
    [*correct, "--method", "sharpen", "--set", "power=3"],
    [*correct, "--affinity", "ones"],
    ["run", "added.toml", "-o", "results"],
    ["report", "results"],
    ["list"],
):
    print(*arguments)
    try:
        app(arguments, prog_name="lametta")
    except SystemExit as end:
        assert not end.code, arguments
"""


def diffs() -> list[str]:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.findall(r"```diff\n(.*?)```", text, flags=re.DOTALL)


def test_each_addition_is_a_file_or_class_and_one_line():
    assert len(diffs()) == 8
    for diff in diffs():
        assert diff.count("\n") <= 60
        files = re.findall(r"^\+\+\+ b/(.*)$", diff, flags=re.MULTILINE)
        assert len(files) <= 2
        for part in diff.split("--- ")[1:]:
            added = [line for line in part.splitlines()[1:] if re.match(r"\+(?!\+\+)", line)]
            if not part.startswith("/dev/null") and "affinity.py" not in part:
                assert len(added) == 1


def test_nothing_private_is_imported_but_checks_of_arguments():
    added = "\n".join(re.findall(r"^\+(?!\+\+)(.*)$", "".join(diffs()), flags=re.MULTILINE))
    shipped = [file.read_text(encoding="utf-8") for file in METHODS.glob("*.py")]
    for sources in ([added], shipped):
        imports = re.findall(r"^(?:from|import) .*$", "\n".join(sources), flags=re.MULTILINE)
        assert len(imports) > 10
        private = [line for line in imports if re.search(r"(?:[ .])_(?!checks import)", line)]
        assert not private


def test_the_methods_that_are_said_to_be_short_are():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (said,) = re.findall(
        r"of those that filter\n?(.*?)none has more than 60 lines", text, re.DOTALL
    )
    for name in re.findall(r"`(\w+\.py)`", said):
        assert n_code_lines((METHODS / name).read_text(encoding="utf-8")) <= 60


def n_code_lines(source: str) -> int:
    """How many lines a module has without blanks, comments and docstrings."""
    tree = ast.parse(source)
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef)
    with_docstring = [x for x in ast.walk(tree) if isinstance(x, holders) and ast.get_docstring(x)]
    docs = {
        line for x in with_docstring for line in range(x.body[0].lineno, x.body[0].end_lineno + 1)
    }
    lines = enumerate((line.strip() for line in source.splitlines()), start=1)
    return sum(bool(line) and line[0] != "#" and n not in docs for n, line in lines)


def test_what_the_diffs_add_is_everywhere(tmp_path):
    shutil.copytree(ROOT / "src", tmp_path / "src")
    for diff in diffs():
        apply = ["git", "apply", "-p1", "-"]
        done = subprocess.run(apply, cwd=tmp_path, input=diff, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr + diff

    (tmp_path / "added.toml").write_text(EXPERIMENT)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = run_python(USE, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stderr
    where, *printed = done.stdout.splitlines()
    assert where == str(tmp_path / "src" / "lametta" / "__init__.py")
    listed = "\n".join(printed[printed.index("list") :])
    for name in ("sharpen", "power=2.0", "ones", "birds", "rpl", "dua"):
        assert name in listed
    rows = pl.read_parquet(tmp_path / "results" / "cells" / "*.parquet")
    assert set(rows["method"]) == {"Source", "Sharpen", "Hybrid", "Ones"}
    for accuracy, error in rows.select("accuracy", "error").rows():
        assert accuracy + error == pytest.approx(1)
    page = (tmp_path / "results" / "report" / "report.html").read_text(encoding="utf-8")
    assert "A dot is a run." in page
    assert "error (%)" in page
