import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from lametta import LamettaError
from lametta.torch.preprocess import Preprocess
from lametta.torch.zoo import load
from tests.torch.nets import Tiny, logits, stir


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
