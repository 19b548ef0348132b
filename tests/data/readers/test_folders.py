"""Any folder or archive of images or videos: how classes are named, and wrong layouts."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from lametta import LamettaError
from lametta.data.classes.imagenet import IMAGENET
from lametta.data.dataset import UnreadableImageError
from lametta.data.readers.folders import image_folder, open_path, video_folder
from lametta.data.readers.images import list_images
from tests.conftest import shared
from tests.data.readers.plants import plant, plant_folder


def test_folder_keys(tmp_path):
    plant(tmp_path / "synsets", "n01443537/1.png", "n01440764/1.png")
    plant(tmp_path / "numbers", "10/1.png", "2/1.png")
    synsets, numbers = (image_folder(tmp_path / name) for name in ("synsets", "numbers"))
    assert (synsets.classes, synsets.labels.tolist()) == (IMAGENET, [0, 1])
    assert (len(numbers.classes), numbers.labels.tolist()) == (11, [2, 10])
    assert len(image_folder(tmp_path / "numbers", n_classes=100).classes) == 100
    by_name = image_folder(tmp_path / "numbers", classes="name", name="mine")
    # Names rank as strings, the way torchvision's ImageFolder numbers them.
    assert (by_name.classes, by_name.labels.tolist()) == (("10", "2"), [1, 0])
    assert (by_name.name, numbers.name) == ("mine", "numbers")
    for options, message in [
        ({"classes": "synset"}, "numbers must name classes by synset, got '10'"),
        ({"classes": "letter"}, "classes must be one of 'auto', "),
        ({"n_classes": 5}, r"labels must lie in 0\.\.4, got 2\.\.10"),
        ({"classes": "name", "n_classes": 5}, "n_classes must be None where classes have names"),
        ({"n_classes": "5"}, "n_classes must be an integer >= 1, got '5'"),
        ({"n_classes": 10**9}, "numbers must have at most 1000000 classes, got 1000000000"),
    ]:
        with pytest.raises(LamettaError, match=message):
            image_folder(tmp_path / "numbers", **options)
    with pytest.raises(LamettaError, match="must name classes by index, got 'n01440764'"):
        image_folder(tmp_path / "synsets", classes="index")


def test_dates_are_no_numbers_of_classes(tmp_path):
    """Which would be a list of twenty million names."""
    plant(tmp_path, "20231105/1.png", "7/1.png")
    assert image_folder(tmp_path).classes == ("20231105", "7")
    with pytest.raises(LamettaError, match="must have at most 1000000 classes, got 20231106"):
        image_folder(tmp_path, classes="index")
    videos = open_path(tmp_path, count_classes=lambda samples: 1000)
    assert videos.groups.tolist() == ["7", "20231105"]


def test_folder_of_a_wrong_layout(tmp_path):
    plant(tmp_path, "cat/1.png", "1.png")
    with pytest.raises(LamettaError, match="must hold <class>/<image>, got 1.png"):
        image_folder(tmp_path)
    (tmp_path / "1.png").unlink()
    (tmp_path / "ant").mkdir()
    with pytest.raises(LamettaError, match="images in every folder, got none in .*ant"):
        image_folder(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(LamettaError, match=f"a folder or a .zip file, got '{tmp_path}/file'"):
        image_folder(tmp_path / "file")
    with pytest.raises(LamettaError, match=f"no such file or folder: '{tmp_path}/none'"):
        image_folder(tmp_path / "none")


def test_zip_is_as_good_as_a_folder(tmp_path):
    plant_folder(tmp_path / "pets")
    with zipfile.ZipFile(tmp_path / "pets.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((tmp_path / "pets").rglob("*"), reverse=True):
            archive.write(file, file.relative_to(tmp_path / "pets").as_posix())
    folder, archive = (image_folder(tmp_path / name) for name in ("pets", "pets.zip"))
    assert folder.fingerprint == archive.fingerprint
    assert folder.name == archive.name == "pets"
    for root in (tmp_path / "pets", tmp_path / "pets.zip"):
        assert list_images(root, "dog") == ["dog/2.png", "dog/10.png"]
    assert all(np.array_equal(a.x, b.x) for a, b in zip(folder, archive, strict=True))


def test_a_broken_file_in_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        archive.writestr("cat/1.jpg", b"not an image")
    data = image_folder(tmp_path / "pets.zip")
    with pytest.raises(UnreadableImageError, match="pets.zip/cat/1.jpg: no image format"):
        data[0]


def test_a_damaged_zip(tmp_path):
    file = tmp_path / "pets.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("cat/1.png", b"")
    content = file.read_bytes()
    file.write_bytes(content.replace(b"PK\x01\x02", b"PK\x00\x00"))
    with pytest.raises(LamettaError, match="cannot read .*pets.zip as a .zip file: Bad magic"):
        image_folder(file)


def test_an_image_in_a_zip_that_would_fill_the_memory(tmp_path):
    file = tmp_path / "pets.zip"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("cat/1.png", bytes(1 << 20))
    content = bytearray(file.read_bytes())
    at = content.index(b"PK\x01\x02") + 24  # where the directory says how large it is
    content[at : at + 4] = (1 << 31).to_bytes(4, "little")
    file.write_bytes(content)
    with pytest.raises(UnreadableImageError, match="cat/1.png: it has 2147483648 bytes, more than"):
        image_folder(file)[0]


def test_links_around_each_other_are_refused(tmp_path):
    plant(tmp_path, "cat/1.png", "dog/1.png")
    (tmp_path / "cat/dogs").symlink_to(tmp_path / "dog")
    assert len(list_images(tmp_path)) == 3
    (tmp_path / "dog/cats").symlink_to(tmp_path / "cat")
    with pytest.raises(
        LamettaError, match="must not hold a link to a folder around it, got .*cats"
    ):
        list_images(tmp_path)


def test_linked_folders_are_followed(tmp_path):
    plant(tmp_path / "elsewhere", "1.png")
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets/cat").symlink_to(tmp_path / "elsewhere")
    assert image_folder(tmp_path / "pets").keys == ("cat/1.png",)


@pytest.mark.parametrize("how", ["dict", "file", "beside"])
def test_videos_with_labels(tmp_path, how):
    plant(tmp_path / "videos", "swan/2.jpg", "swan/10.jpg", "cow/1.jpg")
    labels = {"swan": 100, "cow": 345, "extra": 0}
    file = tmp_path / "videos/labels.json" if how == "beside" else tmp_path / "mine.json"
    file.write_text(json.dumps(labels))
    given = {"dict": labels, "file": file, "beside": None}[how]
    data = video_folder(tmp_path / "videos", given, n_classes=1000)
    assert data.keys == ("cow/1.jpg", "swan/2.jpg", "swan/10.jpg")
    assert data.labels.tolist() == [345, 100, 100]
    assert data.groups.tolist() == ["cow", "swan", "swan"]
    assert len(data.classes) == 1000


def test_videos_with_synsets_and_names(tmp_path):
    plant(tmp_path, "swan/1.jpg", "cow/1.jpg")
    data = video_folder(tmp_path, {"swan": "n01860187", "cow": "n02403003"})
    assert (data.classes, data.labels.tolist()) == (IMAGENET, [345, 100])
    data = video_folder(tmp_path, {"swan": "bird", "cow": "beast"})
    assert (data.classes, data.labels.tolist()) == (("beast", "bird"), [0, 1])


def test_videos_of_a_wrong_layout(tmp_path):
    plant(tmp_path, "swan/1.jpg", "cow/1.jpg")
    (tmp_path / "list.json").write_text("[1]")
    for labels, message in [
        (None, "must hold <class>/<video>/<frame>, or have labels, got cow/1.jpg"),
        ({"swan": 100}, "labels must name every video, got none for 'cow'"),
        (tmp_path / "none.json", "no such file: '.*none.json'"),
        (tmp_path / "swan/1.jpg", "1.jpg' is not valid JSON: "),
        (tmp_path / "list.json", "labels must be a JSON object, got a list"),
        ({"swan": 100, "cow": None}, "labels must be names or numbers, got None for 'cow'"),
    ]:
        with pytest.raises(LamettaError, match=message):
            video_folder(tmp_path, labels)


def test_real_folders():
    data = image_folder(shared("data", "imagenette-val500"))
    assert len(data) == 500
    assert set(np.bincount(data.labels)) == {0, 50}
    assert data[0].x.size == (224, 224)
    zipped = image_folder(shared("data", "cifar10", "test-3000.zip"))
    assert (len(zipped), zipped.classes[::9]) == (3000, ("airplane", "truck"))
    assert zipped[2999].x.size == (32, 32)


def test_real_videos(tmp_path):
    labels = {"blackswan": 100, "cows": 345}
    for name in labels:  # others may lie beside them
        (tmp_path / name).symlink_to(shared("data", "video", name))
    data = video_folder(tmp_path, labels, n_classes=1000)
    assert sorted(set(data.groups)) == ["blackswan", "cows"]
    assert set(data.labels[data.groups == "cows"]) == {345}
    assert Path(data.keys[0]).stem == "00000"
