"""Images as the input of a graph: decoded within limits, prepared as file or caller say."""

import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import numpy.typing as npt

from lametta._checks import check_choice, import_optional, raise_as
from lametta._locks import check_interrupt
from lametta.integrations.onnx.runtime import Input
from lametta.preprocess import Preprocess
from lametta.types import LamettaError

if TYPE_CHECKING:
    from PIL.Image import Image

# What an option is called here, and in metadata, and what in Preprocess.
_FIELDS = {"size": "resize"} | {
    name: name for name in ("crop", "mean", "std", "scale", "layout", "interpolation", "bgr")
}
_FORMATS = ("JPEG", "PNG")
_MOST_PIXELS = 89_478_485  # as Pillow's own bound: a quarter of a GiB as RGB
_LONGEST_SIDE = 8192  # of what goes into a network
_DTYPES = ("uint8", "float16", "float32", "float64")  # of inputs that images may go into


@dataclass(frozen=True)
class ImageInput:
    """What turns images into the input of a graph, whose layout is NCHW or NHWC.

    Examples
    --------
    >>> prepare = ImageInput(Preprocess(resize=None, crop=2))
    >>> prepare([np.zeros((4, 4, 3), np.uint8)], np.dtype("float32")).shape
    (1, 3, 2, 2)
    """

    preprocess: Preprocess
    layout: str = "NCHW"

    def __call__(
        self, images: Iterable[object], dtype: np.dtype, /, max_pixels: float = math.inf
    ) -> npt.NDArray[np.number]:
        """Make a batch of encoded images or of uint8 arrays [H, W, 3], red first.

        An array of the size that the network sees is not resized. Pixels for a network that takes
        uint8 stay as they are. If the images have more than ``max_pixels`` together, decoded or
        resized, none is decoded from there on.
        """
        ready: list[npt.NDArray[np.uint8]] = []
        budget = PixelBudget(max_pixels)
        for i, image in enumerate(images):
            check_interrupt()  # a small file may take long, by its texts or scans
            one = self._pixels(i, image, budget)
            if ready and one.shape != ready[0].shape:
                raise LamettaError(
                    "x must hold images that are of one size after resizing and cropping, "
                    f"got {ready[0].shape[:2]} and {one.shape[:2]}: give a crop"
                )
            ready.append(one)
        pixels = np.stack(ready)
        batch: npt.NDArray[np.number]
        if dtype.kind == "f":
            batch = self.preprocess.standardize_array(pixels)
        else:
            batch = np.moveaxis(pixels[..., ::-1] if self.preprocess.bgr else pixels, -1, 1)
        if self.layout == "NHWC":
            batch = np.moveaxis(batch, 1, -1)
        return np.ascontiguousarray(batch, dtype=dtype)

    def _pixels(self, i: int, image: object, budget: "PixelBudget") -> npt.NDArray[np.uint8]:
        pil = import_optional("PIL.Image", "pillow", "an image")
        if isinstance(image, np.ndarray):
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
                raise LamettaError(
                    f"x must hold images that are uint8 [H, W, 3] or encoded, got {image.dtype} of "
                    f"shape {image.shape} at {i}"
                )
            if image.shape[:2] == self.preprocess.crop_size:
                return image
            decoded = pil.fromarray(image)
        else:
            decoded = _decoded(pil, i, image, budget)
        width, height = self.preprocess.resized(*decoded.size)
        if width * height > _MOST_PIXELS:  # a thin line may, however small its file
            raise LamettaError(
                f"x must hold images that stay small, got {width} x {height} pixels after resizing"
            )
        budget.take(width * height - decoded.width * decoded.height)
        return self.preprocess.fit(decoded)


class PixelBudget:
    """How many pixels a batch of images may still have."""

    def __init__(self, most: float) -> None:
        self._most = self._left = most

    def take(self, count: int) -> None:
        """Take so many pixels, or raise if there are not as many left."""
        self._left -= max(count, 0)
        if self._left < 0:
            raise LamettaError(f"the images have more than {self._most} pixels together")


