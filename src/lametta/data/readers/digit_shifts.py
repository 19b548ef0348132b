"""How the embedded digits are changed: corruptions, a second collection, and videos.

Images are [8, 8], 0 for paper to 1 for ink. Random numbers come from the given generator alone.
"""

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.float64]
"""An image [8, 8], or the frames [n_frames, 8, 8] of a video."""

Corruption: TypeAlias = Callable[[Pixels, np.random.Generator], Pixels]
"""From an image to a worse one."""

Video: TypeAlias = Callable[[Pixels, np.random.Generator, int], Pixels]
"""From an image and a number of frames to frames [n_frames, 8, 8], each close to the one before."""


def warp(
    image: Pixels,
    *,
    angle: float = 0.0,
    scale: float = 1.0,
    slant: float = 0.0,
    shift: tuple[float, float] | Pixels = (0.0, 0.0),
) -> Pixels:
    """Slant an image, scale and turn it about its center, then shift it by (rows, columns).

    The angle is in radians, from the first axis to the second; a slant of 1 moves a row by one
    column more than the row above it. What comes in over the border is paper.
    """
    from scipy import ndimage

    cos, sin = np.cos(angle), np.sin(angle)
    there = scale * np.array([[cos, -sin], [sin, cos]]) @ np.array([[1, 0], [slant, 1]])
    back = np.linalg.inv(there)
    center = (np.array(image.shape) - 1) / 2
    offset = center - back @ (center + shift)
    return np.asarray(ndimage.affine_transform(image, back, offset, order=1))


def brightness(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Raise all pixels by the same amount."""
    return _clip(image + rng.uniform(0.2, 0.5))


def contrast(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Draw all pixels towards their mean."""
    mean = float(image.mean())
    return mean + rng.uniform(0.35, 0.55) * (image - mean)


def gaussian_blur(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Blur the image by a Gaussian."""
    from scipy import ndimage

    return np.asarray(ndimage.gaussian_filter(image, rng.uniform(0.7, 1.0), mode="constant"))


def gaussian_noise(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Add noise to every pixel."""
    return _clip(image + rng.normal(scale=0.25, size=image.shape))


def impulse_noise(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Make some pixels paper or ink."""
    hit = rng.random(image.shape) < 0.12
    return np.where(hit, rng.integers(2, size=image.shape), image)


def motion_blur(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Average the image over a straight path."""
    angle, length = rng.uniform(0, np.pi), rng.uniform(2, 4)
    path = np.linspace(-length / 2, length / 2, 7)
    moved = [warp(image, shift=(s * np.cos(angle), s * np.sin(angle))) for s in path]
    blurred: Pixels = np.mean(moved, axis=0)
    return blurred


def occlusion(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Cover a square of 3 x 3 pixels."""
    top, left = rng.integers(1, 5, size=2)
    covered = image.copy()
    covered[top : top + 3, left : left + 3] = rng.uniform(0, 1)
    return covered


def pixelate(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Average blocks of 2 x 2 pixels, on a grid at a random place."""
    top, left = rng.integers(2, size=2)
    padded = np.pad(image, ((top, 2 - top), (left, 2 - left)))
    means: Pixels = padded.reshape(5, 2, 5, 2).mean(axis=(1, 3))
    return means.repeat(2, axis=0).repeat(2, axis=1)[top : top + 8, left : left + 8]


def scan(image: Pixels, rng: np.random.Generator) -> Pixels:
    """Scan the image anew: a little turned, moved, and of another size and ink."""
    return rng.uniform(0.7, 1.0) * warp(
        image,
        angle=rng.normal(scale=0.15),
        scale=np.exp(rng.normal(scale=0.1)),
        shift=rng.normal(scale=0.5, size=2),
    )


def tumble(image: Pixels, rng: np.random.Generator, n_frames: int) -> Pixels:
    """Turn, move and scale the image, under a little noise."""
    course = [_sway(rng, n_frames, size) for size in (0.6, 1.0, 1.0, 0.2)]
    frames = [
        warp(image, angle=angle, shift=(down, right), scale=np.exp(zoom))
        for angle, down, right, zoom in zip(*course, strict=True)
    ]
    return _clip(np.stack(frames) + rng.normal(scale=0.05, size=(n_frames, *image.shape)))


def drive_by(image: Pixels, rng: np.random.Generator, n_frames: int) -> Pixels:
    """Let the image pass from left to right or back, slanted, in light that changes."""
    course = np.linspace(-1.5, 1.5, n_frames) * rng.choice([-1, 1])
    slants, lights = _sway(rng, n_frames, 0.4), 0.6 + _sway(rng, n_frames, 0.3)
    return np.stack(
        [
            light * warp(image, slant=slant, shift=(0, right))
            for right, slant, light in zip(course, slants, lights, strict=True)
        ]
    )


def _sway(rng: np.random.Generator, n_frames: int, size: float) -> Pixels:
    """A smooth course within -size..size."""
    turns, phase = rng.uniform(0.5, 1.5), rng.uniform(0, 2 * np.pi)
    return size * np.sin(phase + 2 * np.pi * turns * np.arange(n_frames) / n_frames)


def _clip(image: Pixels) -> Pixels:
    return np.clip(image, 0, 1)


# Strengths were set by the accuracy of the plain network alone: 55 to 80 % under each corruption.
VALIDATION: dict[str, Corruption] = {
    shift.__name__: shift for shift in (brightness, contrast, gaussian_blur, gaussian_noise)
}
TEST: dict[str, Corruption] = {
    shift.__name__: shift for shift in (impulse_noise, motion_blur, occlusion, pixelate)
}
