"""Decoded images on disk, and the two halves of preprocessing around them."""

import os
import pickle

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from lametta import ClassMap, LamettaError
from lametta.data import arrays, image_folder, load_batches
from lametta.data.bank import cache_images, extract, open_images
from lametta.preprocess import Preprocess
from lametta.torch import Classifier

PREPARE = Preprocess(resize=12, crop=10, interpolation="bicubic", bgr=True)


@pytest.fixture
def photos(tmp_path):
    """Nine photos of several sizes in three classes, as files."""
    rng = np.random.default_rng(0)
    for i in range(9):
        folder = tmp_path / "photos" / "abc"[i % 3]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(256, size=(14 + i, 30 - i, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return image_folder(tmp_path / "photos")


@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("scale", [1, 255])
def test_the_halves_make_the_whole(photos, bgr, scale):
    prepare = Preprocess(resize=12, crop=10, bgr=bgr, scale=scale)
    images = [image for image, _, _ in photos]
    pixels = np.stack([prepare.pixels(image) for image in images])
    assert (pixels.dtype, pixels.shape) == (np.uint8, (9, 10, 10, 3))
    whole = torch.stack([prepare(image) for image in images])
    assert torch.equal(prepare.standardize(pixels), whole)
    assert torch.equal(prepare.standardize(torch.from_numpy(pixels)), whole)
    assert torch.equal(prepare.standardize(pixels[3]), whole[3])
    assert prepare.standardize(pixels).is_contiguous()


def test_pixels_are_what_pillow_decodes(photos):
    image = photos[4].x
    assert np.array_equal(Preprocess(resize=None, crop=None, bgr=True).pixels(image), image)


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (np.zeros((4, 4, 3), np.float32), "got torch.float32 of shape (4, 4, 3)"),
        (np.zeros((3, 4, 4), np.uint8), "got torch.uint8 of shape (3, 4, 4)"),
        (np.zeros((4, 3), np.uint8), "got torch.uint8 of shape (4, 3)"),
        (np.zeros((1, 1, 4, 4, 3), np.uint8), "got torch.uint8 of shape (1, 1, 4, 4, 3)"),
    ],
)
def test_other_arrays_are_no_pixels(pixels, message):
    with pytest.raises(LamettaError) as error:
        PREPARE.standardize(pixels)
    assert str(error.value) == f"pixels must be uint8 [H, W, 3] or [N, H, W, 3], {message}"


@pytest.mark.slow
def test_a_cache_is_the_data_set(photos, tmp_path):
    cached = cache_images(photos, PREPARE.pixels, tmp_path / "images.safetensors")
    assert (cached.name, cached.classes, cached.keys) == ("photos", tuple("abc"), photos.keys)
    assert cached.labels.tolist() == photos.labels.tolist()
    assert cached.groups is None
    assert cached.fingerprint == photos.fingerprint
    for i, (image, label, group) in enumerate(photos):
        assert np.array_equal(cached[i].x, PREPARE.pixels(image))
        assert (cached[i].y, cached[i].group) == (label, group)
    assert sorted(os.listdir(tmp_path)) == ["images.safetensors", "photos"]


def test_no_image_is_decoded_twice(photos, tmp_path):
    decoded = []

    def pixels(image):
        decoded.append(image)
        return PREPARE.pixels(image)

    path = tmp_path / "images.safetensors"
    cached = cache_images(photos, pixels, path, workers=0)
    assert len(decoded) == 9
    for _ in range(3):
        np.stack([x for x, _, _ in cached])
        cache_images(photos, pixels, path, workers=0)
    assert len(decoded) == 9


@pytest.mark.parametrize("sent", [False, True])
def test_a_network_sees_the_same_images(photos, tmp_path, sent):
    cached = cache_images(photos, PREPARE.pixels, tmp_path / "images.safetensors", workers=0)
    batches = [[8, 0, 3], [1, 1]]
    if sent:  # as to another process
        cached = pickle.loads(pickle.dumps(cached))
    files = [batch.x for batch in load_batches(photos, batches, PREPARE, workers=0)]
    one_by_one = load_batches(cached, batches, PREPARE.standardize, workers=0)
    together = load_batches(cached, batches, workers=0)
    for file, single, batch in zip(files, one_by_one, together, strict=True):
        assert torch.equal(single.x, file)
        assert torch.equal(PREPARE.standardize(batch.x), file)


