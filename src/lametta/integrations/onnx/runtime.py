"""ONNX Runtime sessions: read a file, start a session; its inputs and outputs as arrays."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import numpy.typing as npt

from lametta._arrays import to_numpy
from lametta._checks import check_choice, import_optional
from lametta.types import LamettaError

if TYPE_CHECKING:
    from onnx import ModelProto
    from onnxruntime import InferenceSession

Floats: TypeAlias = npt.NDArray[np.float32]
Provider: TypeAlias = str | tuple[str, Mapping[str, object]]

MOST_BYTES = 2**31 - 1  # of a file without its external data: more is no protobuf
CPU = ("CPUExecutionProvider",)
_NATIVE = {"float": "float32", "double": "float64"}  # other types have NumPy's names
_MOST_BATCH = 2**16  # samples that a graph may ask for at a time
_EXTERNAL = "session.model_external_initializers_file_folder_path"


@dataclass(frozen=True)
class Input:
    """A tensor that a graph takes: its name, its shape with None for open sides, and its dtype.

    The shape is () where the graph leaves even the number of axes open.

    Examples
    --------
    >>> print(Input("pixels", (None, 3, 224, 224), "float32"))
    float32 [N, 3, 224, 224]
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        sides = ["any" if side is None else str(side) for side in self.shape]
        return f"{self.dtype} [{', '.join(['N', *sides[1:]] if sides else ['N', '...'])}]"

    def tensor(self, x: object) -> npt.NDArray[np.generic]:
        """Convert an array to what this input takes, or say what is wrong with it."""
        try:
            array: npt.NDArray[np.generic] = to_numpy(x)
        except ValueError:  # lists of several lengths
            array = np.empty(0, object)
        wanted = np.dtype(self.dtype)
        if not self._takes(array):
            raise LamettaError(
                f"x must be {self} for the graph's input {self.name!r}, got {array.dtype} "
                f"{list(array.shape)}"
            )
        if array.dtype == wanted:
            return np.ascontiguousarray(array)
        with np.errstate(over="ignore"):
            narrowed = array.astype(wanted)
        if wanted.kind in "iu" and not np.array_equal(narrowed, array):
            raise LamettaError(f"x must fit into {wanted} for the graph's input {self.name!r}")
        return narrowed

    def _takes(self, array: npt.NDArray[np.generic]) -> bool:
        """Whether an array has this input's shape, and numbers of its kind."""
        kinds = {array.dtype.kind, np.dtype(self.dtype).kind}
        return (
            (len(kinds) == 1 or kinds == {"i", "u"})
            and array.ndim == (len(self.shape) or max(array.ndim, 1))  # () where that is open
            and all(a in (None, b) for a, b in zip(self.shape[1:], array.shape[1:], strict=False))
        )


@contextmanager
def onnx_errors(path: Path, argument: str = "path") -> Iterator[None]:
    """Name, in any error of the block, the file and the argument that it comes from."""
    if not path.is_file():
        raise LamettaError(f"no such file: {str(path)!r}")
    try:
        yield
    except LamettaError as error:
        raise LamettaError(f"{path}: {error}") from None
    except Exception as error:  # a broken file may raise anything
        raise LamettaError(
            f"{argument} must be a classifier in ONNX's format that ONNX Runtime can run, got "
            f"{path}: {reason(error)}"
        ) from error


def load_graph(path: Path, argument: str = "path") -> "ModelProto":
    """Read an ONNX file, but not its external data; nothing in it is run."""
    onnx = import_optional("onnx", "onnx", "OnnxModel")
    if (size := path.stat().st_size) > MOST_BYTES:
        raise LamettaError(
            f"{argument} must be an .onnx file of at most {MOST_BYTES} bytes, its weights beside "
            f"it as external data, got {path} of {size}"
        )
    model: ModelProto = onnx.ModelProto.FromString(path.read_bytes())
    if not model.graph.node:
        raise LamettaError(f"{argument} must be an ONNX model, got {path}, which has no graph")
    if model.functions:
        model = import_optional("onnx.inliner", "onnx", "OnnxModel").inline_local_functions(model)
    return model


def session(
    model: "ModelProto", folder: Path, providers: Sequence[Provider] | None, threads: int | None
) -> "InferenceSession":
    """Start a session, with external data from a folder."""
    ort = import_optional("onnxruntime", "onnxruntime", "OnnxModel")
    options = ort.SessionOptions()
    options.log_severity_level = 4  # errors are raised
    options.intra_op_num_threads = threads or 0
    options.add_session_config_entry(_EXTERNAL, str(folder.absolute()))
    data = model.SerializeToString()
    started = ort.InferenceSession(data, options, _providers(ort, providers), enable_fallback=0)
    started._model_bytes = None  # it would keep all weights twice
    return started


