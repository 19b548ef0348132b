"""Readers: each finds what a small tree in the published layout holds, or says what is wrong."""

import itertools
import json
import pickle
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from lametta import ClassMap, LamettaError
from lametta.data import catalog
from lametta.data.classes.imagenet import IMAGENET, VID, VID_ANNOTATIONS
from lametta.data.classes.wordnet import ancestral_map, c16
from lametta.data.corruption import TEST, VALIDATION
from lametta.data.readers import images
from lametta.data.readers.folders import arrays, image_folder, video_folder
from lametta.data.readers.imagenet import (
    imagenet_c,
    imagenet_c16,
    imagenet_v2,
    imagenet_val,
    tiny_imagenet,
)
from lametta.data.readers.tao import tao_lasot
from lametta.data.readers.vid import imagenet_vid
from tests.conftest import shared


def plant(root, *paths):
    """Write an image of its own color at each path."""
    for path in paths:
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        color = tuple(np.random.default_rng(list(path.encode())).integers(256, size=3).tolist())
        # Always PNG, which keeps the color; Pillow looks at the content, not at the name.
        Image.new("RGB", (8, 6), color).save(file, format="PNG")


def plant_val(root):
    plant(root / "ilsvrc12/val", "n01443537/a_10.JPEG", "n01443537/a_9.JPEG", "n01440764/b.JPEG")
    return (
        imagenet_val,
        root / "ilsvrc12/val",
        [
            ("n01440764/b.JPEG", 0, None),
            ("n01443537/a_9.JPEG", 1, None),
            ("n01443537/a_10.JPEG", 1, None),
        ],
    )


def plant_c(root):
    for corruption in TEST:
        for severity in (1, 5):
            plant(root / "imagenet_c/test", f"{corruption}/{severity}/n01443537/a.JPEG")
    return (
        imagenet_c,
        root / "imagenet_c/test",
        [(f"{corruption}/5/n01443537/a.JPEG", 1, corruption) for corruption in TEST],
    )


def plant_c16(root):
    rows = []
    for corruption in VALIDATION:
        for target, sources in enumerate(c16().groups):
            for source in sources:
                key = f"{corruption}/5/{IMAGENET[source]}/a.JPEG"
                rows.append((key, target, corruption))
        plant(root / "imagenet_c/val", f"{corruption}/5/{IMAGENET[1]}/left_out.JPEG")
    plant(root / "imagenet_c/val", *(key for key, _, _ in rows))
    return imagenet_c16, root / "imagenet_c/val", sorted(rows)


def plant_v2(root):
    folder = root / "imagenet_v2/imagenetv2-matched-frequency-format-val"
    plant(folder, "10/a.jpeg", "9/b.jpeg", "999/c.jpeg")
    return imagenet_v2, folder, [
        ("9/b.jpeg", 9, None), ("10/a.jpeg", 10, None), ("999/c.jpeg", 999, None)
    ]  # fmt: skip


def annotate(root, frame, *synsets):
    objects = "".join(
        f"<object><trackid>{i}</trackid><name>{synset}</name></object>"
        for i, synset in enumerate(synsets)
    )
    file = root / f"ILSVRC2015/Annotations/VID/val/{frame}.xml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"<annotation><folder>v</folder>{objects}</annotation>")


def plant_vid(root):
    objects = {
        "v2/000000": [VID["dog"], VID["dog"]],
        "v2/000001": [VID["dog"], VID["fox"]],
        "v2/000002": [],
        "v2/000003": [VID["dog"], "n00007846"],  # a person, who does not count
        "v10/000000": ["n04530566"],  # a watercraft
    }
    for frame, synsets in objects.items():
        annotate(root, frame, *synsets)
        plant(root / "ILSVRC2015/Data/VID/val", f"{frame}.JPEG")
    return imagenet_vid, root / "ILSVRC2015/Data/VID/val", [
        ("v2/000000.JPEG", 8, "v2"), ("v2/000003.JPEG", 8, "v2"), ("v10/000000.JPEG", 27, "v10")
    ]  # fmt: skip


