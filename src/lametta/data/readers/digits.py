"""Embedded digits: the paper's data sets in miniature, with synthetic corruptions and videos.

All are made from scikit-learn's 1797 digits. Neighbors in its order tend to share a writer, so the
order is cut in three: the networks learned from the first part, the validation sets are made from
the second and the test sets from the third, mostly by other writers.

=================  ======================  =======================================  ================
here               in the paper            made by                                  right
=================  ======================  =======================================  ================
``digits_val``     ImageNet-Val            leaving the digits as they are           95.8, 97.6, 98.4
``digits_c_val``   ImageNet-C, validation  four corruptions: the groups             67.1, 82.8, 75.5
``digits_super``   ImageNet-C16            the same, eight digits as four classes   71.9, 85.1, 79.2
``digits_v2``      ImageNet-V2             scanning the digits anew                 89.9, 89.7, 91.7
``digits_c_test``  ImageNet-C, test        four other corruptions: the groups       66.1, 74.0, 71.3
``digits_vid``     ImageNet-VID            moving digits about: videos, the groups  77.6, 73.2, 83.1
``digits_tao``     TAO-LaSOT               shorter videos, digits as five classes   67.0, 68.5, 71.4
=================  ======================  =======================================  ================

The last column is the accuracy of ``digits``, ``digits_mixup`` and ``digits_resnet`` of
`lametta.torch.digits` as they are, in percent. Samples are what they take: float32 [1, 8, 8], 0 for
paper to 1 for ink. Random numbers come from generators that are seeded by the keys of samples.
"""

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_choice, extra
from lametta.data.dataset import Dataset
from lametta.data.readers.layout import Entry
from lametta.types import LamettaError

Pixels: TypeAlias = NDArray[np.float64]
"""An image [8, 8], 0 for paper to 1 for ink, or the frames [n_frames, 8, 8] of a video."""

Corruption: TypeAlias = Callable[[Pixels, np.random.Generator], Pixels]
"""From an image to a worse one."""

Video: TypeAlias = Callable[[Pixels, np.random.Generator, int], Pixels]
"""From an image and a number of frames to frames [n_frames, 8, 8], each close to the one before."""

_PARTS = {"train": range(900), "val": range(900, 1350), "test": range(1350, 1797)}


class Digit(NamedTuple):
    """A digit as an image [8, 8]: its name, its class and its group."""

    key: str
    image: Pixels
    label: int
    group: str | None = None


class _Recipe(NamedTuple):
    line: str
    make: Callable[[], Iterable[Digit]]
    classes: Mapping[str, Sequence[int]] | None = None


def make_digits(name: str) -> Dataset:
    """Make a data set of digits, the same each time.

    Parameters
    ----------
    name : str
        Its name in the table of this module.

    Examples
    --------
    >>> data = make_digits("digits_super")
    >>> data.samples.shape, data.classes
    ((1440, 1, 8, 8), ('rings', 'strokes', 'bows', 'tails'))
    >>> data.keys[0], data[0].group
    ('brightness/0901', 'brightness')
    """
    check_choice("name", name, _RECIPES)
    return copy.deepcopy(_made(name))


def part(name: str) -> list[Digit]:
    """The plain digits for training (``"train"``), or behind the ``"val"`` or ``"test"`` sets."""
    check_choice("name", name, _PARTS)
    stored = _stored()
    return [
        Digit(f"{i:04}", stored[i, :64].reshape(8, 8) / 16, int(stored[i, 64]))
        for i in _PARTS[name]
    ]


def warp(
    image: Pixels,
    *,
    angle: float = 0.0,
    scale: float = 1.0,
    slant: float = 0.0,
    shift: tuple[float, float] | Pixels = (0.0, 0.0),
) -> Pixels:
    """Slant an image, scale and turn it about its center, then shift it by (rows, columns).

    The angle is in radians, from the first axis to the second; a slant of 1 moves a row by one
    column more than the row above it. What comes in over the border is paper.
    """
    from scipy import ndimage

    cos, sin = np.cos(angle), np.sin(angle)
    there = scale * np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, 0], [slant, 1]])
    back = np.linalg.inv(there)
    center = (np.array(image.shape) - 1) / 2
    offset = center - back @ (center + shift)
    return np.asarray(ndimage.affine_transform(image, back, offset, order=1))


