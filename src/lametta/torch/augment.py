"""Batched augmentations of pixels in [0, 1], with seeded draws: what CoTTA, ROID and MEMO see.

One draw of `Views` is for a whole batch, as in the published codes. What is drawn (`Draw`) is apart
from what is done with it, so that a test can give the draws. `AugMix` draws for each image.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from lametta.types import LamettaError


class Draw(NamedTuple):
    """Random numbers of one augmentation of a batch.

    Examples
    --------
    >>> Views().draw(torch.Generator().manual_seed(0), side=32).flip
    True
    """

    order: tuple[int, ...]  # of brightness, contrast, saturation, hue and gamma
    factors: tuple[float, ...]  # of these five
    angle: float  # in degrees
    shift: tuple[int, int]  # in pixels, to the right and down
    scale: float
    sigma: float  # of the blur
    flip: bool


@dataclass(frozen=True)
class Views:
    """Color jitter, a small rotation, shift and scale, blur, a flip and noise.

    The defaults are those of CoTTA and RoTTA; ``Views(padding="reflect", blur=False, noise=0)`` are
    those of ROID and CMF.

    Parameters
    ----------
    padding : {"replicate", "reflect"}
        How an image continues beyond its border, before it is rotated and shifted.
    blur : bool
        Whether images are blurred, by a Gaussian of up to half a pixel.
    noise : float
        Standard deviation of the noise.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> Views()(torch.rand(2, 3, 8, 8), generator).shape
    torch.Size([2, 3, 8, 8])
    """

    padding: str = "replicate"
    blur: bool = True
    noise: float = 0.005

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a batch [N, 3, H, W] in [0, 1]."""
        _check_colors(pixels)
        found = self.apply(pixels, self.draw(generator, side=pixels.shape[-1]))
        if not self.noise:
            return found.clamp(0, 1)
        noise = torch.empty_like(found)
        noise.normal_(0, self.noise, generator=generator_on(pixels.device, generator))
        return (found + noise).clamp(0, 1)

    def draw(self, generator: torch.Generator, side: int) -> Draw:
        """Draw for images of so many pixels a side, on the host."""
        u = torch.rand(16, generator=generator, dtype=torch.float64)
        *order, b, c, s, h, g, angle, right, down, scale, sigma, flip = u.tolist()
        most = math.floor(2 * side / 16)  # of the padded image
        return Draw(
            order=tuple(sorted(range(5), key=order.__getitem__)),
            factors=(0.6 + 0.8 * b, 0.7 + 0.6 * c, 0.5 + s, -0.06 + 0.12 * h, 0.7 + 0.6 * g),
            angle=-15 + 30 * angle,
            shift=(round((2 * right - 1) * most), round((2 * down - 1) * most)),
            scale=0.9 + 0.2 * scale,
            sigma=0.001 + 0.499 * sigma,
            flip=flip < 0.5,
        )

    def apply(self, pixels: Tensor, draw: Draw) -> Tensor:
        """Do what was drawn, but for the noise."""
        x = pixels.clamp(0, 1)
        for number in draw.order:
            x = _JITTER[number](x, draw.factors[number])
        height, width = x.shape[-2:]
        y, z = height // 2, width // 2
        x = functional.pad(x, (z, z, y, y), mode=self.padding)
        x = affine(x, draw.angle, draw.shift, draw.scale)
        if self.blur:
            x = gaussian_blur(x, draw.sigma)
        x = x[..., y : y + height, z : z + width]
        return x.flip(-1) if draw.flip else x


def generator_on(device: torch.device, generator: torch.Generator) -> torch.Generator:
    """A source of draws on a device, seeded by the host's, for which nothing waits.

    Examples
    --------
    >>> host = torch.Generator().manual_seed(0)
    >>> generator_on(torch.device("cpu"), host) is host
    True
    """
    if device.type == "cpu":
        return generator
    seed = torch.randint(2**62, (), generator=generator)
    return torch.Generator(device).manual_seed(int(seed))


