import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import lametta.torch.preprocess
from lametta import LamettaError
from lametta.data.bank.build import describe_transform
from lametta.preprocess import Preprocess


@pytest.fixture
def photo():
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    pixels = np.random.default_rng(0).integers(256, size=(70, 111, 3), dtype=np.uint8)
    return image.fromarray(pixels)


def by_definition(image, size, crop, filter_name, mean, std, white, reverse):
    """Pillow resizes; the rest is written out pixel by pixel."""
    from PIL import Image

    image = image.resize(size, getattr(Image.Resampling, filter_name))
    width, height = image.size
    left, top = int((width - crop) / 2), int((height - crop) / 2)
    result = np.zeros((3, crop, crop))
    for y in range(crop):
        for x in range(crop):
            pixel = image.getpixel((left + x, top + y))
            for c, value in enumerate(pixel[::-1] if reverse else pixel):
                result[c, y, x] = (value / 255 * white - mean[c]) / std[c]
    return result


@pytest.mark.parametrize(
    ("options", "size", "filter_name"),
    [
        ({"resize": 32, "crop": 28}, (51, 32), "BILINEAR"),  # 111 * 32 / 70 = 50.74
        ({"resize": 33, "crop": 28, "interpolation": "bicubic"}, (52, 33), "BICUBIC"),
        ({"resize": (30, 29), "crop": 28, "interpolation": "lanczos"}, (29, 30), "LANCZOS"),
        ({"resize": 32, "crop": 21, "max_size": 40}, (40, 25), "BILINEAR"),
        ({"resize": None, "crop": 20}, (111, 70), "NEAREST"),
    ],
)
@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("scale", [1, 255])
def test_preprocess_by_definition(photo, options, size, filter_name, bgr, scale):
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    found = Preprocess(**options, mean=mean, std=std, bgr=bgr, scale=scale)(photo)
    wanted = by_definition(photo, size, options["crop"], filter_name, mean, std, scale, bgr)
    assert found.dtype == torch.float32
    assert found.is_contiguous()
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


def test_preprocess_makes_any_image_rgb(photo):
    keep = Preprocess(resize=None, crop=None)
    for mode in ("L", "RGBA", "P", "CMYK", "1"):
        assert keep(photo.convert(mode)).shape == (3, 70, 111)
    assert torch.equal(keep(photo.convert("L")), keep(photo.convert("L").convert("RGB")))


def test_preprocess_turns_by_exif_and_keeps_the_image(photo, tmp_path):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise
    photo.save(tmp_path / "turned.png", exif=exif)
    keep = Preprocess(resize=None, crop=None)
    with Image.open(tmp_path / "turned.png") as turned:
        assert torch.equal(keep(turned), torch.rot90(keep(photo), -1, (1, 2)))
    assert photo.size == (111, 70)


def test_preprocess_gives_a_small_image_a_black_border(photo):
    plain = {"mean": (0, 0, 0), "std": (1, 1, 1), "scale": 255}
    found = Preprocess(resize=None, crop=81, **plain)(photo)
    whole = Preprocess(resize=None, crop=None, **plain)(photo)
    assert found.shape == (3, 81, 81)
    assert torch.equal(found[:, 5:75], whole[:, :, 15:96])
    assert not found[:, :5].any()
    assert not found[:, 75:].any()
    line = photo.resize((3000, 1))
    assert Preprocess(resize=256, crop=224, max_size=1000)(line).shape == (3, 224, 224)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"resize": 0}, "resize must be an integer >= 1, got 0"),
        ({"resize": (4, -1)}, "resize must be an integer >= 1, got -1"),
        ({"resize": (4,)}, r"resize must have a height and a width, got \(4,\)"),
        ({"crop": -3}, "crop must be an integer >= 1, got -3"),
        ({"max_size": 0}, "max_size must be an integer >= 1, got 0"),
        (
            {"interpolation": "cubic"},
            "interpolation must be one of 'nearest', .* got 'cubic'; .* 'bicubic'",
        ),
        ({"mean": (0.5,)}, r"mean must have 3 values, one a channel, got \(0.5,\)"),
        ({"mean": ("a", 0, 0)}, r"mean must have 3 values, one a channel, got \('a', 0, 0\)"),
        ({"std": (1, 2, 3, 4)}, "std must have 3 values, one a channel, got"),
        ({"std": (1, 0, 1)}, r"std must not have a 0, got \(1, 0, 1\)"),
        ({"scale": 2}, "scale must be one of 1, 255, got 2"),
    ],
)
def test_bad_preprocessing_is_named(options, message):
    with pytest.raises(LamettaError, match=message):
        Preprocess(**options)


def test_preprocess_takes_pil_images_alone(photo):
    with pytest.raises(LamettaError, match="image must be a PIL image, got ndarray"):
        Preprocess()(np.asarray(photo))


def test_absent_pillow_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.delitem(sys.modules, "PIL.Image", raising=False)
    with pytest.raises(LamettaError, match="preprocess needs PIL: pip install pillow"):
        Preprocess()(object())


@pytest.mark.parametrize("bgr", [False, True])
@pytest.mark.parametrize("scale", [1, 255])
def test_arrays_and_tensors_are_standardized_to_the_same_bits(scale, bgr):
    rng = np.random.default_rng(0)
    every = rng.permuted(np.repeat(np.arange(256, dtype=np.uint8)[:, None], 3, 1), axis=0)
    for _ in range(50):
        mean, std = tuple(rng.random(3)), tuple(rng.random(3) + 0.1)
        prepare = Preprocess(mean=mean, std=std, scale=scale, bgr=bgr)
        for pixels in (every.reshape(16, 16, 3), every.reshape(2, 8, 16, 3)):
            expected = prepare.standardize(pixels).numpy()
            np.testing.assert_array_equal(prepare.standardize_array(pixels), expected, strict=True)
    with pytest.raises(LamettaError, match=r"pixels must be uint8 .* got float64 of shape"):
        prepare.standardize_array(np.zeros((2, 3)))


def test_a_crop_may_have_two_sides(photo):
    keep = Preprocess(resize=None, crop=None)
    found = Preprocess(resize=None, crop=(40, 61))(photo)
    assert torch.equal(found, keep(photo)[:, 15:55, 25:86])
    with pytest.raises(LamettaError, match=r"crop must have a height and a width, got \(1, 2, 3\)"):
        Preprocess(crop=(1, 2, 3))


def test_headers_of_banks_describe_it_as_ever():
    """Other fields, or in another order, would make every bank anew."""
    assert json.dumps(describe_transform(Preprocess().pixels)) == (
        '{"name": "Preprocess.pixels", "resize": 256, "crop": 224, "interpolation": "bilinear", '
        '"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "scale": 1, "bgr": false, '
        '"max_size": null}'
    )


def test_it_is_one_class_by_each_of_its_names():
    assert lametta.torch.Preprocess is lametta.torch.preprocess.Preprocess is Preprocess


def test_images_are_prepared_without_torch():
    """As behind an ONNX model, where it may not be installed."""
    code = """
import sys
sys.modules["torch"] = None
import numpy as np, PIL.Image
from lametta.preprocess import Preprocess
prepare = Preprocess()
print(prepare.standardize_array(prepare.pixels(PIL.Image.new("RGB", (300, 300)))).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "(3, 224, 224)\n", done.stderr