def brightness(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Raise all pixels by the same amount."""
    return _clip(image + rng.uniform(0.2, 0.5))


def contrast(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Draw all pixels towards their mean."""
    mean = float(image.mean())
    return mean + rng.uniform(0.35, 0.55) * (image - mean)


def gaussian_blur(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Blur the image by a Gaussian."""
    from scipy import ndimage

    return np.asarray(ndimage.gaussian_filter(image, rng.uniform(0.7, 1.0), mode="constant"))


def gaussian_noise(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Add noise to every pixel."""
    return _clip(image + rng.normal(scale=0.25, size=image.shape))


def impulse_noise(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Make some pixels paper or ink."""
    hit = rng.random(image.shape) < 0.12
    return np.where(hit, rng.integers(2, size=image.shape), image)


def motion_blur(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Average the image over a straight path."""
    angle, length = rng.uniform(0, np.pi), rng.uniform(2, 4)
    path = np.linspace(-length / 2, length / 2, 7)
    moved = [warp(image, shift=(s * np.cos(angle), s * np.sin(angle))) for s in path]
    blurred: Pixels = np.mean(moved, axis=0)
    return blurred


def occlusion(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Cover a square of 3 x 3 pixels."""
    top, left = rng.integers(1, 5, size=2)
    covered = image.copy()
    covered[top : top + 3, left : left + 3] = rng.uniform(0, 1)
    return covered


def pixelate(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Average blocks of 2 x 2 pixels, on a grid at a random place."""
    top, left = rng.integers(2, size=2)
    padded = np.pad(image, ((top, 2 - top), (left, 2 - left)))
    means: Pixels = padded.reshape(5, 2, 5, 2).mean(axis=(1, 3))
    return means.repeat(2, axis=0).repeat(2, axis=1)[top : top + 8, left : left + 8]


def scan(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Scan the image anew: a little turned, moved, and of another size and ink."""
    return rng.uniform(0.7, 1.0) * warp(
        image,
        angle=rng.normal(scale=0.15),
        scale=np.exp(rng.normal(scale=0.1)),
        shift=rng.normal(scale=0.5, size=2),
    )


def tumble(image: Pixels, rng: np.random.Generator, n_frames: int) -> Pixels:
    """Turn, move and scale the image, under a little noise."""
    path = [_sway(rng, n_frames, size) for size in (0.6, 1.0, 1.0, 0.2)]
    frames = [
        warp(image, angle=angle, shift=(down, right), scale=np.exp(zoom))
        for angle, down, right, zoom in zip(*path, strict=True)
    ]
    return _clip(np.stack(frames) + rng.normal(scale=0.05, size=(n_frames, *image.shape)))


def drive_by(image: Pixels, rng: np.random.Generator, n_frames: int) -> Pixels:
    """Let the image pass from left to right or back, slanted, in light that changes."""
    path = np.linspace(-1.5, 1.5, n_frames) * rng.choice([-1, 1])
    slants, lights = _sway(rng, n_frames, 0.4), 0.6 + _sway(rng, n_frames, 0.3)
    return np.stack(
        [
            light * warp(image, slant=slant, shift=(0, right))
            for right, slant, light in zip(path, slants, lights, strict=True)
        ]
    )


def _sway(rng: np.random.Generator, n_frames: int, size: float) -> Pixels:
    """A smooth path within -size..size."""
    turns, phase = rng.uniform(0.5, 1.5), rng.uniform(0, 2 * np.pi)
    return size * np.sin(phase + 2 * np.pi * turns * np.arange(n_frames) / n_frames)


def _clip(image: Pixels) -> Pixels:
    return np.clip(image, 0, 1)


# Strengths were set by the accuracy of the plain network alone: 55 to 80 % under each corruption.
VALIDATION: dict[str, Corruption] = {
    shift.__name__: shift for shift in (brightness, contrast, gaussian_blur, gaussian_noise)
}
TEST: dict[str, Corruption] = {
    shift.__name__: shift for shift in (impulse_noise, motion_blur, occlusion, pixelate)
}


@cache
def _made(name: str) -> Dataset:
    recipe = _RECIPES[name]
    keys, images, labels, groups = zip(*recipe.make(), strict=True)
    data = Dataset(
        name,
        np.stack(images)[:, None].astype(np.float32),
        np.array(labels),
        tuple("0123456789"),
        keys,
        None if groups[0] is None else np.array(groups),
    )
    return data if recipe.classes is None else data.relabeled(recipe.classes)


@cache
def _stored() -> NDArray[np.float64]:
    """The digits, one a row: 64 pixels from 0 to 16, and the class."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise LamettaError(f"an embedded data set needs sklearn: pip install {extra('sklearn')}")
    # Its file alone: to import scikit-learn takes seconds in each process of a run.
    return np.loadtxt(Path(found.origin).parent / "datasets/data/digits.csv.gz", delimiter=",")


def _generator(key: str) -> np.random.Generator:
    # Seeded by its key, a sample does not depend on those that are made before it.
    return np.random.default_rng(zlib.crc32(key.encode()))


def _corrupted(digits: list[Digit], corruptions: Mapping[str, Corruption]) -> Iterator[Digit]:
    for group, corruption in corruptions.items():
        for digit in digits:
            key = f"{group}/{digit.key}"
            yield Digit(key, corruption(digit.image, _generator(key)), digit.label, group)


def _scanned(digits: list[Digit]) -> Iterator[Digit]:
    for digit in digits:
        yield digit._replace(image=scan(digit.image, _generator(digit.key)))


def _filmed(digits: list[Digit], video: Video, n_frames: int) -> Iterator[Digit]:
    for digit in digits:
        for i, frame in enumerate(video(digit.image, _generator(digit.key), n_frames)):
            yield Digit(f"{digit.key}/{i:02}", frame, digit.label, digit.key)


_RECIPES = {
    "digits_val": _Recipe("digits that the network has not seen", lambda: part("val")),
    "digits_c_val": _Recipe(
        "these digits under four corruptions",
        lambda: _corrupted(part("val"), VALIDATION),
    ),
    "digits_super": _Recipe(
        "eight of these corrupted digits as four classes",
        lambda: _corrupted(part("val"), VALIDATION),
        # As in ImageNet-C16, all super-classes have two members and some digits are in none.
        {"rings": [0, 8], "strokes": [1, 7], "bows": [2, 3], "tails": [6, 9]},
    ),
    "digits_v2": _Recipe("yet other digits, scanned anew", lambda: _scanned(part("test"))),
    "digits_c_test": _Recipe(
        "those digits under four other corruptions",
        lambda: _corrupted(part("test"), TEST),
    ),
    "digits_vid": _Recipe(
        "videos of tumbling digits", lambda: _filmed(part("test")[::4], tumble, 16)
    ),
    "digits_tao": _Recipe(
        "short videos of digits that drive by, as five classes",
        lambda: _filmed(part("test")[2::4], drive_by, 8),
        {"ring": [0], "lines": [1, 4, 7], "bows": [2, 3, 5], "tails": [6, 9], "rings": [8]},
    ),
}


ENTRIES = {
    f"embedded:{name}": Entry(recipe.line, "", partial(make_digits, name))
    for name, recipe in _RECIPES.items()
}
