"""Dry runs: what would run, what of it can be read from the disk, what it costs."""

import io
import os
import shutil
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lametta import LamettaError, methods
from lametta.bench.experiment import bundled, load
from lametta.bench.experiment.schema import ModelSpec
from lametta.bench.planning import (
    EXTRACTION,
    Estimate,
    Speed,
    _small_network,
    count_passes,
    dry_run,
    estimate,
    probe,
)
from lametta.bench.running import run
from lametta.bench.running.workspace import Workspace
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.classes.wordnet import c16
from lametta.data.corruption import TEST, VALIDATION
from lametta.preprocess import Preprocess
from lametta.torch import Classifier, losses
from lametta.torch.resnet import ResNet
from tests.bench.running.test_running import TINY
from tests.bench.running.test_workspace import SHARED, paint
from tests.bench.tiny import SELECTED, selected, tiny, write
from tests.data.readers.plants import plant_tao, plant_v2, plant_val, plant_vid

SPEED = Speed(2.0, 1.0, 3048, Preprocess(), 224 * 224)


def test_dry_run_counts(experiment):
    plan = dry_run(experiment, "/no/data")
    validation = {c.method: c.cells for c in plan.counts if c.phase == "validation"}
    assert validation == {"Source": 4, "LAME": 24, "TENT": 8, "Fixed": 4}
    for study in experiment.studies:
        total = sum(count.cells for count in plan.counts if count.phase == study)
        assert total == len(experiment.study_cells(study, SELECTED))
    assert plan.n_cells == len(
        {*experiment.validation_cells(), *experiment.test_cells(selected(experiment))}
    )
    assert not plan.missing


def with_few_cells(name):
    """A bundled experiment with few cells, which still need all of its data and networks."""
    whole = load(bundled(name))
    study = whole.studies["main"]
    every = {"models": tuple(whole.models), "scenarios": tuple(whole.scenarios), "seeds": (0,)}
    few = study.model_copy(update=every | {"methods": ("Source",)})
    nothing = whole.validation.model_copy(update={"scenarios": ()})
    return whole.model_copy(update={"validation": nothing, "studies": {"main": few}})


