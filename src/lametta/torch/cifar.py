"""ResNets for CIFAR's images of 32 pixels: He et al. (2016), section 4.2, and with group norm."""

import torch
from torch import nn
from torch.nn import functional

from lametta.preprocess import Preprocess


def resnet20() -> tuple[nn.Module, Preprocess]:
    """The ResNet with 20 layers, without weights, and how its images are prepared.

    `lametta.torch.zoo.load` takes it as ``torch:lametta.torch.cifar:resnet20``, with a file of
    weights whose names are ``conv1``, ``bn1``, ``layer1`` to ``layer3`` and ``linear``.

    Examples
    --------
    >>> net, prepare = resnet20()
    >>> net(torch.zeros(2, 3, 32, 32)).shape, prepare.resize
    (torch.Size([2, 10]), None)
    """
    return _resnet(20)


def resnet32() -> tuple[nn.Module, Preprocess]:
    """The ResNet with 32 layers; otherwise as `resnet20`."""
    return _resnet(32)


def resnet44() -> tuple[nn.Module, Preprocess]:
    """The ResNet with 44 layers; otherwise as `resnet20`."""
    return _resnet(44)


def resnet56() -> tuple[nn.Module, Preprocess]:
    """The ResNet with 56 layers; otherwise as `resnet20`."""
    return _resnet(56)


def resnet26_gn() -> tuple[nn.Module, Preprocess]:
    """The pre-activation ResNet with 26 layers and group norm (He et al., 2016b); see `resnet20`.

    Its weights are those of MEMO's authors: ``conv1``, ``layer1`` to ``layer3``, ``bn`` and ``fc``.

    Examples
    --------
    >>> net, prepare = resnet26_gn()
    >>> net(torch.zeros(2, 3, 32, 32)).shape, prepare.mean
    (torch.Size([2, 10]), (0.5, 0.5, 0.5))
    """
    half = (0.5, 0.5, 0.5)
    return _ResNetGN(), Preprocess(resize=None, crop=None, mean=half, std=half)


def _resnet(layers: int) -> tuple[nn.Module, Preprocess]:
    # Two layers a block in three stages, the first convolution and the head.
    return _ResNet((layers - 2) // 6), Preprocess(resize=None, crop=None)


class _Block(nn.Module):
    """Two convolutions whose output is added to their input, which needs no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.missing = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.bn2(self.conv2(self.bn1(self.conv1(x)).relu()))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.missing:  # channels of zeros, half of them before the others
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, self.missing // 2, self.missing // 2))
        return (y + shortcut).relu()


class _ResNet(nn.Module):
    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.layer1 = _stage(blocks, 16, 16, 1)
        self.layer2 = _stage(blocks, 16, 32, 2)
        self.layer3 = _stage(blocks, 32, 64, 2)
        self.linear = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [N, 3, 32, 32] to logits [N, 10]."""
        x = self.bn1(self.conv1(x)).relu()
        logits: torch.Tensor = self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))
        return logits


def _stage(blocks: int, inputs: int, outputs: int, stride: int) -> nn.Sequential:
    first, rest = _Block(inputs, outputs, stride), range(blocks - 1)
    return nn.Sequential(first, *(_Block(outputs, outputs, 1) for _ in rest))


class _PreActivation(nn.Module):
    """A block that normalizes before it convolves, and adds its input as it came."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.GroupNorm(8, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn2 = nn.GroupNorm(8, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.stride, self.missing = stride, outputs - inputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.conv2(self.bn2(self.conv1(self.bn1(x).relu())).relu())
        if self.stride > 1:
            x = functional.avg_pool2d(x, self.stride)
        return functional.pad(x, (0, 0, 0, 0, 0, self.missing)) + y


class _ResNetGN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        widths, strides = (16, 16, 32, 64), (1, 2, 2)
        self.layer1, self.layer2, self.layer3 = (
            nn.Sequential(
                _PreActivation(inputs, outputs, stride),
                *(_PreActivation(outputs, outputs, 1) for _ in range(3)),
            )
            for inputs, outputs, stride in zip(widths, widths[1:], strides, strict=False)
        )
        self.bn, self.fc = nn.GroupNorm(8, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [N, 3, 32, 32] to logits [N, 10]."""
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        logits: torch.Tensor = self.fc(self.bn(x).relu().mean((2, 3)))
        return logits
