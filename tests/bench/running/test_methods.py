"""Every method of the registry in an experiment: grids, dry run, results and report."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from lametta import LamettaError, methods
from lametta.bench.analysis.results import read_results
from lametta.bench.experiment import load
from lametta.bench.planning import dry_run
from lametta.bench.report import make_report
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from lametta.preprocess import Preprocess
from tests.bench.tiny import write
from tests.torch.nets import Tiny

HYBRIDS = ("cotta+lame", "eata+t3a", "deyo+prudent", "roid+neo", "tent+aetta", "source+aetta")
KINDS = [*(name for name in methods.names() if methods.is_builtin(name)), *HYBRIDS]
# What makes a method quick, and the options of a grid: those that it has.
QUICK = {"views": 2, "unsure_below": 1.0, "copies": 2, "min_drop": -1.0}
GRIDS = {
    "lr": [0.001, 0.01], "momentum": [0.1, 0.5], "rate": [0.1, 0.5], "keep": [1, 20],
    "capacity": [4, 8], "alpha": [0.5, 1.0], "neighbors": [1, 3], "k": [1, 3],
}  # fmt: skip


def color_net():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Tiny(3).eval(), Preprocess(resize=None, crop=None)


def curved_net():
    net, preprocess = color_net()
    net.fc = nn.Sequential(net.fc, nn.Tanh())
    return net, preprocess


def table(kind):
    """A method of an experiment, with a grid of the first option that is in the table."""
    known = methods.find(kind).parameters()
    grid = next(({name: GRIDS[name]} for name in GRIDS if name in known), {})
    return {"kind": kind, "params": {x: y for x, y in QUICK.items() if x in known}, "grid": grid}


def experiment(tmp_path, kinds, model=f"torch:{__name__}:color_net", reader=None):
    phase = {"models": ["net"], "scenarios": ["sorted"], "seeds": [0]}
    content = {
        "name": "every",
        "models": {"net": {"zoo": model}},
        "datasets": {"images": {"reader": reader or f"folder:{tmp_path / 'images'}"}},
        "scenarios": {"sorted": {"dataset": "images", "order": "by_class"}},
        "methods": {kind: table(kind) for kind in ("source", *kinds)},
        "validation": phase | {"batch_size": 8},
        "studies": {"main": phase | {"batch_sizes": [8]}},
    }
    return load(write(tmp_path / "every.toml", content))


@pytest.fixture
def images(tmp_path):
    """Three classes of color images in a folder."""
    rng = np.random.default_rng(0)
    for label in "abc":
        (tmp_path / "images" / label).mkdir(parents=True)
        for i in range(6):
            pixels = rng.integers(256, size=(9, 9, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / label / f"{i}.png")
    return tmp_path


@pytest.mark.slow(9)
def test_every_method_runs_in_a_grid_and_the_report_says_what_it_needs(images):
    every = experiment(images, [kind for kind in KINDS if kind != "source"])
    plan = dry_run(every, images)
    assert plan.missing == ()
    assert plan.cost.uncounted == ("net: it was not timed",)
    counted = {passes.name: passes for passes in plan.cost.methods}
    text = (images / "every.toml").read_text()
    assert run(Workspace(every, images / "results", images), text=text) == []
    results = read_results(images / "results")
    for kind in KINDS:
        method = methods.find(kind)
        rows = results.frame.filter(method=kind)
        assert rows["config"].n_unique() == (2 if table(kind)["grid"] else 1)
        assert set(rows["needs"]) == {", ".join(method.needs)}
        assert set(rows["answers"]) == {method.answers()}
        assert (rows["forwards"].null_count() == 0) == method.needs_network
        assert (counted[kind].forward > 0) == method.needs_network
        assert (rows["estimated_accuracy"].null_count() == 0) == ("aetta" in kind)
    (section,) = (part for part in make_report(results).sections if part.name == "methods")
    shown = {row[0].text: [entry.text for entry in row[1:]] for row in section.tables[0].rows}
    assert set(shown) == set(KINDS)
    assert shown["tent"] == ["gradients", "2 + 1", "after its update", "yes"]
    assert shown["tent+aetta"][:2] == ["gradients", "13 + 1"]
    assert shown["t3a"] == ["prototypes", "0 + 0", "", "yes"]
    assert shown["cotta"][:2] == ["gradients, augmentations, teacher, batch", "4 + 1"]


def test_what_a_model_cannot_do_is_said_before_the_run(images):
    for kind, model, reader, message in (
        ("cotta+lame", "embedded:digits", "embedded:digits_val", "it augments images in color"),
        ("t3a", f"torch:{__name__}:curved_net", None, "needs prototypes, and the network's head"),
    ):
        every = experiment(images, [kind], model, reader)
        results = images / "results"
        with pytest.raises(LamettaError, match=rf"models.net does not fit methods.*: .*{message}"):
            run(Workspace(every, results, images))
        assert not list((results / "cells").iterdir())
        if reader is not None:
            assert [(x.kind, x.name) for x in dry_run(every, images).missing] == [("pixels", "net")]