def test_banks_of_files_and_of_the_cache_are_equal(photos, tmp_path):
    cached = cache_images(photos, PREPARE.pixels, tmp_path / "images.safetensors", workers=0)
    net = nn.Sequential()
    net.body, net.fc = nn.Sequential(nn.Conv2d(3, 5, 10), nn.Flatten()), nn.Linear(5, 3)
    with Classifier(net.eval()) as model:
        banks = [
            extract(model, data, transform, tmp_path / f"{data is cached}.safetensors", workers=0)
            for data, transform in ((photos, PREPARE), (cached, PREPARE.standardize))
        ]
    assert np.array_equal(banks[0].logits, banks[1].logits)
    assert banks[0].header["fingerprint"] == banks[1].header["fingerprint"]


def test_all_that_is_known_is_kept(tmp_path):
    classes = ClassMap({"z": [0], "a": [2, 1]}, n_source=4, pooling="sum")
    images = [Image.new("RGB", (3, 2), color) for color in ("red", "lime")]
    options = {"classes": classes.names, "class_map": classes, "name": "two"}
    data = arrays(images, [1, 0], ["x", "yé"], **options)
    cache_images(data, np.array, tmp_path / "images.safetensors", workers=0)
    cached = open_images(tmp_path / "images.safetensors")
    assert (cached.name, cached.class_map, cached.groups.tolist()) == ("two", classes, ["x", "yé"])
    assert cached[1].x.tolist() == [[[0, 255, 0]] * 3] * 2


def test_broken_images_are_left_out(photos, tmp_path):
    (tmp_path / "photos" / "b" / "4.png").write_bytes(b"no image")
    path = tmp_path / "images.safetensors"
    with pytest.raises(LamettaError, match="cannot read image .*4.png"):
        cache_images(photos, PREPARE.pixels, path, workers=0)
    cached = cache_images(photos, PREPARE.pixels, path, workers=0, on_error="report")
    assert cached.skipped == ("b/4.png",)
    assert cached.keys == tuple(key for key in photos.keys if key != "b/4.png")
    at = cached.keys.index("b/7.png")
    assert np.array_equal(cached[at].x, PREPARE.pixels(photos[photos.keys.index("b/7.png")].x))


def test_a_run_goes_on(tmp_path):
    data = arrays([Image.new("RGB", (2, 2), (i, 0, 0)) for i in range(150)], [0] * 150)
    path, decoded = tmp_path / "images.safetensors", []

    def pixels(image):
        decoded.append(image)
        if len(decoded) == 100:
            raise KeyboardInterrupt
        return np.array(image)

    with pytest.raises(KeyboardInterrupt):
        cache_images(data, pixels, path, workers=0)
    cached = cache_images(data, pixels, path, workers=0)
    assert len(decoded) == 100 + 150 - 64  # a batch of 64 was done
    assert [cached[i].x[1, 1, 0] for i in range(150)] == list(range(150))


def test_other_pixels_are_another_file(photos, tmp_path):
    path = tmp_path / "images.safetensors"
    cache_images(photos, PREPARE.pixels, path, workers=0)
    other = Preprocess(resize=12, crop=8)
    with pytest.raises(LamettaError, match="made with preprocess .*'crop': 10.*not .*'crop': 8"):
        cache_images(photos, other.pixels, path, workers=0)
    cached = cache_images(photos, other.pixels, path, workers=0, restart=True)
    assert cached[0].x.shape == (8, 8, 3)
    shared = {"preprocess": "12 pixels, 8 of them"}
    cache_images(photos, other.pixels, path, workers=0, header=shared, restart=True)
    cached = cache_images(photos, PREPARE.pixels, path, workers=0, header=shared)
    assert cached[0].x.shape == (8, 8, 3)


def test_a_cache_is_not_held_in_memory(photos, tmp_path):
    cached = cache_images(photos, PREPARE.pixels, tmp_path / "images.safetensors", workers=0)
    assert len(pickle.dumps(cached.samples)) < 500
    x = cached[0].x
    x[:] = 0  # a copy: the file stays as it is
    assert cached[0].x.any()


@pytest.mark.parametrize(
    ("pixels", "message"),
    [
        (PREPARE, r"pixels must give uint8 \[H, W, 3\], got float32 of shape \(3, 10, 10\)"),
        (lambda image: np.array(image.convert("L").resize((4, 4))), r"uint8 of shape \(4, 4\)"),
        (np.array, "transform must give arrays of one shape"),
    ],
)
def test_other_than_pixels_are_refused(photos, tmp_path, pixels, message):
    with pytest.raises(LamettaError, match=message):
        cache_images(photos, pixels, tmp_path / "images.safetensors", workers=0)


def test_other_files_are_no_cache(tmp_path):
    from safetensors.numpy import save_file

    save_file({"pixels": np.zeros((2, 4, 4, 3), np.uint8)}, tmp_path / "a.safetensors")
    with pytest.raises(
        LamettaError, match="path must be a file that cache_images wrote, got .*a.s"
    ):
        open_images(tmp_path / "a.safetensors")