@pytest.fixture(scope="module")
def paper():
    return with_few_cells("paper")


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A small tree with all data sets of the paper, in the layouts that they are published in."""
    root = tmp_path_factory.mktemp("published")
    for make in (plant_val, plant_v2, plant_vid, plant_tao):
        make(root)
    image = io.BytesIO()
    Image.new("RGB", (8, 6), "red").save(image, format="PNG")
    used = [IMAGENET[i] for group in c16().groups for i in group]
    for split, corruptions, synsets in (("val", VALIDATION, used), ("test", TEST, used[:1])):
        for corruption in corruptions:
            for severity in range(1, 6):
                for synset in synsets:
                    folder = root / "imagenet_c" / split / corruption / str(severity) / synset
                    folder.mkdir(parents=True)
                    (folder / "a.JPEG").write_bytes(image.getvalue())
    return root


@pytest.fixture
def tree(published, tmp_path):
    """The same tree, to be broken: its files are links, which may be deleted and not written to.

    So are the folders of corruptions but for two, which are most of it.
    """
    root = tmp_path / "data"
    linked = {path for path in published.glob("imagenet_c/*/*") if path.name not in ("fog", "snow")}
    shutil.copytree(
        published,
        root,
        copy_function=os.link,
        ignore=lambda folder, names: [name for name in names if Path(folder, name) in linked],
    )
    for path in linked:
        (root / path.relative_to(published)).symlink_to(path)
    return root


def rewrite(file, content):
    file.unlink()
    file.write_bytes(content)


def found(experiment, root, kind="data set"):
    return {need.name: need for need in dry_run(experiment, root).requirements if need.kind == kind}


def refusals(experiment, root):
    """What reading itself says against each data set: the truth that a dry run has to tell."""
    workspace = Workspace(experiment, root / "results", root)
    said = {}
    for name in experiment.datasets:
        try:
            data = workspace.dataset(name)
            for i in range(len(data)):
                data.samples[i]
        except LamettaError as error:
            said[name] = str(error)
    return said


@pytest.mark.slow
def test_a_whole_tree_is_there(paper, published):
    needs = found(paper, published)
    assert needs.keys() == paper.datasets.keys()
    assert all(need.found for need in needs.values())
    assert needs["imagenet_val"].where == (
        f"{published}/ilsvrc12/val: imagenet_val has 3 images where 50,000 were published"
    )
    assert "14,400 were published" in needs["imagenet_c16"].where
    assert refusals(paper, published) == {}


C = "imagenet_c/val/fog/3"
VID = "ILSVRC2015/Annotations/VID/val/v2/000000.xml"
BROKEN = {  # data sets, and ways to break them
    ("imagenet_val",): {
        "no val": lambda root: shutil.rmtree(root / "ilsvrc12"),
        "a flat val without labels": lambda root: (
            shutil.rmtree(root / "ilsvrc12/val/n01443537"),
            (root / "ilsvrc12/val/n01440764/b.JPEG").rename(
                root / "ilsvrc12/val/ILSVRC2012_val_00000001.JPEG"
            ),
            (root / "ilsvrc12/val/n01440764").rmdir(),
        ),
        "a val of no synsets": lambda root: (root / "ilsvrc12/val/n01443537").rename(
            root / "ilsvrc12/val/goldfish"
        ),
        "a class of val without images": lambda root: (
            root / "ilsvrc12/val/n01440764/b.JPEG"
        ).unlink(),
        "a truncated image": lambda root: rewrite(
            root / "ilsvrc12/val/n01440764/b.JPEG", b"\x89PNG"
        ),
    },
    ("imagenet_c_val", "imagenet_c16"): {
        "no severity": lambda root: shutil.rmtree(root / C),
        "no synset of C16": lambda root: shutil.rmtree(root / C / IMAGENET[404]),
        "an image at four severities": lambda root: os.link(
            root / C / IMAGENET[404] / "a.JPEG", root / C / IMAGENET[404] / "b.JPEG"
        ),
        "severities without synsets": lambda root: (root / C / IMAGENET[404] / "a.JPEG").rename(
            root / C / "a.JPEG"
        ),
    },
    ("imagenet_c_test",): {
        "no corruption": lambda root: shutil.rmtree(root / "imagenet_c/test/snow"),
    },
    ("imagenet_v2",): {
        "another subset of V2": lambda root: (
            root / "imagenet_v2/imagenetv2-matched-frequency-format-val"
        ).rename(root / "imagenet_v2/imagenetv2-top-images-format-val"),
        "a class of V2 too many": lambda root: (
            root / "imagenet_v2/imagenetv2-matched-frequency-format-val/999"
        ).rename(root / "imagenet_v2/imagenetv2-matched-frequency-format-val/1000"),
    },
    ("imagenet_vid",): {
        "a frame without annotation": lambda root: (root / VID).unlink(),
        "an annotation that is no XML": lambda root: rewrite(root / VID, b"<annotation>"),
        "annotations without frames": lambda root: shutil.rmtree(
            root / "ILSVRC2015/Data/VID/val/v2"
        ),
    },
    ("tao_lasot",): {
        "one of TAO's files": lambda root: (root / "TAO/annotations/validation.json").unlink(),
        "annotations of TAO that are none": lambda root: rewrite(
            root / "TAO/annotations/train.json", b"{}"
        ),
        "no frame of TAO": lambda root: (root / "TAO/frames/val/LaSOT/bird-2/frame1.jpg").unlink(),
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(max(map(len, BROKEN.values()))))
def test_never_yes_to_what_reading_refuses(paper, tree, turn):
    """Each data set is broken in another way each time."""
    broken = set()
    for names, ways in BROKEN.items():
        if turn < len(ways):
            list(ways.values())[turn](tree)
            broken |= {*names}
    refused = refusals(paper, tree)
    assert refused.keys() == broken
    assert refused == {
        name: need.where for name, need in found(paper, tree).items() if not need.found
    }


@pytest.mark.slow
def test_weights_are_read(paper, tmp_path, monkeypatch):
    monkeypatch.delenv("LAMETTA_DATA", raising=False)
    (tmp_path / "weights").mkdir()
    with torch.device("meta"):
        shapes = ResNet(18).state_dict()
    state = {name: torch.zeros((), dtype=x.dtype).expand(x.shape) for name, x in shapes.items()}
    torch.save(state, tmp_path / "weights" / "resnet18-f37072fd.pth")
    torch.save(state, tmp_path / "weights" / "resnet50-0676ba61.pth")
    (tmp_path / "weights" / "resnet101-63fe2227.pth").touch()
    needs = found(paper, tmp_path, "weights")
    assert {name for name, need in needs.items() if need.found} == {"rn18"}
    assert "missing (layer1.0.conv3.weight" in needs["rn50_torchvision"].where
    assert "resnet101-63fe2227.pth' as weights: " in needs["rn101_torchvision"].where
    assert needs["rn50_simclr"].where == str(tmp_path / "weights" / "resnet50_simclr.safetensors")
    assert not any(need.found for need in found(paper, None, "weights").values())
    assert "LAMETTA_DATA" in found(paper, None)["imagenet_val"].where
    monkeypatch.setenv("LAMETTA_DATA", str(tmp_path))
    assert found(paper, None, "weights") == needs


def test_what_others_have_is_not_known(tmp_path):
    changes = {
        "models__net__zoo": "torch:someone.nets:large",
        "models__net__weights": "net.pth",
        "datasets__digits__reader": "python:someone.data:digits",
    }
    (tmp_path / "net.pth").touch()
    plan = dry_run(load(write(tmp_path / "tiny.toml", tiny(**changes))), tmp_path)
    assert [need.found for need in plan.requirements] == [None, None, True]
    assert plan.missing == ()
    assert "someone" not in sys.modules


@pytest.mark.slow
def test_dry_run_names_packages(monkeypatch):
    installed = {"torch"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: name if name in installed else None
    )
    packages = {
        name: {
            need.name: need.where
            for need in found(with_few_cells(name), "/no/data", "package").values()
        }
        for name in ("paper", "demo", "cifar10")
    }
    corruptions = "pip install '.[corruptions]' in a clone of lametta"
    assert packages == {
        "paper": {"timm": "pip install '.[timm]' in a clone of lametta", "torch": "installed"},
        "demo": {"scikit-learn": "pip install scikit-learn", "torch": "installed"},
        "cifar10": {"imagecorruptions-imaug": corruptions, "torch": "installed"},
    }


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
    assert sum(p.forward for p in plan.cost.methods) == network.forward
    by_method = {p.name: p for p in plan.cost.methods}
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
    assert cost.images + cost.over_budget == 4 * 3 * (224**2 + 16**2)


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
    assert [(n.name, n.forward, n.backward) for n in cost.networks] == [
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


def test_images_cannot_be_timed_where_a_network_takes_arrays():
    data = types.SimpleNamespace(samples=[Image.new("RGB", (8, 8))])
    with pytest.raises(LamettaError, match=r"^a network without preprocessing, .*, got Image$"):
        probe(ModelSpec(zoo="embedded:digits"), "cpu", 16, data)


def test_arrays_are_missing_where_a_network_without_preprocessing_gets_images(tmp_path):
    for name in ("a/0", "b/0"):
        paint(tmp_path / "photos" / f"{name}.png", "red")
    content = tiny(datasets__digits__reader="folder:photos")
    (lacking,) = dry_run(load(write(tmp_path / "tiny.toml", content)), tmp_path).missing
    assert (lacking.kind, lacking.name) == ("arrays", "net")
    assert lacking.where.startswith("in datasets.digits: a network without preprocessing")


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


@pytest.mark.parametrize("name", [name for name in methods.names() if methods.is_builtin(name)])
def test_passes_are_counted_of_every_method(name):
    forward, backward = count_passes(name, "{}")
    assert (forward > 0) == methods.find(name).needs_network
    assert 0 <= backward <= forward


def test_passes_are_the_same_in_every_dry_run():
    state, counted = torch.get_rng_state(), set()
    for _ in range(5):  # pseudo-labels are learned of samples that the network is sure of
        count_passes.cache_clear()
        _small_network.cache_clear()
        counted.add(count_passes("pseudo_label", '{"threshold": 0.9}'))
    assert len(counted) == 1
    assert torch.equal(torch.get_rng_state(), state)


def test_passes_are_those_of_the_configuration():
    assert count_passes("tent", '{"steps": 3}') == (4, 3)
    assert count_passes("tent+lame", '{"predict_first": true}') == (1, 1)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("python:someone.methods:Deep", "{}"),
        ("lame", '{"affinity": "python:someone.methods:weights"}'),
    ],
)
def test_passes_run_no_code_of_others(kind, config):
    with pytest.raises(LamettaError, match="its code is not run"):
        count_passes(kind, config)
    assert "someone" not in sys.modules


def test_names_that_packages_add_are_not_run_either(plug_in):
    plug_in("lametta.layers", acme="no_such_package:layers")
    with pytest.raises(LamettaError, match="its code is not run"):
        count_passes("tent", '{"layers": "acme"}')


def test_what_cannot_be_counted_is_named_once(experiment, monkeypatch):
    def fail(*_):
        raise LamettaError("it has no layers")

    monkeypatch.setattr("lametta.bench.planning.count_passes", fail)
    cost = dry_run(experiment).cost
    assert [line for line in cost.uncounted if line.endswith("it has no layers")] == [
        f"{name}: it has no layers" for name in experiment.methods
    ]
    assert [passes.name for passes in cost.methods] == [EXTRACTION]
