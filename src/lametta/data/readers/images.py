"""Image files in folders and .zip archives: natural order, decoding."""

import io
import os
import re
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

import numpy as np

from lametta._checks import import_optional
from lametta.data.dataset import Dataset, UnreadableImageError
from lametta.types import LamettaError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
_MOST_BYTES = 1 << 28  # of an image in an archive, which is unpacked as a whole


@dataclass(frozen=True)
class ImageFiles:
    """Images below a root, decoded when they are asked for."""

    root: Path  # a folder, or a .zip file
    paths: tuple[str, ...]  # below it, with forward slashes

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int, /) -> "Image":
        """Give the image as Pillow decodes it, all of it: a truncated file is an error."""
        pil = import_optional("PIL.Image", "pillow", "an image")
        path = self.paths[i]
        try:
            with _open(self.root, path) as file, pil.open(file) as image:
                image.load()
                decoded: Image = image
                return decoded
        except Exception as error:  # a broken file may raise anything
            raise UnreadableImageError(
                f"cannot read image {self.root / path}: {_reason(error)}"
            ) from error

    def file_versions(self) -> tuple[str, ...]:
        """The size of each file and when it was changed; in an archive its size and checksum."""
        if not self.root.is_file():
            return tuple(file_version(self.root / path) for path in self.paths)
        infos = _archive(self.root).infolist()
        versions = {info.filename: f"{info.file_size} {info.CRC}" for info in infos}
        return tuple(versions.get(path, "") for path in self.paths)


def image_dataset(
    name: str,
    root: Path,
    paths: Sequence[str],
    labels: Sequence[int],
    classes: Sequence[str],
    groups: Sequence[str] | None = None,
) -> Dataset:
    """Put together what a reader found; the paths below the root are the keys."""
    keys, named = tuple(paths), None if groups is None else np.array(groups, dtype=str)
    numbers = np.array(labels, dtype=np.int64)
    return Dataset(name, ImageFiles(root, keys), numbers, tuple(classes), keys, named)


def list_images(root: Path, below: str = "") -> list[str]:
    """Paths of the images below a folder, or in a ``.zip`` file, in natural order.

    Names that start with a dot are left out. Links are followed.
    """
    found = list_files(root, SUFFIXES, below)
    if not found:
        raise LamettaError(f"no images ({', '.join(SUFFIXES)}) in {root / below}")
    return found


def list_files(root: Path, suffixes: tuple[str, ...], below: str = "") -> list[str]:
    """Paths of the files with these suffixes, in natural order, as `list_images` does."""
    names = _in_zip(root, below) if root.is_file() else _in_folder(root, below)
    found = (name for name in names if name.lower().endswith(suffixes) and "/." not in f"/{name}")
    return check_names(sorted(found, key=natural_key), root)


def check_names(paths: list[str], root: Path) -> list[str]:
    """Give the paths back, or raise if one cannot be stored as text."""
    for path in paths:
        try:
            path.encode()
        except UnicodeEncodeError:
            raise LamettaError(
                f"{root} must hold files with names in UTF-8, got {path!a}"
            ) from None
    return paths


def natural_key(path: str) -> list[tuple[list[str | int], str]]:
    """Sort by this to have ``2.jpg`` before ``10.jpg``, and each folder in one piece.

    Examples
    --------
    >>> sorted(["b/10.jpg", "b/9.jpg", "a/11.jpg"], key=natural_key)
    ['a/11.jpg', 'b/9.jpg', 'b/10.jpg']
    """
    # The name itself decides between 01 and 1, so that files of two folders do not mix.
    return [
        ([int(run) if i % 2 else run for i, run in enumerate(re.split("([0-9]+)", part))], part)
        for part in path.split("/")
    ]


def _reason(error: Exception) -> str:
    if type(error).__name__ == "UnidentifiedImageError":
        return "no image format that Pillow knows"  # its own message shows a file object
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _in_folder(root: Path, below: str) -> Iterator[str]:
    start = str(root / below)
    for folder, folders, files in os.walk(start, onerror=_fail, followlinks=True):
        for link in filter(os.path.islink, (os.path.join(folder, name) for name in folders)):
            # The folders on the way here, which may have gone through other links.
            around = (folder, *map(str, Path(folder).absolute().parents))
            if any(os.path.realpath(link) == os.path.realpath(path) for path in around):
                raise LamettaError(f"{root} must not hold a link to a folder around it, got {link}")
        # By hand: a path object for each folder would take most of the time.
        inside = (below + folder.removeprefix(start).replace(os.sep, "/")).strip("/")
        yield from (f"{inside}/{file}" for file in files) if inside else files


def _in_zip(root: Path, below: str) -> Iterator[str]:
    prefix = f"{below}/" if below else ""
    return (name for name in _archive(root).namelist() if name.startswith(prefix))


def _fail(error: OSError) -> NoReturn:
    raise LamettaError(f"cannot read folder {error.filename}: {error.strerror}")


def _open(root: Path, path: str) -> BinaryIO:
    if root.is_file():
        archive = _archive(root)
        if (size := archive.getinfo(path).file_size) > _MOST_BYTES:
            raise LamettaError(f"it has {size} bytes, more than {_MOST_BYTES}")
        return io.BytesIO(archive.read(path))
    return (root / path).open("rb")


def _archive(root: Path) -> zipfile.ZipFile:
    try:
        return _opened(root, os.getpid(), file_version(root))
    except (NotImplementedError, zipfile.BadZipFile) as error:
        raise LamettaError(f"cannot read {root} as a .zip file: {error}") from None


@lru_cache(maxsize=8)
def _opened(root: Path, process: int, version: str) -> zipfile.ZipFile:
    """Open an archive once in each process: after a fork two would share one file position."""
    return zipfile.ZipFile(root)


def file_version(path: Path) -> str:
    """The size of a file and when it was changed; empty where there is none."""
    try:
        status = path.stat()
    except OSError:  # to be raised when it is read
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"
