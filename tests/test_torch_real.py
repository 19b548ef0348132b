"""A real network on real images: ResNet-20 on CIFAR-10, one class after the other."""

import io
import zipfile

import numpy as np
import pytest
import torch
from torch import nn

import lametta
from lametta import LAME, Corrected, Source
from lametta.torch import Classifier, adabn, select, tent

from .conftest import shared


class Block(nn.Module):
    def __init__(self, width_in, width, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)
        self.stride, self.pad = stride, (width - width_in) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        if self.stride > 1:  # a shortcut without parameters: every other pixel, new channels zero
            x = nn.functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return (y + x).relu()


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        widths = [(16, 16, 1), (16, 32, 2), (32, 64, 2)]
        for i, (width_in, width, stride) in enumerate(widths, 1):
            rest = [Block(width, width, 1) for _ in range(2)]
            setattr(self, f"layer{i}", nn.Sequential(Block(width_in, width, stride), *rest))
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = self.bn1(self.conv1(x)).relu()
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))


def make_net():
    path = shared("data", "cifar10", "resnet20-12fca82f.th")
    state = torch.load(path, map_location="cpu", weights_only=True)["state_dict"]
    net = ResNet20()
    net.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
    return net.eval()


@pytest.fixture(scope="module")
def stream():
    """100 images of each class, class after class."""
    image = pytest.importorskip("PIL.Image", reason="reading images needs Pillow")
    with zipfile.ZipFile(shared("data", "cifar10", "test-3000.zip")) as archive:
        files = sorted(name for name in archive.namelist() if name.lower().endswith("jpg"))
        folders = sorted({name.split("/")[-2] for name in files})
        chosen = [n for f in folders for n in [x for x in files if x.split("/")[-2] == f][:100]]
        pixels = [np.asarray(image.open(io.BytesIO(archive.read(name)))) for name in chosen]
    labels = torch.tensor([folders.index(name.split("/")[-2]) for name in chosen])
    x = torch.tensor(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return (x - mean[:, None, None]) / std[:, None, None], labels


def run(adapter, stream, batch_size=16):
    """Accuracy in percent and mean entropy."""
    x, y = stream
    steps = [adapter.step(x[i : i + batch_size]) for i in range(0, len(x), batch_size)]
    hits = torch.cat([step.probs.argmax(1) for step in steps]) == y
    entropies = [float(step.info["entropy"]) for step in steps]
    return 100 * hits.float().mean().item(), np.mean(entropies)


def test_the_paper_in_small(stream):
    net = make_net()
    model = Classifier(net)
    assert model.head is net.linear
    source, entropy = run(Source(model), stream)
    assert 78 < source < 86
    assert run(Corrected(model, LAME()), stream)[0] > source + 5
    # Entropy minimization: the entropy falls whatever the learning rate, the accuracy with it.
    accuracies = []
    for lr in (1e-3, 1e-2, 1e-1):
        adapter = tent(model, lr=lr, bn_momentum=0.0)
        accuracy, sharp = run(adapter, stream)
        assert sharp < entropy
        accuracies.append(accuracy)
        adapter.reset()
    assert accuracies[0] > source - 2
    assert accuracies[1] < source - 20
    assert accuracies[2] < 20
    assert run(Source(model), stream) == (source, entropy)
    # Batch statistics of a single class are no help either; LAME on top of them still corrects.
    adapter = adabn(model, momentum=0.1)
    alone = run(adapter, stream)[0]
    adapter.reset()
    assert alone < source
    hybrid = Corrected(adapter, LAME())
    assert run(hybrid, stream)[0] > alone
    hybrid.reset()


def test_layers_of_a_real_network(stream):
    net = make_net()
    layers = select.layers_of(net, stream[0][:2])
    norms = [layer.name for layer in layers if layer.is_norm]
    assert len(norms) == 19
    first = [layer for layer in layers if (select.norm & select.first_half)(layer)]
    second = [layer for layer in layers if (select.norm & select.second_half)(layer)]
    assert (len(first), len(second)) == (10, 9)
    assert lametta.torch.wrap(net)(stream[0][:64]).shape == (64, 10)
