"""ImageNet's 1000 classes, and the target classes of two data sets that its models are tried on.

A class is known by its synset: ``n`` and eight digits, a noun of WordNet 3.0.

Examples
--------
>>> IMAGENET.index(VID["tiger"]), IMAGENET_NAMES[292]
(292, 'tiger')
"""

from importlib import resources

_LINES = (
    (resources.files("lametta.data") / "assets" / "imagenet.txt")
    .read_text(encoding="utf-8")
    .splitlines()
)

IMAGENET = tuple(line.split("\t")[0] for line in _LINES)
"""The synset of each class, in the order of every model's outputs."""

IMAGENET_NAMES = tuple(line.split("\t")[1] for line in _LINES)
"""The first word of each synset. Two names stand for two classes each: crane and maillot."""

VID = {
    "antelope": "n02419796",
    "airplane": "n02691156",
    "bear": "n02131653",
    "bicycle": "n02834778",
    "bird": "n01503061",
    "bus": "n02924116",
    "car": "n02958343",
    "cattle": "n02402425",
    "dog": "n02084071",
    "domestic cat": "n02121808",
    "elephant": "n02503517",
    "fox": "n02118333",
    "giant panda": "n02510455",
    "hamster": "n02342885",
    "horse": "n02374451",
    "lion": "n02129165",
    "lizard": "n01674464",
    "monkey": "n02484322",
    "motorcycle": "n03790512",
    "rabbit": "n02324045",
    "red panda": "n02509815",
    "sheep": "n02411705",
    "snake": "n01726692",
    "squirrel": "n02355227",
    "tiger": "n02129604",
    "train": "n04468005",
    "turtle": "n01662784",
    "boat": "n02858304",
    "whale": "n02062744",
    "zebra": "n02391049",
}
"""The 30 classes of ImageNet-VID and the synsets that ImageNet's classes reach them through."""

VID_ANNOTATIONS = VID | {"boat": "n04530566"}
"""The same classes and the synsets of the annotation files, where a boat is any watercraft."""

C16 = {
    "aircraft": "n02686568",
    "bear": "n02131653",
    "bicycle": "n02834778",
    "bird": "n01503061",
    "boat": "n02858304",
    "bottle": "n02876657",
    "car": "n02958343",
    "domestic cat": "n02121808",
    "chair": "n03001627",
    "clock": "n03046257",
    "dog": "n02084071",
    "elephant": "n02503517",
    "keyboard instrument": "n03614532",
    "knife": "n03623556",
    "oven": "n03862676",
    "truck": "n04490091",
}
"""The 16 classes of ImageNet-C16 and their synsets; `wordnet.c16` maps onto them."""
