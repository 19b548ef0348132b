"""``lametta map``: what it chooses, and what it leaves on disk."""

import json
import os

import pytest
import typer
from typer.testing import CliRunner

from lametta import ClassMap
from lametta.cli.map import map_
from tests import processes

app = typer.Typer()
app.command("map")(map_)


def run(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.slow
def test_no_dog_is_an_animal_where_both_are_targets(tmp_path):
    result = run("--targets", "animal,dog", "-o", tmp_path / "map.json")
    assert result.exit_code == 0, result.output
    classes = ClassMap.load(tmp_path / "map.json")
    assert classes.groups[classes.names.index("dog")] == tuple(range(151, 269))


def test_the_sense_that_was_chosen_is_shown():
    result = run("--targets", "raccoon")
    assert result.exit_code == 2
    assert "raccoon: sense 2 of 2, a kind of procyonid, covers no class" in result.stderr
    assert result.stderr.splitlines()[-1] == (
        "lametta: --targets must each be the closest ancestor of a class of the model, "
        "got none for raccoon; --drop-empty leaves such targets out"
    )
    result = run("--targets", "raccoon,fox", "--drop-empty")
    assert result.exit_code == 0, result.output
    assert "raccoon: sense 2 of 2, a kind of procyonid, covers no class" in result.output
    assert "fox: sense 1 of 7, a kind of canine, covers the most classes, 4" in result.output


def test_a_map_is_whole_or_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "map.json"
    path.write_text("old")
    monkeypatch.setattr("lametta._files.os.fsync", full)
    result = run("--targets", "dog", "-o", path)
    assert result.exit_code == 2
    assert f"could not write {path}: No space left on device" in result.stderr
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["map.json"]


def test_a_missing_folder_is_named_before_the_work(tmp_path, monkeypatch):
    monkeypatch.setattr("lametta.cli.map.resolve", None)
    result = run("--targets", "dog", "-o", tmp_path / "absent" / "map.json")
    assert result.exit_code == 2
    assert result.stderr.startswith("lametta: no such folder: ")


def full(_):
    raise OSError(28, "No space left on device")


# Puts a pipe in the place of standard output, and runs the command.
PIPED = """
import os, runpy, subprocess, sys
cat = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
os.dup2(cat.stdin.fileno(), 1)
cat.stdin.close()
try:
    runpy.run_module("lametta", run_name="__main__", alter_sys=True)
finally:
    sys.stdout.flush()
    os.close(1)
    cat.wait()
"""


@pytest.mark.slow
@pytest.mark.skipif(not os.path.exists("/dev/stdout"), reason="no /dev/stdout")
@pytest.mark.parametrize("start", [("-m", "lametta"), ("-c", PIPED)], ids=["file", "pipe"])
def test_a_map_goes_to_standard_output(start):
    done = processes.run(*start, "map", "--targets", "dog", "-o", "/dev/stdout")
    assert done.returncode == 0, done.stderr
    content, end = json.JSONDecoder().raw_decode(done.stdout)
    assert content["groups"]["dog"] == list(range(151, 269))
    assert "118 of 1000 classes mapped onto 1" in done.stdout[end:]
