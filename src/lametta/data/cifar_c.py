"""CIFAR-10-C's corruptions of 32 x 32 images, with the severity constants of its own.

CIFAR-10-C (Hendrycks and Dietterich, ICLR 2019) is weaker than ImageNet-C at the same severity, and
some of its corruptions are other algorithms. Nobody published a seed, so that its arrays can be had
anew in distribution only. Three quirks of the published arrays are kept, since errors depend on
them: glass blur copies pixels where it means to swap them, zoom blur averages the plain image in
once more, and values are cut off to integers rather than rounded.
"""

import io
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lametta._checks import extra, import_optional
from lametta.types import LamettaError

if TYPE_CHECKING:
    from PIL.Image import Image

SIDE = 32
"""Pixels of a side: these corruptions are defined for no other size."""

Pixels: TypeAlias = NDArray[np.uint8]
"""An image [32, 32, 3]."""
_Floats: TypeAlias = NDArray[np.float64]
_Corruption: TypeAlias = Callable[..., _Floats]

_NEEDS_PICTURES, _NEEDS_OPENCV = "frost", "spatter"


def needs_package(corruptions: Sequence[str]) -> bool:
    """Whether one of these needs the extra: pictures of frost, or OpenCV for spatter.

    Examples
    --------
    >>> needs_package(["fog"]), needs_package(["fog", "frost"])
    (False, True)
    """
    return bool({_NEEDS_PICTURES, _NEEDS_OPENCV} & set(corruptions))


def corrupt_pixels(pixels: Pixels, corruption: str, severity: int, seed: int) -> Pixels:
    """Corrupt an image [32, 32, 3]; the same seed gives the same image on every machine.

    Examples
    --------
    >>> gray = np.full((32, 32, 3), 100, np.uint8)
    >>> corrupt_pixels(gray, "brightness", 5, seed=0)[0, 0]
    array([176, 176, 176], dtype=uint8)
    """
    if pixels.shape != (SIDE, SIDE, 3):
        height, width = pixels.shape[:2]
        raise LamettaError(
            f"image must be {SIDE} x {SIDE} pixels for CIFAR's corruptions, got {width} x {height}"
        )
    corrupted, constants = _CORRUPTIONS[corruption]
    # RandomState, whose draws are frozen: those of Generator may change with NumPy's version.
    rng = np.random.RandomState(seed)
    chosen = constants[severity - 1]
    given = chosen if isinstance(chosen, tuple) else (chosen,)
    x = corrupted(pixels / 255.0, rng, *given)
    return (np.clip(x, 0, 1) * 255).astype(np.uint8)


def _gaussian_noise(x: _Floats, rng: np.random.RandomState, sigma: float) -> _Floats:
    return x + rng.normal(scale=sigma, size=x.shape)


def _shot_noise(x: _Floats, rng: np.random.RandomState, photons: int) -> _Floats:
    return rng.poisson(x * photons) / photons


def _impulse_noise(x: _Floats, rng: np.random.RandomState, share: float) -> _Floats:
    hit, salt = rng.uniform(size=x.shape) < share, rng.uniform(size=x.shape) < 0.5
    return np.where(hit, salt, x)


def _speckle_noise(x: _Floats, rng: np.random.RandomState, sigma: float) -> _Floats:
    return x + x * rng.normal(scale=sigma, size=x.shape)


def _gaussian_blur(x: _Floats, _rng: object, sigma: float) -> _Floats:
    return _smooth(x, sigma)


def _glass_blur(x: _Floats, rng: np.random.RandomState, sigma: float, rounds: int) -> _Floats:
    """Blur, move pixels about, blur again.

    The published loop goes backwards over rows and columns and means to swap each pixel with itself
    or a neighbor before it, above or to the left. Its swap overwrites both with the neighbor, which
    no earlier turn has touched: a round is one gather.
    """
    moved = np.floor(_smooth(x, sigma) * 255)
    inner = np.arange(2, SIDE)
    for _ in range(rounds):
        left, up = rng.randint(-1, 1, size=(2, len(inner), len(inner)))
        moved = moved.copy()
        moved[2:, 2:] = moved[inner[:, None] + up, inner + left]
    return _smooth(moved / 255, sigma)


