"""``lametta run`` and ``lametta demo``, as a user meets them."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lametta.cli import app
from tests.bench.test_run import TINY

ROOT = Path(__file__).parents[2]


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def invoke(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_run_then_report_then_compare(file, tmp_path):
    result = invoke("run", file, "-o", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert f"lametta report {tmp_path / 'a'}" in result.stdout.replace("\n", "")
    assert (tmp_path / "a" / "experiment.toml").read_text() == TINY
    assert invoke("report", tmp_path / "a").exit_code == 0
    assert "LAME" in (tmp_path / "a" / "report" / "report.html").read_text(encoding="utf-8")
    assert invoke("run", file, "-o", tmp_path / "b", "--jobs", 2).exit_code == 0
    assert invoke("compare", tmp_path / "a", tmp_path / "b").exit_code == 0


def test_dry_run_shows_cells_and_what_is_missing(tmp_path):
    result = invoke("run", ROOT / "experiments" / "paper.toml", "--dry-run", "--data", tmp_path)
    assert result.exit_code == 0
    assert re.search(r"validation +TENT +1944", result.stdout)
    assert re.search(r"data set +imagenet_val +no", result.stdout)
    assert list(tmp_path.iterdir()) == []


def test_bad_input_exits_with_2(file, tmp_path):
    file.write_text(TINY.replace('order = "by_class"', 'order = "by_clas"'))
    result = invoke("run", file, "-o", tmp_path / "a")
    assert result.exit_code == 2
    assert "scenarios.B.order" in result.stderr
    assert not (tmp_path / "a").exists()
    assert invoke("run", "no_such_experiment").exit_code == 2
    assert invoke("run", tmp_path / "no.toml").exit_code == 2


def test_failed_cells_exit_with_1(file, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr("lametta.bench.run.run_cell", fail)
    result = invoke("run", file, "-o", tmp_path / "a")
    assert result.exit_code == 1
    assert "cells failed" in result.stderr


def test_an_interrupted_run_says_how_to_go_on(file, tmp_path, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("lametta.bench.run.run_cell", interrupt)
    result = invoke("run", file, "-o", tmp_path / "a")
    assert result.exit_code == 130
    assert "the same command goes on from here" in result.stderr
    monkeypatch.undo()
    assert invoke("run", file, "-o", tmp_path / "a").exit_code == 0


@pytest.mark.slow
def test_the_readme_shows_what_the_demo_gives(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "lametta", "demo", "-o", tmp_path / "demo"],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "demo" / "report" / "report.html").exists()
    (table,) = (tmp_path / "demo" / "report" / "tables").glob("main*.md")
    found = rows(table.read_text(encoding="utf-8"))
    shown = rows((ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(found) == 6
    for method, values in found.items():
        assert len(shown[method]) == len(values) == 8
        # Convolutions differ a little between machines.
        assert all(abs(a - b) <= 2 for a, b in zip(shown[method], values, strict=True))


def rows(text):
    """The accuracies in each row of a Markdown table, by its first column."""
    table = {}
    for line in text.splitlines():
        method, *entries = (entry.strip(" *") for entry in line.strip("|").split("|"))
        values = [re.match(r"\d+\.\d", entry.strip("* ")) for entry in entries]
        if values and all(values):
            table.setdefault(method, [float(value[0]) for value in values])
    return table
