"""Folders of images or videos, whichever way they are laid out."""

import json
import zipfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_choice, check_integer
from lametta._files import PathLike
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.dataset import MOST_CLASSES, Dataset, Samples
from lametta.data.readers.images import (
    SUFFIXES,
    ImageFiles,
    check_names,
    image_dataset,
    list_files,
    list_images,
)
from lametta.data.readers.layout import Entry
from lametta.data.readers.videos import SUFFIXES as VIDEOS
from lametta.data.readers.videos import VideoFrames, video_frames
from lametta.types import LamettaError

CountClasses: TypeAlias = Callable[[Samples], int]
"""Finds out with one of the samples how many classes the model has."""


def image_folder(
    path: PathLike, *, classes: str = "auto", n_classes: int | None = None, name: str | None = None
) -> Dataset:
    """Images in a folder for each class, ``<class>/**/<image>``.

    Parameters
    ----------
    path : path
        The folder of folders, or a ``.zip`` file of them.
    classes : {"auto", "synset", "index", "name"}
        How the folders are named: by synset, which makes the labels ImageNet's 1000; by the
        class's number; or by any name, which makes the labels their rank in sorted order. Where
        all folders are ImageNet's synsets or all are numbers below a million, "auto" takes them as
        that.
    n_classes : int, optional
        Number of classes where folders are numbered; by default one more than the largest number.
    name : str, optional
        What tables call it; by default the folder's name.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as pets:
    ...     for folder in ("cat", "dog"):
    ...         Path(pets, folder).mkdir()
    ...         Path(pets, folder, "1.jpg").touch()
    ...     data = image_folder(pets)
    >>> data.classes, data.labels
    (('cat', 'dog'), array([0, 1]))
    """
    root = _existing(path)
    paths = list_images(root)
    _check_depth(root, paths, 2, "<class>/<image>")
    folders = [image.partition("/")[0] for image in paths]
    _check_filled(root, set(folders))
    names, labels = number_classes(root, folders, classes, n_classes)
    return image_dataset(name or _root_name(root), root, paths, labels, names)


def video_folder(
    path: PathLike,
    labels: Mapping[str, int | str] | PathLike | None = None,
    *,
    classes: str = "auto",
    n_classes: int | None = None,
    name: str | None = None,
) -> Dataset:
    """Frames in a folder for each video, ``<class>/<video>/<frame>`` or ``<video>/<frame>``.

    The frames of a video come in natural order: ``2.jpg`` before ``10.jpg``. The group of a frame
    is its video.

    Parameters
    ----------
    path : path
        The folder of folders, or a ``.zip`` file of them.
    labels : mapping or path, optional
        The class of each video by the name of its folder, as a dict or a JSON file. Where it is
        missing, a ``labels.json`` in the folder is taken; without that, videos have to lie in
        folders of classes.
    classes, n_classes, name
        As for `image_folder`.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as videos:
    ...     Path(videos, "blackswan").mkdir()
    ...     Path(videos, "blackswan", "00000.jpg").touch()
    ...     data = video_folder(videos, {"blackswan": 100}, n_classes=1000)
    >>> data.labels, data.groups
    (array([100]), array(['blackswan'], dtype='<U9'))
    """
    root = _existing(path)
    paths = list_images(root)
    labels = _read_labels(root, labels)
    if labels is None:
        _check_depth(root, paths, 3, "<class>/<video>/<frame>, or have labels")
        groups = ["/".join(frame.split("/")[:2]) for frame in paths]
        named = [frame.partition("/")[0] for frame in paths]
    else:
        _check_depth(root, paths, 2, "<video>/<frame>")
        groups = [frame.partition("/")[0] for frame in paths]
        unlabeled = sorted(set(groups) - set(labels))
        if unlabeled:
            raise LamettaError(f"labels must name every video, got none for {unlabeled[0]!r}")
        named = [str(labels[video]) for video in groups]
    names, numbers = number_classes(root, named, classes, n_classes)
    return image_dataset(name or _root_name(root), root, paths, numbers, names, groups)


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
    is_video = files[0].lower().endswith(VIDEOS)
    if fps is not None and not is_video:
        raise LamettaError(f"fps must be given for video files alone, got {fps} for {path}")
    if not is_video and (root / "labels.json").is_file():
        return video_folder(root, n_classes=_numbers_of(root, files, count_classes))
    samples = video_frames(root, files, fps) if is_video else ImageFiles(root, tuple(files))
    return _as_laid_out(_root_name(Path(path)), root, samples, targets, count_classes)