def write_tao(file, categories, frames):
    """One of TAO's files; both count from 1."""
    names = sorted({name for names in frames.values() for name in names} | set(categories))
    ids = {name: i for i, name in enumerate(names, 1)}
    content = {
        "videos": [],
        "tracks": [],
        "categories": [{"id": ids[name], "synset": name, "name": "?"} for name in names],
        "images": [{"id": i, "file_name": path} for i, path in enumerate(frames, 1)],
        "annotations": [
            {"id": 10 * i + j, "image_id": i, "category_id": ids[name]}
            for i, found in enumerate(frames.values(), 1)
            for j, name in enumerate(found)
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content))


TAO_TRAIN = {
    "train/LaSOT/zebra-1/frame10.jpg": ["zebra.n.01"],
    "train/LaSOT/zebra-1/frame9.jpg": ["zebra.n.01", "zebra.n.01", "unknown"],
    "train/LaSOT/zebra-1/frame11.jpg": ["zebra.n.01", "bird.n.01"],
    "train/YFCC100M/v_1/frame1.jpg": ["zebra.n.01", "gorilla.n.01"],
}
TAO_VALIDATION = {
    "val/LaSOT/bird-2/frame1.jpg": ["bird.n.01", "no_such_thing.n.01"],
    "val/LaSOT/sign-1/frame1.jpg": ["stop_sign.n.01"],
    "val/LaSOT/kite-3/frame1.jpg": ["planet.n.01"],  # no class of ImageNet is one
}


def plant_tao(root):
    write_tao(root / "TAO/annotations/train.json", ["goat.n.01"], TAO_TRAIN)
    write_tao(root / "TAO/annotations/validation.json", [], TAO_VALIDATION)
    plant(root / "TAO/frames", *TAO_TRAIN, *TAO_VALIDATION)
    return (
        tao_lasot,
        root / "TAO/frames",
        [
            ("train/LaSOT/zebra-1/frame9.jpg", 2, "train/LaSOT/zebra-1"),
            ("train/LaSOT/zebra-1/frame10.jpg", 2, "train/LaSOT/zebra-1"),
            ("val/LaSOT/bird-2/frame1.jpg", 0, "val/LaSOT/bird-2"),
            ("val/LaSOT/sign-1/frame1.jpg", 1, "val/LaSOT/sign-1"),
        ],
    )


def plant_tiny(root):
    folder = root / "tiny-imagenet-200"
    plant(folder / "val/images", "val_0.JPEG", "val_10.JPEG", "val_9.JPEG")
    (folder / "wnids.txt").write_text("n02124075\nn00007846\nn01443537\n")
    (folder / "val/val_annotations.txt").write_text(
        "val_0.JPEG\tn01443537\t0\t32\t44\t62\n"
        "val_10.JPEG\tn02124075\t0\t0\t9\t9\n"
        "val_9.JPEG\tn00007846\t0\t0\t9\t9\n"
    )
    return tiny_imagenet, folder / "val", [
        ("images/val_0.JPEG", 1, None), ("images/val_10.JPEG", 0, None)
    ]  # fmt: skip


def plant_folder(root):
    plant(root, "dog/2.png", "dog/10.png", "cat/sub/1.png", "dog/.hidden.png", ".git/x/1.png")
    (root / "dog" / "notes.txt").touch()
    return image_folder, root, [
        ("cat/sub/1.png", 0, None), ("dog/2.png", 1, None), ("dog/10.png", 1, None)
    ]  # fmt: skip


def plant_videos(root):
    plant(root, "swan/b/2.jpg", "swan/b/10.jpg", "cow/a/1.jpg", "swan/a/1.jpg")
    return (
        video_folder,
        root,
        [
            ("cow/a/1.jpg", 0, "cow/a"),
            ("swan/a/1.jpg", 1, "swan/a"),
            ("swan/b/2.jpg", 1, "swan/b"),
            ("swan/b/10.jpg", 1, "swan/b"),
        ],
    )


