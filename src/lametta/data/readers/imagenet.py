"""ImageNet's validation images and the data sets made after them: C, C16, V2 and Tiny-ImageNet."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lametta.classmap import ClassMap
from lametta.data.classes import wordnet as hierarchy
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.corruption import SETS
from lametta.data.dataset import Dataset
from lametta.data.readers.folders import image_folder, number_classes
from lametta.data.readers.images import image_dataset, list_images, natural_key
from lametta.data.readers.layout import Layout, PathLike, check_choice
from lametta.types import LamettaError

# Where each lies below the data root.
VAL = Layout(("ilsvrc12/val",))
C = {split: Layout((f"imagenet_c/{split}", "imagenet_c"), SETS[split]) for split in ("val", "test")}
V2 = {
    subset: Layout((f"imagenet_v2/imagenetv2-{subset}-format-val",))
    for subset in ("matched-frequency", "threshold0.7", "top-images")
}
TINY = Layout(("tiny-imagenet-200",), ("wnids.txt", "val/val_annotations.txt", "val/images"))


def imagenet_val(root: PathLike) -> Dataset:
    """ImageNet's validation images, ``ilsvrc12/val/<synset>/*.JPEG``.

    Parameters
    ----------
    root : path
        The data root.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     folder = Path(root, "ilsvrc12/val/n01443537")
    ...     folder.mkdir(parents=True)
    ...     (folder / "ILSVRC2012_val_00000236.JPEG").touch()
    ...     imagenet_val(root).labels
    array([1])
    """
    return image_folder(VAL.find(root), classes="synset", name="imagenet_val")


def imagenet_c(
    root: PathLike,
    *,
    split: str = "test",
    severities: int | Sequence[int] = 5,
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
    severities : int or sequence of int
        1 to 5. The paper's numbers of images are those of one severity; it does not say which.
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
    folder, parts = _find_c(root, split, severities, corruptions)
    paths = [path for part in parts for path in list_images(folder, part)]
    names, labels = number_classes(folder, _synsets(folder, paths), "synset")
    groups = [path.partition("/")[0] for path in paths]
    return image_dataset(f"imagenet_c_{split}", folder, paths, labels, names, groups)


def imagenet_c16(
    root: PathLike,
    *,
    severities: int | Sequence[int] = 5,
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
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     for source in (source for group in hierarchy.c16().groups for source in group):
    ...         folder = Path(root, "imagenet_c/val/fog/5", IMAGENET[source])
    ...         folder.mkdir(parents=True)
    ...         (folder / "ILSVRC2012_val_00000001.JPEG").touch()
    ...     data = imagenet_c16(root, corruptions=["fog"])
    >>> len(data), [data.classes[label] for label in data.labels[:3]]
    (32, ['bird', 'bird', 'dog'])
    """
    class_map = hierarchy.c16()
    targets = {
        IMAGENET[source]: target
        for target, sources in enumerate(class_map.groups)
        for source in sources
    }
    folder, parts = _find_c(root, "val", severities, corruptions)
    paths = [
        path
        for part in parts
        for synset in sorted(targets)
        for path in list_images(folder, f"{part}/{synset}")
    ]
    labels = [targets[synset] for synset in _synsets(folder, paths)]
    groups = [path.partition("/")[0] for path in paths]
    return image_dataset(
        "imagenet_c16", folder, paths, labels, class_map.names, groups, class_map=class_map
    )


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
    return replace(data, classes=IMAGENET)


def tiny_imagenet(root: PathLike) -> Dataset:
    """Tiny-ImageNet's validation images, ``tiny-imagenet-200/val``.

    Its classes are those of ``wnids.txt`` in that order, and the class map leads there from the
    same synsets of ImageNet's 1000. Classes that are not among these cannot be predicted by an
    ImageNet model: they and their images are left out, and the images listed as ``skipped``.

    Parameters
    ----------
    root : path
        The data root.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     images = Path(root, "tiny-imagenet-200/val/images")
    ...     images.mkdir(parents=True)
    ...     _ = (images.parents[1] / "wnids.txt").write_text("n02124075")
    ...     _ = (images.parent / "val_annotations.txt").write_text("val_0.JPEG n02124075")
    ...     data = tiny_imagenet(root)
    >>> data.classes, data.keys, data.class_map.groups
    (('n02124075',), ('images/val_0.JPEG',), ((285,),))
    """
    folder = TINY.find(root)
    listed = (folder / "wnids.txt").read_text(encoding="utf-8").split()
    class_map = ClassMap(
        {synset: [IMAGENET.index(synset)] for synset in listed if synset in IMAGENET},
        n_source=len(IMAGENET),
    )
    ranks = {synset: i for i, synset in enumerate(class_map.names)}
    rows = _read_annotations(folder / "val/val_annotations.txt", listed)
    kept = [(key, ranks[synset]) for key, synset in rows if synset in ranks]
    return image_dataset(
        "tiny_imagenet",
        folder / "val",
        [key for key, _ in kept],
        [label for _, label in kept],
        class_map.names,
        class_map=class_map,
        skipped=tuple(key for key, synset in rows if synset not in ranks),
    )


def _find_c(
    root: PathLike, split: str, severities: int | Sequence[int], corruptions: Sequence[str] | None
) -> tuple[Path, list[str]]:
    """Where ImageNet-C lies, and the folders in it that are wanted."""
    check_choice("split", split, C)
    layout = C[split] if corruptions is None else replace(C[split], inside=tuple(corruptions))
    for corruption in layout.inside:
        check_choice("corruptions", corruption, C[split].inside)
    levels = (severities,) if isinstance(severities, int) else severities
    for severity in levels:
        check_choice("severities", severity, range(1, 6))
    parts = [f"{name}/{severity}" for name in layout.inside for severity in levels]
    if not parts:
        raise LamettaError("severities and corruptions must not be empty, got no folder to read")
    return layout.find(root), parts


def _synsets(folder: Path, paths: Sequence[str]) -> list[str]:
    for path in paths:
        if path.count("/") != 3:
            raise LamettaError(
                f"{folder} must hold <corruption>/<severity>/<synset>/<image>, got {path}"
            )
    return [path.split("/")[2] for path in paths]


def _read_annotations(file: Path, listed: Sequence[str]) -> list[tuple[str, str]]:
    """Key and synset of each image."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines():
        name, synset = [*line.split(), "", ""][:2]
        if synset not in listed:
            raise LamettaError(f"{file} must hold an image and its synset a line, got {line!r}")
        rows.append((f"images/{name}", synset))
    return sorted(rows, key=lambda row: natural_key(row[0]))