def inputs_of(session: "InferenceSession") -> tuple[Input, ...]:
    """What a session takes."""
    found = []
    for input_ in session.get_inputs():
        name = input_.type.removeprefix("tensor(").removesuffix(")")
        name = _NATIVE.get(name, name)
        if not name.startswith(("float", "int", "uint", "bool")) or "8e" in name:
            raise LamettaError(
                "the graph's inputs must be tensors of numbers, got "
                f"{input_.name!r} of {input_.type}"
            )
        shape = (
            side if isinstance(side, int) and side > 0 else None for side in input_.shape or ()
        )
        found.append(Input(input_.name, tuple(shape), np.dtype(name).name))
    if not found:
        raise LamettaError("the graph must take a tensor, got one without inputs")
    return tuple(found)


def fixed_batch(inputs: Sequence[Input]) -> int | None:
    """The only number of samples that a graph takes; None where it takes any."""
    sizes = {input_.shape[0] for input_ in inputs if input_.shape}
    batch = next(iter(sizes)) if len(sizes) == 1 else None
    if batch is not None and batch > _MOST_BATCH:
        raise LamettaError(f"the graph's batches must be of {_MOST_BATCH} at most, got {batch}")
    return batch


def reason(error: Exception) -> str:
    """The first line of an error's text, without ONNX Runtime's own prefix."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return re.sub(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ", "", lines[0])[:500]


def _providers(ort: ModuleType, providers: Sequence[Provider] | None) -> list[Provider]:
    available = ort.get_available_providers()
    if providers is None:
        return [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in available]
    if isinstance(providers, str) or not providers:
        raise LamettaError(f"providers must be a sequence of names, got {providers!r}")
    for provider in providers:
        name = provider[0] if isinstance(provider, tuple) and provider else provider
        check_choice("providers", name, available)  # or they would be left out with a warning
    return list(providers)


def pooled(x: Floats, n: int, channels_first: bool | None) -> Floats:
    """Features [N, d], averaged over places or tokens."""
    if x.ndim == 1 and n == 1:
        x = x[None]
    if x.ndim < 2 or len(x) != n:
        raise LamettaError(f"features must have a row for each of {n} samples, got {x.shape}")
    return x.mean(axis=pooled_axes(x.ndim, channels_first)) if x.ndim > 2 else x


def pooled_axes(n_axes: int, channels_first: bool | None) -> tuple[int, ...]:
    """The axes of places or tokens; without more knowledge, three axes are tokens [N, T, d]."""
    first = 2 if (n_axes > 3 if channels_first is None else channels_first) else 1
    return tuple(range(first, first + n_axes - 2))


def matrix(logits: Floats, n: int, columns: int | None) -> Floats:
    """Logits [N, K] without the axes of length 1 that they may have."""
    columns = columns or logits.size // n
    if logits.size != n * columns or (n > 1 and len(logits) != n) or not columns:
        raise LamettaError(f"logits must be [{n}, {columns or 'K'}], got shape {logits.shape}")
    return logits.reshape(n, columns)


def check_logits(rows: Floats, probabilities: bool) -> None:
    """Raise if these are rows of probabilities and should be logits, or the other way round."""
    fit = bool((rows >= 0).all() and (abs(rows.sum(axis=1) - 1) < 1e-3).all())
    if fit != probabilities:
        wanted, got = ("probabilities", "others") if probabilities else ("logits", "rows of sum 1")
        raise LamettaError(
            f"logits must name a tensor of {wanted}, got {got}: name another, or say "
            f"probabilities={not probabilities}"
        )


def width(shape: Sequence[int | str | None]) -> int | None:
    """The number of features in a tensor of this shape; None where the shape leaves it open."""
    side = shape[2 if len(shape) == 3 else 1] if len(shape) > 1 else None
    return side if isinstance(side, int) and side > 0 else None


def columns(shape: Sequence[int | str | None], n_classes: int | None) -> int | None:
    """The number of classes, by the head's weights and the logits' shape; None if both are open."""
    sides = [side for side in shape[1:] if isinstance(side, int) and side > 0]
    known = math.prod(sides) if 0 < len(sides) == len(shape) - 1 else None
    if n_classes is not None and known not in (None, n_classes):
        raise LamettaError(
            f"logits must have {n_classes} columns, as the head's weights, got {known}"
        )
    return n_classes or known
