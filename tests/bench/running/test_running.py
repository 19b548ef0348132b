"""Experiments run to their end: in parallel, through kills, on a cluster, once each network."""

import json
import random
import shutil
import sys
import time
from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

import lametta
from lametta.bench.analysis.results import read_cells
from lametta.bench.columns import SCHEMA, names
from lametta.bench.experiment import load
from lametta.bench.running import cell as cells
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from lametta.data.readers.digits import make_digits
from lametta.stream import Scenario
from lametta.torch import Classifier, tent
from lametta.torch.digits import digits_net
from tests import processes
from tests.bench.made_up import invoke

MEASURED = (  # what differs from run to run
    *("forward_time", "optimization_time", "inference_time", "step_time", "peak_memory"),
)

TINY = """
name = "tiny"
[models.digits]
zoo = "embedded:digits"
[datasets.val]
reader = "embedded:digits_val"
[datasets.super]
reader = "embedded:digits_val"
classes = { rings = [0, 8], strokes = [1, 7], bows = [2, 3], tails = [6, 9] }
[scenarios.A]
dataset = "val"
limit = 128
[scenarios.B]
dataset = "super"
order = "by_class"
limit = 128
[methods.Source]
kind = "source"
[methods.LAME]
kind = "lame"
grid = { k = [1, 3, 5] }
[methods.TENT]
kind = "tent"
grid = { lr = [0.001, 0.1] }
[validation]
models = ["digits"]
scenarios = ["A", "B"]
seeds = [0, 1]
[studies.main]
models = ["digits"]
scenarios = ["B"]
seeds = [5]
batch_sizes = [16, 64]
"""
OUTPUTS_ONLY = TINY.replace('[methods.TENT]\nkind = "tent"\ngrid = { lr = [0.001, 0.1] }\n', "")


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture
def workspace(file, tmp_path):
    return Workspace(load(file), tmp_path / "results")


def run_once(made_once, *options):
    """The folder of a run as a user starts it, uninterrupted; one for all tests."""

    def make(folder):
        (folder / "tiny.toml").write_text(TINY)
        done = invoke("run", folder / "tiny.toml", "-o", folder, *options)
        assert done.exit_code == 0, done.output

    return made_once("-".join(["tiny", *options]), make)


@pytest.fixture(scope="session")
def finished(made_once):
    return run_once(made_once)


@pytest.fixture(scope="session")
def expected(finished):
    return rows(finished)


@pytest.fixture
def copied(file, tmp_path, finished):
    """The same run again, to go on with."""
    return Workspace(load(file), shutil.copytree(finished, tmp_path / "copied"))


def rows(folder):
    return read_cells(folder).drop(MEASURED)


def cell_files(folder):
    return sorted((folder / "cells").glob("*.parquet"))


# Runs an experiment; one that halts does so with its second cell computed, not written.
START = """
import itertools, pathlib, sys, time
from lametta.bench import running as runs
from lametta.bench.experiment import load
from lametta.bench.running.workspace import Workspace

file, folder, halts = sys.argv[1:]
true_run_cell, calls = runs.run_cell, itertools.count()

def run_cell(workspace, cell):
    row = true_run_cell(workspace, cell)
    if halts == "True" and next(calls) == 1:
        time.sleep(600)
    return row

runs.run_cell = run_cell
runs.run(Workspace(load(file), pathlib.Path(folder)))
"""


@pytest.mark.slow
def test_rows_are_those_of_the_methods_run_by_hand(expected):
    classes = {"rings": [0, 8], "strokes": [1, 7], "bows": [2, 3], "tails": [6, 9]}
    data, net = make_digits("digits_val").relabeled(classes), digits_net()
    stream = Scenario("by_class", batch_size=64, seed=0, limit=128)(
        data.labels, data.groups, keys=data.keys
    )
    x = torch.from_numpy(np.asarray(data.samples))
    adapter = tent(Classifier(net, classes=data.class_map), lr=0.1)
    hits = [(adapter.step(x[i]).probs.argmax(1).numpy() == data.labels[i]).sum() for i in stream]
    (row,) = expected.filter(
        method="TENT", config='{"lr": 0.1}', scenario="B", seed=0, batch_size=64
    ).to_dicts()
    assert row["step_hits"] == hits
    assert row["accuracy"] == sum(hits) / 128
    assert row["fingerprint"] == stream.fingerprint


