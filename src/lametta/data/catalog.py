"""Data sets by name, and where they are looked for."""

import inspect
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from lametta.data.dataset import Dataset
from lametta.data.readers import digits as embedded
from lametta.data.readers import folders, tao, vid
from lametta.data.readers import imagenet as imagenets
from lametta.data.readers.layout import Layout, PathLike
from lametta.types import LamettaError


class Description(NamedTuple):
    """What a data set is in one line, and what it needs on disk."""

    line: str
    needs: str


class Found(NamedTuple):
    """Whether a data set is there: its name, what it needs, whether all of that is, and where."""

    name: str
    needs: str
    found: bool
    where: Path


@dataclass(frozen=True)
class _Entry:
    line: str
    needs: str
    layout: Layout
    read: Callable[..., Dataset]


_C = "<corruption>/<severity>/<synset>/*.JPEG"

_ENTRIES = {
    "imagenet_val": _Entry(
        "ImageNet's validation images, 1000 classes",
        "ilsvrc12/val/<synset>/*.JPEG",
        imagenets.VAL,
        imagenets.imagenet_val,
    ),
    "imagenet_c_val": _Entry(
        "ImageNet-C, the 9 corruptions for validation",
        f"imagenet_c/val/{_C}",
        imagenets.C["val"],
        partial(imagenets.imagenet_c, split="val"),
    ),
    "imagenet_c_test": _Entry(
        "ImageNet-C, the 10 corruptions for the test",
        f"imagenet_c/test/{_C}",
        imagenets.C["test"],
        partial(imagenets.imagenet_c, split="test"),
    ),
    "imagenet_c16": _Entry(
        "ImageNet-C16, 32 classes of ImageNet-C as 16 super-classes",
        f"imagenet_c/val/{_C}",
        imagenets.C["val"],
        imagenets.imagenet_c16,
    ),
    "imagenet_v2": _Entry(
        "ImageNet-V2, newly collected images of the 1000 classes",
        "imagenet_v2/imagenetv2-matched-frequency-format-val/<0 to 999>/*.jpeg",
        imagenets.V2["matched-frequency"],
        imagenets.imagenet_v2,
    ),
    "imagenet_vid": _Entry(
        "ImageNet-VID, validation videos of 30 classes",
        "ILSVRC2015/{Data,Annotations}/VID/val/<video>/<frame>.{JPEG,xml}",
        vid.VID,
        vid.imagenet_vid,
    ),
    "tao_lasot": _Entry(
        "TAO-LaSOT, videos of the classes that ImageNet's map to",
        "TAO/annotations/{train,validation}.json, TAO/frames/{train,val}/LaSOT/<video>/*.jpg",
        tao.TAO,
        tao.tao_lasot,
    ),
    "tiny_imagenet": _Entry(
        "Tiny-ImageNet's validation images, 64 x 64 pixels",
        "tiny-imagenet-200/{wnids.txt,val/val_annotations.txt,val/images/*.JPEG}",
        imagenets.TINY,
        imagenets.tiny_imagenet,
    ),
}

_FOLDERS: dict[str, tuple[Description, Callable[..., Dataset]]] = {
    "folder": (
        Description("any images", "PATH/<class>/*.jpg, a folder or a .zip file"),
        folders.image_folder,
    ),
    "videos": (
        Description("any videos", "PATH/<class>/<video>/*.jpg, or PATH/<video>/*.jpg and labels"),
        folders.video_folder,
    ),
}


def data_root(given: PathLike | None = None) -> Path:
    """Where data sets lie: the folder that is given, or else the one in ``LAMETTA_DATA``.

    Parameters
    ----------
    given : path, optional
        The folder.

    Examples
    --------
    >>> data_root("no/such/folder")
    Traceback (most recent call last):
    lametta.types.LamettaError: data must be a folder, got 'no/such/folder'
    """
    root = os.environ.get("LAMETTA_DATA") if given is None else given
    if not root:
        raise LamettaError("data must be a folder (--data or LAMETTA_DATA), got none")
    if not Path(root).is_dir():
        raise LamettaError(f"data must be a folder, got {str(root)!r}")
    return Path(root)


def datasets() -> dict[str, Description]:
    """Say what `load` can be asked for, in one line each, and what it needs below the data root.

    Capitals stand for what the caller fills in.

    Examples
    --------
    >>> datasets()["imagenet_val"].needs
    'ilsvrc12/val/<synset>/*.JPEG'
    """
    return {
        **{name: Description(entry.line, entry.needs) for name, entry in _ENTRIES.items()},
        **{f"{kind}:PATH": description for kind, (description, _) in _FOLDERS.items()},
        **{f"embedded:{name}": Description(line, "") for name, line in embedded.datasets().items()},
    }


def look(root: PathLike) -> list[Found]:
    """Say which of the named data sets are below a root.

    Parameters
    ----------
    root : path
        The data root.

    Examples
    --------
    >>> look("/no/data")[0].found
    False
    """
    rows = []
    for name, entry in _ENTRIES.items():
        try:
            where, found = entry.layout.find(root), True
        except LamettaError:
            where, found = Path(root) / entry.layout.places[0], False
        rows.append(Found(name, entry.needs, found, where))
    return rows


def load(name: str, root: PathLike | None = None, /, **options: object) -> Dataset:
    """Read a data set by name.

    Parameters
    ----------
    name : str
        One of `datasets`. Those of ``embedded:`` need nothing on disk; the path of ``folder:PATH``
        and ``videos:PATH`` is relative to the data root, and an absolute one needs none.
    root : path, optional
        The data root; ``LAMETTA_DATA`` by default.
    **options
        For the reader: ``severities=[1, 3]`` for ``imagenet_c_test``, say.

    Examples
    --------
    >>> len(load("embedded:digits_val"))
    450
    """
    kind, _, path = name.partition(":")
    if name in _ENTRIES:
        read, where = _ENTRIES[name].read, data_root(root)
    elif kind in _FOLDERS and path:
        read = _FOLDERS[kind][1]
        where = Path(path) if Path(path).is_absolute() else data_root(root) / path
    elif kind == "embedded" and path in embedded.datasets():
        _check_options(name, embedded.load, options)
        return embedded.load(path)
    else:
        raise LamettaError(f"name must be one of {', '.join(datasets())}, got {name!r}")
    _check_options(name, read, options)
    return read(where, **options)


def _check_options(name: str, read: Callable[..., Dataset], options: Iterable[str]) -> None:
    fixed = read.keywords if isinstance(read, partial) else {}
    _, *parameters = inspect.signature(read).parameters
    known = [parameter for parameter in parameters if parameter not in fixed]
    for option in options:
        if option not in known:
            among = ", ".join(known) or "none"
            raise LamettaError(f"options of {name} must be among {among}, got {option!r}")
