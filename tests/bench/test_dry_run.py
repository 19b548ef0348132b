"""What an experiment would run, and what of it can be read from the disk."""

import io
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from lametta import LamettaError
from lametta.bench.dry_run import dry_run
from lametta.bench.experiment import bundled, load
from lametta.bench.running.workspace import Workspace
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.classes.wordnet import c16
from lametta.data.corruption import TEST, VALIDATION
from lametta.torch.resnet import ResNet
from tests.bench.tiny import SELECTED, selected, tiny, write
from tests.data.readers.plants import plant_tao, plant_v2, plant_val, plant_vid


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


@pytest.fixture(scope="module")
def paper():
    """The paper's experiment with few cells, which still need all of its data and networks."""
    whole = load(bundled("paper"))
    study = whole.studies["main"]
    every = {"models": tuple(whole.models), "scenarios": tuple(whole.scenarios), "seeds": (0,)}
    few = study.model_copy(update=every | {"methods": ("Source",)})
    nothing = whole.validation.model_copy(update={"scenarios": ()})
    return whole.model_copy(update={"validation": nothing, "studies": {"main": few}})


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
    return {need.name: need for need in dry_run(experiment, root).needs if need.kind == kind}


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
    assert "weights must be a .safetensors file, or one that" in needs["rn101_torchvision"].where
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
    assert [need.found for need in plan.needs] == [None, None, True]
    assert plan.missing == ()
    assert "someone" not in sys.modules


@pytest.mark.slow
def test_dry_run_names_packages(monkeypatch):
    installed = {"torch"}
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: name if name in installed else None
    )
    packages = {
        name: {need.name: need.where for need in dry_run(load(bundled(name)), "/no/data").needs
               if need.kind == "package"}
        for name in ("paper", "demo", "cifar10")
    }  # fmt: skip
    corruptions = "pip install '.[corruptions]' in a clone of lametta"
    assert packages == {
        "paper": {"timm": "pip install '.[timm]' in a clone of lametta", "torch": "installed"},
        "demo": {"scikit-learn": "pip install scikit-learn", "torch": "installed"},
        "cifar10": {"imagecorruptions-imaug": corruptions, "torch": "installed"},
    }