@dataclass(frozen=True)
class AugMix:
    """A crop, a flip, and a mix of the image with three chains of operations: what MEMO sees.

    A crop is a shift of up to an eighth of the side, and what comes into view is black. A chain is
    one to three of: autocontrast, equalize, posterize, solarize, rotate, shear and translate each
    way (Hendrycks et al., ICLR 2020). Each image has draws of its own, and nothing waits for the
    device.

    Parameters
    ----------
    level : float
        The highest strength of an operation, from 0.1 to 10: 10 stands for a rotation by 30
        degrees, a shear by 0.3, a shift by a third of the side, black, and the negative.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> AugMix()(torch.rand(2, 3, 8, 8), generator).shape
    torch.Size([2, 3, 8, 8])
    """

    level: float = 1.0

    def __call__(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Augment a batch [N, 3, H, W] in [0, 1]."""
        _check_colors(pixels)
        device = pixels.device
        generator = generator_on(device, generator)
        u = torch.rand(37, len(pixels), generator=generator, device=device, dtype=pixels.dtype)
        flip, share, weights, depths, draws = u[2], u[3], u[4:7], u[7:10], u[10:]
        height, width = pixels.shape[-2:]
        right, down = (
            (v * (2 * (side // 8) + 1)).floor() - side // 8
            for v, side in zip(u[:2], (width, height), strict=True)
        )
        one, zero = torch.ones_like(flip), torch.zeros_like(flip)
        mirror = torch.where(flip < 0.5, -one, one)
        image = warp(pixels.clamp(0, 1), mirror, zero, right, zero, one, down)
        weights = -weights.clamp(min=1e-30).log()  # normalized, a draw of Dirichlet(1, 1, 1)
        weights = weights / weights.sum(0)
        mix = torch.zeros_like(image)
        for weight, depth, drawn in zip(weights, depths, draws.reshape(3, 3, 3, -1), strict=True):
            x = image
            for number, (which, strength, sign) in enumerate(drawn):
                strength = 0.1 + (self.level - 0.1) * strength
                found = self.operate(x, (9 * which).long(), strength, torch.sign(sign - 0.5))
                x = torch.where(_each(3 * depth >= number), found, x)
            mix += _each(weight) * x
        return torch.lerp(image, mix, _each(share)).clamp(0, 1)

    def operate(self, x: Tensor, which: Tensor, strength: Tensor, sign: Tensor) -> Tensor:
        """Do one operation to each image: of which number, how strongly, in which direction."""
        share, side = strength / 10, x.shape[-1]
        angle = torch.where(which == 4, sign * (30 * share).trunc() * math.pi / 180, 0)
        across, down = (torch.where(which == i, sign * 0.3 * share, 0) for i in (5, 6))
        right, up = (torch.where(which == i, sign * (side / 3 * share).trunc(), 0) for i in (7, 8))
        moved = warp(
            x,
            angle.cos(), angle.sin() + across, right + across * x.shape[-2] / 2,
            down - angle.sin(), angle.cos(), up + down * side / 2,
        )  # fmt: skip
        found = torch.stack([
            autocontrast(x),
            equalize(x),
            posterize(x, _each(4 - (4 * share).trunc())),
            solarize(x, _each(256 - (256 * share).trunc())),
            moved,
        ])  # fmt: skip
        return found[which.clamp(max=4), torch.arange(len(x), device=x.device)]


def brightness(x: Tensor, factor: float) -> Tensor:
    """Scale all values.

    Examples
    --------
    >>> brightness(torch.tensor([0.2, 0.8]), 1.5)
    tensor([0.3000, 1.0000])
    """
    return (x * factor).clamp(0, 1)


def contrast(x: Tensor, factor: float) -> Tensor:
    """Scale the distances to the mean gray of each image."""
    return _blend(x, _gray(x).mean((-3, -2, -1), keepdim=True), factor)


def saturation(x: Tensor, factor: float) -> Tensor:
    """Scale the distances to the gray image."""
    return _blend(x, _gray(x), factor)


def hue(x: Tensor, shift: float) -> Tensor:
    """Turn the colors by a share of the circle."""
    high, low = x.amax(-3), x.amin(-3)
    spread = high - low
    flat = spread == 0
    red, green, blue = ((high - one) / torch.where(flat, 1, spread) for one in x.unbind(-3))
    r, g, _ = x.unbind(-3)
    turn = torch.where(
        high == r, blue - green, torch.where(high == g, 2 + red - blue, 4 + green - red)
    )
    turn = torch.where(flat, 0, turn / 6 % 1)
    share = torch.where(high == 0, 0, spread / torch.where(high == 0, 1, high))
    turn = (turn + shift) % 1
    # A channel is at its highest within a sixth of the circle around its own place, and at its
    # lowest within a sixth around the opposite one.
    k = torch.stack([(place + 6 * turn) % 6 for place in (5, 3, 1)], -3)
    near = torch.minimum(k, 4 - k).clamp(0, 1)
    top = high[..., None, :, :]
    return top - top * share[..., None, :, :] * near


def gamma(x: Tensor, exponent: float) -> Tensor:
    """Raise to a power."""
    return (x.clamp(min=1e-8) ** exponent).clamp(0, 1)


def affine(x: Tensor, angle: float, shift: tuple[int, int], scale: float) -> Tensor:
    """Rotate by degrees, shift by pixels and scale about the middle, bilinearly."""
    height, width = x.shape[-2:]
    cos, sin = (f(math.radians(angle)) / scale for f in (math.cos, math.sin))
    across = torch.arange(width, dtype=x.dtype, device=x.device) - (width - 1) / 2 - shift[0]
    down = torch.arange(height, dtype=x.dtype, device=x.device)[:, None]
    down = down - (height - 1) / 2 - shift[1]
    # Where each place of the result comes from.
    places = torch.stack(
        [(cos * across + sin * down) / (width / 2), (cos * down - sin * across) / (height / 2)], -1
    )
    return functional.grid_sample(x, places.expand(len(x), -1, -1, -1), align_corners=False)


def autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel of each image to [0, 1]."""
    low, high = x.amin((-2, -1), keepdim=True), x.amax((-2, -1), keepdim=True)
    return torch.where(high > low, (x - low) / torch.where(high > low, high - low, 1), x)


def equalize(x: Tensor) -> Tensor:
    """Give each channel of each image a flat histogram of its 256 values."""
    values = _bytes(x).long().flatten(-2)
    counts = torch.zeros(*values.shape[:-1], 256, dtype=torch.long, device=x.device)
    counts.scatter_add_(-1, values, torch.ones_like(values))
    # Those of the highest value have no step above them.
    last = counts.gather(-1, values.amax(-1, keepdim=True))
    step = (values.shape[-1] - last) // 255
    table = (counts.cumsum(-1) - counts + step // 2) // step.clamp(min=1)
    table = torch.where(step > 0, table.clamp(max=255), torch.arange(256, device=x.device))
    return (table.gather(-1, values).to(x.dtype) / 255).reshape(x.shape)


def posterize(x: Tensor, bits: Tensor | float) -> Tensor:
    """Keep the highest bits of each value."""
    step = 2 ** (8 - torch.as_tensor(bits, dtype=x.dtype, device=x.device))
    return torch.floor(_bytes(x) / step) * step / 255


def solarize(x: Tensor, threshold: Tensor | float) -> Tensor:
    """Invert the values from a threshold on, out of 256."""
    return torch.where(_bytes(x) < threshold, x, 1 - x)


def warp(
    x: Tensor, a: Tensor, b: Tensor, right: Tensor, c: Tensor, d: Tensor, down: Tensor
) -> Tensor:
    """Take each place (x, y) of image i from (a x + b y + right, c x + d y + down), bilinearly.

    Places are in pixels about the middle of the image; beyond its border it is black.
    """
    height, width = x.shape[-2:]
    across = torch.arange(width, dtype=x.dtype, device=x.device) - (width - 1) / 2
    along = torch.arange(height, dtype=x.dtype, device=x.device)[:, None] - (height - 1) / 2
    a, b, right, c, d, down = (one[:, None, None] for one in (a, b, right, c, d, down))
    places = torch.stack(
        [
            (a * across + b * along + right) / (width / 2),
            (c * across + d * along + down) / (height / 2),
        ],
        -1,
    )
    return functional.grid_sample(x, places, align_corners=False)


def gaussian_blur(x: Tensor, sigma: float, size: int = 5) -> Tensor:
    """Blur by a Gaussian of ``size`` pixels."""
    half = size // 2
    places = torch.arange(-half, half + 1, dtype=x.dtype, device=x.device)
    weights = torch.exp(-0.5 * (places / sigma) ** 2)
    kernel = torch.outer(weights, weights) / weights.sum() ** 2
    channels = x.shape[1]
    padded = functional.pad(x, (half,) * 4, mode="reflect")
    return functional.conv2d(padded, kernel.expand(channels, 1, -1, -1), groups=channels)


_JITTER = (brightness, contrast, saturation, hue, gamma)


def _gray(x: Tensor) -> Tensor:
    red, green, blue = x.unbind(-3)  # weights in a tensor would be copied, and waited for
    gray: Tensor = 0.2989 * red + 0.587 * green + 0.114 * blue
    return gray.unsqueeze(-3)


def _blend(x: Tensor, other: Tensor, factor: float) -> Tensor:
    return (factor * x + (1 - factor) * other).clamp(0, 1)


def _bytes(x: Tensor) -> Tensor:
    return (x * 255).round()


def _each(values: Tensor) -> Tensor:
    """One value an image [N], to be broadcast over its pixels."""
    return values[:, None, None, None]


def _check_colors(pixels: Tensor) -> None:
    if pixels.ndim != 4 or pixels.shape[1] != 3:
        raise LamettaError(f"x must be color images [N, 3, H, W], got shape {tuple(pixels.shape)}")
