"""What the other tests of this folder found, each as short as it gets."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from lametta import LAME, ClassMap, LamettaError, knn, lame, lame_streams, methods
from lametta.bench.analysis.results import read_results
from lametta.bench.experiment import load
from lametta.bench.figures.style import RC
from lametta.data.bank import Bank
from lametta.stream import Scenario
from lametta.torch import Classifier, wrap
from tests.bench.tiny import TINY
from tests.fuzz.outcomes import command
from tests.fuzz.test_results import FAILURE, make_results

FEATURES, PROBS = np.ones((4, 3)), np.full((4, 3), 1 / 3)
SPARSE = torch.ones(4, 3).to_sparse()
LABELS = np.arange(9)


def net():
    net = torch.nn.Sequential()
    net.body, net.fc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 3)
    return net.eval()


def stream(order):
    return Scenario(order)(LABELS, LABELS // 3)


FOUND = {
    "a matrix of None": lambda: lame(None, PROBS),
    "a number for a matrix": lambda: lame(FEATURES, 1.0),
    "None for a corrector": lambda: LAME().correct(None, PROBS),
    "None for streams": lambda: lame_streams(None, PROBS[None]),
    "a sparse tensor": lambda: lame(SPARSE, torch.ones(4, 3) / 3),
    "a negative probability with a gradient": lambda: lame(
        torch.ones(4, 3), (-torch.ones(4, 3)).requires_grad_()
    ),
    "lengths that are a number": lambda: lame_streams(FEATURES[None], PROBS[None], 0.25),
    "lengths that are nested": lambda: lame_streams(FEATURES[None], PROBS[None], [[0]]),
    "lengths that are text": lambda: lame_streams(FEATURES[None], PROBS[None], "B"),
    "lengths with a fraction": lambda: lame_streams(FEATURES[None], PROBS[None], [1.5]),
    "neighbors in a sparse tensor": lambda: knn()(SPARSE),
    "neighbors at infinity": lambda: knn()(np.full((4, 3), np.inf)),
    "targets and groups in one map": lambda: ClassMap({0: [1], 1: 3}),
    "a map of a sparse tensor": lambda: ClassMap(torch.ones(3).to_sparse()),
    "a method that is an array": lambda: methods.find(np.ones((2, 2))),
    "a sequence that is an array": lambda: Scenario({"kind": "by_class", "sequence": LABELS}),
    "10^30 rounds": lambda: stream({"kind": "recurring", "rounds": 10**30}),
    "10^30 slots": lambda: stream({"kind": "dirichlet", "slots": 10**30}),
    "an order that is a type": lambda: stream({"kind": "interleaved", "inside": int}),
    "shares without an axis": lambda: Scenario(prior={"kind": "ratios", "shares": np.array(3)}),
    "labels with a gradient": lambda: Scenario()(torch.ones(3, requires_grad=True)),
    "ragged labels": lambda: Scenario()([[0], [1, 2]]),
    "ragged groups": lambda: Scenario()([0, 1], [[0], [1, 2]]),
    "keys that are a number": lambda: Scenario()([0, 1], keys=3),
    "a bank of a number": lambda: Bank(0, PROBS),
    "a bank of None": lambda: Bank(None, PROBS),
    "a bank of lists": lambda: Bank(FEATURES.tolist(), PROBS),
    "a bank of a dict": lambda: Bank(FEATURES, {}),
    "labels of a bank in a list": lambda: Bank(FEATURES, PROBS, [0, 1, 0, 1]),
    "keys of a bank that are a number": lambda: Bank(FEATURES, PROBS, keys=3),
    "classes that are text": lambda: Classifier(net(), classes="a"),
    "classes that are a list": lambda: wrap(net(), classes=[0, 0, 1]),
}
CLOSED = {
    "a mask": lambda: lame(np.ma.masked_array(FEATURES), PROBS),
    "lists": lambda: lame(FEATURES.tolist(), PROBS),
    "a weight without end": lambda: lame(FEATURES, PROBS, weight=1e300),
}


@pytest.mark.parametrize("call", CLOSED.values(), ids=CLOSED.keys())
def test_arguments(call):
    with pytest.raises(LamettaError):
        call()


@pytest.mark.parametrize("call", FOUND.values(), ids=FOUND.keys())
def test_what_was_found(call):
    with pytest.raises(LamettaError):
        call()


def test_neighbors_of_nobody():
    assert knn()(np.ones((0, 3))).shape == (0, 0)


GRID = "grid = { affinity"


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(f"x = {'[' * 5000}{']' * 5000}\n{TINY}", id="deep"),
        pytest.param(
            TINY.replace(GRID, "grid = { tol = [01:02:03], affinity"), id="dates in a grid"
        ),
        pytest.param(TINY.replace(GRID, "grid = { tol = [2020-01-02], affinity"), id="days"),
        pytest.param(
            TINY.replace(
                GRID,
                "grid = { "
                + ", ".join(f"{x} = {[*range(1, 1001)]}" for x in ("weight", "max_iter", "tol"))
                + ", affinity",
            ),
            id="6 * 10^9 configurations",
        ),
    ],
)
def test_experiments(tmp_path, text):
    (tmp_path / "a.toml").write_text(text)
    assert command("run", tmp_path / "a.toml", "--dry-run").exit_code == 2
    with pytest.raises(LamettaError):
        load(tmp_path / "a.toml")


def one_cell(folder, **columns):
    """Results in which the first cell has these values."""
    make_results(folder)
    path = sorted((folder / "cells").iterdir())[0]
    series = [pl.Series(name, [value]) for name, value in columns.items()]
    pl.read_parquet(path).with_columns(series).write_parquet(path)
    return folder


@pytest.mark.parametrize(
    "columns",
    [{"dataset": ["x"]}, {"batch_size": 64.0}, {"accuracy": "x"}, {"step_n": 3.0}],
    ids=["a list for a name", "a fraction for a count", "text for a number", "no list"],
)
def test_columns_of_another_type(tmp_path, columns):
    make_results(tmp_path / "a")
    bad = one_cell(tmp_path / "b", **columns)
    assert command("compare", tmp_path / "a", bad, memory=None).exit_code == 2
    assert command("report", bad, memory=None).exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "columns",
    [{"step_n": [1, 2, 3]}, {"method": "x", "accuracy": 0.9}],
    ids=["courses of two lengths", "a method that the experiment lacks"],
)
def test_rows_that_contradict_themselves(tmp_path, columns):
    folder = one_cell(tmp_path / "a", **columns)
    assert command("report", folder, codes=(0, 1, 2), memory=None).exit_code in (1, 2)


def test_a_folder_for_a_note(tmp_path):
    make_results(tmp_path / "a")
    (tmp_path / "a" / "failed" / "b.json").mkdir()
    with pytest.raises(LamettaError):
        read_results(tmp_path / "a")


@pytest.mark.slow
@pytest.mark.parametrize("content", [{}, FAILURE | {"traceback": 5}, FAILURE | {"traceback": ""}])
def test_notes_of_failures(tmp_path, content, monkeypatch):
    monkeypatch.setitem(RC, "pdf.fonttype", 3)  # in which a font is quickly embedded
    make_results(tmp_path / "a")
    (tmp_path / "a" / "failed" / "a.json").write_text(json.dumps(content))
    command("report", tmp_path / "a", codes=(1, 2), memory=None)
