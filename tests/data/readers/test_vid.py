"""ImageNet-VID: its classes, and annotations that are broken or missing."""

import json

import pytest

from lametta import LamettaError
from lametta.data.classes.imagenet import VID_ANNOTATIONS
from lametta.data.readers.vid import imagenet_vid
from tests.conftest import shared
from tests.data.readers.plants import plant_vid


def test_vid_maps_as_the_paper_does(tmp_path):
    plant_vid(tmp_path)
    data = imagenet_vid(tmp_path)
    stored = json.loads(shared("reference", "vid_target_to_imagenet_indices.json").read_text())
    found = dict(zip(data.class_map.names, map(list, data.class_map.groups), strict=True))
    assert found == stored
    assert data.classes == tuple(VID_ANNOTATIONS)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("<annotation><object>", "no element found"),
        ("<html></html>", "must be in <annotation>, got <html>"),
        (f"<annotation>{' ' * (1 << 20)}</annotation>", "annotation larger than 1048576 bytes"),
        ('<?xml version="1.0" encoding="none"?><annotation/>', "unknown encoding: none"),
        (None, "No such file or directory"),
    ],
)
def test_vid_with_broken_annotations(tmp_path, content, reason):
    _, _, rows = plant_vid(tmp_path)
    file = tmp_path / "ILSVRC2015/Annotations/VID/val/v2/000000.xml"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(LamettaError, match=rf"broken files in .*: 1 \(v2/000000.JPEG: .*{reason}"):
        imagenet_vid(tmp_path)
    data = imagenet_vid(tmp_path, broken="skip")
    assert data.skipped == ("v2/000000.JPEG",)
    assert data.keys == tuple(key for key, _, _ in rows[1:])
    assert data.take([1]).skipped == data.skipped


def test_vid_counts_all_and_names_some(tmp_path):
    _, folder, _ = plant_vid(tmp_path)
    for file in folder.glob("v2/*"):
        file.unlink()
    with pytest.raises(
        LamettaError, match=r"broken files in .*: 4 \(v2/000000.JPEG: no image; .*; \.\.\.\)"
    ):
        imagenet_vid(tmp_path)
    with pytest.raises(LamettaError, match="broken must be one of 'raise', 'skip', got 'ignore'"):
        imagenet_vid(tmp_path, broken="ignore")


def test_vid_without_frames(tmp_path):
    for kind in ("Data", "Annotations"):
        (tmp_path / "ILSVRC2015" / kind / "VID/val").mkdir(parents=True)
    with pytest.raises(LamettaError, match="no <video>/<frame>.xml with objects in "):
        imagenet_vid(tmp_path)
