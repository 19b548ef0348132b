"""A small network, data of which some samples cannot be read, and extraction in small batches."""

import numpy as np
import pytest
import torch
from torch import nn

from lametta.data.bank import extract
from lametta.data.dataset import Dataset, UnreadableImageError
from lametta.torch import Classifier


class Net(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6)
        self.fc = nn.Linear(6, classes)

    def forward(self, x):
        return self.fc(self.bn(self.conv(x)).relu().mean((2, 3)))


class Rows:
    """Inputs, some of which cannot be read."""

    def __init__(self, x, broken=()):
        self.x, self.broken = x, broken

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        if i in self.broken:
            raise UnreadableImageError(f"cannot read image {i}")
        return self.x[i]


def make_data(n=11, broken=(), **more):
    x = np.random.default_rng(0).normal(size=(n, 3, 9, 9)).astype(np.float32)
    options = {"classes": tuple("abcd"), "groups": np.array([f"v{i // 3}" for i in range(n)])}
    keys = tuple(f"ü/{i}.jpg" for i in range(n))
    options |= more
    labels = np.arange(n) % len(options["classes"])
    return Dataset("tiny", Rows(x, broken), labels, keys=keys, **options)


def image(seed, size=(8, 8)):
    from PIL import Image

    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(256, size=(*size, 3), dtype=np.uint8))


@pytest.fixture
def net():
    torch.manual_seed(1)
    net = Net().eval()
    net.bn.running_mean += 0.1
    return net


@pytest.fixture
def model(net):
    with Classifier(net) as model:
        yield model


def run(model, data, path, **options):
    return extract(model, data, None, path, **({"batch_size": 4, "workers": 0} | options))