@pytest.mark.slow
def test_every_method_sees_the_same_stream(expected):
    streams = expected.group_by("scenario", "seed", "batch_size").agg(
        pl.col("fingerprint").n_unique()
    )
    assert streams["fingerprint"].to_list() == [1] * len(streams)


def test_files_have_the_declared_columns(finished):
    for file in cell_files(finished):
        assert pl.read_parquet_schema(file) == SCHEMA


@pytest.mark.slow(5)
def test_rows_do_not_depend_on_the_number_of_jobs(made_once, expected):
    assert rows(run_once(made_once, "--jobs", "2")).equals(expected)


@pytest.mark.slow(8)
def test_killed_runs_go_on(file, tmp_path, expected):
    """Twenty kills: half amid a cell after one was written, half at any moment."""
    folder, moments = tmp_path / "results", random.Random(0)
    for attempt in range(20):
        halts = attempt < 10
        with processes.Program("-c", START, file, folder, halts) as program:
            while halts and program.is_alive() and len(cell_files(folder)) == attempt:
                time.sleep(0.005)
            time.sleep(moments.uniform(0, 0.02 if halts else 0.3))
            if halts:
                assert program.is_alive()
                assert len(cell_files(folder)) == attempt + 1
    assert run(Workspace(load(file), folder)) == []
    assert rows(folder).equals(expected)


def test_a_finished_run_is_not_run_again(copied, expected, monkeypatch):
    monkeypatch.setattr("lametta.bench.running.run_cell", None)
    states = []
    assert run(copied, report=states.append) == []
    assert rows(copied.folder).equals(expected)


@pytest.mark.slow
def test_a_failing_cell_is_recorded_and_the_rest_goes_on(copied, expected, monkeypatch):
    true_run_cell = cells.run_cell
    for file in cell_files(copied.folder):
        if pl.read_parquet(file)["seed"].item() == 5:
            file.unlink()

    def run_cell(workspace, cell):
        if cell.method == "LAME":
            raise RuntimeError("out of luck")
        return true_run_cell(workspace, cell)

    monkeypatch.setattr("lametta.bench.running.run_cell", run_cell)
    states = []
    failed = run(copied, report=states.append)
    assert [(cell.method, cell.batch_size) for cell in failed] == [("LAME", 16), ("LAME", 64)]
    assert (states[-1].phase, states[-1].failed) == ("test", 2)
    assert len(read_cells(copied.folder)) == len(expected) - 2
    for cell in failed:
        note = json.loads((copied.folder / "failed" / f"{cell.id}.json").read_text())
        assert note["method"] == "LAME"
        assert "out of luck" in note["traceback"]
    monkeypatch.undo()
    assert run(copied) == []
    assert rows(copied.folder).equals(expected)
    assert list((copied.folder / "failed").iterdir()) == []


def test_no_selection_from_an_incomplete_validation(workspace, monkeypatch):
    def fail(*_):
        raise RuntimeError("no")

    monkeypatch.setattr("lametta.bench.running.run_cell", fail)
    assert len(run(workspace)) == len(workspace.experiment.validation_cells())
    assert not (workspace.folder / "selected.toml").exists()


@pytest.mark.slow
def test_the_network_runs_once_whatever_the_grid(tmp_path, monkeypatch):
    text = OUTPUTS_ONLY.replace("k = [1, 3, 5]", "k = [1, 2, 3, 4, 5, 6], weight = [0.5, 1.0]")
    (tmp_path / "tiny.toml").write_text(text)
    seen = []
    true_forward = Classifier.forward

    def forward(self, x):
        seen.append(len(x))
        return true_forward(self, x)

    monkeypatch.setattr(Classifier, "forward", forward)
    assert run(Workspace(load(tmp_path / "tiny.toml"), tmp_path / "results")) == []
    assert len(read_cells(tmp_path / "results")) == 13 * 2 * 2 + 2 * 2
    digits = make_digits("digits_val")
    assert sum(seen) == len(digits) + np.isin(digits.labels, [0, 1, 2, 3, 6, 7, 8, 9]).sum()


