"""CIFAR-10 and CIFAR-100: their test images, and CIFAR-10-C and -100-C as published."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_choice, import_optional, raise_as
from lametta._files import PathLike
from lametta.data.corruption import SETS, STANDARD, name_domains
from lametta.data.dataset import Dataset
from lametta.data.readers.images import file_version
from lametta.data.readers.layout import Entry, Layout, compare_counts, read_text
from lametta.types import LamettaError

if TYPE_CHECKING:
    from PIL.Image import Image

CIFAR10 = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
"""CIFAR-10's classes, in the order of its labels."""

_N = 10_000  # test images, and rows of a severity
_SIDE = 32
_SEVERITIES = range(1, 6)

# Where each lies below the data root: as unpacked, or as arrays in one file.
TEST = {
    10: Layout(("cifar-10-batches-bin/test_batch.bin", "cifar10/cifar10_test.npz")),
    100: Layout(("cifar-100-binary/test.bin",)),
}
C = {n: Layout((f"CIFAR-{n}-C",), ("labels.npy",)) for n in (10, 100)}


def cifar10_test(root: PathLike) -> Dataset:
    """CIFAR-10's 10,000 test images, lossless.

    Reads ``cifar-10-batches-bin/test_batch.bin`` of the published binary version, or
    ``cifar10/cifar10_test.npz`` with ``images`` [N, 32, 32, 3] and ``labels`` [N] in bytes. The
    version for Python is pickled, and so is not read.

    Parameters
    ----------
    root : path
        The data root.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Path(root, "cifar-10-batches-bin").mkdir()
    ...     file = Path(root, "cifar-10-batches-bin/test_batch.bin")
    ...     _ = file.write_bytes(bytes([3]) + bytes(3072))
    ...     data = cifar10_test(root)
    >>> data.classes[data.labels[0]], data[0].x.size, data.keys
    ('cat', (32, 32), ('00000',))
    """
    file = TEST[10].find(root)
    if file.suffix == ".npz":
        expected = "cifar10_test.npz must hold images and labels"
        with raise_as(expected, str(file)), np.load(file, allow_pickle=False) as stored:
            images, labels = stored["images"], stored["labels"]
        _check_images(file, images, labels)
    else:
        (labels,), images = _read_binary(file, 1)
    return _test_images("cifar10_test", file, images, labels, CIFAR10)


def cifar100_test(root: PathLike) -> Dataset:
    """CIFAR-100's 10,000 test images with their 100 fine classes.

    Reads ``cifar-100-binary/test.bin`` and ``fine_label_names.txt`` of the published binary
    version.

    Parameters
    ----------
    root : path
        The data root.

    Examples
    --------
    >>> cifar100_test("photos")
    Traceback (most recent call last):
    lametta.types.LamettaError: no cifar-100-binary/test.bin in 'photos': there
    is no photos/cifar-100-binary/test.bin
    """
    file = TEST[100].find(root)
    (_, labels), images = _read_binary(file, 2)
    names = read_text(file.with_name("fine_label_names.txt")).split()
    return _test_images("cifar100_test", file, images, labels, names)


def _check_domains(levels: Sequence[int], corruptions: Sequence[str]) -> None:
    for severity in levels:
        check_choice("severities", severity, _SEVERITIES)
    for corruption in corruptions:
        check_choice("corruptions", corruption, SETS["all"])
    if not levels or not corruptions:
        raise LamettaError("severities and corruptions must not be empty, got no array to read")


