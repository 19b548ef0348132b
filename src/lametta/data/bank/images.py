"""Cache of decoded images on disk."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lametta._files import PathLike
from lametta.classmap import ClassMap
from lametta.data.bank.bank import check_header
from lametta.data.bank.build import OnProgress, build
from lametta.data.bank.safetensors import Arrays, decode_columns, read_layout
from lametta.data.dataset import Dataset
from lametta.types import LamettaError

if TYPE_CHECKING:
    import torch

_FORMAT = "lametta.Images/1"


def cache_images(
    dataset: Dataset,
    pixels: Callable[[Any], NDArray[np.uint8]],
    path: PathLike,
    *,
    workers: int = 2,
    header: Mapping[str, object] | None = None,
    on_error: str = "raise",
    restart: bool = False,
    wait: float | None = None,
    progress: OnProgress | bool | None = None,
) -> Dataset:
    """Decode the images of a data set once, and give a data set of the decoded ones.

    As with `extract`, the same call continues a run that was killed, and a file that is there
    already is used as it is.

    Parameters
    ----------
    dataset : Dataset
        Of images.
    pixels : callable
        From a sample to uint8 [H, W, 3], of one size, such as the method ``pixels`` of
        ``lametta.preprocess.Preprocess``. Its ``standardize`` then takes the samples of what
        comes back, one by one or in batches.
    path : path
        The ``.safetensors`` file to write.
    workers : int
        Processes that decode; 0 for none. `lametta.data.load_batches` says what they ask of a
        script.
    header : mapping, optional
        What to store in the header of the file. ``preprocess`` describes ``pixels``, by default
        with its fields; networks that differ in ``standardize`` alone share a file if they are
        given the same ``preprocess``.
    on_error, restart, wait, progress
        As for `extract`.

    Returns
    -------
    Dataset
        The same samples, labels, keys and groups; each sample is read from the file when asked
        for.

    Examples
    --------
    >>> import tempfile
    >>> from PIL import Image
    >>> from lametta.data.dataset import arrays
    >>> data = arrays([Image.new("RGB", (4, 3), "red")], [0])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     cached = cache_images(data, np.array, f"{folder}/images.safetensors", workers=0)
    ...     cached[0].x.shape, cached[0].x[0, 0]
    ((3, 4, 3), array([255,   0,   0], dtype=uint8))
    """
    file = build(
        path,
        dataset,
        pixels,
        lambda x: partial(_rows, x),
        {"format": _FORMAT, **(header or {})},
        workers=workers,
        on_error=on_error,
        restart=restart,
        wait=wait,
        progress=progress,
    )
    return open_images(file)


def open_images(path: PathLike) -> Dataset:
    """Open a file that `cache_images` wrote.

    Examples
    --------
    >>> open_images("no/such.safetensors")
    Traceback (most recent call last):
    lametta.types.LamettaError: no such file: 'no/such.safetensors'
    """
    path = Path(path)
    if not path.is_file():
        raise LamettaError(f"no such file: {str(path)!r}")
    stored, header = read_layout(path)
    if header.get("format") != _FORMAT:
        raise LamettaError(f"path must be a file that cache_images wrote, got {path}")
    decoded = decode_columns({name: x for name, x in stored.items() if x.ndim == 1})
    columns = {name: np.asarray(x) for name, x in decoded.items()}
    try:
        check_header(header)
        packed, pixels = header["class_map"], stored["pixels"]
        return Dataset(
            header["dataset"],
            pixels,
            columns.get("labels", np.full(len(pixels), -1)),
            tuple(header["classes"]) if "labels" in columns else (),
            tuple(columns["keys"].tolist()),
            columns.get("groups"),
            None if packed is None else ClassMap.from_dict(packed),
            tuple(header["failed"]),
        )
    except (KeyError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise LamettaError(
            f"path must be a file that cache_images wrote, got {path}: {reason}"
        ) from None


def _rows(x: "torch.Tensor") -> Arrays:
    rows: NDArray[np.uint8] = x.numpy()
    if rows.dtype != "uint8" or rows.ndim != 4 or rows.shape[-1] != 3:
        raise LamettaError(
            f"pixels must give uint8 [H, W, 3], got {rows.dtype} of shape {rows.shape[1:]}"
        )
    return {"pixels": rows}
