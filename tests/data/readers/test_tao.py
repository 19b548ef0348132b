"""TAO-LaSOT: its classes, merged files, and frames or annotations that are not there."""

import json

import pytest

from lametta import LamettaError
from lametta.data import catalog
from lametta.data.classes.wordnet import ancestral_map
from lametta.data.readers.tao import tao_lasot
from tests.data.readers.plants import TAO_TRAIN, TAO_VALIDATION, plant, plant_tao, write_tao


def test_tao_classes(tmp_path):
    plant_tao(tmp_path)
    data = tao_lasot(tmp_path)
    assert data.classes == ("bird.n.01", "street_sign.n.01", "zebra.n.01")
    wanted = ancestral_map(["n01503061", "n06794110", "n02391049"])
    assert data.class_map.groups == wanted.groups


def write_parts(folder, train, validation):
    for name, content in (("train", train), ("validation", validation)):
        file = folder / f"TAO/annotations/{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(content))


def test_tao_files_are_merged_by_id(tmp_path):
    """An annotation, its image and its category in three places."""
    frame = "val/LaSOT/zebra-1/1.jpg"
    plant(tmp_path / "TAO/frames", frame)
    train = {"categories": [{"id": 3, "synset": "zebra.n.01"}], "images": [], "annotations": []}
    image, box = {"id": 8, "file_name": frame}, {"id": 1, "image_id": 8, "category_id": 3}
    write_parts(tmp_path, train, {"categories": [], "images": [image], "annotations": [box]})
    assert tao_lasot(tmp_path).keys == (frame,)
    write_parts(tmp_path, train | {"annotations": [box]}, train | {"images": [image]})
    assert tao_lasot(tmp_path).keys == (frame,)
    write_parts(tmp_path, train, {"categories": [], "images": [], "annotations": [box]})
    with pytest.raises(LamettaError, match="validation.json must be JSON .*, got KeyError: 8"):
        tao_lasot(tmp_path)


def test_tao_synsets_that_imagenets_hierarchy_lacks(tmp_path):
    """Vesuvius is an instance: of a volcano, which is a class of ImageNet."""
    frames = {
        "train/LaSOT/a/1.jpg": ["vesuvius.n.01"],
        "train/LaSOT/b/1.jpg": ["volcano.n.02", "vesuvius.n.01"],
        "train/LaSOT/c/1.jpg": ["paris.n.01", "zebra.n.01"],
    }
    write_tao(tmp_path / "TAO/annotations/trainval.json", [], frames)
    plant(tmp_path / "TAO/frames", *frames)
    data = tao_lasot(tmp_path)
    assert data.classes == ("vesuvius.n.01", "zebra.n.01")
    assert data.labels.tolist() == [0, 0, 1]
    assert data.class_map.groups == ((980,), (340,))


def test_tao_that_reading_refuses_is_not_found(tmp_path):
    plant_tao(tmp_path)
    (tmp_path / "TAO/annotations/train.json").unlink()
    (row,) = (row for row in catalog.locate(tmp_path) if row.name == "tao_lasot")
    assert not row.found
    assert "annotations/train.json'; " in row.why


def test_tao_merged_already(tmp_path):
    plant_tao(tmp_path)
    wanted = tao_lasot(tmp_path).fingerprint
    write_tao(tmp_path / "TAO/annotations/trainval.json", [], TAO_TRAIN | TAO_VALIDATION)
    for name in ("train", "validation"):
        (tmp_path / f"TAO/annotations/{name}.json").unlink()
    assert tao_lasot(tmp_path).fingerprint == wanted


def test_tao_with_missing_frames(tmp_path):
    _, folder, rows = plant_tao(tmp_path)
    (folder / rows[1][0]).unlink()
    with pytest.raises(
        LamettaError, match=rf"broken files in .*: 1 \({rows[1][0]}: no such file\)"
    ):
        tao_lasot(tmp_path)
    data = tao_lasot(tmp_path, broken="skip")
    assert data.skipped == (rows[1][0],)
    assert len(data) == len(rows) - 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file: .*validation.json'; .* must hold trainval.json, or train.json and"),
        ("{", "validation.json must be JSON with TAO's images, .*, got JSONDecodeError"),
        ("{}", "validation.json must be JSON with TAO's images, .*, got KeyError: 'categories'"),
        ("[]", "validation.json must be JSON with TAO's images, .*, got TypeError"),
    ],
)
def test_tao_with_broken_annotations(tmp_path, content, message):
    plant_tao(tmp_path)
    file = tmp_path / "TAO/annotations/validation.json"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(LamettaError, match=message):
        tao_lasot(tmp_path)


def test_tao_without_lasot(tmp_path):
    (tmp_path / "TAO/frames").mkdir(parents=True)
    write_tao(tmp_path / "TAO/annotations/trainval.json", [], {"train/AVA/v/1.jpg": ["zebra.n.01"]})
    with pytest.raises(LamettaError, match="no annotated frames from LaSOT in "):
        tao_lasot(tmp_path)
