"""The networks of the embedded data sets: small, with batch normalization to adapt."""

from importlib import resources

import torch
from torch import nn

from lametta._checks import check_choice
from lametta.torch.weights import safetensors_module


class DigitsNet(nn.Module):
    """A body of convolutions, the mean over its places, and a linear head ``fc``."""

    def __init__(self, *body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.fc = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Images [N, 1, 8, 8] to logits [N, 10]."""
        logits: torch.Tensor = self.fc(self.body(x).mean((2, 3)))
        return logits


class _Residual(nn.Module):
    """Two convolutions whose output is added to their input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(_convolution(width, width), _convolution(width, width)[:2])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = (x + self.body(x)).relu()
        return output


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
    )


def _plain() -> DigitsNet:
    widths, strides = (1, 8, 16, 32, 64), (1, 2, 1, 1)
    return DigitsNet(*map(_convolution, widths, widths[1:], strides), width=64)


def _residual() -> DigitsNet:
    stem, halving = _convolution(1, 12), _convolution(12, 32, stride=2)
    return DigitsNet(stem, _Residual(12), halving, _Residual(32), width=32)


NETS = {
    "digits": ("digits_cnn", _plain),
    "digits_mixup": ("digits_cnn_mixup", _plain),
    "digits_resnet": ("digits_resnet", _residual),
}
"""The networks by name: the stem of the file of weights, and the function that makes them."""


def digits_net(name: str = "digits") -> nn.Module:
    """A trained network, in eval mode: images [N, 1, 8, 8] to the logits [N, 10] of ten digits.

    The weights come with the package; ``scripts/train_digits.py`` made them.

    Parameters
    ----------
    name : str
        ``"digits"``, four convolutions; ``"digits_mixup"``, the same trained on pairs of digits
        laid over each other; or ``"digits_resnet"``, six convolutions, of which four are residual.

    Examples
    --------
    >>> digits_net()(torch.zeros(2, 1, 8, 8)).shape
    torch.Size([2, 10])
    """
    check_choice("name", name, NETS)
    stem, make = NETS[name]
    weights = resources.files("lametta.torch") / "assets" / f"{stem}.safetensors"
    with torch.device("meta"):  # no random start, so the user's seed stays where it is
        net = make()
    net.load_state_dict(safetensors_module().load(weights.read_bytes()), assign=True)
    return net.eval()
