"""How an image becomes a network's input."""

from dataclasses import dataclass
from typing import Any

import numpy as np

import torch
from lametta._packages import package
from lametta.types import LamettaError

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


@dataclass(frozen=True)
class Preprocess:
    """What turns an image into a network's input.

    The image is rotated as its EXIF tag says, made RGB, resized and cropped by Pillow, then
    standardized as ``(pixels - mean) / std``. `pixels` and `standardize` are the two halves, for
    who keeps what is between them.

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
        return self.standardize(self.pixels(image))

    def pixels(self, image: Any, /) -> Any:
        """Do the first half: a PIL image as a NumPy array of uint8 [H, W, 3], red first."""
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
        return np.array(image)

    def standardize(self, pixels: Any, /) -> torch.Tensor:
        """Do the second half: uint8 [H, W, 3] to float32 [3, H, W], or [N, ...] of either.

        A tensor stays on its device; an array may be of NumPy.
        """
        x = pixels if isinstance(pixels, torch.Tensor) else torch.tensor(pixels)
        if x.dtype != torch.uint8 or x.ndim not in (3, 4) or x.shape[-1] != 3:
            raise LamettaError(
                "pixels must be uint8 [H, W, 3] or [N, H, W, 3], "
                f"got {x.dtype} of shape {tuple(x.shape)}"
            )
        x = (x.flip(-1) if self.bgr else x).float()
        if self.scale == 1:
            x = x / 255
        x = (x - x.new_tensor(self.mean)) / x.new_tensor(self.std)
        return x.movedim(-1, -3).contiguous()

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if self.resize is None or isinstance(self.resize, tuple):
            return self.resize[::-1] if self.resize else (width, height)
        ratio = self.resize / min(width, height)
        if self.max_size is not None:
            ratio = min(ratio, self.max_size / max(width, height))
        return max(1, int(width * ratio + 0.5)), max(1, int(height * ratio + 0.5))
