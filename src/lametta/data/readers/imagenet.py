"""ImageNet's validation images, ImageNet-C, C16, V2, R, A and Sketch."""

import csv
import hashlib
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from lametta._checks import check_choice, import_optional, raise_as
from lametta._files import PathLike
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.classes.wordnet import c16
from lametta.data.corruption import SETS
from lametta.data.dataset import Dataset
from lametta.data.readers.folders import image_folder, number_classes
from lametta.data.readers.images import ImageFiles, image_dataset, list_images, natural_key
from lametta.data.readers.layout import Entry, Layout, compare_counts, read_text
from lametta.types import LamettaError

# Files that may hold the labels, beside the folder of images.
SOLUTION = "LOC_val_solution.csv"
SYNSETS = "imagenet_2012_validation_synset_labels.txt"
DEVKIT = "ILSVRC2012_devkit_t12/data"
_TRUTH, _META = f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt", f"{DEVKIT}/meta.mat"


def _is_flat(folder: Path) -> bool:
    """Whether there are no folders of classes."""
    with os.scandir(folder) as entries:
        return not any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)


def _check_labels(folder: Path) -> None:
    """Raise for images that are in no folders of classes and have no file of labels either."""
    beside = folder.parent
    if not _is_flat(folder) or any((beside / name).is_file() for name in (SOLUTION, SYNSETS)):
        return
    missing = [name for name in (_TRUTH, _META) if not (beside / name).is_file()]
    if missing:
        raise LamettaError(
            f"{folder} must hold <class>/<image>, got {list_images(folder)[0]}, whose class "
            f"{SOLUTION}, {SYNSETS} or {DEVKIT} in {beside} would tell: no {missing[0]}"
        )


# Where each lies below the data root.
VAL = Layout(("ilsvrc12/val",), check=_check_labels)
C = {split: Layout((f"imagenet_c/{split}", "imagenet_c"), SETS[split]) for split in ("val", "test")}
V2 = {
    subset: Layout((f"imagenet_v2/imagenetv2-{subset}-format-val",))
    for subset in ("matched-frequency", "threshold0.7", "top-images")
}

RENDITIONS = {
    "imagenet_r": Layout(("imagenet-r",)),
    "imagenet_a": Layout(("imagenet-a",)),
    "imagenet_sketch": Layout(("sketch", "imagenet-sketch")),
}
_RENDITIONS = {  # what each is, and its counts as published
    "imagenet_r": ("renditions of 200 of the 1000 classes", {"images": 30_000, "classes": 200}),
    "imagenet_a": ("hard photographs of 200 classes", {"images": 7_500, "classes": 200}),
    "imagenet_sketch": ("sketches of the 1000 classes", {"images": 50_889, "classes": 1000}),
}

_PER_CLASS = 50  # images of the validation set
_V2_IMAGES = 10_000
_SEVERITIES = range(1, 6)
_DRAWN = "drawn"


def imagenet_val(root: PathLike) -> Dataset:
    """ImageNet's validation images, ``ilsvrc12/val/<synset>/*.JPEG``.

    The images may also lie in ``ilsvrc12/val`` itself, as the published archive unpacks, beside
    one of these in ``ilsvrc12``: the devkit ``ILSVRC2012_devkit_t12``, whose ``meta.mat`` takes
    SciPy to read; ``LOC_val_solution.csv``; or the synset of each image, one a line, in
    ``imagenet_2012_validation_synset_labels.txt``. Order, labels and keys are the same then.

    Parameters
    ----------
    root : path
        The data root, with ``ilsvrc12/val``.

    Examples
    --------
    >>> imagenet_val("photos")
    Traceback (most recent call last):
    lametta.types.LamettaError: no ilsvrc12/val in 'photos': there is no
    photos/ilsvrc12/val
    """
    folder = VAL.find(root)
    read = _flat_folder if _is_flat(folder) else partial(image_folder, classes="synset")
    return _compared(read(folder, name="imagenet_val"), _PER_CLASS * len(IMAGENET))


