"""The one way in which files are made from a data set: batch by batch, to be taken up again."""

import json
import reprlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from lametta.data.bank.bank import pack_class_map
from lametta.data.bank.rowfile import RowFile, begun, compact
from lametta.data.bank.store import Header, read_layout, to_json
from lametta.data.dataset import Dataset
from lametta.data.loader import Batch, load_batches
from lametta.data.readers.layout import PathLike
from lametta.types import Array, LamettaError

Progress: TypeAlias = Callable[[int, int], object]
"""Told how many samples are done, and how many there are."""


@dataclass(frozen=True)
class Options:
    """What making a file takes, beside what goes into it.

    Parameters
    ----------
    batch_size : int
        Samples that are read and computed together.
    workers : int
        Processes that read and prepare samples ahead; 0 for none.
    on_error : {"raise", "report"}
        What to do about images that cannot be read: raise an error, or leave them out and name
        their keys as ``failed`` in the header.
    restart : bool
        Delete what is there, finished or not, and begin anew.
    progress : callable, optional
        Called with the number of samples done and of all, at first and after each batch.

    Examples
    --------
    >>> Options(batch_size=0)
    Traceback (most recent call last):
    lametta.types.LamettaError: batch_size must be at least 1, got 0
    """

    batch_size: int = 64
    workers: int = 1
    on_error: str = "raise"
    restart: bool = False
    progress: Progress | None = None

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise LamettaError(f"batch_size must be at least 1, got {self.batch_size}")


def build(
    path: PathLike,
    dataset: Dataset,
    transform: Callable[[Any], Any] | None,
    compute: Callable[[Any], dict[str, Array]],
    header: Header,
    options: Options,
) -> Path:
    """Make a file with a row for each sample, or what is missing of it.

    Parameters
    ----------
    path : path
        Where to, a ``.safetensors`` file.
    dataset : Dataset
        The samples.
    transform : callable, optional
        Makes an input from a sample.
    compute : callable
        From a batch of inputs to the rows of each array.
    header : dict
        What the file says of itself, beside what it says of the data set and the transform.
    options : Options
        How.

    Returns
    -------
    Path
        The file.

    Examples
    --------
    >>> import tempfile
    >>> from lametta.data.readers.folders import arrays
    >>> options = Options(batch_size=2, workers=0, progress=lambda done, n: print(done, "of", n))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = arrays(np.ones((3, 2)), [0, 1, 0])
    ...     path = Path(folder, "sums.safetensors")
    ...     file = build(path, data, None, lambda x: {"sums": x.sum(1).numpy()}, {}, options)
    0 of 3
    2 of 3
    3 of 3
    """
    path = Path(path)
    if path.suffix != ".safetensors":
        raise LamettaError(f"path must end in .safetensors, got {path}")
    if len(dataset) == 0:
        raise LamettaError("dataset must not be empty, got no samples")
    header = header | _described(dataset, header.get("preprocess", _name(transform)))
    header = json.loads(to_json(header))  # as it will be read
    partial = path.with_name(f"{path.name}.partial")
    if options.restart:
        path.unlink(missing_ok=True)
        partial.unlink(missing_ok=True)
    if not path.exists():
        _complete(partial, dataset, transform, compute, header, options)
        partial.replace(path)
    _check_failed(_check_same(path, header)["failed"], options)
    return path


def _complete(
    partial: Path,
    dataset: Dataset,
    transform: Callable[[Any], Any] | None,
    compute: Callable[[Any], dict[str, Array]],
    header: Header,
    options: Options,
) -> None:
    """Begin the partial file or go on with it, until it is whole."""
    columns = {
        "labels": np.asarray(dataset.labels, np.int64),
        "keys": dataset.keys,
        "groups": dataset.groups,
    }
    rows = None
    try:
        if begun(partial):
            _check_same(partial, header)
            rows = RowFile(partial, len(dataset))
            _check_failed([dataset.keys[i] for i in rows.failed], options)
        for positions, batch in _batches(dataset, transform, rows.done if rows else 0, options):
            computed = compute(batch.x) if len(batch) else {}
            if rows is None and computed:
                rows = RowFile.create(partial, computed, columns, header)
            if rows is not None:  # else nothing could be read yet, and no shape is known
                rows.write(positions, batch.index, computed)
        if rows is None:
            raise LamettaError(f"dataset must hold a readable image, got none of {len(dataset)}")
        if not len(rows.failed):
            rows.seal()
    finally:
        if rows is not None:
            rows.close()
    if not rows.sealed:
        spare = partial.with_name(f"{partial.name}.new")
        compact(rows, spare, columns, header)
        spare.replace(partial)


def _batches(
    dataset: Dataset, transform: Callable[[Any], Any] | None, done: int, options: Options
) -> Iterator[tuple[range, Batch]]:
    n, size = len(dataset), options.batch_size
    positions = [range(start, min(start + size, n)) for start in range(done, n, size)]
    batches = load_batches(
        dataset, positions, transform, workers=options.workers, on_error=options.on_error
    )
    progress = options.progress or (lambda done, n: None)
    progress(done, n)
    for asked, batch in zip(positions, batches, strict=True):
        yield asked, batch
        progress(asked.stop, n)


def _described(dataset: Dataset, preprocess: Any) -> Header:
    return {
        "preprocess": preprocess,
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "classes": dataset.classes,
        "class_map": pack_class_map(dataset.class_map),
        "failed": [],
    }


def _name(transform: Any) -> Any:
    """A transform as a header can hold it: its fields, where it or its owner has any."""
    owner = getattr(transform, "__self__", transform)
    name = getattr(transform, "__qualname__", type(transform).__name__)
    if is_dataclass(owner) and not isinstance(owner, type):
        return {"name": name, **asdict(owner)}
    return None if transform is None else name


def _check_same(path: Path, header: Header) -> Header:
    """Give the header of a file, or raise unless it is the one expected, but for what failed."""
    _, stored = read_layout(path)
    for name in header | stored:
        theirs, ours = stored.get(name), header.get(name)
        if name != "failed" and theirs != ours:
            raise LamettaError(
                f"{path} must be of {name} {reprlib.repr(ours)}, got {reprlib.repr(theirs)}: "
                "delete it, or restart"
            )
    return stored


def _check_failed(keys: Sequence[str], options: Options) -> None:
    if keys and options.on_error == "raise":
        raise LamettaError(f"image must be readable, got {keys[0]}, which was not")
