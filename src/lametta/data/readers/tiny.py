"""Tiny-ImageNet: small images of 200 classes, most of them ImageNet's."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from lametta._files import PathLike
from lametta.classmap import ClassMap
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.dataset import Dataset
from lametta.data.readers.images import image_dataset, natural_key
from lametta.data.readers.layout import Entry, Layout, compare_counts, read_text
from lametta.types import LamettaError

LAYOUT = Layout(("tiny-imagenet-200",), ("wnids.txt", "val/val_annotations.txt", "val/images"))
_PUBLISHED = {"images": 10_000}


def tiny_imagenet(root: PathLike) -> Dataset:
    """Tiny-ImageNet's validation images, ``tiny-imagenet-200/val``.

    Its classes are those of ``wnids.txt`` in that order, and the class map leads there from the
    same synsets of ImageNet's 1000. Classes that are not among these cannot be predicted by an
    ImageNet model: they and their images are left out, and the images listed as ``skipped``.

    Parameters
    ----------
    root : path
        The data root, with ``tiny-imagenet-200``.

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
    folder = LAYOUT.find(root)
    listed = read_text(folder / "wnids.txt").split()
    class_map = ClassMap(
        {synset: [IMAGENET.index(synset)] for synset in listed if synset in IMAGENET},
        n_source=len(IMAGENET),
    )
    ranks = {synset: i for i, synset in enumerate(class_map.names)}
    rows = _read_annotations(folder / "val/val_annotations.txt", listed)
    labels = {key: ranks[synset] for key, synset in rows if synset in ranks}
    skipped = tuple(key for key, _ in rows if key not in labels)
    keys, numbers = list(labels), list(labels.values())
    data = image_dataset("tiny_imagenet", folder / "val", keys, numbers, class_map.names)
    differs = compare_counts({"images": len(rows)}, _PUBLISHED)
    return replace(data, class_map=class_map, skipped=skipped, differs=differs)


ENTRIES = {
    "tiny_imagenet": Entry(
        "Tiny-ImageNet's validation images, 64 x 64 pixels",
        "tiny-imagenet-200/{wnids.txt,val/val_annotations.txt,val/images/*.JPEG}",
        tiny_imagenet,
        LAYOUT,
        _PUBLISHED["images"],
    )
}


def _read_annotations(file: Path, listed: Sequence[str]) -> list[tuple[str, str]]:
    """Key and synset of each image."""
    rows = []
    for line in read_text(file).splitlines():
        name, synset = [*line.split(), "", ""][:2]
        if synset not in listed:
            raise LamettaError(f"{file} must hold an image and its synset a line, got {line!r}")
        rows.append((f"images/{name}", synset))
    return sorted(rows, key=lambda row: natural_key(row[0]))
