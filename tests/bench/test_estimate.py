"""What an experiment costs: counted beside what runs, written and timed."""

import sys
import types

import numpy as np
import pytest
import torch

from lametta import LamettaError
from lametta.bench.dry_run import dry_run
from lametta.bench.estimate import EXTRACTION, Estimate, estimate
from lametta.bench.experiment import bundled, load
from lametta.bench.experiment.schema import ModelSpec
from lametta.bench.probe import Speed, probe
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from lametta.preprocess import Preprocess
from lametta.torch import Classifier, losses
from tests.bench.running.test_running import TINY
from tests.bench.running.test_workspace import SHARED, paint
from tests.bench.tiny import selected

SPEED = Speed(2.0, 1.0, 3048, Preprocess(), 224 * 224)


@pytest.mark.slow
def test_images_are_as_many_as_go_through_the_network(tmp_path, monkeypatch):
    text = TINY.replace("lr = [0.001, 0.1]", "lr = [0.001, 0.1], steps = [1, 2]")
    text = text.replace("seeds = [0, 1]", "seeds = [0]")
    text += '[methods.AdaBN]\nkind = "adabn"\n'
    text += '[methods.First]\nkind = "tent+lame"\nparams = { predict_first = true }\n'
    text += '[scenarios.C]\ndataset = "super"\nlimit = 100\n'
    text += (
        '[studies.cost]\nfigure = "runtime"\nmodels = ["digits"]\nscenarios = ["C"]\nseeds=[0]\n'
    )
    (tmp_path / "tiny.toml").write_text(text)
    experiment = load(tmp_path / "tiny.toml")
    plan = dry_run(experiment)
    forward, backward = [], []
    true_forward, true_entropy = Classifier.forward, losses.entropy
    monkeypatch.setattr(
        Classifier, "forward", lambda self, x: (forward.append(len(x)), true_forward(self, x))[1]
    )
    monkeypatch.setattr(losses, "entropy", lambda p: (backward.append(len(p)), true_entropy(p))[1])
    monkeypatch.setattr("lametta.bench.running.measure_peak", lambda *_: None)
    workspace = Workspace(experiment, tmp_path / "results")
    assert run(workspace) == []
    (network,) = plan.cost.networks
    # The choice of the steps is the validation's: the estimate takes the first.
    chosen = sum(
        row["n"] * (row["steps"] - 1)
        for row in (
            {"n": 128 if c.scenario != "C" else 100, "steps": c.params.get("steps", 1)}
            for c in experiment.test_cells(_selected(workspace))
            if c.method == "TENT"
        )
    )
    assert sum(forward) == network.forward + chosen
    assert sum(backward) == network.backward + chosen
    assert sum(p.forward for p in plan.cost.passes) == network.forward
    by_method = {p.method: p for p in plan.cost.passes}
    assert by_method[EXTRACTION].forward == sum(
        len(workspace.dataset(name)) for name in ("val", "super")
    )
    assert by_method["First"].forward == by_method["First"].backward > 0
    assert by_method["AdaBN"].backward == 0
    assert by_method["LAME"].forward == 100  # the timed one


def _selected(workspace):
    from lametta.bench.analysis.selection import read_selection

    return read_selection(workspace.folder / "selected.toml")


@pytest.mark.parametrize("gigabytes", [100.0, 0.0012, 0.0])
def test_room_is_what_a_run_takes(tmp_path, gigabytes):
    for name, color in (("a/0", "red"), ("a/1", "red"), ("b/0", "blue"), ("b/1", "blue")):
        paint(tmp_path / "photos" / f"{name}.png", color)
    (tmp_path / "painted.toml").write_text(SHARED)
    experiment = load(tmp_path / "painted.toml")
    workspace = Workspace(experiment, tmp_path / "results", tmp_path, image_cache=gigabytes)
    assert run(workspace) == []
    made = {name: workspace.network(name)[1] for name in experiment.models}

    def speed(model, _):
        return Speed(1.0, 1.0, 3 + 2, made[model], made[model].crop ** 2)

    cells = experiment.test_cells(selected(experiment))
    cost = estimate(experiment, cells, {"photos": workspace.dataset("photos")}, speed, gigabytes)
    sizes = {
        kind: sum(f.stat().st_size for f in (tmp_path / "results" / kind).glob("*.safetensors"))
        for kind in ("banks", "images")
    }
    assert cost.banks == 3 * 4 * 5 * 4 < sizes["banks"]
    assert cost.images <= sizes["images"] <= cost.images + 2 * 1200  # headers
    assert cost.images + cost.beyond == 4 * 3 * (224**2 + 16**2)


