"""Corruptions of ImageNet-C and CIFAR-10-C, applied to any images when they are read."""

import hashlib
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_choice, check_package, extra, import_optional
from lametta.data.cifar_c import corrupt_pixels, needs_package
from lametta.data.dataset import Dataset, Samples, file_versions
from lametta.types import LamettaError

if TYPE_CHECKING:
    from PIL.Image import Image

VALIDATION = (
    *("brightness", "contrast", "defocus_blur", "elastic_transform", "fog", "frost"),
    *("gaussian_blur", "gaussian_noise", "zoom_blur"),
)
TEST = (
    *("glass_blur", "impulse_noise", "jpeg_compression", "motion_blur", "pixelate", "saturate"),
    *("shot_noise", "snow", "spatter", "speckle_noise"),
)
STANDARD = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur"),
    *("motion_blur", "zoom_blur", "snow", "frost", "fog"),
    *("brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
SETS = {"val": VALIDATION, "test": TEST, "all": VALIDATION + TEST, "standard": STANDARD}
"""The paper's corruptions for validation and for the test, all 19, and the field's 15 in order."""
CONSTANTS = ("imagenet", "cifar")
"""Whose severities: those of ImageNet-C, or the weaker ones of CIFAR-10-C."""

_SEEDED = ("glass_blur", "impulse_noise")  # the others draw from NumPy's global state
_LEAST = 32  # pixels a side, the least that the package takes


def corrupt(
    dataset: Dataset,
    corruptions: str | Sequence[str] = "test",
    *,
    severity: int | Sequence[int] = 5,
    seed: int = 0,
    size: int | None = None,
    constants: str = "imagenet",
) -> Dataset:
    """Every image under every corruption, one corruption after the other.

    The corruption becomes the group, and ``<corruption>/<severity>/`` comes before the key. Where
    there are several severities, the group is ``<corruption>/<severity>``. Random
    numbers depend on the seed, the corruption, the severity and the key alone, not on the order in
    which images are read, nor on the process. Needs the extra ``corruptions``, with ``"cifar"`` for
    frost and spatter alone.

    Parameters
    ----------
    dataset : Dataset
        Of PIL images, at least 32 x 32 pixels.
    corruptions : str or sequence of str
        "val", "test", "all" or "standard" for those of `SETS`, or names.
    severity : int or sequence of int
        1 to 5.
    seed : int
        Another one gives other noise.
    size : int, optional
        First resize the shorter side to 256 / 224 of this, and cut a square of this side from the
        middle. Corruptions are defined in pixels, and ImageNet-C's are of squares of 224. None
        corrupts images at their own size.
    constants : {"imagenet", "cifar"}
        Whose severities. CIFAR-10-C has weaker ones of its own, for images of 32 x 32 pixels.

    Examples
    --------
    >>> from PIL import Image
    >>> from lametta.data.dataset import arrays
    >>> data = corrupt(arrays([Image.new("RGB", (48, 32))], [0]), ["fog", "snow"])
    >>> data.keys, data[1].x.size, data[1].group
    (('fog/5/0', 'snow/5/0'), (48, 32), 'snow')
    """
    names = SETS.get(corruptions, (corruptions,)) if isinstance(corruptions, str) else corruptions
    _check_each("corruptions", names, SETS["all"])
    levels = (severity,) if isinstance(severity, int) else tuple(severity)
    _check_each("severity", levels, range(1, 6))
    if size is not None and size < _LEAST:
        raise LamettaError(f"size must be at least {_LEAST} pixels, or None, got {size}")
    check_choice("constants", constants, CONSTANTS)
    # Now, not when the first image is read.
    for module, install in packages(names, constants).items():
        check_package(module, install, "a corruption")
    domains, groups = name_domains(names, levels)
    pairs = tuple(product(names, levels))
    return replace(
        dataset,
        name=f"{dataset.name}_c",
        samples=_Corrupted(dataset.samples, dataset.keys, pairs, seed, size, constants),
        labels=np.tile(dataset.labels, len(domains)),
        keys=tuple(f"{domain}/{key}" for domain in domains for key in dataset.keys),
        groups=np.repeat(np.array(groups), len(dataset)),
    )


def name_domains(
    corruptions: Sequence[str], levels: Sequence[int]
) -> tuple[Sequence[str], Sequence[str]]:
    """What keys and what groups call each corruption at each severity, in this order.

    Examples
    --------
    >>> name_domains(["fog", "snow"], [5])
    (['fog/5', 'snow/5'], ['fog', 'snow'])
    """
    domains = [f"{corruption}/{level}" for corruption in corruptions for level in levels]
    return domains, domains if len(levels) > 1 else corruptions


def _check_each(name: str, given: Collection[object], known: Collection[object]) -> None:
    for value in given:
        check_choice(name, value, known)
    if not given:
        raise LamettaError(f"{name} must not be empty, got none")


def packages(corruptions: Sequence[str], constants: str = "imagenet") -> dict[str, str]:
    """The modules that these corruptions import, and what pip installs for each.

    Examples
    --------
    >>> packages(["fog"], "cifar")
    {'scipy': 'scipy'}
    """
    found = {"scipy": "scipy"} if constants == "cifar" and corruptions else {}
    if needs_package(corruptions) or (constants == "imagenet" and corruptions):
        found["imagecorruptions"] = extra("corruptions")
    return found


def corrupt_image(
    image: "Image",
    corruption: str,
    *,
    severity: int = 5,
    seed: int = 0,
    constants: str = "imagenet",
) -> "Image":
    """Corrupt one image.

    Parameters
    ----------
    image : PIL.Image.Image
        At least 32 x 32 pixels.
    corruption : str
        One of the 19.
    severity : int
        1 to 5.
    seed : int
        From 0 to 2**32 - 1; the same seed gives the same image.
    constants : {"imagenet", "cifar"}
        As for `corrupt`.

    Returns
    -------
    PIL.Image.Image
        RGB, of the same size.

    Examples
    --------
    >>> from PIL import Image
    >>> corrupt_image(Image.new("RGB", (48, 32), "gray"), "brightness").getpixel((0, 0))
    (255, 255, 255)
    """
    check_choice("corruption", corruption, SETS["all"])
    check_choice("severity", severity, range(1, 6))
    check_choice("constants", constants, CONSTANTS)
    if not 0 <= seed < 2**32:
        raise LamettaError(f"seed must lie in 0..2**32 - 1, got {seed}")
    pixels = np.array(_upright(image))
    if constants == "cifar":
        return _to_image(corrupt_pixels(pixels, corruption, severity, seed))
    height, width, _ = pixels.shape
    if min(height, width) < _LEAST:
        raise LamettaError(
            f"image must be at least {_LEAST} x {_LEAST} pixels, got {width} x {height}"
        )
    options = {"seed": seed} if corruption in _SEEDED else {}
    try:
        with _global_seed(seed), np.errstate(invalid="raise"):
            pixels = _package().corrupt(pixels, severity, corruption, **options)
    except FloatingPointError:
        if corruption != "spatter":
            raise
        # No drop fell on a small image, and 0 was divided by 0: the image stays as it is.
    return _to_image(pixels)


@dataclass(frozen=True)
class _Corrupted:
    samples: Samples
    keys: tuple[str, ...]
    domains: tuple[tuple[str, int], ...]  # corruptions and their severities
    seed: int
    size: int | None
    constants: str

    def __len__(self) -> int:
        return len(self.samples) * len(self.domains)

    def __getitem__(self, i: int, /) -> "Image":
        which, sample = divmod(i, len(self.samples))
        (corruption, severity), key = self.domains[which], self.keys[sample]
        text = f"{self.seed}/{corruption}/{severity}/{key}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "little")
        image = self.samples[sample]
        try:
            image = image if self.size is None else _square(image, self.size)
            return corrupt_image(
                image, corruption, severity=severity, seed=seed, constants=self.constants
            )
        except LamettaError as error:
            raise LamettaError(f"dataset cannot be corrupted at {key}: {error}") from error

    def file_versions(self) -> tuple[str, ...] | None:
        versions = file_versions(self.samples)
        if versions is None:
            return None
        how = f"{self.seed} {self.size}"
        if self.constants != "imagenet":  # banks from before this option keep their rows
            how += f" {self.constants}"
        return tuple(f"{version} {how}" for _ in self.domains for version in versions)


def _upright(image: "Image") -> "Image":
    """The image as RGB, turned as its EXIF tag says: arrays have no tags."""
    if not isinstance(image, _pillow("Image").Image):
        raise LamettaError(f"image must be a PIL image, got {type(image).__name__}")
    upright: Image = _pillow("ImageOps").exif_transpose(image)
    return upright.convert("RGB")


def _to_image(pixels: NDArray[np.uint8]) -> "Image":
    image: Image = _pillow("Image").fromarray(pixels)
    return image


def _square(image: "Image", side: int) -> "Image":
    image = _upright(image)
    ratio = side * 256 / 224 / min(image.size)
    width, height = (round(length * ratio) for length in image.size)
    image = image.resize((width, height), _pillow("Image").Resampling.BILINEAR)
    left, top = ((length - side) // 2 for length in image.size)
    return image.crop((left, top, left + side, top + side))


@contextmanager
def _global_seed(seed: int) -> Iterator[None]:
    """Seed NumPy's global state, which the package draws from, and restore it afterwards."""
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(seed)  # noqa: NPY002
    try:
        yield
    finally:
        np.random.set_state(state)  # noqa: NPY002


def _pillow(module: str) -> ModuleType:
    return import_optional(f"PIL.{module}", "pillow", "a corruption")


def _package() -> ModuleType:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # those of its dependencies, on import
        return import_optional("imagecorruptions", extra("corruptions"), "a corruption")