def _as_laid_out(
    name: str,
    root: Path,
    samples: ImageFiles | VideoFrames,
    targets: Collection[str],
    count_classes: CountClasses | None,
) -> Dataset:
    """Labels and groups by the folders that files are in, as `open_path` has the table of."""
    names = samples.paths
    keys, groups = (samples.keys, names) if isinstance(samples, VideoFrames) else (names, None)
    folders = [file.rpartition("/")[0] for file in names]
    if "" in folders:  # not all in folders
        apart = None if set(folders) == {""} else folders
        return _unlabeled(name, samples, keys, groups or apart)
    first = [file.partition("/")[0] for file in names]
    _check_filled(root, set(first))
    classes, labels, fit = _classes(root, first, targets, count_classes, samples)
    named = _as_array(groups or _videos(folders) or (None if fit else first))
    return Dataset(name, samples, np.array(labels, np.int64), classes, keys, named)


def _videos(folders: Sequence[str]) -> tuple[str, ...] | None:
    """The outer and the inner folder of each image, if there are several inner ones."""
    inner = {folder.partition("/")[2] for folder in folders}
    if "" in inner or len(inner) == 1:
        return None
    return tuple("/".join(folder.split("/")[:2]) for folder in folders)


def open_names(lines: Iterable[str]) -> Dataset:
    """Open the images that are named one a line; images in several folders are in several groups.

    Examples
    --------
    >>> open_names(["no/such.jpg"])
    Traceback (most recent call last):
    lametta.types.LamettaError: no such file: 'no/such.jpg', which standard input names
    """
    paths = [line for line in (line.rstrip("\r\n") for line in lines) if line]
    if not paths:
        raise LamettaError("no names of images on standard input, which has one a line")
    for path in check_names(paths, Path("-")):
        if not Path(path).is_file():
            raise LamettaError(f"no such file: {path!r}, which standard input names")
    folders = [Path(path).parent.as_posix() for path in paths]
    groups = folders if len(set(folders)) > 1 else None
    return _unlabeled("-", ImageFiles(Path(), tuple(paths)), tuple(paths), groups)


ENTRIES = {
    "folder:PATH": Entry("any images", "PATH/<class>/*.jpg, a folder or a .zip file", image_folder),
    "videos:PATH": Entry(
        "any videos", "PATH/<class>/<video>/*.jpg, or PATH/<video>/*.jpg and labels", video_folder
    ),
}


def _unlabeled(
    name: str, samples: Samples, keys: tuple[str, ...], groups: Sequence[str] | None = None
) -> Dataset:
    """A data set of samples whose classes are not known."""
    return Dataset(name, samples, np.full(len(keys), -1), (), keys, _as_array(groups))


def _as_array(groups: Sequence[str] | None) -> NDArray[np.str_] | None:
    return None if groups is None else np.array(groups, dtype=str)


def number_classes(
    root: Path, folders: Sequence[str], kind: str, n_classes: int | None = None
) -> tuple[tuple[str, ...], list[int]]:
    """Names of all classes, and for each of the folders the label that it stands for."""
    check_choice("classes", kind, ("auto", "synset", "index", "name"))
    found = set(folders)
    kind = _kind_of_names(found) if kind == "auto" else kind
    if n_classes is not None:
        check_integer("n_classes", n_classes, 1)
        if kind != "index":
            raise LamettaError(f"n_classes must be None where classes have names, got {n_classes}")
    if kind == "index":
        numbers = _as_numbers(found)
        count = max(numbers.values(), default=-1) + 1 if n_classes is None else n_classes
        if count > MOST_CLASSES:
            raise LamettaError(f"{root} must have at most {MOST_CLASSES} classes, got {count}")
        names = tuple(map(str, range(count)))
    else:
        names = IMAGENET if kind == "synset" else tuple(sorted(found))
        numbers = dict(zip(names, range(len(names)), strict=True))
    if strange := sorted(found - numbers.keys()):
        raise LamettaError(f"{root} must name classes by {kind}, got {strange[0]!r}")
    return names, [numbers[folder] for folder in folders]


