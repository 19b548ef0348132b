import pytest

from lametta import LamettaError
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.readers.tiny import tiny_imagenet
from tests.data.readers.plants import plant_tiny


def test_tiny_leaves_out_what_imagenet_lacks(tmp_path):
    _, folder, _ = plant_tiny(tmp_path)
    data = tiny_imagenet(tmp_path)
    assert data.classes == ("n02124075", "n01443537")
    assert data.class_map.groups == ((IMAGENET.index("n02124075"),), (1,))
    assert data.skipped == ("images/val_9.JPEG",)
    (folder / "val_annotations.txt").write_text("val_0.JPEG\n")
    with pytest.raises(LamettaError, match="an image and its synset a line, got 'val_0.JPEG'"):
        tiny_imagenet(tmp_path)
    (folder / "val_annotations.txt").write_bytes(b"val_0.JPEG \xff")
    with pytest.raises(LamettaError, match="val_annotations.txt must be text in UTF-8, got"):
        tiny_imagenet(tmp_path)
