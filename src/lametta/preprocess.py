"""Preprocess: resize, crop and standardize an image, for NumPy and PyTorch alike."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from lametta._checks import check_choice, check_flag, check_integer, import_optional, is_number
from lametta.types import LamettaError

if TYPE_CHECKING:
    import torch
    from PIL.Image import Image

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of an image into a network's input: resize, crop, standardize.

    The image is rotated as its EXIF tag says, converted to RGB, resized and cropped by Pillow, then
    standardized as ``(pixels - mean) / std``. Calling the object does it all. `pixels` gives the
    image before standardization, small enough to be stored, and `standardize` does the rest, or
    `standardize_array` where there is no PyTorch: both give the same numbers.

    Parameters
    ----------
    resize : int or tuple of int, optional
        The length that the shortest side gets, with the other side in proportion; or a height and
        a width, which may squash the image. None keeps the size.
    crop : int or tuple of int, optional
        The side of the square that is cut from the middle, or a height and a width. A smaller image
        gets a black border. None cuts nothing.
    interpolation : str
        Pillow's filter for resizing: nearest, bilinear, bicubic, lanczos, box or hamming.
    mean, std : tuple of float
        One value for each channel, in the order in which the network sees the channels.
    scale : int
        The value of a white pixel before standardization, 1 or 255.
    bgr : bool
        Whether the network sees the channels as blue, green, red.
    max_size : int, optional
        The most that the longest side may have after resizing to a shortest side.

    Examples
    --------
    >>> prepare = Preprocess(resize=256, crop=224)
    >>> prepare(PIL.Image.open("swan.jpg")).shape  # doctest: +SKIP
    torch.Size([3, 224, 224])
    """

    resize: int | tuple[int, int] | None = 256
    crop: int | tuple[int, int] | None = 224
    interpolation: str = "bilinear"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: int = 1
    bgr: bool = False
    max_size: int | None = None

    def __post_init__(self) -> None:
        _check_length("resize", self.resize)
        _check_length("crop", self.crop)
        if self.max_size is not None:
            check_integer("max_size", self.max_size, 1)
        check_choice("interpolation", self.interpolation, _INTERPOLATIONS)
        check_choice("scale", self.scale, (1, 255))
        check_flag("bgr", self.bgr)
        _check_channels("mean", self.mean)
        _check_channels("std", self.std)
        if 0 in self.std:
            raise LamettaError(f"std must not have a 0, got {self.std!r}")

    def __call__(self, image: "Image", /) -> "torch.Tensor":
        """Return a PIL image as float32 [3, H, W]."""
        return self.standardize(self.pixels(image))

    def pixels(self, image: "Image", /) -> npt.NDArray[np.uint8]:
        """Return a PIL image, resized and cropped, as uint8 [H, W, 3] with red first."""
        pil = import_optional("PIL.Image", "pillow", "preprocess")
        if not isinstance(image, pil.Image):
            raise LamettaError(f"image must be a PIL image, got {type(image).__name__}")
        image = import_optional("PIL.ImageOps", "pillow", "preprocess").exif_transpose(image)
        return self.fit(image.convert("RGB"))

    def fit(self, image: "Image", /) -> npt.NDArray[np.uint8]:
        """Resize and crop a PIL image that is upright and RGB already, to uint8 [H, W, 3]."""
        pil = import_optional("PIL.Image", "pillow", "preprocess")
        if self.resize is not None:
            size = self.resized(*image.size)
            image = image.resize(size, pil.Resampling[self.interpolation.upper()])
        if (crop := self.crop_size) is not None:
            height, width = crop
            left, top = int((image.width - width) / 2), int((image.height - height) / 2)
            image = image.crop((left, top, left + width, top + height))
        return np.array(image)

    @property
    def crop_size(self) -> tuple[int, int] | None:
        """Height and width of what is cut from the middle, if anything is."""
        return (self.crop, self.crop) if isinstance(self.crop, int) else self.crop

    def resized(self, width: int, height: int) -> tuple[int, int]:
        """The width and height that an image of this size is resized to."""
        if self.resize is None or isinstance(self.resize, tuple):
            return self.resize[::-1] if self.resize else (width, height)
        ratio = self.resize / min(width, height)
        if self.max_size is not None:
            ratio = min(ratio, self.max_size / max(width, height))
        return max(1, int(width * ratio + 0.5)), max(1, int(height * ratio + 0.5))

    def standardize(self, pixels: "torch.Tensor | npt.NDArray[np.uint8]", /) -> "torch.Tensor":
        """Turn pixels, uint8 [H, W, 3], into float32 [3, H, W]; or [N, ...] into [N, ...].

        They come as a tensor, which stays on its device, or as a NumPy array.
        """
        import torch

        x = pixels if isinstance(pixels, torch.Tensor) else torch.tensor(pixels)
        _check_pixels(x.dtype == torch.uint8, x)
        x = (x.flip(-1) if self.bgr else x).float()
        standardized: torch.Tensor = self._standardized(x, partial(_constant, device=x.device))
        return standardized.movedim(-1, -3).contiguous()

    def standardize_array(self, pixels: npt.NDArray[np.uint8], /) -> npt.NDArray[np.float32]:
        """Do what `standardize` does, in NumPy and to the last bit; the result is a view."""
        _check_pixels(pixels.dtype == np.uint8, pixels)
        x = (pixels[..., ::-1] if self.bgr else pixels).astype(np.float32)
        return np.moveaxis(self._standardized(x, partial(np.array, dtype=np.float32)), -1, -3)

    def _standardized(self, x: Any, constant: Callable[[tuple[float, ...]], Any]) -> Any:
        if self.scale == 1:
            # By a tensor: a GPU would multiply by the inverse of a number, and round differently.
            x = x / constant((255.0,))
        return (x - constant(tuple(self.mean))) / constant(tuple(self.std))

    def to_pixels(self, x: "torch.Tensor", /) -> "torch.Tensor":
        """Undo the standardization of inputs [N, 3, H, W]: images in [0, 1] with red first.

        The way there and back is off by rounding: what is not changed is better not sent on it.
        """
        mean, std = (_constant(tuple(v), x.device)[:, None, None] for v in (self.mean, self.std))
        pixels = (x * std + mean) / self.scale
        return pixels.flip(1) if self.bgr else pixels

    def from_pixels(self, pixels: "torch.Tensor", /) -> "torch.Tensor":
        """Standardize images [N, 3, H, W] in [0, 1] with red first."""
        mean, std = (
            _constant(tuple(v), pixels.device)[:, None, None] for v in (self.mean, self.std)
        )
        return ((pixels.flip(1) if self.bgr else pixels) * self.scale - mean) / std


def _check_length(name: str, length: object) -> None:
    """Raise unless this is None, a side, or a height and a width."""
    if isinstance(length, tuple) and len(length) != 2:
        raise LamettaError(f"{name} must have a height and a width, got {length!r}")
    if length is not None:
        for side in length if isinstance(length, tuple) else (length,):
            check_integer(name, side, 1)


def _check_channels(name: str, values: object) -> None:
    listed = tuple(values) if isinstance(values, Iterable) else ()
    if len(listed) != 3 or not all(map(is_number, listed)):
        raise LamettaError(f"{name} must have 3 values, one a channel, got {values!r}")


def _check_pixels(is_uint8: bool, x: Any) -> None:
    if not is_uint8 or x.ndim not in (3, 4) or x.shape[-1] != 3:
        raise LamettaError(
            "pixels must be uint8 [H, W, 3] or [N, H, W, 3], "
            f"got {x.dtype} of shape {tuple(x.shape)}"
        )


@lru_cache(maxsize=32)
def _constant(values: tuple[float, ...], device: "torch.device") -> "torch.Tensor":
    import torch

    # Kept, since copying them to a GPU would wait for all the work that it has.
    return torch.tensor(values, dtype=torch.float32, device=device)
