"""ImageNet's validation images, and C, C16 and V2."""

import json
import shutil

import numpy as np
import pytest
from scipy.io import savemat

from lametta import LamettaError
from lametta.data import catalog
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.readers.imagenet import (
    DEVKIT,
    SOLUTION,
    SYNSETS,
    imagenet_c,
    imagenet_c16,
    imagenet_v2,
    imagenet_val,
)
from tests.conftest import shared
from tests.data.readers.plants import plant, plant_c, plant_c16, plant_v2, plant_val

LABELS = ["n01443537", "n01440764", "n01443537", "n02391049"]  # of images 1 to 4
NAMES = [f"ILSVRC2012_val_{i:08}" for i in range(1, 5)]


def test_val_wants_synsets(tmp_path):
    plant(tmp_path / "ilsvrc12/val", "ILSVRC2012_val_00000001.JPEG")
    with pytest.raises(LamettaError, match="must hold <class>/<image>, got ILSVRC2012_val_0"):
        imagenet_val(tmp_path)
    shutil.rmtree(tmp_path / "ilsvrc12/val")
    plant(tmp_path / "ilsvrc12/val", "n01440764/a.JPEG", "goldfish/a.JPEG")
    with pytest.raises(LamettaError, match="must name classes by synset, got 'goldfish'"):
        imagenet_val(tmp_path)


def test_val_has_imagenets_classes(tmp_path):
    plant_val(tmp_path)
    data = imagenet_val(tmp_path)
    assert data.classes == IMAGENET
    assert data.class_map is None
    stored = json.loads(shared("reference", "imagenet_wnids.json").read_text())
    assert list(IMAGENET) == stored


def test_c_choices(tmp_path):
    plant_c(tmp_path)
    some = imagenet_c(tmp_path, severities=[5, 1], corruptions=["snow", "pixelate"])
    parts = [key.split("/")[:2] for key in some.keys]
    assert parts == [["snow", "5"], ["snow", "1"], ["pixelate", "5"], ["pixelate", "1"]]
    assert imagenet_c(tmp_path, severities=1).keys[0].startswith("glass_blur/1/")
    for options, message in [
        ({"split": "train"}, "split must be one of 'val', 'test', got 'train'"),
        ({"corruptions": ["fog"]}, "corruptions must be one of 'glass_blur', .*, got 'fog'"),
        ({"severities": [6]}, "severities must be one of 1, 2, 3, 4, 5, got 6"),
        ({"severities": []}, "severities and corruptions must not be empty"),
        ({"severities": 3}, "cannot read folder .*test/glass_blur/3: No such file"),
    ]:
        with pytest.raises(LamettaError, match=message):
            imagenet_c(tmp_path, **options)


def test_c_with_drawn_severities(tmp_path):
    """Every image once a corruption, at one of five severities, whatever else is in the tree."""
    names = [f"n01443537/{i}.JPEG" for i in range(50)]
    for corruption in ("snow", "pixelate"):
        for severity in range(1, 6):
            folder = tmp_path / f"imagenet_c/test/{corruption}/{severity}/n01443537"
            folder.mkdir(parents=True)
            for name in names:
                (folder.parent / name).touch()
    options = {"severities": "drawn", "corruptions": ["snow", "pixelate"]}
    data = imagenet_c(tmp_path, **options)
    parts = [key.split("/", 2) for key in data.keys]
    assert [(first, last) for first, _, last in parts] == [
        (corruption, name) for corruption in options["corruptions"] for name in names
    ]
    drawn = {group: [s for g, s, _ in parts if g == group] for group in options["corruptions"]}
    for severities in drawn.values():
        assert all(severities.count(level) >= 3 for level in "12345")
    assert drawn["snow"] != drawn["pixelate"]
    alone = imagenet_c(tmp_path, **options | {"corruptions": ["pixelate"]})
    assert alone.keys == data.keys[50:]
    assert data.keys[:4] == (
        "snow/5/n01443537/0.JPEG", "snow/4/n01443537/1.JPEG",
        "snow/3/n01443537/2.JPEG", "snow/3/n01443537/3.JPEG",
    )  # fmt: skip
    lost = tmp_path / "imagenet_c/test/snow/3/n01443537/7.JPEG"
    lost.unlink()
    with pytest.raises(LamettaError, match=r"each image at all severities, got snow/1/.*/7\.JPEG"):
        imagenet_c(tmp_path, **options)
    lost.touch()
    (lost.parent / "50.JPEG").touch()
    with pytest.raises(LamettaError, match=r"each image at all severities, got snow/3/.*50\.JPEG"):
        imagenet_c(tmp_path, **options)
    with pytest.raises(LamettaError, match="severities must be one of 'drawn', got 'all'"):
        imagenet_c(tmp_path, severities="all")


def test_c_as_the_archives_unpack(tmp_path):
    plant_c(tmp_path / "made")
    (tmp_path / "imagenet_c").parent.mkdir(exist_ok=True)
    shutil.copytree(tmp_path / "made/imagenet_c/test", tmp_path / "imagenet_c")
    assert imagenet_c(tmp_path).fingerprint == imagenet_c(tmp_path / "made").fingerprint
    shutil.rmtree(tmp_path / "imagenet_c/snow")
    with pytest.raises(LamettaError, match="imagenet_c/test or .*/imagenet_c/snow"):
        imagenet_c(tmp_path)


