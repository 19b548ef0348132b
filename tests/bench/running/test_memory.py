"""Memory on a CPU: what a method needs above the network, whatever else a process holds."""

import sys

import numpy as np
import pytest
import torch

from lametta.bench.experiment import load
from lametta.bench.running.cell import _loaded, measure_peak
from lametta.bench.running.workspace import Workspace
from lametta.data.dataset import arrays
from lametta.preprocess import Preprocess
from lametta.torch.profiling import peak_memory_of

EXPERIMENT = """
name = "memory"
[models.net]
zoo = "torch:tests.bench.running.test_memory:wide"
[datasets.noise]
reader = "python:tests.bench.running.test_memory:noise"
[scenarios.timed]
dataset = "noise"
[methods.Source]
kind = "source"
[methods.LAME]
kind = "lame"
[methods.TENT]
kind = "tent"
[studies.cost]
figure = "runtime"
models = ["net"]
scenarios = ["timed"]
seeds = [0]
batch_sizes = [16]
"""
MAPS = 16 * 16 * 64 * 64 * 4  # bytes of the maps of a batch, which each layer makes: 4 MB
linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the memory in use")


def wide():
    layers = [torch.nn.Conv2d(3, 16, 3, padding=1)]
    for _ in range(3):
        layers += [torch.nn.BatchNorm2d(16), torch.nn.Conv2d(16, 16, 1)]
    pool = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(16, 2))
    return torch.nn.Sequential(*layers, *pool), Preprocess(resize=None, crop=None)


def noise():
    from PIL import Image

    pixels = np.random.default_rng(0).integers(256, size=(32, 64, 64, 3), dtype=np.uint8)
    return arrays([Image.fromarray(x) for x in pixels], np.arange(32) % 2)


def peaks():
    return peak_memory_of(lambda: None), peak_memory_of(lambda: np.ones(2**24))


@pytest.mark.slow
@linux
@pytest.mark.usefixtures("measuring")
def test_peak_above():
    # In a process that runs nothing else: threads of the tests give and take memory meanwhile.
    small, large = _loaded().submit(peaks).result()
    assert small < 2**22
    assert 0.95 * 2**27 < large < 1.05 * 2**27


def test_where_the_system_does_not_tell(monkeypatch, tmp_path):
    monkeypatch.setattr("lametta.torch.profiling._PROCESS", tmp_path / "nothing")
    done = []
    assert peak_memory_of(lambda: done.append(1)) is None
    assert done == [1]


@linux
@pytest.mark.slow(6)
@pytest.mark.usefixtures("measuring")
def test_methods_need_what_they_keep(tmp_path):
    (tmp_path / "memory.toml").write_text(EXPERIMENT)
    experiment = load(tmp_path / "memory.toml", check="none")
    workspace = Workspace(experiment, tmp_path / "results", tmp_path)
    ballast = np.ones(2**25)  # 256 MB of this process, which are not the method's
    peaks = {
        cell.method: measure_peak(workspace, cell) / MAPS for cell in experiment.test_cells({})
    }
    assert len(ballast) == 2**25
    # Without gradients a layer's maps go when the next has its own; for them, all 7 are kept.
    assert 2 <= peaks["Source"] < 5
    assert peaks["LAME"] == pytest.approx(peaks["Source"], abs=0.5)
    assert 6 <= peaks["TENT"] < 11