def _decoded(pil: ModuleType, i: int, data: object, budget: PixelBudget) -> "Image":
    """Decode a JPEG or PNG file to RGB, turned as its EXIF tag says."""
    if not isinstance(data, bytes | bytearray | memoryview):
        raise LamettaError(f"x must hold encoded images as bytes, got {type(data).__name__} at {i}")
    try:
        with pil.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > _MOST_PIXELS:  # known before they are decoded
                raise LamettaError(f"it has {image.width} x {image.height} pixels, too many")
            budget.take(image.width * image.height)
            image.load()
            ops = import_optional("PIL.ImageOps", "pillow", "an image")
            turned: Image = ops.exif_transpose(image)
            return turned.convert("RGB")
    except Exception as error:  # a broken file may raise anything
        unknown = type(error).__name__ == "UnidentifiedImageError"
        reason = "neither JPEG nor PNG" if unknown else str(error) or type(error).__name__
        raise LamettaError(f"cannot read image {i}: {reason}") from error


def are_images(x: object, takes_pixels: bool) -> TypeGuard[Iterable[object]]:
    """Whether these are images, no tensor; a uint8 array is a tensor if the graph takes pixels."""
    if isinstance(x, list | tuple) or (isinstance(x, np.ndarray) and x.dtype == object):
        first = x[0] if len(x) else None
        return _is_pixels(first, 3) or isinstance(first, bytes | bytearray | memoryview)
    return not takes_pixels and _is_pixels(x, 4) and x.shape[3] == 3 and len(x) > 0


def _is_pixels(x: object, ndim: int) -> TypeGuard[npt.NDArray[np.uint8]]:
    return isinstance(x, np.ndarray) and x.dtype == np.uint8 and x.ndim == ndim


def images_for(
    inputs: Sequence[Input], known: Mapping[str, str], options: Mapping[str, object] | None
) -> ImageInput | None:
    """How images become the input of a graph; None if it takes none.

    The options come first, then the file's metadata, then the shape of the input.
    """
    shape = _image_shape(inputs)
    if shape is None:
        if options:
            shapes = ", ".join(map(str, inputs))
            raise LamettaError(f"preprocess must be left out, since no images go into {shapes}")
        return None
    for name in options or ():
        check_choice("preprocess", name, _FIELDS)
    return _image_input(shape, _options_in(known) | dict(options or {}))


def _image_input(shape: tuple[int | None, ...], given: dict[str, Any]) -> ImageInput:
    """The images that go into an input of this shape without N, prepared by these options."""
    given = {name: tuple(x) if isinstance(x, list) else x for name, x in given.items()}
    first, _, last = shape
    layout = given.pop("layout", "NHWC" if last == 3 and first != 3 else "NCHW")
    check_choice("layout", layout, ("NCHW", "NHWC"))
    given = _fitted(given, *(shape[1:] if layout == "NCHW" else shape[:2]))
    for name in ("size", "crop"):
        _check_sides(name, given.get(name))
    return ImageInput(Preprocess(**{_FIELDS[name]: x for name, x in given.items()}), layout)


def _image_shape(inputs: Sequence[Input]) -> tuple[int | None, ...] | None:
    """The shape without N of a graph's only input, if three of its channels may be there."""
    if len(inputs) != 1 or len(inputs[0].shape) != 4 or inputs[0].dtype not in _DTYPES:
        return None
    first, _, last = shape = inputs[0].shape[1:]
    return shape if {first, last} & {3, None} else None


def _options_in(known: Mapping[str, str]) -> dict[str, Any]:
    """The options of preprocessing in a file's metadata."""
    found = {}
    for name in _FIELDS:
        if (text := known.get(f"lametta.{name}")) is not None:
            with raise_as(f"lametta.{name} in the file's metadata must be JSON", text[:80]):
                found[name] = json.loads(text)
    return found


def _fitted(given: dict[str, Any], height: int | None, width: int | None) -> dict[str, Any]:
    """Options with the size that the graph asks for, where it asks for one."""
    if height is None or width is None:
        return given
    asked = height if height == width else (height, width)
    crop = given.get("crop", asked)
    if (crop if isinstance(crop, tuple) else (crop, crop)) != (height, width):
        raise LamettaError(f"crop must be {asked}, as the graph asks, got {crop!r}")
    return {"size": round(min(height, width) * 256 / 224), **given, "crop": crop}


def _check_sides(name: str, given: object) -> None:
    sides = given if isinstance(given, tuple) and len(given) == 2 else (given,)
    fit = all(type(n) is int and 1 <= n <= _LONGEST_SIDE for n in sides)
    if given is not None and not fit:
        raise LamettaError(
            f"{name} must be an integer from 1 to {_LONGEST_SIDE}, a pair of them or None, "
            f"got {given!r}"
        )
