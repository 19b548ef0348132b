"""The network of the embedded data sets: small, with batch normalization to adapt."""

from importlib import resources

import torch
from torch import nn

from lametta.torch.weights import safetensors_module

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


def digits_net() -> nn.Module:
    """The trained network, in eval mode: images [N, 1, 8, 8] to the logits [N, 10] of ten digits.

    Its weights come with the package; ``scripts/train_digits.py`` made them.

    Examples
    --------
    >>> digits_net()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    weights = resources.files("lametta.torch") / "assets" / "digits_cnn.safetensors"
    with torch.device("meta"):  # no random start, so the user's seed stays where it is
        net = DigitsNet()
    net.load_state_dict(safetensors_module().load(weights.read_bytes()), assign=True)
    return net.eval()