def _defocus_blur(x: _Floats, _rng: object, radius: float, alias_blur: float) -> _Floats:
    at = np.arange(-2, 3)  # the largest disk, blurred by 3 x 3, has 5 x 5 pixels
    disk = (at[:, None] ** 2 + at**2 <= radius**2).astype(float)
    edge = np.exp(-0.5 / alias_blur**2)
    soft = np.array([edge, 1, edge]) / (1 + 2 * edge)
    kernel = _ndimage().convolve(disk / disk.sum(), np.outer(soft, soft), mode="constant")
    return np.asarray(_ndimage().correlate(x, kernel[:, :, None], mode="mirror"))


def _motion_blur(x: _Floats, rng: np.random.RandomState, radius: int, sigma: float) -> _Floats:
    moved = _along(x, radius, sigma, rng.uniform(-45, 45))
    return _nearest_byte(moved)


def _zoom_blur(x: _Floats, _rng: object, end: float) -> _Floats:
    zooms = _zooms(end)  # [Z, 32, 32]: zooming is linear, and the same for rows and columns
    taller = np.tensordot(zooms, x, 1)  # [Z, 32, 32, 3]
    zoomed = np.tensordot(taller, zooms, ((0, 2), (0, 2))).swapaxes(1, 2)
    mean: _Floats = (x + zoomed) / (len(zooms) + 1)
    return mean


def _fog(x: _Floats, rng: np.random.RandomState, amount: float, decay: float) -> _Floats:
    fog, brightest = _plasma(rng, decay)[:, :, None], x.max()
    foggy: _Floats = (x + amount * fog) * brightest / (brightest + amount)
    return foggy


def _frost(x: _Floats, rng: np.random.RandomState, image: float, frost: float) -> _Floats:
    picture = _frost_pictures()[rng.randint(5)]
    top, left = (rng.randint(0, length - SIDE) for length in picture.shape[:2])
    return image * x + frost * picture[top : top + SIDE, left : left + SIDE] / 255


def _snow(
    x: _Floats,
    rng: np.random.RandomState,
    mean: float,
    sd: float,
    zoom: float,
    threshold: float,
    radius: int,
    sigma: float,
    mix: float,
) -> _Floats:
    zooming = _zoomed_by(zoom)
    flakes = zooming @ rng.normal(mean, sd, size=(SIDE, SIDE)) @ zooming.T
    flakes = np.where(flakes < threshold, 0, np.clip(flakes, 0, 1))
    flakes = _along(np.floor(flakes * 255) / 255, radius, sigma, rng.uniform(-135, -45))
    snow = _nearest_byte(flakes)[:, :, None]
    gray = (x @ [0.299, 0.587, 0.114])[:, :, None]
    pale = mix * x + (1 - mix) * np.maximum(x, 1.5 * gray + 0.5)
    return pale + snow + np.rot90(snow, 2)


def _spatter(
    x: _Floats,
    rng: np.random.RandomState,
    mean: float,
    sd: float,
    sigma: float,
    threshold: float,
    strength: float,
    mud: int,
) -> _Floats:
    """Drops of water, or splashes of mud."""
    liquid = _smooth(rng.normal(mean, sd, size=(SIDE, SIDE, 1)), sigma)[:, :, 0]
    if mud:
        cover = _smooth((liquid > threshold)[:, :, None].astype(float), strength)
        cover[cover < 0.8] = 0
        return np.asarray((1 - cover) * x + cover * np.array([63, 42, 20]) / 255)
    drops = np.where(liquid < threshold, 0, liquid * 255).clip(0, 255).astype(np.uint8)
    water = drops * _relief(drops)
    if not water.any():  # no drop has fallen: there, the published code divides 0 by 0
        return x
    shine = strength * water / water.max()
    return np.asarray(x + shine[:, :, None] * np.array([175, 238, 238]) / 255)


def _contrast(x: _Floats, _rng: object, factor: float) -> _Floats:
    mean = x.mean(axis=(0, 1))
    contrasted: _Floats = (x - mean) * factor + mean
    return contrasted


def _brightness(x: _Floats, _rng: object, amount: float) -> _Floats:
    """Add to the value of HSV; at the same hue and saturation that scales all three channels."""
    value = x.max(axis=2, keepdims=True)
    brighter = np.minimum(value + amount, 1)
    scale = np.divide(brighter, value, out=np.zeros_like(value), where=value > 0)
    return np.asarray(np.where(value > 0, x * scale, brighter))


