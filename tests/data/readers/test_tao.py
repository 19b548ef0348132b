"""TAO-LaSOT: its classes, merged files, and frames or annotations that are not there."""

import pytest

from lametta import LamettaError
from lametta.data.classes.wordnet import ancestral_map
from lametta.data.readers.tao import tao_lasot
from tests.data.readers.plants import TAO_TRAIN, TAO_VALIDATION, plant_tao, write_tao


def test_tao_classes(tmp_path):
    plant_tao(tmp_path)
    data = tao_lasot(tmp_path)
    assert data.classes == ("bird.n.01", "street_sign.n.01", "zebra.n.01")
    wanted = ancestral_map(["n01503061", "n06794110", "n02391049"])
    assert data.class_map.groups == wanted.groups


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
    with pytest.raises(LamettaError, match=rf"got 1 broken \({rows[1][0]}: no such file\)"):
        tao_lasot(tmp_path)
    data = tao_lasot(tmp_path, broken="skip")
    assert data.skipped == (rows[1][0],)
    assert len(data) == len(rows) - 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "trainval.json, or train.json and validation.json, got no validation.json"),
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
    with pytest.raises(LamettaError, match="must hold annotated frames from LaSOT, found none"):
        tao_lasot(tmp_path)
