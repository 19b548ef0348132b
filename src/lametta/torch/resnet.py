"""The ResNets of the paper: of torchvision, MSRA and SimCLR, in one class."""

import math

import torch
from torch import nn
from torch.nn import functional

# Depth: whether blocks are bottlenecks, and how many blocks each of the four stages has.
DEPTHS = {
    18: (False, (2, 2, 2, 2)),
    34: (False, (3, 4, 6, 3)),
    50: (True, (3, 4, 6, 3)),
    101: (True, (3, 4, 23, 3)),
    152: (True, (3, 8, 36, 3)),
}


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class _Block(nn.Module):
    """Convolutions whose output is added to their input: 3x3 twice, or 1x1, 3x3, 1x1."""

    def __init__(self, inputs: int, outputs: int, *strides: int) -> None:
        super().__init__()
        kernels, hidden = ((1, 3, 1), outputs // 4) if len(strides) == 3 else ((3, 3), outputs)
        sizes = (inputs, *[hidden] * (len(kernels) - 1), outputs)
        self.layers = []  # names alone: the modules must be called as torchvision calls them
        for i, (kernel, stride) in enumerate(zip(kernels, strides, strict=True)):
            self.add_module(f"conv{i + 1}", _conv(sizes[i], sizes[i + 1], kernel, stride))
            self.add_module(f"bn{i + 1}", nn.BatchNorm2d(sizes[i + 1]))
            self.layers.append((f"conv{i + 1}", f"bn{i + 1}"))
        self.downsample: nn.Module | None = None
        if (stride := math.prod(strides)) != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                _conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        for i, (conv, norm) in enumerate(self.layers):
            x = getattr(self, norm)(getattr(self, conv)(x.relu() if i else x))
        return (x + shortcut).relu()


class ResNet(nn.Module):
    """A ResNet whose parameters are called as torchvision calls them.

    `stride_in_1x1` halves the resolution in a bottleneck's first convolution, as MSRA's networks
    do, not in its 3x3; `same_pool` pads the max pooling as TensorFlow does.
    """

    def __init__(
        self,
        depth: int,
        width: int = 64,
        classes: int = 1000,
        stride_in_1x1: bool = False,
        same_pool: bool = False,
    ) -> None:
        super().__init__()
        bottleneck, counts = DEPTHS[depth]
        self.same_pool = same_pool
        self.conv1, self.bn1 = _conv(3, width, 7, 2), nn.BatchNorm2d(width)
        inputs = width
        for stage, count in enumerate(counts):
            outputs = width * 2**stage * (4 if bottleneck else 1)
            blocks = []
            for index in range(count):
                stride = 2 if stage and not index else 1
                strides = [stride, 1]
                if bottleneck:
                    strides = [stride, 1, 1] if stride_in_1x1 else [1, stride, 1]
                blocks.append(_Block(inputs, outputs, *strides))
                inputs = outputs
            self.add_module(f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn1(self.conv1(x)).relu()
        if self.same_pool:
            # TensorFlow pads an even side at its end alone. After a ReLU, zeros win no maximum.
            height, width = x.shape[2:]
            x = functional.max_pool2d(functional.pad(x, (width % 2, 1, height % 2, 1)), 3, 2)
        else:
            x = functional.max_pool2d(x, 3, 2, padding=1)
        for stage in range(1, 5):
            x = getattr(self, f"layer{stage}")(x)
        logits: torch.Tensor = self.fc(x.mean((2, 3)))
        return logits
