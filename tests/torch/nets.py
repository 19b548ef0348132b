"""Networks and files that several tests of `lametta.torch` need."""

import os

import torch
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


class Evil:
    """Pickles as a command that leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)
