"""Extraction: run a network over a data set into a bank, with CUDA graphs on a GPU."""

import hashlib
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import check_matrix, namespace, to_numpy, widen
from lametta._checks import check_choice
from lametta._files import PathLike
from lametta.data.bank.bank import Bank
from lametta.data.bank.build import OnProgress, PendingRows, build, describe_transform
from lametta.data.bank.safetensors import Arrays
from lametta.data.dataset import Dataset
from lametta.data.loader import Transform
from lametta.types import Array, LamettaError, Model, Output, Prototypes

if TYPE_CHECKING:
    import torch
    from torch import nn

_FORMAT = "lametta.Bank/1"
_ROUNDING = 1e-2  # of logits, as a share of the largest: float16 on the way through a network


@runtime_checkable
class SplitTransform(Protocol):
    """A transform of two halves, such as ``Preprocess``: the second can run on the device."""

    def pixels(self, image: object, /) -> NDArray[np.uint8]: ...
    def standardize(self, pixels: "torch.Tensor", /) -> "torch.Tensor": ...


def extract(
    model: Model,
    dataset: Dataset,
    transform: Transform | None,
    path: PathLike,
    *,
    batch_size: int = 64,
    workers: int = 1,
    device: str | None = None,
    dtype: str = "float32",
    header: Mapping[str, object] | None = None,
    on_error: str = "raise",
    restart: bool = False,
    wait: float | None = None,
    progress: OnProgress | bool | None = None,
) -> Bank:
    """Run a model over a data set and store what it gives.

    Until all is done, what was computed is in the folder ``<path>.partial``. If a run was killed,
    the same call continues from there, and the file comes out the same, byte for byte; if the file
    is there already, there is nothing to do. The disk needs room for the rows twice, since the
    folder is deleted only once the file is whole.

    The bank keeps the size and the time of the last change of each image file, or the checksum of
    one in a ``.zip`` file. If some were changed, added or removed since, the same call runs the
    model over the new and the changed ones alone. Banks without such a record, made from
    arrays or by an earlier version, are used as they are.

    The weights of a linear head are stored too, as ``prototypes``, where the model has them, as a
    ``Classifier`` does.

    Parameters
    ----------
    model : Model
        From a batch of inputs to `Output`, such as ``lametta.torch.Classifier(net)``.
    dataset : Dataset
        The samples.
    transform : callable, optional
        Makes an input from a sample, such as ``lametta.preprocess.Preprocess``. None takes
        samples as they are.
    path : path
        The ``.safetensors`` file to write.
    batch_size : int
        Samples that the model sees together. Rounding may depend on it.
    workers : int
        Processes that read and prepare samples ahead of the model; 0 for none. One is best if the
        model runs on the same cores; if it runs elsewhere, take one for each core.
        `lametta.data.load_batches` says what they ask of a script.
    device : str, optional
        Where the model takes its inputs, such as "cuda". They are moved there: to a GPU as bytes if
        the transform is a ``Preprocess``, which standardizes them there. A GPU replays the passes
        of a ``Classifier`` if that gives the same bits; other models are called as they are.
    dtype : {"float32", "float16"}
        How numbers are stored.
    header : mapping, optional
        What to store in the header of the file, as JSON: ``model`` and ``weights_hash``, say. A run
        continues an earlier one only if their headers are equal.
    on_error : {"raise", "report"}
        What to do about images that cannot be read: raise an error, or leave them out and name
        their keys as ``failed`` in the header.
    restart : bool
        Delete what is there, finished or not, and begin anew.
    wait : float, optional
        Seconds to wait for another process that writes the same file; None waits until it has
        ended. The logger ``lametta`` says which process that is.
    progress : callable or bool, optional
        Called with the numbers of samples done and in all, at first and after each batch; True
        shows a bar.

    Returns
    -------
    Bank
        The file that was written, opened.

    Examples
    --------
    >>> import tempfile
    >>> from lametta.data.dataset import arrays
    >>> model = lambda x: Output(features=x, logits=2 * x)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = arrays(np.eye(3), [0, 1, 2])
    ...     bank = extract(model, data, None, f"{folder}/bank.safetensors", workers=0)
    ...     bank([2, 0]).logits
    array([[0., 0., 2.],
           [2., 0., 0.]], dtype=float32)
    """
    check_choice("dtype", dtype, ("float32", "float16"))
    on_gpu = device is not None and device.startswith("cuda")
    fields = {"format": _FORMAT, **(header or {}), "batch_size": batch_size, "dtype": dtype}
    fields.setdefault("preprocess", describe_transform(transform))
    on_host: Transform | None = transform
    on_device: Callable[[torch.Tensor], torch.Tensor] | None = None
    if on_gpu and isinstance(transform, SplitTransform):
        on_host, on_device = transform.pixels, transform.standardize

    def forward(x: "torch.Tensor") -> Output:
        return model(x if on_device is None else on_device(x))

    # As a ``Classifier`` says of itself.
    is_replayable = on_gpu and getattr(model, "replayable", False) is True
    run = _CudaGraphModel(forward, batch_size) if is_replayable else forward

    def compute(x: "torch.Tensor") -> PendingRows:
        return _compute_async(run, x if device is None else x.to(device, non_blocking=True), dtype)

    file = build(
        path,
        dataset,
        on_host,
        compute,
        fields,
        batch_size=batch_size,
        workers=workers,
        pin=on_gpu,
        on_error=on_error,
        restart=restart,
        wait=wait,
        progress=progress,
        constants=partial(_head_of, model),
    )
    return Bank.open(file)