PLANTS = {
    "val": plant_val,
    "c": plant_c,
    "c16": plant_c16,
    "v2": plant_v2,
    "vid": plant_vid,
    "tao": plant_tao,
    "tiny": plant_tiny,
    "folder": plant_folder,
    "videos": plant_videos,
}


@pytest.fixture(params=PLANTS.values(), ids=PLANTS)
def planted(request, tmp_path):
    return request.param(tmp_path / "data")


# What holds for every reader


def test_items(planted, tmp_path):
    reader, folder, rows = planted
    data = reader(tmp_path / "data")
    groups = [None] * len(data) if data.groups is None else data.groups.tolist()
    assert list(zip(data.keys, data.labels.tolist(), groups, strict=True)) == rows
    for sample, (key, label, group) in zip(data, rows, strict=True):
        with Image.open(folder / key) as wanted:
            assert np.array_equal(sample.x, wanted)
        assert (sample.y, sample.group) == (label, group)
    if data.class_map is not None:
        assert data.class_map.names == data.classes


def test_the_same_wherever_it_lies(planted, tmp_path):
    reader, _, _ = planted
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    first, second = reader(str(tmp_path / "data")), reader(tmp_path / "copy")
    assert first.fingerprint == second.fingerprint
    restored = pickle.loads(pickle.dumps(second))
    assert restored.fingerprint == first.fingerprint
    assert np.array_equal(restored[0].x, first[0].x)


def test_broken_image(planted, tmp_path):
    reader, folder, rows = planted
    file = folder / rows[0][0]
    file.write_bytes(file.read_bytes()[:50])
    data = reader(tmp_path / "data")  # lazy: nobody looked into the file yet
    with pytest.raises(images.UnreadableImageError, match=f"got {file}: "):
        data[0]
    assert data[1].x.size == (8, 6)


def test_missing_folder(planted, tmp_path):
    reader, folder, _ = planted
    shutil.rmtree(folder)
    with pytest.raises(LamettaError) as error:
        reader(tmp_path / "data")
    assert str(folder) in str(error.value)


@pytest.mark.parametrize("name", ["val", "c", "c16", "v2", "folder", "videos"])
def test_folder_without_images(name, tmp_path):
    reader, folder, _ = PLANTS[name](tmp_path / "data")
    for file in folder.rglob("*.*"):
        if file.is_file():
            file.unlink()
    with pytest.raises(LamettaError, match=f"{folder}.* must hold images .*, found none"):
        reader(tmp_path / "data")


# ImageNet and its kin


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


def test_tiny_leaves_out_what_imagenet_lacks(tmp_path):
    _, folder, _ = plant_tiny(tmp_path)
    data = tiny_imagenet(tmp_path)
    assert data.classes == ("n02124075", "n01443537")
    assert data.class_map.groups == ((IMAGENET.index("n02124075"),), (1,))
    assert data.skipped == ("images/val_9.JPEG",)
    (folder / "val_annotations.txt").write_text("val_0.JPEG\n")
    with pytest.raises(LamettaError, match="an image and its synset a line, got 'val_0.JPEG'"):
        tiny_imagenet(tmp_path)


# Videos


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
        (None, "No such file or directory"),
    ],
)
def test_vid_with_broken_annotations(tmp_path, content, reason):
    _, _, rows = plant_vid(tmp_path)
    file = tmp_path / "ILSVRC2015/Annotations/VID/val/v2/000000.xml"
    file.unlink() if content is None else file.write_text(content)
    with pytest.raises(LamettaError, match=rf"got 1 broken \(v2/000000.JPEG: .*{reason}"):
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
        LamettaError, match=r"got 4 broken \(v2/000000.JPEG: no image; .*; \.\.\.\)"
    ):
        imagenet_vid(tmp_path)
    with pytest.raises(LamettaError, match="broken must be one of 'raise', 'skip', got 'ignore'"):
        imagenet_vid(tmp_path, broken="ignore")


def test_vid_without_frames(tmp_path):
    for kind in ("Data", "Annotations"):
        (tmp_path / "ILSVRC2015" / kind / "VID/val").mkdir(parents=True)
    with pytest.raises(LamettaError, match="must hold <video>/<frame>.xml .*, found none"):
        imagenet_vid(tmp_path)


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