def imagenet_c(
    root: PathLike,
    *,
    split: str = "test",
    severities: int | Sequence[int] | str = 5,
    corruptions: Sequence[str] | None = None,
) -> Dataset:
    """ImageNet-C, ``imagenet_c/<split>/<corruption>/<severity>/<synset>/*.JPEG``.

    The folder of the split may be missing, as it is when the published archives are unpacked in
    ``imagenet_c``. The group of an image is its corruption.

    Parameters
    ----------
    root : path
        The data root.
    split : {"val", "test"}
        The paper's 9 corruptions for validation, or its 10 for the test.
    severities : int, sequence of int or "drawn"
        1 to 5. "drawn" takes every image once for each corruption, at one of the five severities,
        which a hash of the corruption and the image's name draws, the same on every machine: as
        many images as one severity has, of "varying intensity", as the paper says.
    corruptions : sequence of str, optional
        Fewer of the split's corruptions.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = Path(root, "imagenet_c/test/snow/5/n01443537")
    ...     folder.mkdir(parents=True)
    ...     (folder / "ILSVRC2012_val_00000236.JPEG").touch()
    ...     data = imagenet_c(root, corruptions=["snow"])
    >>> data.labels, data.groups
    (array([1]), array(['snow'], dtype='<U4'))
    """
    return _read_c(f"imagenet_c_{split}", root, split, severities, corruptions)


def imagenet_c16(
    root: PathLike,
    *,
    severities: int | Sequence[int] | str = 5,
    corruptions: Sequence[str] | None = None,
) -> Dataset:
    """ImageNet-C16: 32 classes of `imagenet_c`'s validation split as 16 super-classes.

    Parameters
    ----------
    root : path
        The data root.
    severities, corruptions
        As for `imagenet_c`.

    Examples
    --------
    >>> imagenet_c16("photos", corruptions=["fog"])
    Traceback (most recent call last):
    lametta.types.LamettaError: no imagenet_c/val in 'photos': there is no
    photos/imagenet_c/val or photos/imagenet_c
    """
    super_classes = dict(zip(c16().names, c16().groups, strict=True))
    synsets = sorted(IMAGENET[member] for group in super_classes.values() for member in group)
    data = _read_c("imagenet_c16", root, "val", severities, corruptions, synsets)
    return data.relabeled(super_classes)


def imagenet_v2(root: PathLike, *, subset: str = "matched-frequency") -> Dataset:
    """ImageNet-V2, ``imagenet_v2/imagenetv2-<subset>-format-val/<0 to 999>/*.jpeg``.

    Parameters
    ----------
    root : path
        The data root.
    subset : {"matched-frequency", "threshold0.7", "top-images"}
        Which of the three that were published; the paper takes the first.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = Path(root, "imagenet_v2/imagenetv2-matched-frequency-format-val/7")
    ...     folder.mkdir(parents=True)
    ...     (folder / "5a1ec2.jpeg").touch()
    ...     imagenet_v2(root).labels
    array([7])
    """
    check_choice("subset", subset, V2)
    folder = V2[subset].find(root)
    data = image_folder(folder, classes="index", n_classes=len(IMAGENET), name="imagenet_v2")
    return _compared(replace(data, classes=IMAGENET), _V2_IMAGES)


def imagenet_renditions(root: PathLike, *, name: str) -> Dataset:
    """ImageNet-R, ImageNet-A or ImageNet-Sketch, ``<folder>/<synset>/<image>``.

    The classes are those whose folders are there, in the order of ImageNet's 1000, and the class
    map leads there from the 1000: a network is asked to choose among these classes alone, as those
    who published R and A do.

    Parameters
    ----------
    root : path
        The data root, with ``imagenet-r``, ``imagenet-a`` or ``sketch``.
    name : {"imagenet_r", "imagenet_a", "imagenet_sketch"}
        Which.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = Path(root, "imagenet-r/n01443537")
    ...     folder.mkdir(parents=True)
    ...     (folder / "art_0.jpg").touch()
    ...     data = imagenet_renditions(root, name="imagenet_r")
    >>> data.classes, data.labels, data.class_map.groups
    (('n01443537',), array([0]), ((1,),))
    """
    check_choice("name", name, RENDITIONS)
    data = image_folder(RENDITIONS[name].find(root), classes="synset", name=name)
    there = sorted({int(label) for label in data.labels})
    data = data.relabeled({IMAGENET[i]: [i] for i in there})
    found = {"images": len(data), "classes": len(there)}
    return replace(data, differs=compare_counts(found, _RENDITIONS[name][1]))


