"""How an image becomes a network's input."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lametta.torch.weights import package
from lametta.types import LamettaError

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


@dataclass(frozen=True)
class Preprocess:
    """What turns an image into a network's input.

    The image is rotated as its EXIF tag says, made RGB, resized and cropped by Pillow, then
    standardized as ``(pixels - mean) / std``.

    Parameters
    ----------
    resize : int or tuple of int, optional
        Length of the shortest side, the other one in proportion; or height and width, which may
        squash the image. None keeps the size.
    crop : int, optional
        Side of the square cut from the middle. An image that is smaller gets a black border.
    interpolation : str
        Pillow's name in lower case: nearest, bilinear, bicubic, lanczos, box or hamming.
    mean, std : tuple of float
        Three each, in the order of the channels that the network sees.
    scale : int
        The value of a white pixel before standardization, 1 or 255.
    bgr : bool
        Whether the network sees blue first.
    max_size : int, optional
        Longest side that resizing to a shortest side may give.

    Examples
    --------
    >>> prepare = Preprocess(resize=256, crop=224)
    >>> prepare(PIL.Image.open("swan.jpg")).shape  # doctest: +SKIP
    torch.Size([3, 224, 224])
    """

    resize: int | tuple[int, int] | None = 256
    crop: int | None = 224
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: int = 1
    bgr: bool = False
    max_size: int | None = None

    def __post_init__(self) -> None:
        if self.resize is not None:
            sides = self.resize if isinstance(self.resize, tuple) else (self.resize, self.resize)
            if len(sides) != 2 or min(sides) < 1:
                raise LamettaError(
                    "resize must be a positive length, a height and a width, or None, "
                    f"got {self.resize!r}"
                )
        for name, side in (("crop", self.crop), ("max_size", self.max_size)):
            if side is not None and side < 1:
                raise LamettaError(f"{name} must be positive, or None, got {side!r}")
        if self.interpolation not in _INTERPOLATIONS:
            raise LamettaError(
                f"interpolation must be one of {', '.join(_INTERPOLATIONS)}, "
                f"got {self.interpolation!r}"
            )
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != 3:
                raise LamettaError(f"{name} must have 3 values, one a channel, got {values!r}")
        if 0 in self.std:
            raise LamettaError(f"std must not have a 0, got {self.std!r}")
        if self.scale not in (1, 255):
            raise LamettaError(f"scale must be 1 or 255, got {self.scale!r}")

    def __call__(self, image: Any, /) -> torch.Tensor:
        """Return a PIL image as float32 [3, H, W]."""
        pil = package("PIL.Image", "pillow", "preprocess")
        if not isinstance(image, pil.Image):
            raise LamettaError(f"image must be a PIL image, got {type(image).__name__}")
        image = package("PIL.ImageOps", "pillow", "preprocess").exif_transpose(image)
        image = image.convert("RGB")
        if self.resize is not None:
            size = self._resized(*image.size)
            image = image.resize(size, pil.Resampling[self.interpolation.upper()])
        if self.crop is not None:
            left, top = (int((side - self.crop) / 2) for side in image.size)
            image = image.crop((left, top, left + self.crop, top + self.crop))
        pixels = torch.from_numpy(np.array(image, dtype=np.float32))
        if self.bgr:
            pixels = pixels.flip(-1)
        if self.scale == 1:
            pixels = pixels / 255
        pixels = (pixels - torch.tensor(self.mean)) / torch.tensor(self.std)
        return pixels.permute(2, 0, 1).contiguous()

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.resize is None or isinstance(self.resize, tuple):
            return self.resize[::-1] if self.resize else (width, height)
        ratio = self.resize / min(width, height)
        if self.max_size is not None:
            ratio = min(ratio, self.max_size / max(width, height))
        return max(1, int(width * ratio + 0.5)), max(1, int(height * ratio + 0.5))
