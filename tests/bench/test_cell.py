"""What a cell does on a GPU alone."""

from dataclasses import replace

import pytest
import torch

from lametta.bench.cell import _arriving, set_up
from lametta.bench.workspace import Workspace
from tests.bench.tiny import selected

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def test_inputs_that_are_made_ahead_are_those_of_the_stream(experiment, tmp_path):
    workspace = Workspace(experiment, tmp_path, device="cuda")
    workspace.prepare("net", "digits", images=True)
    cells = experiment.test_cells(selected(experiment))
    cell = next(cell for cell in cells if cell.method == "TENT" and cell.scenario == "sorted")
    with set_up(workspace, cell) as setup:
        assert setup.ahead == "cuda"
        ahead = [(index.tolist(), x.cpu()) for index, x in _arriving(setup)]
        plain = [(index.tolist(), x.cpu()) for index, x in _arriving(replace(setup, ahead=None))]
    assert [index for index, _ in ahead] == [index for index, _ in plain]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(ahead, plain, strict=True))
