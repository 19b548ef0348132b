"""Turn images into a network's input, with Pillow and NumPy alone."""

import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from lametta._checks import check_choice, check_flag, import_optional, is_number, raise_as
from lametta.integrations.onnx.runtime import Input
from lametta.types import LamettaError

if TYPE_CHECKING:
    from PIL.Image import Image

_INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")
_FORMATS = ("JPEG", "PNG")
_MOST_PIXELS = 89_478_485  # as Pillow's own bound: a quarter of a GiB as RGB
_LONGEST_SIDE = 8192  # of what goes into a network


@dataclass(frozen=True)
class Images:
    """What turns images into a batch, as `lametta.torch.preprocess.Preprocess` does for torch.

    Parameters
    ----------
    size : int or pair of int, optional
        The length that the shortest side gets, or a height and a width. None keeps the size.
    crop : int or pair of int, optional
        The side of the square that is cut from the middle, or its height and width.
    mean, std : three floats
        For each channel, in the order in which the network sees them.
    scale : int
        The value of a white pixel before standardization, 1 or 255.
    layout : str
        NCHW or NHWC.
    interpolation : str
        Pillow's filter for resizing.
    bgr : bool
        Whether the network sees the channels as blue, green, red.

    Examples
    --------
    >>> Images(size=None, crop=2)([np.zeros((4, 4, 3), np.uint8)], np.dtype("float32")).shape
    (1, 3, 2, 2)
    """

    size: int | tuple[int, int] | None = 256
    crop: int | tuple[int, int] | None = 224
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    scale: int = 1
    layout: str = "NCHW"
    interpolation: str = "bilinear"
    bgr: bool = False

    def __post_init__(self) -> None:
        for name, side in (("size", self.size), ("crop", self.crop)):
            if side is not None and not _are_sides(side):
                raise LamettaError(
                    f"{name} must be an integer from 1 to {_LONGEST_SIDE}, a pair of them or None, "
                    f"got {side!r}"
                )
        for name, values in (("mean", self.mean), ("std", self.std)):
            fits = isinstance(values, tuple) and len(values) == 3 and all(map(is_number, values))
            if not fits or (name == "std" and 0 in values):
                more = ", none of them 0" if name == "std" else ""
                raise LamettaError(
                    f"{name} must have 3 values, one a channel{more}, got {values!r}"
                )
        check_choice("scale", self.scale, (1, 255))
        check_choice("layout", self.layout, ("NCHW", "NHWC"))
        check_choice("interpolation", self.interpolation, _INTERPOLATIONS)
        check_flag("bgr", self.bgr)

    def __call__(self, images: Iterable[object], dtype: np.dtype, /) -> npt.NDArray[np.number]:
        """Make a batch of encoded images or of uint8 arrays [H, W, 3], red first.

        An array of the size that the network sees is not resized. Pixels for a network that takes
        uint8 stay as they are.
        """
        ready: list[npt.NDArray[np.uint8]] = []
        for i, image in enumerate(images):
            pixels = self._pixels(i, image)
            if ready and pixels.shape != ready[0].shape:
                raise LamettaError(
                    "x must hold images that are of one size after resizing and cropping, "
                    f"got {ready[0].shape[:2]} and {pixels.shape[:2]}: give a crop"
                )
            ready.append(pixels)
        pixels = np.stack(ready)
        pixels = pixels[..., ::-1] if self.bgr else pixels
        batch = self._standardized(pixels) if dtype.kind == "f" else pixels
        if self.layout == "NCHW":
            batch = batch.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(batch, dtype=dtype)

    def _standardized(self, pixels: npt.NDArray[np.uint8]) -> npt.NDArray[np.floating]:
        x = pixels.astype(np.float32)
        x = x / np.float32(255) if self.scale == 1 else x
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return (x - mean) / std

    def _pixels(self, i: int, image: object) -> npt.NDArray[np.uint8]:
        pil = import_optional("PIL.Image", "pillow", "an image")
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
                raise LamettaError(
                    f"x must hold images that are uint8 [H, W, 3] or encoded, got {image.dtype} of "
                    f"shape {image.shape} at {i}"
                )
            if image.shape[:2] == _pair(self.crop):
                return image
            decoded = pil.fromarray(image)
        else:
            decoded = _decoded(pil, i, image)
        if self.size is not None:
            filter_ = pil.Resampling[self.interpolation.upper()]
            decoded = decoded.resize(self._resized(*decoded.size), filter_)
        if self.crop is not None:
            height, width = _pair(self.crop)
            left, top = int((decoded.width - width) / 2), int((decoded.height - height) / 2)
            decoded = decoded.crop((left, top, left + width, top + height))
        return np.asarray(decoded)

    def _resized(self, width: int, height: int) -> tuple[int, int]:
        if isinstance(self.size, tuple):
            return self.size[::-1]
        ratio = (self.size or 1) / min(width, height)
        width, height = int(width * ratio + 0.5), int(height * ratio + 0.5)
        if width * height > _MOST_PIXELS:  # a thin line may, however small its file
            raise LamettaError(
                f"x must hold images that stay small, got {width} x {height} pixels after resizing"
            )
        return width, height


