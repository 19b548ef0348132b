"""ImageNet's validation images, and C, C16 and V2."""

import json
import shutil

import pytest

from lametta import LamettaError
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.readers.imagenet import imagenet_c, imagenet_c16, imagenet_v2, imagenet_val
from tests.conftest import shared
from tests.data.readers.plants import plant, plant_c, plant_c16, plant_v2, plant_val


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
        ({"severities": 3}, "folder must be readable, got .*test/glass_blur/3: No such file"),
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
    with pytest.raises(LamettaError, match="without .*imagenetv2-top-images-format-val"):
        imagenet_v2(tmp_path, subset="top-images")
    with pytest.raises(LamettaError, match="subset must be one of 'matched-frequency', "):
        imagenet_v2(tmp_path, subset="all")
