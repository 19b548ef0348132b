"""Augmentations against torchvision's results on recorded draws, and against Pillow and SciPy."""

import colorsys

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from scipy import ndimage

from lametta import LamettaError
from lametta.torch import augment
from tests.conftest import SHARED

FIELD = SHARED / "golden" / "field"
VIEWS = {"cotta": augment.Views(), "roid": augment.Views(padding="reflect", blur=False, noise=0)}
PIXELS = torch.rand(2, 3, 12, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
stored = pytest.mark.skipif(not FIELD.is_dir(), reason=f"needs the published vectors in {FIELD}")


@stored
@pytest.mark.parametrize("name", VIEWS)
def test_published_augmentations(name):
    with np.load(FIELD / f"augmentation_{name}.npz") as archive:
        given = {key: archive[key] for key in archive.files}
    x = torch.tensor(given["x"])
    for row in range(4):
        draw = augment.Draw(
            tuple(given["order"][row]),
            tuple(given["factor"][row]),
            given["angle"][row],
            tuple(given["translate"][row]),
            given["scale"][row],
            given["blur_sigma"][row] if name == "cotta" else 1.0,
            bool(given["flip"][row]),
        )
        found = VIEWS[name].apply(x, draw)
        crop = given["after_crop"][row]
        expected = crop[..., ::-1] if draw.flip else crop
        assert np.abs(found.numpy() - expected).max() < 2e-6
        noise = torch.tensor(given["noise"][row]) if name == "cotta" else 0
        assert np.abs((found + noise).clamp(0, 1).numpy() - given["out"][row]).max() < 2e-6


@stored
def test_published_moves_and_blurs():
    with np.load(FIELD / "augmentation_single.npz") as archive:
        x = torch.tensor(archive["x"])
        padded = torch.nn.functional.pad(x, (16,) * 4, mode="replicate")
        moved = augment.affine(padded, 15, (4, -3), 1.1)[..., 16:-16, 16:-16]
        expected = archive["pad_edge_affine_15_4_-3_1.1"]
        assert np.abs(moved.numpy() - expected).max() < 2e-6
        for sigma in (0.5, 0.2):
            blurred = augment.gaussian_blur(x, sigma).numpy()
            assert np.abs(blurred - archive[f"blur_5_{sigma}"]).max() < 2e-6


@stored
@pytest.mark.parametrize("name", ["brightness", "contrast", "saturation", "hue", "gamma"])
def test_published_operations(name):
    with np.load(FIELD / "augmentation_single.npz") as archive:
        x = torch.tensor(archive["x"])
        for key in archive.files:
            operation, _, factor = key.partition("_")
            if operation == name:
                found = getattr(augment, name)(x, float(factor))
                assert np.abs(found.numpy() - archive[key]).max() < 2e-6, key


def test_hue_is_that_of_the_standard_library():
    found = augment.hue(PIXELS, 0.2)
    for pixel, expected in zip(
        PIXELS.movedim(1, -1).reshape(-1, 3).tolist(),
        found.movedim(1, -1).reshape(-1, 3).tolist(),
        strict=True,
    ):
        h, s, v = colorsys.rgb_to_hsv(*pixel)
        np.testing.assert_allclose(colorsys.hsv_to_rgb((h + 0.2) % 1, s, v), expected, atol=1e-9)
    gray = torch.full((1, 3, 2, 2), 0.4)
    torch.testing.assert_close(augment.hue(gray, 0.3), gray)


def test_blur_is_scipys():
    found = augment.gaussian_blur(PIXELS, 0.8)
    expected = ndimage.gaussian_filter(
        PIXELS.numpy(), 0.8, axes=(2, 3), mode="mirror", truncate=2 / 0.8
    )
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


def test_affine_is_scipys():
    angle, (right, down), scale = 20.0, (2, -1), 1.1
    found = augment.affine(PIXELS, angle, (right, down), scale)
    cos, sin = np.cos(np.radians(angle)) / scale, np.sin(np.radians(angle)) / scale
    matrix, middle = np.array([[cos, -sin], [sin, cos]]), np.array([5.5, 5.5])
    offset = middle - matrix @ (middle + np.array([down, right]))
    expected = [
        [ndimage.affine_transform(c, matrix, offset, order=1, mode="grid-constant") for c in image]
        for image in PIXELS.numpy()
    ]
    np.testing.assert_allclose(found.numpy(), np.array(expected), atol=1e-9)


def test_draws_are_seeded_and_stay_in_their_ranges():
    state = torch.random.get_rng_state()
    generator = torch.Generator().manual_seed(0)
    draws = [augment.Views().draw(generator, side=32) for _ in range(300)]
    again = augment.Views().draw(torch.Generator().manual_seed(0), side=32)
    assert draws[0] == again
    assert len({draw.order for draw in draws}) > 80
    for draw in draws:
        assert sorted(draw.order) == [0, 1, 2, 3, 4]
        low, high = (0.6, 0.7, 0.5, -0.06, 0.7), (1.4, 1.3, 1.5, 0.06, 1.3)
        assert all(a <= b <= c for a, b, c in zip(low, draw.factors, high, strict=True))
        assert max(map(abs, draw.shift)) <= 4
        assert abs(draw.angle) <= 15
        assert 0.9 <= draw.scale <= 1.1
    assert {draw.flip for draw in draws} == {True, False}
    assert max(draw.shift[0] for draw in draws) == 4
    assert torch.equal(torch.random.get_rng_state(), state)


def test_views_stay_in_range_and_keep_the_dtype():
    for dtype in (torch.float32, torch.float64):
        x = PIXELS.to(dtype)
        found = augment.Views()(x, torch.Generator().manual_seed(1))
        assert found.dtype == dtype
        assert found.shape == x.shape
        assert found.min() >= 0
        assert found.max() <= 1
        assert not torch.equal(found, x)


def pil(image):
    """An image [3, H, W] of whole bytes for Pillow, and the way back."""
    return Image.fromarray((image.movedim(0, -1) * 255).round().to(torch.uint8).numpy())


def back(image):
    return torch.tensor(np.asarray(image) / 255).movedim(-1, 0)


BYTES = (PIXELS * 180 + 20).round() / 255
LARGE = (torch.rand(1, 3, 40, 40, generator=torch.Generator().manual_seed(0)) ** 3 * 200).round()
LARGE = LARGE.double() / 255  # with enough pixels to be equalized


@pytest.mark.parametrize(
    ("ours", "pillows", "tolerance"),
    [
        (augment.autocontrast, ImageOps.autocontrast, 1 / 255),  # which rounds down to bytes
        (augment.equalize, ImageOps.equalize, 1e-12),
        (lambda x: augment.posterize(x, 3), lambda x: ImageOps.posterize(x, 3), 1e-12),
        (lambda x: augment.solarize(x, 140), lambda x: ImageOps.solarize(x, 140), 1e-12),
    ],
)
def test_operations_are_pillows(ours, pillows, tolerance):
    flat = torch.full((1, 3, 4, 4), 0.2, dtype=torch.float64)
    for images in (BYTES, LARGE, flat):
        for found, image in zip(ours(images), images, strict=True):
            assert (found - back(pillows(pil(image)))).abs().max() <= tolerance
    assert not torch.equal(ours(LARGE), LARGE)


@pytest.mark.parametrize(
    ("which", "matrix"),
    [
        (4, None),  # a rotation by 15 degrees
        (5, (1, 0.15, 0, 0, 1, 0)),
        (6, (1, 0, 0, 0.15, 1, 0)),
        (7, (1, 0, 6, 0, 1, 0)),  # 40 / 3 / 2 pixels, rounded down
        (8, (1, 0, 0, 0, 1, 6)),
    ],
)
def test_moves_are_pillows(which, matrix):
    one = torch.ones(1, dtype=torch.float64)
    found = augment.AugMix().operate(LARGE, torch.tensor([which]), 5 * one, one)[0]
    image, bilinear = pil(LARGE[0]), Image.Resampling.BILINEAR
    if matrix is None:
        expected = image.rotate(-15, bilinear)
    else:
        expected = image.transform(image.size, Image.Transform.AFFINE, matrix, bilinear)
    inner = (slice(None), slice(10, -10), slice(10, -10))  # borders are blended with black or not
    assert (found - back(expected))[inner].abs().max() < 1.5 / 255


def test_an_identity_moves_nothing():
    one, zero = torch.ones(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    same = augment.warp(PIXELS, one, zero, zero, zero, one, zero)
    torch.testing.assert_close(same, PIXELS, atol=1e-12, rtol=0)
    mirrored = augment.warp(PIXELS, -one, zero, zero, zero, one, one)
    torch.testing.assert_close(mirrored[..., :-1, :], PIXELS.flip(-1)[..., 1:, :])
    assert mirrored[..., -1, :].abs().max() < 1e-12


def test_augmix_draws_for_each_image_and_is_seeded():
    state = torch.random.get_rng_state()
    copies = PIXELS[:1].expand(16, -1, -1, -1)
    first, again = (augment.AugMix()(copies, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, again)
    assert len({one.numpy().tobytes() for one in first}) == 16
    assert 0 <= first.min() < first.max() <= 1
    assert torch.equal(torch.random.get_rng_state(), state)


def test_augmix_by_its_definition():
    """With the same draws, image by image: shift and flip, three chains, and two mixes."""
    generator, images = torch.Generator().manual_seed(5), LARGE.expand(12, -1, -1, -1)
    found = augment.AugMix(level=3)(images, torch.Generator().manual_seed(5))
    draws = torch.rand(37, 12, generator=generator, dtype=torch.float64).T.tolist()
    for (right, down, flip, share, *rest), result in zip(draws, found, strict=True):
        image = np.pad(LARGE[0].numpy(), ((0, 0), (5, 5), (5, 5)))
        top, left = int(down * 11), int(right * 11)
        image = image[:, top : top + 40]
        # Mirrored about the middle of the result, and then shifted.
        image = (
            image[:, :, left : left + 40] if flip >= 0.5 else image[:, :, ::-1][:, :, 10 - left :]
        )
        image = torch.tensor(image[:, :, :40].copy())[None]
        weights, mix = -np.log(rest[:3]), 0
        for chain in range(3):
            x = image
            steps = np.reshape(rest[6 + 9 * chain : 15 + 9 * chain], (3, 3))
            for which, strength, sign in steps[: int(3 * rest[3 + chain]) + 1]:
                strength = torch.tensor([0.1 + 2.9 * strength], dtype=torch.float64)
                direction = torch.tensor([1.0 if sign > 0.5 else -1.0], dtype=torch.float64)
                number = torch.tensor([int(9 * which)])
                x = augment.AugMix().operate(x, number, strength, direction)
            mix = mix + weights[chain] / weights.sum() * x
        torch.testing.assert_close(result[None], (1 - share) * image + share * mix)


@pytest.mark.parametrize("transform", [augment.Views(), augment.AugMix()])
def test_images_have_three_colors(transform):
    with pytest.raises(LamettaError, match=r"x must be color images .* got shape \(2, 1, 8, 8\)"):
        transform(torch.rand(2, 1, 8, 8), torch.Generator())