def cifar_c(
    root: PathLike,
    *,
    classes: int = 10,
    severities: int | Sequence[int] = 5,
    corruptions: Sequence[str] = STANDARD,
) -> Dataset:
    """CIFAR-10-C or CIFAR-100-C as published, ``CIFAR-10-C/{labels,<corruption>}.npy``.

    Images come one corruption after the other, in the order given, and in each one severity after
    the other. The group of an image is its corruption, or ``<corruption>/<severity>`` where there
    are several severities. Arrays are memory-mapped.

    Parameters
    ----------
    root : path
        The data root.
    classes : {10, 100}
        Which of the two.
    severities : int or sequence of int
        1 to 5.
    corruptions : sequence of str
        By default the field's 15, in its order; there are 19.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     Path(root, "CIFAR-10-C").mkdir()
    ...     np.save(Path(root, "CIFAR-10-C/labels.npy"), np.tile(np.uint8([3, 8]), 5))
    ...     np.save(Path(root, "CIFAR-10-C/fog.npy"), np.zeros((10, 32, 32, 3), np.uint8))
    ...     data = cifar_c(root, severities=[1, 5], corruptions=["fog"])
    >>> data.keys, str(data.groups[0]), data.labels
    (('fog/1/00000', 'fog/1/00001', 'fog/5/00000', 'fog/5/00001'), 'fog/1', array([3, 8, 3, 8]))
    """
    check_choice("classes", classes, C)
    levels = (severities,) if isinstance(severities, int) else tuple(severities)
    _check_domains(levels, corruptions)
    files = tuple(f"{corruption}.npy" for corruption in corruptions)
    folder = replace(C[classes], inside=("labels.npy", *files)).find(root)
    stored = [_open_array(folder / file) for file in ("labels.npy", *files)]
    n = len(stored[0]) // len(_SEVERITIES)
    for file, images in zip(files, stored[1:], strict=True):
        _check_images(folder / file, images, stored[0])
    rows = np.concatenate([np.arange(n) + n * (severity - 1) for severity in levels])
    names = CIFAR10 if classes == 10 else tuple(map(str, range(classes)))
    domains, groups = name_domains(corruptions, levels)
    data = Dataset(
        f"cifar{classes}_c",
        _Rows(tuple(folder / file for file in files), tuple(stored[1:]), rows),
        np.tile(np.asarray(stored[0], np.int64)[rows], len(files)),
        names,
        tuple(f"{domain}/{i:05}" for domain in domains for i in range(n)),
        np.repeat(np.array(groups), n),
    )
    times = len(files) * len(levels)
    return replace(data, differs=compare_counts({"images": len(data)}, {"images": _N * times}))


ENTRIES = {
    "cifar10_test": Entry(
        "CIFAR-10's test images",
        "cifar-10-batches-bin/test_batch.bin, or cifar10/cifar10_test.npz",
        cifar10_test,
        TEST[10],
        _N,
    ),
    "cifar100_test": Entry(
        "CIFAR-100's test images, 100 fine classes",
        "cifar-100-binary/{test.bin,fine_label_names.txt}",
        cifar100_test,
        TEST[100],
        _N,
    ),
    **{
        f"cifar{n}_c": Entry(
            f"CIFAR-{n}-C as published, 15 corruptions at severity 5 unless asked",
            f"CIFAR-{n}-C/{{labels,<corruption>}}.npy",
            partial(cifar_c, classes=n),
            C[n],
            _N * len(STANDARD),
        )
        for n in C
    },
}


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of arrays [N, 32, 32, 3], the same of each, as PIL images."""

    files: tuple[Path, ...]
    arrays: tuple[NDArray[np.uint8], ...]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.arrays) * len(self.rows)

    def __getitem__(self, i: int, /) -> "Image":
        array, row = divmod(range(len(self))[i], len(self.rows))
        pil = import_optional("PIL.Image", "pillow", "an image")
        image: Image = pil.fromarray(np.asarray(self.arrays[array][self.rows[row]]))
        return image

    def file_versions(self) -> tuple[str, ...]:
        versions = (file_version(file) for file in self.files)
        return tuple(version for version in versions for _ in self.rows)


def _test_images(
    name: str,
    file: Path,
    images: NDArray[np.uint8],
    labels: NDArray[np.uint8],
    classes: Sequence[str],
) -> Dataset:
    n = len(images)
    samples = _Rows((file,), (images,), np.arange(n))
    keys = tuple(f"{i:05}" for i in range(n))
    differs = compare_counts({"images": n}, {"images": _N})
    return Dataset(name, samples, labels.astype(np.int64), tuple(classes), keys, differs=differs)


def _read_binary(file: Path, n_labels: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Labels [n_labels, N] and images: a row has its labels, then all of red, green and blue."""
    stored, size = np.fromfile(file, np.uint8), n_labels + 3 * _SIDE**2
    if not len(stored) or len(stored) % size:
        raise LamettaError(f"{file} must hold rows of {size} bytes, got {len(stored)} bytes")
    rows = stored.reshape(-1, size)
    images = rows[:, n_labels:].reshape(-1, 3, _SIDE, _SIDE).transpose(0, 2, 3, 1)
    return rows[:, :n_labels].T, np.ascontiguousarray(images)


def _open_array(file: Path) -> NDArray[np.uint8]:
    with raise_as(f"{file.name} must be an array that NumPy wrote", str(file)):
        array: NDArray[np.uint8] = np.load(file, mmap_mode="r", allow_pickle=False)
    return array


def _check_images(file: Path, images: NDArray[np.generic], labels: NDArray[np.generic]) -> None:
    shape = (len(labels), _SIDE, _SIDE, 3)
    if images.dtype != np.uint8 or images.shape != shape:
        raise LamettaError(
            f"{file} must hold uint8 {list(shape)}, one image a label, "
            f"got {images.dtype} {list(images.shape)}"
        )