def _pair(side: int | tuple[int, int] | None) -> tuple[int, int]:
    return side if isinstance(side, tuple) else (side or 0, side or 0)


def _are_sides(side: object) -> bool:
    sides = side if isinstance(side, tuple) and len(side) == 2 else (side,)
    return all(type(n) is int and 1 <= n <= _LONGEST_SIDE for n in sides)


def _decoded(pil: ModuleType, i: int, data: object) -> "Image":
    """Decode a JPEG or PNG file to RGB, turned as its EXIF tag says."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise LamettaError(f"x must hold encoded images as bytes, got {type(data).__name__} at {i}")
    try:
        with pil.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:  # known before they are decoded
                raise LamettaError(f"it has {image.width} x {image.height} pixels, too many")
            image.load()
            ops = import_optional("PIL.ImageOps", "pillow", "an image")
            turned: Image = ops.exif_transpose(image)
            return turned.convert("RGB")
    except Exception as error:  # a broken file may raise anything
        unknown = type(error).__name__ == "UnidentifiedImageError"
        reason = "neither JPEG nor PNG" if unknown else str(error) or type(error).__name__
        raise LamettaError(f"x must hold images that can be read, got at {i}: {reason}") from error


def are_images(x: object, takes_pixels: bool) -> TypeGuard[Iterable[object]]:
    """Whether these are images, no tensor; a uint8 array is a tensor if the graph takes pixels."""
    if isinstance(x, list | tuple) or (isinstance(x, np.ndarray) and x.dtype == object):
        first = x[0] if len(x) else None
        is_pixels = isinstance(first, np.ndarray) and first.dtype == np.uint8 and first.ndim == 3
        return is_pixels or isinstance(first, bytes | bytearray | memoryview)
    if takes_pixels or not isinstance(x, np.ndarray) or x.dtype != np.uint8:
        return False
    return x.ndim == 4 and x.shape[3] == 3 and len(x) > 0


def images_for(
    inputs: Sequence[Input], known: Mapping[str, str], options: Mapping[str, object] | None
) -> Images | None:
    """How images become the input of a graph; None if it takes none.

    The options come first, then the file's metadata, then the shape of the input.
    """
    kinds = ("uint8", "float16", "float32", "float64")
    channels = [
        input_.shape[1:] for input_ in inputs if len(input_.shape) == 4 and input_.dtype in kinds
    ]
    takes = len(inputs) == 1 and channels and {channels[0][0], channels[0][2]} & {3, None}
    if not takes:
        if options:
            shapes = ", ".join(map(str, inputs))
            raise LamettaError(f"preprocess must be left out, since no images go into {shapes}")
        return None
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(Images)):
        if (text := known.get(f"lametta.{name}")) is not None:
            with raise_as(f"lametta.{name} in the file's metadata must be JSON", text[:80]):
                found[name] = json.loads(text)
    for name, value in (options or {}).items():
        check_choice("preprocess", name, [field.name for field in fields(Images)])
        found[name] = value
    found = {key: tuple(x) if isinstance(x, list) else x for key, x in found.items()}
    first, _, last = channels[0]
    found.setdefault("layout", "NHWC" if last == 3 and first != 3 else "NCHW")
    height, width = channels[0][1:] if found["layout"] == "NCHW" else channels[0][:2]
    if height is not None and width is not None:
        asked = height if height == width else (height, width)
        found.setdefault("crop", asked)
        if _pair(found["crop"]) != (height, width):
            raise LamettaError(f"crop must be {asked}, as the graph asks, got {found['crop']!r}")
        found.setdefault("size", round(min(height, width) * 256 / 224))
    return Images(**found)
