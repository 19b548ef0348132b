"""Resumable build of a file with one row per sample."""

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
from lametta._files import PathLike, check_destination, file_lock
from lametta._progress import told
from lametta.data.bank.safetensors import Arrays, Header, read_layout
from lametta.data.bank.shards import ReusableRows, Shards
from lametta.data.dataset import Dataset, file_versions
from lametta.data.loader import Transform, load_batches
from lametta.types import LamettaError

PendingRows: TypeAlias = Callable[[], Arrays]
"""Rows that may still be computed: a call waits for them and gives them."""

if TYPE_CHECKING:
    import torch

    Compute: TypeAlias = Callable[[torch.Tensor], PendingRows]

_MAX_PENDING = 8  # batches that are computed but not yet written

OnProgress: TypeAlias = Callable[[int, int], object]
"""Called with the numbers of samples done and in all."""


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
    progress: OnProgress | bool | None = None,
    constants: Callable[[Arrays], Arrays] | None = None,
) -> Path:
    """Make a file, or what is missing of it.

    Until it is whole, its rows are in the folder ``<path>.partial``, from where the same call
    continues after a kill. The file then comes out the same, byte for byte. The file
    ``<path>.lock`` keeps others from making it at the same time. ``compute`` starts the work on a
    batch of inputs and gives a function that waits for its rows, so that a GPU has the next batches
    while these are written; ``header`` is what the file says of itself, in addition to the data set
    and the transform; ``pin`` is that of `load_batches`; ``constants`` gives arrays to store beside
    the rows, of which it is shown the first.
    All else is as for `extract`.
    """
    check_integer("batch_size", batch_size, 1)
    path = Path(path)
    if path.suffix != ".safetensors":
        raise LamettaError(f"path must end in .safetensors, got {path}")
    if len(dataset) == 0:
        raise LamettaError("dataset must not be empty, got no samples")
    check_destination("path", path)
    full = header | _header(dataset, header.get("preprocess", describe_transform(transform)))
    try:
        header = json.loads(json.dumps(full))  # as it is read from a file
    except (TypeError, ValueError) as error:
        raise LamettaError(f"header must be what JSON can hold, got {error}") from None
    with file_lock(path.with_name(f"{path.name}.lock"), wait):
        shards = Shards(path.with_name(f"{path.name}.partial"), header, _versions(dataset))
        if restart:
            path.unlink(missing_ok=True)
            shards.delete()
        reusable = ReusableRows.find(path, header, dataset.keys, shards.versions)
        if not reusable.complete:
            with told(progress, path.name) as report:
                options = (batch_size, workers, pin, on_error, report)
                _fill(shards, reusable, dataset, transform, compute, *options)
            _merge(shards, path, dataset, constants)
        shards.delete()
        _check_failed(read_layout(path)[1]["failed"], on_error)
    return path


def _fill(
    shards: Shards,
    reusable: ReusableRows,
    dataset: Dataset,
    transform: Transform | None,
    compute: "Compute",
    batch_size: int,
    workers: int,
    pin: bool,
    on_error: str,
    report: OnProgress,
) -> None:
    """Compute the rows that cannot be reused."""
    shards.resume()
    _check_failed([dataset.keys[i] for i in (*shards.failed, *reusable.failed)], on_error)
    n = len(dataset)
    parts = [range(i, min(i + batch_size, n)) for i in range(shards.done, n, batch_size)]
    asked = [reusable.missing(part) for part in parts]
    done = n - sum(map(len, asked))
    report(done, n)
    batches = load_batches(dataset, asked, transform, workers=workers, pin=pin, on_error=on_error)
    pending = deque[tuple[int, Future[None]]]()
    last: Future[None] | None = None

    def write(
        before: Future[None] | None, part: range, index: NDArray[np.int64], rows: PendingRows
    ) -> None:
        if before is not None:
            before.result()  # raises if it failed: a gap would look like unreadable images
        shards.add(part.stop, *reusable.merge(part, index, rows()))

    def drain(most: int) -> None:
        nonlocal done
        while pending and (len(pending) > most or pending[0][1].done()):
            count, written = pending.popleft()
            written.result()
            done += count
            report(done, n)

    with closing(shards), ThreadPoolExecutor(1) as writer:
        try:
            for part, missing, batch in zip(parts, asked, batches, strict=True):
                rows = compute(batch.x) if len(batch) else dict
                last = writer.submit(write, last, part, batch.index, rows)
                pending.append((len(missing), last))
                drain(_MAX_PENDING)
        finally:
            drain(0)  # what was begun is kept, also after an error


def _merge(
    shards: Shards, path: Path, dataset: Dataset, constants: Callable[[Arrays], Arrays] | None
) -> None:
    if len(shards.failed) == len(dataset):
        shards.delete()
        raise LamettaError(f"cannot read any of the {len(dataset)} images of {dataset.name}")
    labels = np.asarray(dataset.labels, np.int64) if dataset.classes else None
    columns = {"labels": labels, "groups": dataset.groups, "stamps": shards.versions}
    shards.merge(path, dataset.keys, columns, constants)


def _versions(dataset: Dataset) -> NDArray[np.uint64] | None:
    """A number for each sample that changes when its name or its file does."""
    versions = file_versions(dataset.samples)
    if versions is None:
        return None
    texts = [f"{key}\0{version}" for key, version in zip(dataset.keys, versions, strict=True)]
    digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
    return np.frombuffer(b"".join(digests), "<u8")


def _header(dataset: Dataset, preprocess: object) -> Header:
    class_map = dataset.class_map
    return {
        "preprocess": preprocess,
        "dataset": dataset.name,
        "fingerprint": dataset.fingerprint,
        "classes": dataset.classes or (() if class_map is None else class_map.names),
        "class_map": None if class_map is None else class_map.to_dict(),
        "failed": [],
    }


def describe_transform(transform: object) -> object:
    """A transform as a header can hold it: its fields, where it or its owner has any."""
    owner = getattr(transform, "__self__", transform)
    name = getattr(transform, "__qualname__", type(transform).__name__)
    if is_dataclass(owner) and not isinstance(owner, type):
        return {"name": name, **asdict(owner)}
    return None if transform is None else name


def _check_failed(keys: Sequence[str], on_error: str) -> None:
    if keys and on_error == "raise":
        raise LamettaError(f"cannot read image {keys[0]}")
