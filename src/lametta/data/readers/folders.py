"""Any folder of images or videos."""

import json
import zipfile
from collections.abc import Collection, Mapping, Sequence
from numbers import Integral
from pathlib import Path

from lametta._checks import check_choice, check_integer, raise_as
from lametta._files import PathLike
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.dataset import MOST_CLASSES, Dataset
from lametta.data.readers.images import image_dataset, list_images
from lametta.data.readers.layout import Entry
from lametta.types import LamettaError


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
    check_filled(root, set(folders))
    names, labels = number_classes(root, folders, classes, n_classes)
    return image_dataset(name or root_name(root), root, paths, labels, names)


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
    return image_dataset(name or root_name(root), root, paths, numbers, names, groups)


def number_classes(
    root: Path, folders: Sequence[str], kind: str, n_classes: int | None = None
) -> tuple[tuple[str, ...], list[int]]:
    """Names of all classes, and for each of the folders the label that it stands for."""
    check_choice("classes", kind, ("auto", "synset", "index", "name"))
    found = set(folders)
    numbers = {folder: int(folder) for folder in found if folder.isdecimal()}
    top = max(numbers.values(), default=-1)
    if kind == "auto":
        numbered = len(numbers) == len(found) and top < MOST_CLASSES  # what is larger is a date
        kind = "synset" if found <= set(IMAGENET) else "index" if numbered else "name"
    if n_classes is not None:
        check_integer("n_classes", n_classes, 1)
        if kind != "index":
            raise LamettaError(f"n_classes must be None where classes have names, got {n_classes}")
    if kind == "index":
        count = top + 1 if n_classes is None else n_classes
        if count > MOST_CLASSES:
            raise LamettaError(f"{root} must have at most {MOST_CLASSES} classes, got {count}")
        names = tuple(str(i) for i in range(count))
    else:
        names = IMAGENET if kind == "synset" else tuple(sorted(found))
        numbers = {name: i for i, name in enumerate(names)}
    if strange := sorted(found - numbers.keys()):
        raise LamettaError(f"{root} must name classes by {kind}, got {strange[0]!r}")
    return names, [numbers[folder] for folder in folders]


ENTRIES = {
    "folder:PATH": Entry("any images", "PATH/<class>/*.jpg, a folder or a .zip file", image_folder),
    "videos:PATH": Entry(
        "any videos", "PATH/<class>/<video>/*.jpg, or PATH/<video>/*.jpg and labels", video_folder
    ),
}


def _existing(path: PathLike) -> Path:
    root = Path(path)
    if not root.is_dir() and not (root.is_file() and zipfile.is_zipfile(root)):
        raise LamettaError(f"path must be a folder or a .zip file, got {str(path)!r}")
    return root


def root_name(root: Path) -> str:
    """What tables call the data set in a folder or a file."""
    return root.stem if root.is_file() else root.resolve().name


def _check_depth(root: Path, paths: Sequence[str], least: int, layout: str) -> None:
    for path in paths:
        if path.count("/") + 1 < least:
            raise LamettaError(f"{root} must hold {layout}, got {path}")


def check_filled(root: Path, found: Collection[str]) -> None:
    """Raise for a folder without images, which would silently shift the labels after it."""
    if root.is_dir():
        for folder in sorted(root.iterdir()):
            if folder.is_dir() and folder.name not in found and not folder.name.startswith("."):
                raise LamettaError(f"{root} must hold images in every folder, got none in {folder}")


def _read_labels(
    root: Path, labels: Mapping[str, int | str] | PathLike | None
) -> Mapping[str, int | str] | None:
    if labels is None and (root / "labels.json").is_file():
        labels = root / "labels.json"
    if labels is None:
        return None
    if not isinstance(labels, Mapping):
        with raise_as("labels must be a JSON file", str(labels)):
            labels = json.loads(Path(labels).read_text(encoding="utf-8"))
    if not isinstance(labels, Mapping):
        raise LamettaError(f"labels must be a JSON object, got a {type(labels).__name__}")
    for video, label in labels.items():
        if not isinstance(label, Integral | str) or isinstance(label, bool):
            raise LamettaError(f"labels must be names or numbers, got {label!r} for {video!r}")
    return labels
