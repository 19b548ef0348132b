"""ImageNet's validation images as their archive unpacks: in one folder, their labels beside it."""

import csv
import os
from pathlib import Path

import numpy as np

from lametta._checks import import_optional, raise_as
from lametta.data.dataset import Dataset
from lametta.data.readers.folders import number_classes
from lametta.data.readers.images import ImageFiles, list_images, natural_key
from lametta.data.readers.layout import read_text
from lametta.types import LamettaError

# Files that may hold the labels, beside the folder of images.
SOLUTION = "LOC_val_solution.csv"
SYNSETS = "imagenet_2012_validation_synset_labels.txt"
DEVKIT = "ILSVRC2012_devkit_t12/data"
_TRUTH, _META = f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt", f"{DEVKIT}/meta.mat"


def is_flat(folder: Path) -> bool:
    """Whether there are no folders of classes."""
    with os.scandir(folder) as entries:
        return not any(entry.is_dir() and not entry.name.startswith(".") for entry in entries)


def check_labels(folder: Path) -> None:
    """Raise for images that are in no folders of classes and have no file of labels either."""
    beside = folder.parent
    if not is_flat(folder) or any((beside / name).is_file() for name in (SOLUTION, SYNSETS)):
        return
    missing = [name for name in (_TRUTH, _META) if not (beside / name).is_file()]
    if missing:
        raise LamettaError(
            f"{folder} must hold <class>/<image>, got {list_images(folder)[0]}, whose class "
            f"{SOLUTION}, {SYNSETS} or {DEVKIT} in {beside} would tell: no {missing[0]}"
        )


def flat_folder(folder: Path, name: str) -> Dataset:
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
