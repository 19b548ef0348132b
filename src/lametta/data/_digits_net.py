"""The network of the embedded data sets: small, with batch normalization to adapt."""

import torch
from torch import nn

_WIDTHS = (1, 8, 16, 32, 64)
_STRIDES = (1, 2, 1, 1)


class DigitsNet(nn.Module):
    """Four convolutions, each with batch normalization, and a linear head ``fc``."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(
                nn.Sequential(
                    nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
                    nn.BatchNorm2d(outputs),
                    nn.ReLU(),
                )
                for inputs, outputs, stride in zip(_WIDTHS, _WIDTHS[1:], _STRIDES, strict=False)
            )
        )
        self.fc = nn.Linear(_WIDTHS[-1], 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [N, 1, 8, 8] to logits [N, 10]."""
        logits: torch.Tensor = self.fc(self.body(x).mean((2, 3)))
        return logits
