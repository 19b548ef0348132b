"""Making a file with a row for each sample of a data set, in a way that survives a kill."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lametta._checks import check_integer
from lametta._files import PathLike, file_lock
from lametta.data.bank.safetensors import Arrays, Header, read_layout
from lametta.data.bank.shards import Known, Shards
from lametta.data.dataset import Dataset, stamps_of
from lametta.data.loader import Transform, load_batches
from lametta.types import LamettaError

Wait: TypeAlias = Callable[[], Arrays]
"""Waits for the rows of each array, and gives them."""

if TYPE_CHECKING:
    import torch

    Compute: TypeAlias = Callable[[torch.Tensor], Wait]

_AHEAD = 8  # batches whose rows may wait while others are written

OnProgress: TypeAlias = Callable[[int, int], object]
"""Told how many samples are done, and how many there are."""


def build(
    path: PathLike,
    dataset: Dataset,
    transform: Transform | None,
    compute: "Compute",
    header: Header,
    *,
    batch_size: int = 64,
    workers: int = 1,
    pin: bool = False,
    on_error: str = "raise",
    restart: bool = False,
    wait: float | None = None,
    progress: OnProgress | None = None,
) -> Path:
    """Make a file, or what is missing of it.

    Until it is whole, its rows are in the folder ``<path>.partial``, from where the same call
    continues after a kill. The file then comes out the same, byte for byte. The file
    ``<path>.lock`` keeps others from making it at the same time. ``compute`` starts the work on a
    batch of inputs and gives a function that waits for its rows, so that a GPU has the next batches
    while these are written; ``header`` is what the file says of itself, in addition to the data set
    and the transform; ``pin`` is that of `load_batches`. All else is as for `extract`.
    """
    check_integer("batch_size", batch_size, 1)
    path = Path(path)
    if path.suffix != ".safetensors":
        raise LamettaError(f"path must end in .safetensors, got {path}")
    if len(dataset) == 0:
        raise LamettaError("dataset must not be empty, got no samples")
    if not path.parent.is_dir():
        raise LamettaError(f"path must lie in a folder, got {path}: No such file or directory")
    described = header | _described(dataset, header.get("preprocess", name_of(transform)))
    try:
        header = json.loads(json.dumps(described))  # as it is read from a file
    except (TypeError, ValueError) as error:
        raise LamettaError(f"header must be what JSON can hold, got {error}") from None
    with file_lock(path.with_name(f"{path.name}.lock"), wait):
        shards = Shards(path.with_name(f"{path.name}.partial"), header, _stamps(dataset))
        if restart:
            path.unlink(missing_ok=True)
            shards.delete()
        known = Known.find(path, header, dataset.keys, shards.stamps)
        if not known.whole:
            options = (batch_size, workers, pin, on_error, progress)
            _fill(shards, known, dataset, transform, compute, *options)
            _join(shards, path, dataset)
        shards.delete()
        _check_failed(read_layout(path)[1]["failed"], on_error)
    return path


def _fill(
    shards: Shards,
    known: Known,
    dataset: Dataset,
    transform: Transform | None,
    compute: "Compute",
    batch_size: int,
    workers: int,
    pin: bool,
    on_error: str,
    progress: OnProgress | None,
) -> None:
    """Compute the rows that are not known."""
    shards.resume()
    _check_failed([dataset.keys[i] for i in (*shards.failed, *known.failed)], on_error)
    n, tell = len(dataset), progress or (lambda done, n: None)
    parts = [range(i, min(i + batch_size, n)) for i in range(shards.done, n, batch_size)]
    asked = [known.missing(part) for part in parts]
    done = n - sum(map(len, asked))
    tell(done, n)
    batches = load_batches(dataset, asked, transform, workers=workers, pin=pin, on_error=on_error)
    under_way = deque[tuple[int, Future[None]]]()
    last: Future[None] | None = None

    def write(
        before: Future[None] | None, part: range, index: NDArray[np.int64], rows: Wait
    ) -> None:
        if before is not None:
            before.result()  # raises if it failed: a gap would look like unreadable images
        shards.add(part.stop, *known.merged(part, index, rows()))

    def settle(most: int) -> None:
        nonlocal done
        while under_way and (len(under_way) > most or under_way[0][1].done()):
            count, written = under_way.popleft()
            written.result()
            done += count
            tell(done, n)

    with closing(shards), ThreadPoolExecutor(1) as writer:
        try:
            for part, missing, batch in zip(parts, asked, batches, strict=True):
                rows = compute(batch.x) if len(batch) else dict
                last = writer.submit(write, last, part, batch.index, rows)
                under_way.append((len(missing), last))
                settle(_AHEAD)
        finally:
            settle(0)  # what was begun is kept, also after an error


def _join(shards: Shards, path: Path, dataset: Dataset) -> None:
    if len(shards.failed) == len(dataset):
        shards.delete()
        raise LamettaError(f"dataset must hold a readable image, got none of {len(dataset)}")
    labels = np.asarray(dataset.labels, np.int64) if dataset.classes else None
    columns = {"labels": labels, "groups": dataset.groups, "stamps": shards.stamps}
    shards.join(path, dataset.keys, columns)


def _stamps(dataset: Dataset) -> NDArray[np.uint64] | None:
    """A number for each sample that changes when its name or its file does."""
    stamps = stamps_of(dataset.samples)
    if stamps is None:
        return None
    texts = [f"{key}\0{stamp}" for key, stamp in zip(dataset.keys, stamps, strict=True)]
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8")


def _described(dataset: Dataset, preprocess: object) -> Header:
    class_map = dataset.class_map
    return {
        "preprocess": preprocess,
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "classes": dataset.classes or (() if class_map is None else class_map.names),
        "class_map": None if class_map is None else class_map.to_dict(),
        "failed": [],
    }


def name_of(transform: object) -> object:
    """A transform as a header can hold it: its fields, where it or its owner has any."""
    owner = getattr(transform, "__self__", transform)
    name = getattr(transform, "__qualname__", type(transform).__name__)
    if is_dataclass(owner) and not isinstance(owner, type):
        return {"name": name, **asdict(owner)}
    return None if transform is None else name


def _check_failed(keys: Sequence[str], on_error: str) -> None:
    if keys and on_error == "raise":
        raise LamettaError(f"image must be readable, got {keys[0]}, which was not")
