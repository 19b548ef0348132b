import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lametta.preprocess import Preprocess
from lametta.torch import TENT, Classifier, HalfBN
from lametta.torch.cifar import resnet26_gn
from lametta.torch.zoo import load
from tests.conftest import shared


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


@pytest.mark.slow
def test_a_real_checkpoint_loads_and_predicts(user_module):
    weights = shared("data", "cifar10", "resnet20-12fca82f.th")
    archive = shared("data", "cifar10", "test-3000.zip")
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    from zipfile import ZipFile

    user_module.resnet20 = lambda: (Resnet20(), Preprocess(resize=None, crop=None))
    loaded = load("torch:user_nets:resnet20", weights=weights)
    with ZipFile(archive) as stored:
        files = sorted(name for name in stored.namelist() if name.endswith((".jpg", ".png")))[::20]
        batch = []
        for file in files:
            with stored.open(file) as opened:
                batch.append(loaded.preprocess(image.open(opened)))
    folders = [file.split("/")[-2] for file in files]
    labels = torch.tensor([sorted(set(folders)).index(folder) for folder in folders])
    with Classifier(loaded.net) as model:
        outputs = [model(part) for part in torch.stack(batch).split(30)]
    assert {output.features.shape for output in outputs} == {(30, 64)}
    # About 81 % on all of them.
    found = torch.cat([output.logits.argmax(1) for output in outputs])
    assert (found == labels).float().mean() > 0.74
    ours = load("torch:lametta.torch.cifar:resnet20", weights=weights)
    assert ours.preprocess == loaded.preprocess
    with Classifier(ours.net) as model:
        torch.testing.assert_close(model(torch.stack(batch[:30])).logits, outputs[0].logits)


def test_the_network_of_memo_gives_its_authors_numbers():
    weights = shared("data", "cifar10", "resnet26_gn.npz")
    with np.load(shared("golden", "field", "memo_rn26_gn_reference.npz")) as stored:
        given = dict(stored)
    loaded = load("torch:lametta.torch.cifar:resnet26_gn", weights=weights)
    assert sum(p.numel() for p in loaded.net.parameters()) == 366938
    x = loaded.preprocess.standardize(torch.tensor(given["images"]))
    for dtype, name, tolerance in (
        (torch.float32, "logits", 1e-4),
        (torch.float64, "logits_float64", 1e-6),
    ):
        with Classifier(loaded.net.to(dtype)) as model:
            # Inputs in float64 from the start, or pixels would be rounded.
            pixels = torch.tensor(given["images"], dtype=dtype).movedim(-1, 1) / 255
            found = model(x if dtype == torch.float32 else (pixels - 0.5) / 0.5)
        assert np.abs(found.logits.numpy() - given[name]).max() < tolerance
        assert np.abs(found.features.numpy() - given["features"]).max() < 1e-4
    assert (found.logits.argmax(1).numpy() == given["test_predictions"][:32]).all()


def test_tent_on_the_group_norm_network_is_a_plain_loop():
    """The settings of the experiment ``correlated``: scales and shifts of all 25 norms, Adam."""
    torch.manual_seed(0)
    net, _ = resnet26_gn()
    net = net.double().eval()
    by_hand, _ = resnet26_gn()
    by_hand.load_state_dict(net.state_dict())
    by_hand = by_hand.double().requires_grad_(False)
    norms = [module for module in by_hand.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 25
    learned = [p.requires_grad_() for norm in norms for p in (norm.weight, norm.bias)]
    adam = torch.optim.Adam(learned, lr=0.001, betas=(0.9, 0.999), weight_decay=0)
    tent = TENT(Classifier(net), lr=0.001, bn_momentum=0, predict_first=True)
    for batch in torch.rand(4, 8, 3, 32, 32, dtype=torch.float64) * 2 - 1:
        log_probs = by_hand(batch).log_softmax(1)
        assert torch.allclose(tent.step(batch).probs, log_probs.exp(), rtol=0, atol=1e-12)
        loss = -(log_probs.exp() * log_probs).sum(1).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()


@pytest.mark.parametrize(("network", "moving"), [("vgg", 4), ("mobilenet", 7)])
def test_networks_of_other_families_are_trained_and_found(network, moving, tmp_path, monkeypatch):
    rows = np.random.default_rng(0).integers(0, 256, (26, 3073), np.uint8)
    rows[:, 0] %= 10
    for i in range(1, 6):
        rows.tofile(tmp_path / f"data_batch_{i}.bin")
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    weights = tmp_path / "weights.pt"
    options = ["--data", tmp_path, "--weights", weights, "--images", "128", "--epochs", "1"]
    monkeypatch.setattr("sys.argv", ["families.py", network, *map(str, options)])
    importlib.import_module("families").main()
    method = HalfBN(Classifier(load(f"torch:families:{network}", weights=weights).net))
    assert method.step(torch.rand(4, 3, 32, 32)).probs.shape == (4, 10)
    assert len(method.halfway.norms) == moving