_C = "<corruption>/<severity>/<synset>/*.JPEG"

ENTRIES = {
    "imagenet_val": Entry(
        "ImageNet's validation images, 1000 classes",
        "ilsvrc12/val/<synset>/*.JPEG, or ilsvrc12/{val/*.JPEG,ILSVRC2012_devkit_t12}",
        imagenet_val,
        VAL,
        _PER_CLASS * len(IMAGENET),
    ),
    **{
        f"imagenet_c_{split}": Entry(
            f"ImageNet-C, the {len(SETS[split])} corruptions for {purpose}",
            f"imagenet_c/{split}/{_C}",
            partial(imagenet_c, split=split),
            C[split],
            _PER_CLASS * len(IMAGENET) * len(SETS[split]),
        )
        for split, purpose in (("val", "validation"), ("test", "the test"))
    },
    "imagenet_c16": Entry(
        "ImageNet-C16, 32 classes of ImageNet-C as 16 super-classes",
        f"imagenet_c/val/{_C}",
        imagenet_c16,
        C["val"],
        _PER_CLASS * 32 * len(SETS["val"]),
    ),
    "imagenet_v2": Entry(
        "ImageNet-V2, newly collected images of the 1000 classes",
        "imagenet_v2/imagenetv2-matched-frequency-format-val/<0 to 999>/*.jpeg",
        imagenet_v2,
        V2["matched-frequency"],
        _V2_IMAGES,
    ),
    **{
        name: Entry(
            f"ImageNet-{name.removeprefix('imagenet_').capitalize()}, {summary}",
            f"{RENDITIONS[name].places[0]}/<synset>/<image>",
            partial(imagenet_renditions, name=name),
            RENDITIONS[name],
            published["images"],
        )
        for name, (summary, published) in _RENDITIONS.items()
    },
}


def _flat_folder(folder: Path, name: str) -> Dataset:
    """Images in one folder, in the order and with the keys that folders of synsets would give."""
    file, synset_of = _read_labels(folder.parent)
    paths = {}
    for image in list_images(folder):
        stem = image.rpartition(".")[0]
        if stem not in synset_of:
            raise LamettaError(f"{file} must tell the class of every image, got none for {image}")
        paths[f"{synset_of[stem]}/{image}"] = image
    keys = tuple(sorted(paths, key=natural_key))
    classes, labels = number_classes(file, [key.partition("/")[0] for key in keys], "synset")
    samples = ImageFiles(folder, tuple(paths[key] for key in keys))
    return Dataset(name, samples, np.array(labels, np.int64), classes, keys)


def _read_labels(beside: Path) -> tuple[Path, dict[str, str]]:
    """The file of labels, and the synset of each image by its name without suffix."""
    if (file := beside / SOLUTION).is_file():
        rows = csv.reader(read_text(file).splitlines())
        solutions = [row for row in rows if len(row) == 2 and row[0] != "ImageId"]
        return file, {image: f"{boxes} ".split(" ")[0] for image, boxes in solutions}
    if (file := beside / SYNSETS).is_file():
        return file, _numbered(read_text(file).split())
    file = beside / _TRUTH
    synsets = _read_meta(beside / _META)
    try:
        return file, _numbered([synsets[int(number)] for number in read_text(file).split()])
    except (LookupError, ValueError) as error:
        raise LamettaError(f"{file} must hold a number of meta.mat a line, got {error}") from None


