"""What a report says of the data: from banks and manifests, and how to run it again."""

import shlex
import sys
from dataclasses import replace

import numpy as np
import pytest

from lametta.bench.analysis.results import read_results
from lametta.bench.experiment import load
from lametta.bench.report import count_datasets, make_report, stream_classes
from lametta.bench.report.page import _commands
from lametta.bench.running import environment, run
from lametta.bench.running.workspace import Workspace
from lametta.bench.tables.experiment import datasets
from tests.bench.made_up import invoke
from tests.bench.tiny import tiny, write


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Results of a small experiment that was really run, with its banks."""
    folder = tmp_path_factory.mktemp("ran")
    studies = {"main": tiny()["studies"]["main"] | {"methods": ["Source"], "figure": "curves"}}
    file = write(folder / "tiny.toml", tiny(studies=studies, validation=None))
    workspace = Workspace(load(file), folder / "my results")
    assert run(workspace, text=file.read_text()) == []
    return read_results(workspace.folder)


@pytest.mark.slow
def test_counts_are_those_of_what_was_read(ran):
    data = Workspace(ran.experiment, ran.folder).dataset("digits")
    row = count_datasets(ran).row(0, named=True)
    assert row["samples"] == len(data)
    assert row["classes"] == row["all_classes"] == len(data.classes) == 10
    assert (row["dataset"], row["used_for"]) == ("digits", "test")
    assert row["description"] == "embedded:digits_val"


def test_without_banks_manifests_give_the_samples(ran, tmp_path):
    for name in ("cells", "streams", "experiment.toml"):
        (tmp_path / name).symlink_to(ran.folder / name)
    bare = read_results(tmp_path)
    row = count_datasets(bare).row(0, named=True)
    assert row["samples"] == count_datasets(ran)["samples"].item()
    assert row["classes"] is row["groups"] is None
    section = make_report(bare).sections[-1]
    assert section.name == "datasets"
    assert "Classes and groups are not known for digits" in section.notes[0]
    (tmp_path / "streams").unlink()
    assert count_datasets(bare)["samples"].item() is None
    assert stream_classes(bare, bare.frame["fingerprint"][0]) is None


def test_the_classes_of_a_stream_are_those_that_methods_saw(ran):
    rows = {row["scenario"]: row for row in ran.frame.filter(seed=0).to_dicts()}
    arrived = stream_classes(ran, rows["sorted"]["fingerprint"])
    assert len(arrived) == rows["sorted"]["n"]
    assert len(np.flatnonzero(np.diff(arrived))) == 9  # ten classes, one after another
    assert len(np.flatnonzero(np.diff(stream_classes(ran, rows["iid"]["fingerprint"])))) > 100
    assert stream_classes(ran, "of another run") is None


def test_a_stream_that_was_another_is_not_shown(ran):
    """A bank that was changed since, say: what it gives is not what the methods saw."""
    other = ran.frame.with_columns(fingerprint=ran.frame["fingerprint"].str.reverse())
    changed = replace(ran, frame=other)
    assert stream_classes(changed, other["fingerprint"][0]) is None


def test_the_report_shows_the_streams(ran):
    shown = make_report(ran).sections[0].figures[0].frame()
    strips = shown.filter(quantity="class")
    assert list(dict.fromkeys(strips["scenario"])) == ["i.i.d.", "iid", "sorted"]


def test_the_command_that_a_report_prints_works(ran):
    again, report = _commands(ran)
    assert "'" in again  # there is a space in the name of the folder
    result = invoke(*shlex.split(again)[1:])
    assert result.exit_code == 0, result.output
    assert shlex.split(report) == ["lametta", "report", str(ran.folder)]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("lametta run x.toml --data /my/data -o out", ["--data", "/my/data"]),
        ("lametta run x.toml --data='/my data'", ["--data", "/my data"]),
        ("lametta run x.toml", []),
        ("lametta run it's.toml --data", []),
    ],
)
def test_the_command_has_the_data_and_the_device(ran, command, expected):
    environment = {"command": command, "device": "cuda"}
    words = shlex.split(_commands(replace(ran, environment=environment))[0])
    assert words[5:] == [*expected, "--device", "cuda"]


def test_a_command_is_kept_as_a_shell_takes_it(experiment, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/lametta", "run", "it's.toml", "--data", "/my data"])
    command = environment(Workspace(experiment, tmp_path))["command"]
    assert shlex.split(command) == ["lametta", "run", "it's.toml", "--data", "/my data"]


def test_the_table_leaves_open_what_is_not_known(ran):
    unknown = count_datasets(ran).with_columns(classes=None, groups=None, all_classes=None)
    row = datasets(unknown).rows[0]
    assert [entry.text for entry in row[3:5]] == ["", ""]
