"""Small trees of images in the layouts that data sets are published in."""

import json

import numpy as np
from PIL import Image

from lametta.data.classes.imagenet import IMAGENET, VID
from lametta.data.classes.wordnet import c16
from lametta.data.corruption import STANDARD, TEST, VALIDATION
from lametta.data.readers.folders import image_folder, video_folder
from lametta.data.readers.imagenet import imagenet_c, imagenet_c16, imagenet_v2, imagenet_val
from lametta.data.readers.tao import tao_lasot
from lametta.data.readers.tiny import tiny_imagenet
from lametta.data.readers.vid import imagenet_vid


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


def plant_cifar(root):
    """Two test images of CIFAR-10 and CIFAR-100 and of their corrupted versions."""
    pixels = bytes(3 * 32 * 32)
    for folder, file, labels in (
        ("cifar-10-batches-bin", "test_batch.bin", 1),
        ("cifar-100-binary", "test.bin", 2),
    ):
        (root / folder).mkdir(parents=True)
        (root / folder / file).write_bytes(2 * (bytes(labels) + pixels))
    (root / "cifar-100-binary/fine_label_names.txt").write_text("apple\n")
    for name in ("CIFAR-10-C", "CIFAR-100-C"):
        (root / name).mkdir()
        np.save(root / name / "labels.npy", np.zeros(10, np.uint8))
        for corruption in STANDARD:
            np.save(root / name / f"{corruption}.npy", np.zeros((10, 32, 32, 3), np.uint8))


def plant_renditions(root):
    for folder in ("imagenet-r", "imagenet-a", "sketch"):
        plant(root, f"{folder}/n01443537/1.jpg")


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
