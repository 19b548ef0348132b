"""What cells share: data that were changed, and data that nothing can be measured on."""

import numpy as np
import pytest
import torch
from PIL import Image

from lametta import LamettaError
from lametta.bench.experiment import load
from lametta.bench.results import read_cells
from lametta.bench.run import run
from lametta.bench.workspace import Workspace
from lametta.data.dataset import Dataset

PAINTED = """
name = "painted"
[models.net]
zoo = "torch:tests.bench.test_workspace:red_or_blue"
[datasets.photos]
reader = "folder:photos"
[scenarios.all]
dataset = "photos"
[scenarios.timed]
dataset = "photos"
[methods.Source]
kind = "source"
[studies.replayed]
models = ["net"]
scenarios = ["all"]
seeds = [0]
[studies.live]
models = ["net"]
scenarios = ["timed"]
seeds = [0]
timed = true
"""


def red_or_blue():
    """A network that says 0 of a red image and 1 of a blue one."""
    head = torch.nn.Linear(3, 2)
    head.load_state_dict({"weight": torch.tensor([[1.0, 0, 0], [0, 0, 1]]), "bias": torch.zeros(2)})
    return torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), head)


def unlabeled():
    """Samples of which no one knows the classes."""
    return Dataset("loose", np.zeros((2, 1, 8, 8), "float32"), np.array([-1, -1]), (), ("a", "b"))


def paint(path, color):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8), color).save(path)


@pytest.fixture
def workspace(tmp_path):
    for name, color in (("a/0", "red"), ("a/1", "red"), ("b/0", "blue"), ("b/1", "blue")):
        paint(tmp_path / "photos" / f"{name}.png", color)
    (tmp_path / "painted.toml").write_text(PAINTED)
    return Workspace(load(tmp_path / "painted.toml"), tmp_path / "results", tmp_path)


def accuracies(workspace):
    """What a run from scratch finds, by the bank and by the network, and of how many images."""
    for file in workspace.folder.glob("cells/*"):
        file.unlink()
    assert run(workspace) == []
    return read_cells(workspace.folder).select("accuracy", "n").rows()


def test_a_second_run_sees_what_was_changed_after_the_first(workspace, tmp_path):
    """Also in one process, which keeps banks and images open for the cells of a run."""
    assert accuracies(workspace) == [(1.0, 4)] * 2
    paint(tmp_path / "photos" / "a" / "0.png", "blue")
    assert accuracies(workspace) == [(0.75, 4)] * 2
    paint(tmp_path / "photos" / "b" / "2.png", "blue")
    assert accuracies(workspace) == [(0.8, 5)] * 2


def test_data_without_labels_are_refused(workspace, tmp_path):
    text = PAINTED.replace("folder:photos", "python:tests.bench.test_workspace:unlabeled")
    (tmp_path / "painted.toml").write_text(text)
    loose = Workspace(load(tmp_path / "painted.toml"), tmp_path / "loose", tmp_path)
    message = "datasets.photos must have labels, got none from python:tests.bench"
    with pytest.raises(LamettaError, match=message):
        run(loose)
    assert not any(tmp_path.glob("loose/cells/*"))