def _numbered(synsets: list[str]) -> dict[str, str]:
    return {f"ILSVRC2012_val_{i:08}": synset for i, synset in enumerate(synsets, 1)}


def _read_meta(file: Path) -> dict[int, str]:
    """The synset of each number, from a table in MATLAB's format; nothing in it is run."""
    io = import_optional("scipy.io", "scipy", file.name)
    with raise_as("meta.mat must hold a table of synsets with ILSVRC2012_ID and WNID", str(file)):
        rows = io.loadmat(file, squeeze_me=True, variable_names=["synsets"])["synsets"]
        return {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in rows}


def _compared(data: Dataset, published: int) -> Dataset:
    """The data set, which says so if it does not have as many images as were published."""
    return replace(data, differs=compare_counts({"images": len(data)}, {"images": published}))


def _read_c(
    name: str,
    root: PathLike,
    split: str,
    severities: int | Sequence[int] | str,
    corruptions: Sequence[str] | None,
    synsets: Sequence[str] | None = None,
) -> Dataset:
    """Images of ImageNet-C in the classes of ImageNet, of some synsets or all."""
    layout = _layout(split, corruptions)
    levels, drawn = _levels(severities)
    if not layout.inside or not levels:
        raise LamettaError("severities and corruptions must not be empty, got no folder to read")
    folder, paths = layout.find(root), list[str]()
    for corruption in layout.inside:
        found = [_list_level(folder, f"{corruption}/{level}", synsets) for level in levels]
        paths += _draw(folder, found) if drawn else itertools.chain(*found)
    classes, labels = number_classes(folder, [path.split("/")[2] for path in paths], "synset")
    groups = [path.partition("/")[0] for path in paths]
    times = len(layout.inside) * (1 if drawn else len(levels))  # of each image
    data = image_dataset(name, folder, paths, labels, classes, groups)
    return _compared(data, _PER_CLASS * len(synsets or IMAGENET) * times)


def _layout(split: str, corruptions: Sequence[str] | None) -> Layout:
    """Where the folders of a split lie, of some of its corruptions or all."""
    check_choice("split", split, C)
    if corruptions is None:
        return C[split]
    inside = tuple(corruptions)
    for corruption in inside:
        check_choice("corruptions", corruption, C[split].inside)
    return replace(C[split], inside=inside)


def _levels(severities: int | Sequence[int] | str) -> tuple[Sequence[int], bool]:
    """The severities to read, and whether one of them is drawn for each image."""
    if isinstance(severities, str):
        check_choice("severities", severities, (_DRAWN,))
        return _SEVERITIES, True
    levels = (severities,) if isinstance(severities, int) else severities
    for severity in levels:
        check_choice("severities", severity, _SEVERITIES)
    return levels, False


def _list_level(folder: Path, below: str, synsets: Sequence[str] | None) -> list[str]:
    """The images of a corruption at a severity, ``<corruption>/<severity>/<synset>/<image>``."""
    if synsets is None:
        paths = list_images(folder, below)
    else:
        paths = [path for synset in synsets for path in list_images(folder, f"{below}/{synset}")]
    for path in paths:
        if path.count("/") != 3:
            raise LamettaError(
                f"{folder} must hold <corruption>/<severity>/<synset>/<image>, got {path}"
            )
    return paths


def _draw(folder: Path, found: Sequence[Sequence[str]]) -> Iterator[str]:
    """Draw one severity for each image of a corruption, by a hash: no random state is used."""
    for same in itertools.zip_longest(*found, fillvalue=""):
        # corruption/severity/image: those of an image differ in the severity alone
        names = {tuple(path.split("/", 2)[::2]) for path in same}
        if len(names) > 1:
            raise LamettaError(
                f"{folder} must hold each image at all severities, got {min(filter(None, same))} "
                "without the others"
            )
        digest = hashlib.sha256("/".join(names.pop()).encode()).digest()
        yield same[int.from_bytes(digest[:4], "little") % len(same)]
