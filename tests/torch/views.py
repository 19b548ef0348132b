"""Augmentations with the draws of published runs in place of a method's own."""

from typing import Any

import torch
from torch import Tensor

from lametta.torch import NetworkMethod
from tests.torch.golden import Vectors


def recorded(kind: type[NetworkMethod], vectors: Vectors) -> type[Any]:
    """A method whose augmentations take the rows ``aug`` of the vectors, batch after batch."""

    class Recorded(kind):  # type: ignore[misc, valid-type]
        row = -1

        def adapt(self, batch: Any, net: Any, /) -> Any:
            self.row += 1
            self.draws = list(vectors["aug"][self.row].reshape(-1, 5))
            return super().adapt(batch, net)

        def transform(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
            return moved(pixels, self.draws.pop(0))

    return Recorded


def moved(pixels: Tensor, draw: Any) -> Tensor:
    """The simple augmentation of the vectors: rolled, mirrored, scaled and shifted."""
    down, right, flip, gain, offset = map(float, draw)
    x = torch.roll(pixels, (int(down), int(right)), (2, 3))
    return (gain * (x.flip(-1) if flip else x) + offset).clamp(0, 1)
