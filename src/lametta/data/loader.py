"""Batches decoded by worker processes (PyTorch's DataLoader)."""

import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lametta._checks import check_choice, check_integer, import_optional
from lametta.data.dataset import Dataset, UnreadableImageError, check_positions
from lametta.types import LamettaError

if TYPE_CHECKING:
    import torch

Transform: TypeAlias = Callable[[Any], object]
"""Makes a network's input from a sample, or something that can be stored."""

NEEDS_ARRAYS = "a network without preprocessing, such as embedded:digits, takes arrays alone"
"""Why a network gets no images."""


class Failure(NamedTuple):
    """A sample that could not be read: its key, and the reason with the path."""

    key: str
    reason: str


@dataclass(frozen=True, eq=False)
class Batch:
    """A decoded batch: positions, inputs, classes, and the samples that could not be read.

    Attributes
    ----------
    index : array of int [N]
        Positions in the data set.
    x : torch.Tensor [N, ...]
        The inputs. Where no sample of the batch could be read, its shape is [0].
    y : array of int [N]
        Their classes.
    group : array of str [N] or None
        Where they come from.
    failed : tuple of Failure
        The samples that are missing from the batch, since they could not be read.

    Examples
    --------
    >>> batch = Batch(np.array([4, 2]), np.zeros((2, 3)), np.array([0, 1]))
    >>> len(batch), batch.failed
    (2, ())
    """

    index: NDArray[np.int64]
    x: "torch.Tensor"
    y: NDArray[np.integer]
    group: NDArray[np.generic] | None = None
    failed: tuple[Failure, ...] = ()

    def __len__(self) -> int:
        return len(self.index)

    def pin_memory(self) -> Self:
        """The batch with its inputs in memory that a GPU can copy from while the host goes on."""
        return replace(self, x=self.x.pin_memory())


def load_batches(
    dataset: Dataset,
    index_batches: Iterable[ArrayLike],
    transform: Transform | None = None,
    *,
    workers: int = 2,
    prefetch: int = 2,
    pin: bool = False,
    on_error: str = "raise",
    context: str | None = None,
) -> Iterator[Batch]:
    """Read a data set in the order of a stream.

    Batches come in the order they are asked for, whatever the number of workers.

    Parameters
    ----------
    dataset : Dataset
        What to read.
    index_batches : iterable of arrays of int [N]
        The positions of each batch's samples.
    transform : callable, optional
        Makes a network's input from a sample, such as `lametta.preprocess.Preprocess` from an
        image. None leaves samples as they are; then they have to be arrays of one shape.
    workers : int
        Processes that read ahead. With 0, or for a single batch, this process reads when a batch
        is asked for.
    prefetch : int
        How many batches each worker reads ahead.
    pin : bool
        Give inputs in pinned memory, for a GPU.
    on_error : {"raise", "report"}
        What to do about a file that cannot be read: raise an error with its path, or leave it out
        of the batch and name it in ``failed``.
    context : {"fork", "forkserver", "spawn"}, optional
        How processes start; the platform's way by default.

    Yields
    ------
    Batch

    Notes
    -----
    Workers that are not forked, as on macOS, Windows and, from Python 3.14 on, Linux, import the
    script that starts them, so what it does has to stand under ``if __name__ == "__main__":``. They
    get the data set and the transform pickled, which a lambda cannot be.

    Examples
    --------
    >>> from lametta.data.dataset import arrays
    >>> data = arrays(np.eye(4), [0, 1, 2, 3])
    >>> for batch in load_batches(data, [[3, 0], [2]], workers=0):
    ...     print(batch.y, tuple(batch.x.shape))
    [3 0] (2, 4)
    [2] (1, 4)
    """
    check_choice("on_error", on_error, ("raise", "report"))
    check_integer("workers", workers, 0)
    check_integer("prefetch", prefetch, 1)
    if context is not None:
        check_choice("context", context, multiprocessing.get_all_start_methods())
    torch = import_optional("torch", "torch", "load_batches")
    if isinstance(index_batches, Sized) and len(index_batches) < 2:
        workers = 0
    items = torch.utils.data.DataLoader(
        _Reader(dataset, transform),
        batch_size=None,  # an item is a whole batch
        sampler=(check_positions("index_batches", i, len(dataset)) for i in index_batches),
        num_workers=workers,
        prefetch_factor=prefetch if workers else None,
        pin_memory=pin,
        multiprocessing_context=context if workers else None,
        generator=torch.Generator(),  # its own, so that reading leaves the global one alone
    )
    return _checked(items, on_error)


@dataclass(frozen=True)
class _Reader:
    """Reader of batches in a worker process."""

    dataset: Dataset
    transform: Transform | None

    def __getitem__(self, positions: NDArray[np.intp], /) -> Batch | LamettaError:
        try:
            return self._read(positions)
        except LamettaError as error:
            return LamettaError(str(error))  # to be raised without the traceback of a worker

    def _read(self, positions: NDArray[np.intp]) -> Batch:
        index, rows, failed = [], [], []
        for i in positions.tolist():
            try:
                x = self.dataset.samples[i]
            except UnreadableImageError as error:
                failed.append(Failure(self.dataset.keys[i], str(error)))
            else:
                index.append(i)
                rows.append(x if self.transform is None else self.transform(x))
        kept = np.array(index, dtype=np.int64)
        groups = self.dataset.groups
        return Batch(
            kept,
            _stack(rows),
            np.asarray(self.dataset.labels)[kept],
            None if groups is None else np.asarray(groups)[kept],
            tuple(failed),
        )


def _stack(rows: Sequence[object]) -> "torch.Tensor":
    import torch

    if not rows:
        return torch.empty(0)
    try:
        return torch.stack([row if torch.is_tensor(row) else torch.tensor(row) for row in rows])
    except (RuntimeError, TypeError, ValueError):
        kinds = {f"{type(row).__name__} {list(getattr(row, 'shape', []))}" for row in rows}
        images = "" if all(hasattr(row, "shape") for row in rows) else f": {NEEDS_ARRAYS}"
        raise LamettaError(
            f"transform must give arrays of one shape, got {', '.join(sorted(kinds))}{images}"
        ) from None


def _checked(items: Iterable[Batch | LamettaError], on_error: str) -> Iterator[Batch]:
    for batch in items:
        if isinstance(batch, LamettaError):
            raise batch
        if batch.failed and on_error == "raise":
            raise LamettaError(batch.failed[0].reason)
        yield batch
