"""ImageNet's validation images as their archive unpacks, with each of the files that label them."""

import numpy as np
import pytest
from scipy.io import savemat

from lametta import LamettaError
from lametta.data import catalog
from lametta.data.readers.flat import DEVKIT, SOLUTION, SYNSETS
from lametta.data.readers.imagenet import imagenet_val
from tests.data.readers.plants import plant

LABELS = ["n01443537", "n01440764", "n01443537", "n02391049"]  # of images 1 to 4
NAMES = [f"ILSVRC2012_val_{i:08}" for i in range(1, 5)]


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
    return next(row for row in catalog.look(root) if row.name == "imagenet_val")


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
    assert "must hold images" in found(tmp_path).why


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