def _kind_of_names(found: Collection[str]) -> str:
    """Whether folders are named by synsets, by numbers of classes, or otherwise."""
    if set(found) <= set(IMAGENET):
        return "synset"
    numbers = _as_numbers(found)
    # What is larger is a date.
    fits = len(numbers) == len(found) and max(numbers.values(), default=-1) < MOST_CLASSES
    return "index" if fits else "name"


def _as_numbers(found: Iterable[str]) -> dict[str, int]:
    return {folder: int(folder) for folder in found if folder.isdecimal()}


def _existing(path: PathLike) -> Path:
    root = Path(path)
    if not root.exists():
        raise LamettaError(f"no such file or folder: {str(path)!r}")
    if not root.is_dir() and not (root.is_file() and _is_zip(root)):
        raise LamettaError(f"path must be a folder or a .zip file, got {str(path)!r}")
    return root


def _is_zip(file: Path) -> bool:
    """Whether a file is a .zip, or means to be: to Python 3.14 a damaged one is none."""
    return file.suffix.lower() == ".zip" or zipfile.is_zipfile(file)


def _root_name(root: Path) -> str:
    """What tables call the data set in a folder or a file."""
    return root.stem if root.is_file() else root.resolve().name


def _check_depth(root: Path, paths: Sequence[str], least: int, layout: str) -> None:
    for path in paths:
        if path.count("/") + 1 < least:
            raise LamettaError(f"{root} must hold {layout}, got {path}")


def _check_filled(root: Path, found: Collection[str]) -> None:
    """Raise for a folder without images, which would silently shift the labels after it."""
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and folder.name not in found and not folder.name.startswith("."):
                raise LamettaError(f"{root} must hold images in every folder, got none in {folder}")


def _read_json(file: Path) -> Any:
    if not file.is_file():
        raise LamettaError(f"no such file: {str(file)!r}")
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise LamettaError(f"cannot read {str(file)!r}: {error.strerror}") from None
    except (RecursionError, ValueError) as error:
        raise LamettaError(f"{str(file)!r} is not valid JSON: {error}") from None


def _read_labels(
    root: Path, labels: Mapping[str, int | str] | PathLike | None
) -> Mapping[str, int | str] | None:
    if labels is None and (root / "labels.json").is_file():
        labels = root / "labels.json"
    if labels is None:
        return None
    if not isinstance(labels, Mapping):
        labels = _read_json(Path(labels))
    if not isinstance(labels, Mapping):
        raise LamettaError(f"labels must be a JSON object, got a {type(labels).__name__}")
    for video, label in labels.items():
        if not isinstance(label, Integral | str) or isinstance(label, bool):
            raise LamettaError(f"labels must be names or numbers, got {label!r} for {video!r}")
    return labels


def _find(path: Path) -> tuple[Path, list[str]]:
    """A root and the images or videos below it."""
    if path.is_file() and not _is_zip(path):
        if path.name.lower().endswith((*SUFFIXES, *VIDEOS)):
            return path.parent, check_names([path.name], path.parent)
        raise LamettaError(f"path must be a folder, a .zip file, an image or a video, got {path}")
    if not path.exists():
        raise LamettaError(f"no such file or folder: {str(path)!r}")
    return path, _images_or_videos(path)


def _images_or_videos(path: Path) -> list[str]:
    """The files in a folder or a .zip file, which holds one of the two kinds."""
    images, videos = list_files(path, SUFFIXES), list_files(path, VIDEOS)
    if videos and path.is_file():
        raise LamettaError(f"{path} must hold images, got {videos[0]}: unpack it to read videos")
    if images and videos:
        raise LamettaError(f"{path} must hold images or videos, got {images[0]} and {videos[0]}")
    if not images and not videos:
        raise LamettaError(f"no images or videos in {path}")
    return images or videos


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
