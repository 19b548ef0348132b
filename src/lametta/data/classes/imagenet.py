"""ImageNet's 1000 classes, and those of ImageNet-VID and ImageNet-C16.

A class is known by its synset: ``n`` and eight digits, a noun of WordNet 3.0.

Examples
--------
>>> IMAGENET.index(VID["tiger"]), IMAGENET_NAMES[292]
(292, 'tiger')
"""

from importlib import resources


def _read(name: str) -> list[list[str]]:
    """The synset and the name of each class of a list, in its order."""
    file = resources.files("lametta.data") / "assets" / name
    return [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines()]


_CLASSES = _read("imagenet.txt")

IMAGENET = tuple(synset for synset, _ in _CLASSES)
"""The synset of each class, in the order of every model's outputs."""

IMAGENET_NAMES = tuple(name for _, name in _CLASSES)
"""The first word of each synset. Two names stand for two classes each: crane and maillot."""

VID = {name: synset for synset, name in _read("vid.txt")}
"""The 30 classes of ImageNet-VID and the synsets that ImageNet's classes reach them through."""

VID_ANNOTATIONS = VID | {"boat": "n04530566"}
"""The same classes and the synsets of the annotation files, where a boat is any watercraft."""

C16 = {name: synset for synset, name in _read("c16.txt")}
"""The 16 classes of ImageNet-C16 and their synsets; `wordnet.c16` maps onto them."""