# Any folder


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
    ]:
        with pytest.raises(LamettaError, match=message):
            image_folder(tmp_path / "numbers", **options)
    with pytest.raises(LamettaError, match="must name classes by index, got 'n01440764'"):
        image_folder(tmp_path / "synsets", classes="index")


def test_folder_of_a_wrong_layout(tmp_path):
    plant(tmp_path, "cat/1.png", "1.png")
    with pytest.raises(LamettaError, match="must hold <class>/<image>, got 1.png"):
        image_folder(tmp_path)
    (tmp_path / "1.png").unlink()
    (tmp_path / "ant").mkdir()
    with pytest.raises(LamettaError, match="images in every folder, got none in .*ant"):
        image_folder(tmp_path)
    (tmp_path / "file").touch()
    for path in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(LamettaError, match=f"a folder or a .zip file, got '{path}'"):
            image_folder(path)


def test_zip_is_as_good_as_a_folder(tmp_path):
    plant_folder(tmp_path / "pets")
    with zipfile.ZipFile(tmp_path / "pets.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted((tmp_path / "pets").rglob("*"), reverse=True):
            archive.write(file, file.relative_to(tmp_path / "pets").as_posix())
    folder, archive = (image_folder(tmp_path / name) for name in ("pets", "pets.zip"))
    assert folder.fingerprint == archive.fingerprint
    assert folder.name == archive.name == "pets"
    for root in (tmp_path / "pets", tmp_path / "pets.zip"):
        assert images.list_images(root, "dog") == ["dog/2.png", "dog/10.png"]
    assert all(np.array_equal(a.x, b.x) for a, b in zip(folder, archive, strict=True))


def test_a_broken_file_in_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        archive.writestr("cat/1.jpg", b"not an image")
    data = image_folder(tmp_path / "pets.zip")
    with pytest.raises(images.UnreadableImageError, match="pets.zip/cat/1.jpg: no image format"):
        data[0]


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
        (tmp_path / "none.json", "labels must be a JSON file, got .*none.json"),
        (tmp_path / "swan/1.jpg", "labels must be a JSON file, got .*1.jpg"),
        (tmp_path / "list.json", "labels must be a JSON object, got a list"),
    ]:
        with pytest.raises(LamettaError, match=message):
            video_folder(tmp_path, labels)


def test_arrays():
    x = np.arange(6.0).reshape(3, 2)
    data = arrays(x, [2, 0, 2], groups=[7, 7, 8])
    assert data.classes == ("0", "1", "2")
    assert data[2].x.tolist() == [4.0, 5.0]
    assert data[2][1:] == (2, "8")
    pets = ClassMap({"cat": [0], "dog": [1]})
    named = arrays(x, np.array([1, 0, 1]), classes=["cat", "dog"], class_map=pets, name="pets")
    assert (named.name, named.classes, named.class_map) == ("pets", ("cat", "dog"), pets)
    for y, message in [
        ([0, 1], "labels must have one entry a sample, 3, got 2"),
        ([0.0, 1.0, 2.0], "labels must be integers"),
    ]:
        with pytest.raises(LamettaError, match=message):
            arrays(x, y)


# Order


@given(st.lists(st.integers(0, 10**6), min_size=1), st.text("ab01/", max_size=4))
def test_numbers_sort_as_numbers(numbers, prefix):
    paths = [f"{prefix}{number}.jpg" for number in numbers]
    if prefix[-1:].isdecimal():  # they would be part of the number
        prefix, paths = "", [f"{number}.jpg" for number in numbers]
    found = sorted(paths, key=images.natural_key)
    assert found == [f"{prefix}{number}.jpg" for number in sorted(numbers)]


@given(st.lists(st.text("ab019-", min_size=1, max_size=3), max_size=4, unique=True))
def test_a_folder_stays_in_one_piece(folders):
    paths = [f"{folder}/{i}.jpg" for i in range(3) for folder in folders]
    found = [path.partition("/")[0] for path in sorted(paths, key=images.natural_key)]
    assert len(list(itertools.groupby(found))) == len(folders)