def _saturate(x: _Floats, _rng: object, factor: float, offset: float) -> _Floats:
    """Change the saturation of HSV; a gray pixel has the hue 0, which is red."""
    value, least = x.max(axis=2, keepdims=True), x.min(axis=2, keepdims=True)
    spread = value - least
    saturation = np.divide(spread, value, out=np.zeros_like(value), where=value > 0)
    red = np.broadcast_to([0.0, 1.0, 1.0], x.shape)
    below = np.divide(value - x, spread, out=red.copy(), where=spread > 0)
    return np.asarray(value * (1 - np.clip(saturation * factor + offset, 0, 1) * below))


def _jpeg_compression(x: _Floats, _rng: object, quality: int) -> _Floats:
    pil, file = import_optional("PIL.Image", "pillow", "a corruption"), io.BytesIO()
    _image(x).save(file, "JPEG", quality=quality)
    with pil.open(file) as image:
        return _exact(np.array(image))


def _pixelate(x: _Floats, _rng: object, scale: float) -> _Floats:
    box = import_optional("PIL.Image", "pillow", "a corruption").Resampling.BOX
    small = int(SIDE * scale)
    return _exact(np.array(_image(x).resize((small, small), box).resize((SIDE, SIDE), box)))


def _elastic_transform(
    x: _Floats, rng: np.random.RandomState, amount: float, sigma: float, affine: float
) -> _Floats:
    """Move three points of the image at random, then all pixels a little; lengths in sides."""
    middle, third = SIDE // 2, SIDE // 3
    corners = middle + third * np.array([[1, 1], [1, -1], [-1, -1]])  # x, y
    moved = corners + rng.uniform(-affine * SIDE, affine * SIDE, size=(3, 2))
    # From the points after the move back to those before it.
    back = np.linalg.solve(np.column_stack([moved, np.ones(3)]), corners)  # [3, 2]
    down, right = np.mgrid[:SIDE, :SIDE].astype(float)
    here = np.stack([right, down, np.ones_like(right)], axis=2) @ back
    x = _sampled(x, here[:, :, 1], here[:, :, 0], "mirror")
    shifts = (
        _ndimage().gaussian_filter(
            rng.uniform(-1, 1, size=(SIDE, SIDE)), sigma * SIDE, mode="reflect", truncate=3
        )
        for _ in range(2)
    )
    to_right, to_down = (amount * SIDE * shift for shift in shifts)
    return _sampled(x, down + to_down, right + to_right, "reflect")


