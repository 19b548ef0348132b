"""Corruptions by name: all of them, their strength, and the same noise wherever it is made."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

from lametta import ClassMap, LamettaError
from lametta.data.corruption import SETS, TEST, VALIDATION, corrupt, corrupt_image
from lametta.data.dataset import arrays
from lametta.data.loader import load_batches
from lametta.data.readers.folders import image_folder

# Not imported here, or every worker would: it loads numba.
pytestmark = pytest.mark.skipif(not find_spec("imagecorruptions"), reason="not installed")

# Numba compiles glass_blur when it is first used, which takes seconds.
ALL = [
    pytest.param(name, marks=pytest.mark.slow) if name == "glass_blur" else name
    for name in SETS["all"]
]


@pytest.fixture
def _compiled_once(request):
    """Keep what Numba compiles for the next run, as JAX does."""
    import imagecorruptions.corruptions as package
    from numba.core import config

    config.CACHE_DIR = str(request.config.cache.mkdir("numba"))
    package._shuffle_pixels_njit_glass_blur.enable_caching()


def photo(width=64, height=48):
    """Edges, a smooth background and colors, so that each corruption has something to change."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([120 + x, 90 + 2 * y, 160 - x], axis=2).clip(0, 255)
    pixels[(x - width // 2) ** 2 + (y - height // 2) ** 2 < 150] = (200, 60, 30)
    pixels[(x // 3 + y // 5) % 7 == 0] = (40, 90, 140)
    return Image.fromarray(pixels.astype(np.uint8))


@pytest.fixture
def images():
    turned = photo().transpose(Image.Transpose.ROTATE_90)
    return arrays([photo(), turned], [1, 0], ["a", "b"], name="photos")


def difference(image, **options):
    return np.abs(np.array(corrupt_image(image, **options), float) - np.array(image)).mean()


@pytest.mark.slow
def test_names():
    assert (len(VALIDATION), len(TEST)) == (9, 10)
    import imagecorruptions

    assert sorted(SETS["all"]) == sorted(imagecorruptions.get_corruption_names("all"))


@pytest.mark.usefixtures("_compiled_once")
@pytest.mark.parametrize("corruption", ALL)
def test_severity_grows(corruption):
    image = photo()
    weak, strong = (difference(image, corruption=corruption, severity=s) for s in (1, 5))
    assert 0 < weak < strong


@pytest.mark.usefixtures("_compiled_once")
@pytest.mark.parametrize("corruption", ALL)
def test_only_the_seed_decides(corruption):
    state = np.random.get_state()  # noqa: NPY002
    first = corrupt_image(photo(), corruption, severity=3, seed=7)
    assert all(map(np.array_equal, state, np.random.get_state()))  # noqa: NPY002
    np.random.random(5)  # noqa: NPY002
    assert np.array_equal(first, corrupt_image(photo(), corruption, severity=3, seed=7))
    assert (first.size, first.mode) == (photo().size, "RGB")
    other = corrupt_image(photo(), corruption, severity=3, seed=8)
    certain = {"brightness", "contrast", "defocus_blur", "gaussian_blur", "zoom_blur"}
    certain |= {"jpeg_compression", "pixelate", "saturate"}
    assert np.array_equal(first, other) == (corruption in certain)


def test_the_package_is_called_as_it_says():
    import imagecorruptions

    np.random.seed(3)  # noqa: NPY002
    wanted = imagecorruptions.corrupt(np.array(photo()), corruption_name="shot_noise", severity=2)
    assert np.array_equal(corrupt_image(photo(), "shot_noise", severity=2, seed=3), wanted)


def test_dataset(images):
    data = corrupt(images, ["snow", "fog"], severity=2)
    assert data.keys == ("snow/2/0", "snow/2/1", "fog/2/0", "fog/2/1")
    assert data.labels.tolist() == [1, 0, 1, 0]
    assert data.groups.tolist() == ["snow", "snow", "fog", "fog"]
    assert (data.name, data.classes) == ("photos_c", images.classes)
    assert [sample.x.size for sample in data] == [(64, 48), (48, 64)] * 2
    assert data[2].group == "fog"
    assert len(corrupt(images, "val")) == 2 * len(VALIDATION)
    assert set(corrupt(images).groups) == set(TEST)
    assert set(corrupt(images, "frost").groups) == {"frost"}


def test_class_map_stays():
    class_map = ClassMap({"pet": [0, 1]}, n_source=3)
    data = arrays([photo()], [0], classes=["pet"], class_map=class_map)
    assert corrupt(data, "fog").class_map == class_map


def test_noise_is_of_the_key_and_the_seed(images):
    def pixels(data, key):
        return np.array(data.samples[data.keys.index(key)])

    one = corrupt(images, ["gaussian_noise", "shot_noise"])
    key = "gaussian_noise/5/1"
    assert np.array_equal(pixels(one, key), pixels(one, key))
    # Neither the other corruptions nor the other samples matter.
    assert np.array_equal(pixels(one, key), pixels(corrupt(images, "gaussian_noise"), key))
    assert np.array_equal(one[1].x, one.take([3, 1])[1].x)
    assert not np.array_equal(pixels(one, key), pixels(corrupt(images, "all", seed=1), key))
    twins = corrupt(arrays([photo(), photo()], [0, 0]), "gaussian_noise")
    assert not np.array_equal(twins[0].x, twins[1].x)


@pytest.mark.slow
@pytest.mark.usefixtures("_compiled_once")
@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_from_the_loader(workers):
    images = arrays([photo(), photo().transpose(Image.Transpose.ROTATE_180)], [0, 1])
    data = corrupt(images, ["glass_blur", "impulse_noise", "gaussian_noise", "snow"], severity=3)
    order = np.array([7, 2, 0, 5, 3, 1, 6, 4])
    batches = load_batches(data, [order[:3], order[3:]], np.array, workers=workers)
    found = np.concatenate([batch.x.numpy() for batch in batches])
    for i, pixels in zip(order, found, strict=True):
        assert np.array_equal(pixels, data[i].x)


def test_unreadable_images_are_still_reported(tmp_path):
    (tmp_path / "cat").mkdir()
    photo().save(tmp_path / "cat/1.png")
    (tmp_path / "cat/2.png").write_bytes(b"not an image")
    data = corrupt(image_folder(tmp_path), "fog")
    (batch,) = load_batches(data, [[0, 1]], np.array, workers=0, on_error="report")
    assert batch.index.tolist() == [0]
    assert [failure.key for failure in batch.failed] == ["fog/5/cat/2.png"]
    assert str(tmp_path / "cat/2.png") in batch.failed[0].reason


def test_size_cuts_the_middle():
    image = Image.new("RGB", (200, 100), "red")
    image.paste("blue", (50, 0, 150, 100))
    (found,) = corrupt(arrays([image], [0]), "brightness", severity=1, size=56)
    assert found.x.size == (56, 56)
    blue, red = np.array(corrupt_image(image, "brightness", severity=1))[50, [100, 0]]
    # The shorter side is 64 now, and the blue square in the middle as wide: the cut lies inside it.
    assert (np.array(found.x) == blue).all()
    assert not (blue == red).all()


def test_tags_turn_the_image():
    image = photo()
    image.getexif()[0x0112] = 6  # a quarter turn
    assert corrupt_image(image, "contrast").size == (48, 64)
    plain = corrupt_image(photo().transpose(Image.Transpose.ROTATE_270), "contrast")
    assert np.array_equal(corrupt_image(image, "contrast"), plain)


def test_a_spatter_without_drops():
    image = Image.new("RGB", (32, 32), "gray")
    found = [np.array(corrupt_image(image, "spatter", severity=1, seed=s)) for s in range(60)]
    same = [np.array_equal(pixels, image) for pixels in found]
    assert any(same)
    assert not all(same)
    assert min(pixels.max() for pixels in found) > 100  # the package alone would give black images


def test_gray_images_become_rgb():
    assert corrupt_image(photo().convert("L"), "fog").mode == "RGB"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"corruptions": "rain"}, "corruptions must be one of 'brightness', .*, got 'rain'"),
        ({"corruptions": ["fog", "f"]}, "corruptions must be one of 'brightness', .*, got 'f'"),
        ({"corruptions": []}, "corruptions must not be empty"),
        ({"severity": 0}, "severity must be one of 1, 2, 3, 4, 5, got 0"),
        ({"size": 31}, "size must be at least 32 pixels, or None, got 31"),
    ],
)
def test_bad_options(images, options, message):
    with pytest.raises(LamettaError, match=message):
        corrupt(images, **options)


def test_bad_images(images):
    small = corrupt(arrays([photo(31, 40)], [0]), "fog")
    with pytest.raises(LamettaError, match="at 0: image must be at least 32 x 32 .* got 31 x 40"):
        small[0]
    assert corrupt(arrays([photo(31, 40)], [0]), "fog", size=32)[0].x.size == (32, 32)
    with pytest.raises(LamettaError, match="image must be a PIL image, got ndarray"):
        corrupt(arrays(np.zeros((1, 40, 40, 3)), [0]), "fog")[0]
    with pytest.raises(LamettaError, match="seed must lie in 0..2\\*\\*32 - 1, got -1"):
        corrupt_image(photo(), "fog", seed=-1)


def test_without_the_package(images, monkeypatch):
    monkeypatch.setitem(sys.modules, "imagecorruptions", None)
    needed = r"a corruption needs imagecorruptions: pip install '\.\[corruptions\]' in a clone"
    with pytest.raises(LamettaError, match=needed):
        corrupt(images, "fog")  # not only when an image is read
    with pytest.raises(LamettaError, match=needed):
        corrupt_image(photo(), "fog")