def test_c_of_a_wrong_depth(tmp_path):
    plant(tmp_path, "imagenet_c/test/snow/5/a.JPEG")
    with pytest.raises(LamettaError, match="<severity>/<synset>/<image>, got snow/5/a.JPEG"):
        imagenet_c(tmp_path, corruptions=["snow"])


def test_c16_is_the_papers(tmp_path):
    plant_c16(tmp_path)
    data = imagenet_c16(tmp_path)
    stored = json.loads(shared("reference", "imagenet_c16_classes.json").read_text())
    assert data.class_map.groups == tuple(tuple(row["imagenet_indices"]) for row in stored)
    assert len(data.classes) == 16


def test_v2_of_wrong_folders(tmp_path):
    _, folder, _ = plant_v2(tmp_path)
    assert imagenet_v2(tmp_path).classes == IMAGENET
    plant(folder, "1000/a.jpeg")
    with pytest.raises(LamettaError, match=r"labels must lie in 0\.\.999, got 9\.\.1000"):
        imagenet_v2(tmp_path)
    with pytest.raises(LamettaError, match="there is no .*imagenetv2-top-images-format-val"):
        imagenet_v2(tmp_path, subset="top-images")
    with pytest.raises(LamettaError, match="subset must be one of 'matched-frequency', "):
        imagenet_v2(tmp_path, subset="all")


def write_solution(folder):
    rows = [
        f"{name},{synset} 1 2 3 4 {synset} 5 6 7 8"
        for name, synset in zip(NAMES, LABELS, strict=True)
    ]
    (folder / SOLUTION).write_text("\n".join(["ImageId,PredictionString", *rows[::-1]]) + "\n")


def write_synsets(folder):
    (folder / SYNSETS).write_text("\n".join(LABELS) + "\n")


def write_devkit(folder):
    """The numbers of the devkit are not in the order of synsets."""
    (folder / DEVKIT).mkdir(parents=True)
    kinds = [("ILSVRC2012_ID", object), ("WNID", object), ("words", object)]
    synsets = np.zeros(4, kinds)
    rows = [(1, "n02391049"), (2, "n01440764"), (3, "n01443537"), (4, "n00001740")]
    for i, (number, synset) in enumerate(rows):
        synsets[i] = (float(number), synset, "some words")
    savemat(folder / DEVKIT / "meta.mat", {"synsets": synsets})
    numbers = {synset: number for number, synset in rows}
    lines = [f"{numbers[synset]}\n" for synset in LABELS]
    (folder / DEVKIT / "ILSVRC2012_validation_ground_truth.txt").write_text("".join(lines))


WRITERS = {"solution": write_solution, "synsets": write_synsets, "devkit": write_devkit}


@pytest.fixture
def root(tmp_path):
    plant(tmp_path / "ilsvrc12/val", *(f"{name}.JPEG" for name in NAMES))
    return tmp_path


def found(root):
    return next(row for row in catalog.locate(root) if row.name == "imagenet_val")


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_flat_images_are_those_in_folders(root, tmp_path, write):
    sorted_root = tmp_path / "sorted"
    images = [f"{synset}/{name}.JPEG" for synset, name in zip(LABELS, NAMES, strict=True)]
    plant(sorted_root / "ilsvrc12/val", *images)
    wanted = imagenet_val(sorted_root)
    write(root / "ilsvrc12")
    data = imagenet_val(root)
    assert found(root).found
    assert data.fingerprint == wanted.fingerprint
    assert data.classes == wanted.classes
    assert data.labels.tolist() == [0, 1, 1, 340]
    pixels = [plain(root / f"ilsvrc12/val/{key.rpartition('/')[2]}") for key in data.keys]
    assert [sample.x.getpixel((0, 0)) for sample in data] == pixels
    assert data.differs == "4 images where 50,000 were published"


def plain(path):
    from PIL import Image

    return Image.open(path).getpixel((0, 0))


def test_flat_images_without_labels_are_not_readable_as_they_are(root):
    message = "must hold <class>/<image>, got ILSVRC2012_val_00000001.JPEG, whose class LOC_val"
    row = found(root)
    assert not row.found
    assert message in row.why
    with pytest.raises(LamettaError, match=message):
        imagenet_val(root)
    write_devkit(root / "ilsvrc12")
    (root / "ilsvrc12" / DEVKIT / "meta.mat").unlink()
    assert found(root).why.endswith(f"no {DEVKIT}/meta.mat")


def test_an_empty_folder_is_not_found(tmp_path):
    (tmp_path / "ilsvrc12/val").mkdir(parents=True)
    assert found(tmp_path).why.startswith("no images (")


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (SYNSETS, b"n01443537\n", "must tell the class of every image, got none for .*2.JPEG"),
        (SYNSETS, b"cat\n" * 4, "must name classes by synset, got 'cat'"),
        (SYNSETS, b"\xff", "must be text in UTF-8"),
        (SOLUTION, b"1,2,3\n", "must tell the class of every image, got none for .*1.JPEG"),
        (f"{DEVKIT}/meta.mat", b"nothing", r"must hold a table of synsets with ILSVRC2012_ID and"),
        (
            f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt",
            b"1\n9\n",
            "must hold a number of meta.mat a line, got 9",
        ),
        (
            f"{DEVKIT}/ILSVRC2012_validation_ground_truth.txt",
            b"one\n",
            "must hold a number of meta.mat a line, got invalid literal",
        ),
    ],
)
def test_broken_labels_are_named(root, file, content, message):
    write_devkit(root / "ilsvrc12")
    (root / "ilsvrc12" / file).write_bytes(content)
    with pytest.raises(LamettaError, match=message):
        imagenet_val(root)