def test_hours():
    paper = load(bundled("paper"), check="none")
    cells = paper.study_cells("runtime", {"LAME": paper.configurations("LAME")[0],
                                          "TENT": paper.configurations("TENT")[0]})  # fmt: skip

    def speed(model, batch_size):
        assert batch_size == 64
        if model == "rn18":
            raise LamettaError("it is lost")
        return SPEED

    cost = estimate(paper, cells, {}, speed, 100.0)
    # 50,000 for the bank, 10,000 of Source and of LAME, and TENT's two forward and one backward.
    assert [(n.model, n.forward, n.backward) for n in cost.networks] == [
        (name, 90_000, 10_000) for name in ("rn18", "rn50_torchvision", "rn101_torchvision")
    ]
    assert [n.hours for n in cost.networks] == [None, 190_000 / 3600, 190_000 / 3600]
    assert cost.uncounted == ("rn18: it is lost",)
    assert cost.hours("cuda") == pytest.approx(2 * 190_000 / 3600)
    assert cost.hours("cpu", 2) <= cost.hours("cuda")
    assert cost.banks == 2 * 50_000 * 3048 * 4
    assert cost.images == 50_000 * 3 * 224 * 224  # one file for both


def test_decoding_may_be_what_a_gpu_waits_for(monkeypatch):
    monkeypatch.setattr("os.cpu_count", lambda: 4)
    cost = Estimate((), (), 0, 0, 0, decoding=8.0, uncounted=())
    assert (cost.hours("cuda"), cost.hours("cpu", 2), cost.hours("cpu", 64)) == (2.0, 4.0, 2.0)


@pytest.mark.slow
def test_a_probe_times_and_leaves_no_trace():
    threads = torch.get_num_threads()
    data = types.SimpleNamespace(samples=np.zeros((4, 1, 8, 8), "float32"))
    speed = probe(ModelSpec(zoo="embedded:digits"), "cpu", 16, data)
    assert 0 < speed.forward < 1
    assert 0 <= speed.backward < 1
    assert speed.preprocess is None
    assert speed.pixels == 64
    with Classifier(Workspace(load(bundled("demo")), None).network("digits")[0]) as net:
        output = net(torch.zeros(2, 1, 8, 8))
    assert speed.outputs == output.features.shape[1] + output.logits.shape[1]
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize(
    ("zoo", "message"),
    [
        ("torch:someone.nets:large", "its code is not run"),
        ("hf:google/vit", "its files are not asked for"),
        ("embedded:digits", "data which are missing"),
    ],
)
def test_what_cannot_be_timed(zoo, message):
    with pytest.raises(LamettaError, match=message):
        probe(ModelSpec(zoo=zoo), "cpu", 16)


@pytest.mark.slow
def test_networks_of_timm_are_timed_without_their_weights(monkeypatch):
    asked = []

    def create_model(*names, **options):
        asked.append((names, options))
        layers = (torch.nn.Conv2d(3, 4, 32, 32), torch.nn.BatchNorm2d(4))
        pool = (torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(4, 7))
        return torch.nn.Sequential(*layers, *pool)

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(create_model=create_model))
    speed = probe(ModelSpec(zoo="paper:efficientnet_b4"), "cpu", 2)
    assert (speed.outputs, speed.pixels) == (4 + 7, 380 * 380)
    assert asked == [(("tf_efficientnet_b4.aa_in1k",), {})]
    assert probe(ModelSpec(zoo="paper:vit_b16"), "cpu", 2).pixels == 384 * 384
    with pytest.raises(LamettaError, match="is known once it is loaded"):
        probe(ModelSpec(zoo="timm:resnet50"), "cpu", 2)
