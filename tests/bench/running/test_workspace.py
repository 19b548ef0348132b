"""What cells share: data that were changed, and data that nothing can be measured on."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from lametta import LamettaError
from lametta.bench.analysis.results import read_cells
from lametta.bench.experiment import bundled, load
from lametta.bench.experiment.schema import DatasetSpec
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace, as_specified
from lametta.data.dataset import Dataset, arrays
from lametta.preprocess import Preprocess
from tests.bench.running.test_running import MEASURED

PAINTED = """
name = "painted"
[models.net]
zoo = "torch:tests.bench.running.test_workspace:red_or_blue"
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
def workspace(tmp_path, monkeypatch):
    # In no process of its own.
    monkeypatch.setattr("lametta.bench.running.measure_peak", lambda *_: 0)
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


@pytest.mark.slow
def test_a_second_run_sees_what_was_changed_after_the_first(workspace, tmp_path):
    """Also in one process, which keeps banks and images open for the cells of a run."""
    assert accuracies(workspace) == [(1.0, 4)] * 2
    paint(tmp_path / "photos" / "a" / "0.png", "blue")
    assert accuracies(workspace) == [(0.75, 4)] * 2
    paint(tmp_path / "photos" / "b" / "2.png", "blue")
    assert accuracies(workspace) == [(0.8, 5)] * 2


def test_data_without_labels_are_refused(workspace, tmp_path):
    text = PAINTED.replace("folder:photos", "python:tests.bench.running.test_workspace:unlabeled")
    (tmp_path / "painted.toml").write_text(text)
    loose = Workspace(load(tmp_path / "painted.toml"), tmp_path / "loose", tmp_path)
    message = "datasets.photos must have labels, got none from python:tests.bench"
    with pytest.raises(LamettaError, match=message):
        run(loose)
    assert not any(tmp_path.glob("loose/cells/*"))


# Three networks, two of which see the same pixels: 4 images of 224 x 224, 600 kB, and of 16 x 16.
SHARED = (
    PAINTED[: PAINTED.index("[studies.live]")].replace(":red_or_blue", ":plain")
    + """
[models.other]
zoo = "torch:tests.bench.running.test_workspace:blue_first"
[models.small]
zoo = "torch:tests.bench.running.test_workspace:small"
[methods.AdaBN]
kind = "adabn"
"""
).replace('["net"]', '["net", "other", "small"]')


def plain():
    return torch.nn.Sequential(torch.nn.BatchNorm2d(3), *red_or_blue())


def blue_first():
    net = plain()
    net[3].weight.data = net[3].weight.data.flip(1)
    return net, Preprocess(bgr=True, scale=255, mean=(1.0, 2.0, 3.0))


def small():
    return plain(), Preprocess(resize=16, crop=16)


def images_kept(tmp_path, gigabytes):
    """The sizes of the files of decoded images after a run, in kB, and its rows."""
    (tmp_path / "painted.toml").write_text(SHARED)
    folder = tmp_path / f"results-{gigabytes}"
    experiment = load(tmp_path / "painted.toml")
    assert run(Workspace(experiment, folder, tmp_path, image_cache=gigabytes)) == []
    sizes = sorted(file.stat().st_size // 1000 for file in folder.glob("images/*.safetensors"))
    return sizes, read_cells(folder).drop(MEASURED)


@pytest.mark.slow
def test_networks_share_images_within_a_bound(workspace, tmp_path):
    # Twice the room of what is written, or it is decoded again for each cell.
    sizes, rows = images_kept(tmp_path, 0.00122)
    assert len(rows) == 3 * 2
    assert rows.filter(method="Source")["accuracy"].to_list() == [1.0] * 3
    assert sizes == [3, 602]
    for gigabytes, kept in ((0.0012, [3]), (0.0, [])):
        sizes, others = images_kept(tmp_path, gigabytes)
        assert sizes == kept
        assert others.equals(rows)


@pytest.mark.slow
def test_images_that_are_not_kept_are_seen_as_they_are_now(workspace, tmp_path):
    text = PAINTED.replace("timed = true", "timed = true\nbatch_sizes = [2]")  # by a process ahead
    (tmp_path / "painted.toml").write_text(text)
    experiment = load(tmp_path / "painted.toml")
    workspace = replace(workspace, experiment=experiment, image_cache=0.0)
    assert accuracies(workspace) == [(1.0, 4)] * 2
    paint(tmp_path / "photos" / "a" / "0.png", "blue")
    assert accuracies(workspace) == [(0.75, 4)] * 2


def test_most_samples_are_the_same_wherever_they_lie():
    spec = DatasetSpec(reader="folder:photos", most=30)
    data = arrays(np.arange(90), np.arange(90) % 3)
    some = as_specified("photos", spec, data)
    assert len(some) == 30
    assert list(some.samples) == sorted(some.samples) != list(range(30))
    backward = as_specified("photos", spec, data.take(np.arange(90)[::-1]))
    assert set(backward.keys) == set(some.keys)
    assert as_specified("photos", DatasetSpec(reader="folder:photos", most=90), data) is data


def test_samples_in_a_list_are_stacked(workspace):
    """Where a network takes samples as they are, and they are no array."""
    one = np.arange(64, dtype="float32").reshape(1, 8, 8)
    listed = Dataset(
        "list", [one, 2 * one, 3 * one], np.array([0, 1, 0]), ("a", "b"), ("0", "1", "2")
    )
    digits = replace(workspace, experiment=load(bundled("demo")))
    (first, second) = digits.inputs("digits", listed, [[2, 0], [1]])
    assert torch.equal(first, torch.from_numpy(np.stack([3 * one, one])))
    assert torch.equal(second, torch.from_numpy(2 * one)[None])
    whole = replace(listed, samples=np.stack([one, 2 * one, 3 * one]))
    assert torch.equal(next(digits.inputs("digits", whole, [[2, 0]])), first)
