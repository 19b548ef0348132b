"""Whatever images and videos lie at a path, with the labels and groups that their folders give."""

import zipfile
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from lametta._files import PathLike
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.dataset import Dataset, Samples
from lametta.data.readers.folders import check_filled, number_classes, root_name, video_folder
from lametta.data.readers.images import SUFFIXES, ImageFiles, check_names, list_files
from lametta.data.readers.videos import SUFFIXES as VIDEOS
from lametta.data.readers.videos import VideoFrames, video_frames
from lametta.types import LamettaError

CountClasses: TypeAlias = Callable[[Samples], int]
"""Finds out with one of the samples how many classes the model has."""


def open_path(
    path: PathLike,
    *,
    targets: Collection[str] = (),
    count_classes: CountClasses | None = None,
    fps: float | None = None,
) -> Dataset:
    """Open the images or videos at a path, whichever way they are laid out.

    ======================================  ==================  =================================
    at the path                             labels              groups
    ======================================  ==================  =================================
    ``*.jpg``, or one image                 none                none
    ``<class>/*.jpg``                       the folders         none
    ``<video>/*.jpg``                       the folders, which  the folders
                                            are unused
    ``<class>/<video>/*.jpg``               the outer folders   the inner folders
    ``<video>/*.jpg`` and ``labels.json``   of the file         the folders
    ``*.mp4``, or one video                 none                the videos
    ``<class>/*.mp4``                       the folders         the videos
    ======================================  ==================  =================================

    Folders are classes if their names are synsets of ImageNet, numbers of the model's classes or
    targets of the class map, or if there are as many as the model has classes. Otherwise each is
    taken for a video. ``folder:PATH`` of `load` always takes folders as classes.

    Parameters
    ----------
    path : path
        A folder, a ``.zip`` file of images, an image or a video.
    targets : collection of str
        The names of classes that a class map leads to.
    count_classes : callable, optional
        How many classes the model has. It is called only if that is needed.
    fps : float, optional
        Frames a second that are taken of video files; all by default.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for name in ("10.jpg", "2.jpg"):
    ...         Path(root, name).touch()
    ...     data = open_path(root)
    >>> data.keys, data.classes, data.groups
    (('2.jpg', '10.jpg'), (), None)
    """
    root, files = _find(Path(path))
    samples: ImageFiles | VideoFrames
    if files[0].lower().endswith(VIDEOS):
        samples = video_frames(root, files, fps)
        keys, groups = samples.keys, samples.paths
    elif fps is not None:
        raise LamettaError(f"fps must be given for video files alone, got {fps} for {path}")
    elif (root / "labels.json").is_file():
        return video_folder(root, n_classes=_numbers_of(root, files, count_classes))
    else:
        samples = ImageFiles(root, tuple(files))
        keys, groups = samples.paths, None
    names = samples.paths
    name, folders = root_name(Path(path)), [file.rpartition("/")[0] for file in names]
    if "" in folders:  # not all in folders
        if groups is None and set(folders) != {""}:
            groups = tuple(folders)
        return unlabeled(name, samples, keys, groups)
    first = [file.partition("/")[0] for file in names]
    check_filled(root, set(first))
    classes, labels, fit = _classes(root, first, targets, count_classes, samples)
    if groups is None:
        second = {folder.partition("/")[2] for folder in folders}
        if "" not in second and len(second) > 1:
            groups = tuple("/".join(file.split("/")[:2]) for file in names)
        elif not fit:
            groups = tuple(first)
    named = None if groups is None else np.array(groups, dtype=str)
    return Dataset(name, samples, np.array(labels, np.int64), classes, keys, named)


def open_names(lines: Iterable[str]) -> Dataset:
    """Open the images that are named one a line; images in several folders are in several groups.

    Examples
    --------
    >>> open_names(["no/such.jpg"])
    Traceback (most recent call last):
    lametta.types.LamettaError: standard input must name images, got 'no/such.jpg', which is no file
    """
    paths = [line for line in (line.rstrip("\r\n") for line in lines) if line]
    if not paths:
        raise LamettaError("standard input must name images, one a line, got none")
    for path in check_names(paths, Path("-")):
        if not Path(path).is_file():
            raise LamettaError(f"standard input must name images, got {path!r}, which is no file")
    folders = [Path(path).parent.as_posix() for path in paths]
    groups = folders if len(set(folders)) > 1 else None
    return unlabeled("-", ImageFiles(Path(), tuple(paths)), tuple(paths), groups)


def unlabeled(
    name: str, samples: Samples, keys: tuple[str, ...], groups: Sequence[str] | None = None
) -> Dataset:
    """A data set of samples whose classes are not known."""
    named = None if groups is None else np.array(groups, dtype=str)
    return Dataset(name, samples, np.full(len(keys), -1), (), keys, named)


def _find(path: Path) -> tuple[Path, list[str]]:
    """A root and the images or videos below it."""
    if path.is_file() and not zipfile.is_zipfile(path):
        if path.name.lower().endswith((*SUFFIXES, *VIDEOS)):
            return path.parent, check_names([path.name], path.parent)
        raise LamettaError(f"path must be a folder, a .zip file, an image or a video, got {path}")
    if not path.exists():
        raise LamettaError(f"path must be a folder or a file, got {path}, which does not exist")
    images, videos = list_files(path, SUFFIXES), list_files(path, VIDEOS)
    if videos and path.is_file():
        raise LamettaError(f"{path} must hold images, got {videos[0]}: unpack it to read videos")
    if images and videos:
        raise LamettaError(f"{path} must hold images or videos, got {images[0]} and {videos[0]}")
    if not images and not videos:
        raise LamettaError(f"{path} must hold images or videos, found none")
    return path, images or videos


def _classes(
    root: Path,
    folders: Sequence[str],
    targets: Collection[str],
    count_classes: CountClasses | None,
    samples: Samples,
) -> tuple[tuple[str, ...], list[int], bool]:
    """The names of classes, the labels, and whether these are classes of the model."""
    found = set(folders)
    if found <= set(targets):
        return *number_classes(root, folders, "name"), True
    names, labels = number_classes(root, folders, "auto")
    if names == IMAGENET or count_classes is None:
        return names, labels, True
    n = count_classes(samples)
    if all(folder.isdecimal() and int(folder) < n for folder in found):
        return *number_classes(root, folders, "index", n), True
    return names, labels, len(names) == n


def _numbers_of(root: Path, files: Sequence[str], count_classes: CountClasses | None) -> int | None:
    """How many classes there are, if the labels of videos are numbers."""
    names = video_folder(root).classes
    if count_classes is None or names == IMAGENET or names != tuple(map(str, range(len(names)))):
        return None
    return max(len(names), count_classes(ImageFiles(root, tuple(files))))