# Names


def test_catalog_reads_all(tmp_path):
    assert not any(row.found for row in catalog.look(tmp_path))
    plants = [plant_val, plant_c, plant_c16, plant_v2, plant_vid, plant_tao, plant_tiny]
    for plant_one in plants:
        plant_one(tmp_path)
    rows = catalog.look(tmp_path)
    assert all(row.found and row.where.is_relative_to(tmp_path) for row in rows)
    described = catalog.datasets()
    assert [row.name for row in rows] == [name for name in described if ":" not in name]
    for row in rows:
        data = catalog.load(row.name, tmp_path, **({"severities": 5} if "_c" in row.name else {}))
        assert data.name == row.name
        assert row.needs == described[row.name].needs
        assert row.where.relative_to(tmp_path).parts[0] in row.needs


def test_catalog_looks_for_every_corruption(tmp_path):
    plant_c(tmp_path)
    shutil.rmtree(tmp_path / "imagenet_c/test/snow")
    (row,) = (row for row in catalog.look(tmp_path) if row.name == "imagenet_c_test")
    assert (row.found, row.where) == (False, tmp_path / "imagenet_c/test")


def test_catalog_reads_folders(tmp_path, monkeypatch):
    plant(tmp_path / "pets", "cat/1.png")
    plant(tmp_path / "clips", "swan/1.png")
    assert catalog.load("folder:pets", tmp_path, name="x").name == "x"
    assert catalog.load(f"folder:{tmp_path / 'pets'}").keys == ("cat/1.png",)
    clips = catalog.load("videos:clips", tmp_path, labels={"swan": 100})
    assert clips.labels.tolist() == [100]
    monkeypatch.setenv("LAMETTA_DATA", str(tmp_path))
    assert catalog.load("folder:pets").keys == ("cat/1.png",)


def test_catalog_errors(tmp_path, monkeypatch):
    monkeypatch.delenv("LAMETTA_DATA", raising=False)
    with pytest.raises(LamettaError, match=r"data must be a folder \(--data or LAMETTA_DATA\)"):
        catalog.data_root()
    monkeypatch.setenv("LAMETTA_DATA", str(tmp_path / "none"))
    with pytest.raises(LamettaError, match="data must be a folder, got '.*none'"):
        catalog.data_root()
    assert catalog.data_root(tmp_path) == tmp_path
    for name in ("imagenet", "folder:", "files:x"):
        with pytest.raises(LamettaError, match=f"name must be one of .*, got '{name}'"):
            catalog.load(name, tmp_path)
    with pytest.raises(LamettaError, match="imagenet_c_val must be among severities, corruptions"):
        catalog.load("imagenet_c_val", tmp_path, split="test")
    with pytest.raises(
        LamettaError, match="options of imagenet_val must be among none, got 'size'"
    ):
        catalog.load("imagenet_val", tmp_path, size=3)


def test_import_is_light():
    heavy = "'torch', 'PIL', 'imagecorruptions', 'cv2', 'safetensors'"
    code = "import sys, lametta.data.catalog, lametta.data.loader, lametta.data.corrupt\n"
    code += f"print([m for m in ({heavy}) if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


# Real files


def test_real_folders():
    data = image_folder(shared("data", "imagenette-val500"))
    assert len(data) == 500
    assert set(np.bincount(data.labels)) == {0, 50}
    assert data[0].x.size == (224, 224)
    zipped = image_folder(shared("data", "cifar10", "test-3000.zip"))
    assert (len(zipped), zipped.classes[::9]) == (3000, ("airplane", "truck"))
    assert zipped[2999].x.size == (32, 32)


def test_real_videos():
    data = video_folder(shared("data", "video"), {"blackswan": 100, "cows": 345}, n_classes=1000)
    assert sorted(set(data.groups)) == ["blackswan", "cows"]
    assert set(data.labels[data.groups == "cows"]) == {345}
    assert Path(data.keys[0]).stem == "00000"