# From the published script (hendrycks/robustness, make_cifar_c.py): severities 1 to 5.
_CORRUPTIONS: dict[str, tuple[_Corruption, Sequence[float | tuple[float, ...]]]] = {
    "gaussian_noise": (_gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": (_shot_noise, (500, 250, 100, 75, 50)),
    "impulse_noise": (_impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "speckle_noise": (_speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": (_gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1)),
    "glass_blur": (_glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "defocus_blur": (_defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "motion_blur": (_motion_blur, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": (_zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "fog": (_fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "frost": (_frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "snow": (
        _snow,
        (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
    ),
    "spatter": (
        _spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, 0),
            (0.65, 0.1, 0.8, 0.7, 0.5, 0),
            (0.65, 0.3, 1, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "contrast": (_contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "brightness": (_brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "saturate": (_saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "jpeg_compression": (_jpeg_compression, (80, 65, 58, 50, 40)),
    "pixelate": (_pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "elastic_transform": (
        _elastic_transform,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
}


def _ndimage() -> ModuleType:
    return import_optional("scipy.ndimage", "scipy", "a corruption")


def _smooth(x: _Floats, sigma: float) -> _Floats:
    """Gaussian blur of rows and columns, repeating what is at the border."""
    return np.asarray(_ndimage().gaussian_filter(x, (sigma, sigma, 0), mode="nearest"))


def _along(x: _Floats, radius: int, sigma: float, angle: float) -> _Floats:
    """Blur along a line to one side of each pixel, as ImageMagick does; angle in degrees."""
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    direction = np.array([np.sin(np.deg2rad(angle)), np.cos(np.deg2rad(angle))])
    down, right = np.ceil(direction[:, None] * steps - 0.5).astype(int)
    at = np.arange(SIDE)
    rows, columns = (np.clip(at + shift[:, None], 0, SIDE - 1) for shift in (down, right))
    shifted = x[rows[:, :, None], columns[:, None, :]]  # [S, 32, 32, ...]
    return np.tensordot(weights / weights.sum(), shifted, 1)


def _sampled(x: _Floats, down: _Floats, right: _Floats, mode: str) -> _Floats:
    """The image at these places, interpolated bilinearly."""
    sample = _ndimage().map_coordinates
    channels = [sample(x[:, :, c], (down, right), order=1, mode=mode) for c in range(3)]
    return np.stack(channels, axis=2)


@cache
def _zooms(end: float) -> _Floats:
    """Matrices [Z, 32, 32] of the zooms from 1 by .01 to before the end.

    Written as published, since the last bit matters: it lets 1.06 and 1.11 in, where these are the
    end, and makes 1.25 enlarge 26 pixels to 33 rather than 32.
    """
    return np.stack([_zoomed_by(float(zoom)) for zoom in np.arange(1, end, 0.01)])


@cache
def _zoomed_by(zoom: float) -> _Floats:
    """The matrix [32, 32] that enlarges the middle of a column of pixels, bilinearly."""
    crop = int(np.ceil(SIDE / zoom))
    top = (SIDE - crop) // 2
    enlarged = _ndimage().zoom(np.eye(SIDE)[top : top + crop], (zoom, 1), order=1)
    trim = (len(enlarged) - SIDE) // 2
    return np.asarray(enlarged[trim : trim + SIDE])


def _plasma(rng: np.random.RandomState, decay: float) -> _Floats:
    """A fractal landscape [32, 32] from 0 to 1, by the diamond-square algorithm on a torus."""
    land, rough, step = np.zeros((SIDE, SIDE)), 1.0, SIDE
    while step >= 2:
        half, n = step // 2, SIDE // step
        corners = land[::step, ::step]
        pairs = corners + np.roll(corners, -1, 0)
        middles = (pairs + np.roll(pairs, -1, 1)) / 4 + rough * rng.uniform(-1, 1, (n, n))
        land[half::step, half::step] = middles
        for rows, columns, axis in ((0, half, 1), (half, 0, 0)):
            around = corners + np.roll(corners, -1, axis) + middles + np.roll(middles, 1, 1 - axis)
            land[rows::step, columns::step] = around / 4 + rough * rng.uniform(-1, 1, (n, n))
        step, rough = half, rough / decay**2
    land -= land.min()
    return np.asarray(land / land.max())


@cache
def _frost_pictures() -> list[Pixels]:
    """The first five of the six pictures that ImageNet-C has, every fifth pixel of them."""
    found = find_spec("imagecorruptions")
    if found is None or found.origin is None:
        install = extra("corruptions")
        raise LamettaError(f"frost needs pictures of imagecorruptions: pip install {install}")
    folder = Path(found.origin).parent / "frost"
    pil = import_optional("PIL.Image", "pillow", "a corruption")
    pictures = []
    for i, suffix in enumerate(("png", "png", "png", "jpg", "jpg"), 1):
        with pil.open(folder / f"frost{i}.{suffix}") as image:
            # Shrunk to a fifth by bilinear interpolation, whose points are the middles of fives.
            pictures.append(np.array(image.convert("RGB"))[2::5, 2::5])
    return pictures


def _relief(drops: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Light on drops [32, 32]: the distance to their edges, equalized and embossed."""
    cv2 = import_optional("cv2", extra("corruptions"), "spatter")
    distance = cv2.distanceTransform(255 - cv2.Canny(drops, 50, 150), cv2.DIST_L2, 5)
    near = cv2.blur(np.minimum(distance, 20), (3, 3)).astype(np.uint8)
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    light = cv2.filter2D(cv2.equalizeHist(near), cv2.CV_8U, emboss)
    return np.asarray(cv2.blur(light, (3, 3)), np.float32)


def _nearest_byte(x: _Floats) -> _Floats:
    """Values as a file of bytes would hold them, such as ImageMagick writes."""
    return _exact(np.rint(x * 255).clip(0, 255))


def _exact(values: NDArray[np.generic]) -> _Floats:
    """Bytes as floats that give the same bytes again, though these are cut off, not rounded."""
    return (np.asarray(values, float) + 1e-6) / 255


def _image(x: _Floats) -> "Image":
    pil = import_optional("PIL.Image", "pillow", "a corruption")
    image: Image = pil.fromarray(np.rint(x * 255).astype(np.uint8))
    return image
