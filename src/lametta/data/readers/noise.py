"""Images of uniform noise: samples of no class, to be mixed in as unknown ones."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from lametta._checks import check_integer, import_optional
from lametta.data.dataset import Dataset
from lametta.data.readers.layout import Entry

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class _Noise:
    n: int
    side: int

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int, /) -> "Image":
        # Seeded by its number, an image does not depend on those that are made before it.
        draws = np.random.default_rng(range(self.n)[i])
        pixels = draws.integers(256, size=(self.side, self.side, 3), dtype=np.uint8)
        image: Image = import_optional("PIL.Image", "pillow", "an image").fromarray(pixels)
        return image

    def file_versions(self) -> tuple[str, ...]:
        return ("noise",) * self.n


def uniform_noise(n: int = 10_000, side: int = 32) -> Dataset:
    """Squares of pixels that are drawn uniformly, all of one class: the noise of SoTTA's streams.

    Parameters
    ----------
    n : int
        How many images.
    side : int
        Their width and height in pixels.

    Examples
    --------
    >>> data = uniform_noise(3, 8)
    >>> data.classes, data[0].x.size
    (('noise',), (8, 8))
    """
    check_integer("n", n, 1)
    check_integer("side", side, 1)
    keys = tuple(f"{i:05}" for i in range(n))
    return Dataset("uniform_noise", _Noise(n, side), np.zeros(n, np.int64), ("noise",), keys)


ENTRIES = {"embedded:noise": Entry("images of uniform noise, of no class", "", uniform_noise)}