@pytest.mark.slow(6)  # next to another that measures memory, whose process stays for it
@pytest.mark.usefixtures("measuring")
def test_live_cells_run_the_network_and_time_its_stages(file, tmp_path):
    text = TINY.replace('scenarios = ["B"]', 'scenarios = ["C"]\nfigure = "runtime"')
    text = text.replace('scenarios = ["A", "B"]', 'scenarios = ["A"]').replace("[0, 1]", "[0]")
    text = text.replace("[16, 64]", "[64]")
    file.write_text(text + '[scenarios.C]\ndataset = "super"\nlimit = 128\n')
    workspace = Workspace(load(file), tmp_path / "results")
    assert run(workspace) == []
    frame = read_cells(workspace.folder).filter(seed=5)
    assert frame["forward_time"].min() > 0
    assert frame.filter(method="LAME")["optimization_time"].min() > 0
    assert (frame["step_time"] >= frame["forward_time"]).all()
    if sys.platform == "linux":
        assert frame["peak_memory"].min() >= 0
    passes = frame.group_by("method").agg(pl.col(names("passes")).mean())
    assert {row[0]: row[1:] for row in passes.iter_rows()} == {
        "Source": (1, 64, 0, 0),
        "LAME": (1, 64, 0, 0),
        "TENT": (2, 128, 1, 64),
    }
    replayed = read_cells(workspace.folder).filter(pl.col("seed") != 5)
    assert replayed["peak_memory"].null_count() == len(replayed)
    banks = replayed.filter(method="LAME")
    assert len(banks) == banks["forwards"].null_count() > 0


def test_the_folder_says_where_results_come_from(finished):
    found = json.loads((finished / "run.json").read_text())
    assert found["lametta"] == lametta.__version__
    assert torch.__version__.startswith(found["packages"]["torch"])  # +cu130 may follow
    manifests = {path.stem for path in (finished / "streams").iterdir()}
    assert manifests == set(read_cells(finished)["fingerprint"])


@pytest.mark.slow
def test_an_edited_experiment_runs_what_changed(copied, file):
    before = {path.name: path.stat().st_mtime_ns for path in cell_files(copied.folder)}
    file.write_text(TINY.replace("lr = [0.001, 0.1]", "lr = [0.001, 0.2]"))
    assert run(Workspace(load(file), copied.folder)) == []
    after = {path.name: path.stat().st_mtime_ns for path in cell_files(copied.folder)}
    assert before.items() <= after.items()
    new = pl.concat(
        pl.read_parquet(copied.folder / "cells" / name) for name in after.keys() - before.keys()
    )
    assert set(new["method"]) == {"TENT"}
    assert len(new.filter(config='{"lr": 0.2}')) >= 4


@pytest.mark.slow
def test_damaged_cells_run_again(copied, expected):
    whole = pl.read_parquet(cell_files(copied.folder)[0])
    files = cell_files(copied.folder)[:5]
    files[0].write_bytes(b"")
    files[1].write_bytes(files[1].read_bytes()[:-100])
    files[2].unlink()
    files[2].mkdir()
    whole.write_parquet(files[2] / "a.parquet")
    pl.concat([whole, whole]).write_parquet(files[3])
    whole.drop("accuracy").write_parquet(files[4])
    before = {file: file.stat().st_mtime_ns for file in cell_files(copied.folder)[5:]}
    assert run(copied) == []
    assert rows(copied.folder).equals(expected)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert len(list((copied.folder / "damaged").iterdir())) == 5


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not here")
@pytest.mark.slow(70)  # early: it mostly waits, while the other checks run beside
def test_a_cluster_that_loses_a_node_gives_the_same_rows(file, tmp_path, expected):
    script = Path(__file__).with_name("ray_cluster.py")
    file.write_text(OUTPUTS_ONLY)
    with processes.Program(script, file, tmp_path / "results") as program:
        done = program.wait(900)  # Ray gives way to whatever else runs
    assert done.returncode == 0, done.stderr[-3000:]
    assert "killed" in done.stdout  # while it ran
    assert rows(tmp_path / "results").equals(expected.filter(pl.col("method") != "TENT"))


@pytest.mark.slow
def test_workers_that_keep_dying_end_the_run(workspace, monkeypatch):
    class DeadError(Exception):
        pass

    def run_nothing(tasks):
        raise DeadError

    monkeypatch.setattr(
        "lametta.bench.running.local_backend", lambda _: lambda: nullcontext(DeadError)
    )
    monkeypatch.setattr("lametta.bench.running.Parallel", lambda: run_nothing)
    with pytest.raises(
        lametta.LamettaError, match="cells unfinished after . rounds: workers keep dying"
    ):
        run(workspace)
