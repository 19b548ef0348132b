"""Image classifiers of the Hugging Face hub, and their preprocessing as a `Preprocess`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from lametta._checks import raise_as
from lametta.torch.loaders import NOT_LOADED, needed_module
from lametta.torch.preprocess import Preprocess
from lametta.torch.weights import with_weights
from lametta.types import LamettaError

_HALF = (0.5, 0.5, 0.5)
_FILTERS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # by Pillow's numbers
_SIDES = ("shortest_edge", "height", "width")


def load_hf(name: str, file: Path | None) -> tuple[nn.Module, Preprocess]:
    """A classifier by its name on the hub, or from a folder."""
    hf, model = needed_module(name), name.partition(":")[2]
    expected = "name must be of an image classifier that transformers can load"
    with raise_as(expected, name, NOT_LOADED):
        if file is None:
            # Without the option, a repository may give a pickle.
            net = hf.AutoModelForImageClassification.from_pretrained(model, use_safetensors=True)
        else:
            config = hf.AutoConfig.from_pretrained(model)
            net = hf.AutoModelForImageClassification.from_config(config)
        processor = hf.AutoImageProcessor.from_pretrained(model)
    return with_weights(net, file), _as_preprocess(name, processor)


def _as_preprocess(name: str, processor: object) -> Preprocess:
    def option(key: str, default: Any = None) -> Any:
        value = getattr(processor, key, None)
        return default if value is None else value

    resize, crop = _resizing(option("size"), option("crop_pct"), option("do_resize", True))
    if option("do_center_crop", False):
        shortest, height, width = _sides(option("crop_size"))
        crop = shortest or height
        if height != width:
            raise LamettaError(f"name must be of a model with square crop, got {name!r}")
    if option("rescale_offset", False):
        raise LamettaError(f"name must be of a model without rescale_offset, got {name!r}")
    normalized = option("do_normalize", True)
    return Preprocess(
        resize=resize,
        crop=crop,
        interpolation=_FILTERS[int(option("resample", 2))],
        mean=tuple(option("image_mean", _HALF)) if normalized else (0.0, 0.0, 0.0),
        std=tuple(option("image_std", _HALF)) if normalized else (1.0, 1.0, 1.0),
        scale=1 if option("do_rescale", True) else 255,
    )


def _resizing(
    size: object, crop_pct: float | None, wanted: bool
) -> tuple[int | tuple[int, int] | None, int | None]:
    """What `Preprocess` calls resize and crop."""
    shortest, height, width = _sides(size) if wanted else (None, None, None)
    if height and width:
        return (height, width), None
    if not shortest or not crop_pct:
        return shortest or None, None
    # ConvNeXt's processor: `size` is what is left after the crop; from 384 on it squashes.
    return (int(shortest / crop_pct), shortest) if shortest < 384 else ((shortest, shortest), None)


def _sides(size: object) -> tuple[int | None, int | None, int | None]:
    """The shortest side, the height and the width, as far as they are given."""
    if isinstance(size, int):
        return size, None, None
    # A dict in older versions, an object with attributes in newer ones.
    given = size if isinstance(size, Mapping) else {s: getattr(size, s, None) for s in _SIDES}
    shortest, height, width = (given.get(side) for side in _SIDES)
    return shortest, height, width
