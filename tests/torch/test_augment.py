"""Augmentations against torchvision's results on recorded draws, and against Pillow and SciPy."""

import colorsys

import numpy as np
import pytest
import torch
from scipy import ndimage

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
