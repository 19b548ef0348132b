"""Cells whose steps are queued: what a GPU does ahead of the host."""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch

from lametta.bench.columns import names
from lametta.bench.running import cell as cells
from lametta.bench.running.workspace import Workspace
from lametta.torch import adapt
from tests.bench.tiny import selected


def prepared(experiment, folder, device):
    """A workspace, and a cell of it that adapts the network on several batches."""
    workspace = Workspace(experiment, folder, device=device)
    workspace.prepare("net", "digits", images=True)
    every = experiment.test_cells(selected(experiment))
    return workspace, next(c for c in every if c.method == "TENT" and c.scenario == "sorted")


def check_same(one, other, rel=0.0):
    """Two rows, of which costs may differ, and numbers by rounding if so told."""
    costs = names("stage", "time", "memory")
    assert all(one[name] > 0 for name in costs)
    for name in one.keys() - costs:
        rounded = np.asarray(other[name]).dtype.kind == "f"
        expected = pytest.approx(other[name], rel, abs=0.0) if rounded else other[name]
        assert one[name] == expected, name


@pytest.mark.slow
def test_queued_steps_have_the_rows_of_those_that_are_waited_for(experiment, tmp_path, monkeypatch):
    workspace, cell = prepared(experiment, tmp_path, "cpu")
    waited, _ = cells.run_cell(workspace, cell)
    set_up, arriving, looks = cells.set_up, cells._arriving, []

    @contextmanager
    def ahead(*which):
        with set_up(*which) as setup:
            yield replace(setup, prefetch_device="cpu")

    monkeypatch.setattr(cells, "set_up", ahead)
    monkeypatch.setattr(
        cells, "_arriving", lambda setup: arriving(replace(setup, prefetch_device=None))
    )
    monkeypatch.setattr(adapt, "check_finite", looks.append)
    queued, _ = cells.run_cell(workspace, cell)
    check_same(queued, waited)
    assert len(queued["step_hits"]) > 2
    assert looks == []  # a second time, where the host would wait for the steps before
    assert not adapt.skip_finite_check.get()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_as_well(experiment, tmp_path):
    workspace, cell = prepared(experiment, tmp_path, "cuda")
    queued, _ = cells.run_cell(workspace, cell)
    waited, _ = cells.run_cell(workspace, replace(cell, live=True))
    check_same(queued, waited, rel=1e-4)  # gradients are summed in any order


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_inputs_that_are_made_ahead_are_those_of_the_stream(experiment, tmp_path):
    with cells.set_up(*prepared(experiment, tmp_path, "cuda")) as setup:
        assert setup.prefetch_device == "cuda"
        plain = replace(setup, prefetch_device=None)
        both = [[(i.tolist(), x.cpu()) for i, x in cells._arriving(s)] for s in (setup, plain)]
        assert [index for index, _ in both[0]] == [index for index, _ in both[1]]
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(*both, strict=True))
        broken = replace(setup, batches=lambda: iter([torch.full((2, 3), torch.nan).cuda()]))
        with pytest.raises(ValueError, match="x must be finite"):
            next(cells._arriving(broken))