def _head_of(model: Model, rows: Arrays) -> Arrays:
    """The prototypes of a model, and their bias, as a file holds them, if they make its logits.

    They do not where a layer in the middle of the network was named as its head. Logits may differ
    by a constant for each sample, as those do that were made of probabilities.
    """
    found: Prototypes | None = getattr(model, "prototypes", None)
    if found is None:
        return {}
    given = {"prototypes": found.weight, "bias": found.bias}
    arrays = {name: widen(np, to_numpy(x)) for name, x in given.items() if x is not None}
    features, logits = (widen(np, rows[name]) for name in ("features", "logits"))
    if arrays["prototypes"].shape != (logits.shape[1], features.shape[1]):
        return {}
    gap = features @ arrays["prototypes"].T + arrays.get("bias", 0) - logits
    gap = np.abs(gap - gap.mean(axis=1, keepdims=True)).max(initial=0)
    fits = gap <= _ROUNDING * (1 + np.abs(logits).max(initial=0))
    return {name: x.astype(np.float32) for name, x in arrays.items()} if fits else {}


def weights_hash(net: "nn.Module") -> str:
    """SHA-256 of a network's parameters and buffers, with their names, types and shapes."""
    import torch

    digest = hashlib.sha256()
    for name, value in sorted(net.state_dict().items()):
        if isinstance(value, torch.Tensor):
            digest.update(f"{name}\0{value.dtype}\0{tuple(value.shape)}\n".encode())
            # As bytes, since NumPy does not have every type that PyTorch has.
            flat = value.detach().cpu().contiguous().reshape(-1)
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


class _CudaGraphModel:
    """A model whose forward pass is captured once as a CUDA graph, and replayed.

    Launching the kernels of a deep network takes the host as long as running them takes the GPU,
    and longer while the same process receives images; a graph is one launch. For the first batch it
    has to give what the model gives, bit for bit. If it does not, if the model waits for the GPU,
    which cannot be recorded, and for batches of another size, the model is called as ever.
    """

    def __init__(self, model: Model, batch_size: int) -> None:
        self.model, self.batch_size = model, batch_size
        self.tried = False
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: "torch.Tensor", /) -> Output:
        if len(x) != self.batch_size:
            return self.model(x)
        if not self.tried:
            self.tried = True
            return self._record(x)
        if self.graph is None or x.shape != self.x.shape or x.dtype != self.x.dtype:
            return self.model(x)
        self.x.copy_(x)
        self.graph.replay()
        return self.output

    def _record(self, x: "torch.Tensor") -> Output:
        import torch

        current = torch.cuda.current_stream(x.device)
        side = torch.cuda.Stream(x.device)  # type: ignore[no-untyped-call]
        side.wait_stream(current)
        with torch.cuda.stream(side):
            first = self.model(x)  # also chooses kernels, and makes the checks that are made once
            synchronizes = _synchronizes(lambda: self.model(x))
        current.wait_stream(side)
        if synchronizes:
            return first
        graph, self.x = torch.cuda.CUDAGraph(), x.clone()
        try:
            # Other threads may pin memory meanwhile, which must not end the recording. Without the
            # first of the two contexts, an error would leave us in the stream of the graph.
            with (
                torch.cuda.stream(current),
                torch.cuda.graph(graph, stream=side, capture_error_mode="thread_local"),
            ):
                self.output = self.model(self.x)
        except RuntimeError:
            return first
        graph.replay()
        same = torch.equal(self.output.features, first.features)
        if same and torch.equal(self.output.logits, first.logits):
            self.graph = graph
        return first


def _synchronizes(work: Callable[[], object]) -> bool:
    """Whether some work synchronizes: the host waits for the GPU, or may do so.

    Recording such work fails, and PyTorch's memory and random numbers do not recover from it.
    """
    import torch

    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            work()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    # Beside these, PyTorch warns once that the mode is a prototype.
    return any("called a synchronizing" in str(warning.message) for warning in seen)


def _compute_async(model: Model, x: "torch.Tensor", dtype: str) -> PendingRows:
    """Run the model on a batch, and give a function that waits for its rows."""
    output = model(x)
    if not isinstance(output, Output):
        raise LamettaError(f"model must return lametta.Output, got {type(output).__name__}")
    xp = namespace(features=output.features, logits=output.logits)
    copies = {}
    for name, shape in (("features", "[N, d]"), ("logits", "[N, K]")):
        value = getattr(output, name)
        check_matrix(xp, name, shape, value)
        if len(value) != len(x):
            raise LamettaError(f"{name} must have N = {len(x)} rows as the batch, got {len(value)}")
        copies[name] = copy_to_host_async(widen(xp, value))
    return lambda: {name: _stored(name, copy(), dtype) for name, copy in copies.items()}


def copy_to_host_async(array: Array) -> Callable[[], NDArray[np.floating]]:
    """Start the copy of an array to the host, and give a function that waits for it."""
    if not getattr(array, "is_cuda", False):
        rows = to_numpy(array).copy()  # now: the next batch may use the same memory
        return lambda: rows
    import torch

    # Queued here, right behind the model: asked for later, it would wait for the next batch.
    copy = array.detach().to("cpu", non_blocking=True)
    done = torch.cuda.Event()  # type: ignore[no-untyped-call]
    done.record(torch.cuda.current_stream(array.device))

    def wait() -> NDArray[np.floating]:
        done.synchronize()
        copied: NDArray[np.floating] = to_numpy(copy)
        return copied

    return wait


def _stored(name: str, wide: NDArray[np.floating], dtype: str) -> NDArray[np.floating]:
    try:
        with np.errstate(over="raise"):
            return wide.astype(dtype, copy=False)
    except FloatingPointError:
        raise LamettaError(
            f"dtype must be wide enough for {name} up to {np.abs(wide).max():g}, got {dtype!r}"
        ) from None
