"""The paper's data sets in miniature, and networks for them, with nothing to download.

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
paper to 1 for ink.
"""

import copy
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_choice, extra
from lametta.data.dataset import Dataset
from lametta.data.readers import digit_shifts as shifts
from lametta.data.readers.layout import Entry
from lametta.types import LamettaError

_PARTS = {"train": range(900), "val": range(900, 1350), "test": range(1350, 1797)}


class Digit(NamedTuple):
    """A digit as an image [8, 8]: its name, its class and its group."""

    key: str
    image: shifts.Pixels
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


def part(name: str) -> list[Digit]:
    """The plain digits for training (``"train"``), or behind the ``"val"`` or ``"test"`` sets."""
    check_choice("name", name, _PARTS)
    stored = _stored()
    return [
        Digit(f"{i:04}", stored[i, :64].reshape(8, 8) / 16, int(stored[i, 64]))
        for i in _PARTS[name]
    ]


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


def _corrupted(
    digits: list[Digit], corruptions: Mapping[str, shifts.Corruption]
) -> Iterator[Digit]:
    for group, corruption in corruptions.items():
        for digit in digits:
            key = f"{group}/{digit.key}"
            yield Digit(key, corruption(digit.image, _generator(key)), digit.label, group)


def _scanned(digits: list[Digit]) -> Iterator[Digit]:
    for digit in digits:
        yield digit._replace(image=shifts.scan(digit.image, _generator(digit.key)))


def _filmed(digits: list[Digit], video: shifts.Video, n_frames: int) -> Iterator[Digit]:
    for digit in digits:
        for i, frame in enumerate(video(digit.image, _generator(digit.key), n_frames)):
            yield Digit(f"{digit.key}/{i:02}", frame, digit.label, digit.key)


_RECIPES = {
    "digits_val": _Recipe("digits that the network has not seen", lambda: part("val")),
    "digits_c_val": _Recipe(
        "these digits under four corruptions",
        lambda: _corrupted(part("val"), shifts.VALIDATION),
    ),
    "digits_super": _Recipe(
        "eight of these corrupted digits as four classes",
        lambda: _corrupted(part("val"), shifts.VALIDATION),
        # As in ImageNet-C16, all super-classes have two members and some digits are in none.
        {"rings": [0, 8], "strokes": [1, 7], "bows": [2, 3], "tails": [6, 9]},
    ),
    "digits_v2": _Recipe("yet other digits, scanned anew", lambda: _scanned(part("test"))),
    "digits_c_test": _Recipe(
        "those digits under four other corruptions",
        lambda: _corrupted(part("test"), shifts.TEST),
    ),
    "digits_vid": _Recipe(
        "videos of tumbling digits", lambda: _filmed(part("test")[::4], shifts.tumble, 16)
    ),
    "digits_tao": _Recipe(
        "short videos of digits that drive by, as five classes",
        lambda: _filmed(part("test")[2::4], shifts.drive_by, 8),
        {"ring": [0], "lines": [1, 4, 7], "bows": [2, 3, 5], "tails": [6, 9], "rings": [8]},
    ),
}


ENTRIES = {
    f"embedded:{name}": Entry(recipe.line, "", partial(make_digits, name))
    for name, recipe in _RECIPES.items()
}
