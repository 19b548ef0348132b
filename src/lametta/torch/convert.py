"""Published files of weights that PyTorch cannot read, converted to safetensors."""

import pickle
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from lametta._checks import raise_as
from lametta._files import PathLike, atomic_write
from lametta.torch.resnet import DEPTHS, ResNet
from lametta.torch.weights import safetensors_module, state_dict_mismatch
from lametta.types import LamettaError


class _Dtype:
    """Stands in for NumPy's dtype, which would believe what a pickle says of sizes and pointers."""

    def __init__(self, code: object, *_: object) -> None:
        if not isinstance(code, str) or not re.fullmatch(r"[biufc]\d+", code):
            raise LamettaError(f"path must hold arrays of numbers alone, got dtype {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[int, Literal["<", ">", "|"]]) -> None:
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """Stands in for NumPy's array, for the same reason."""

    def __init__(self, *_: object) -> None:
        self.value: object = None

    def __setstate__(self, state: tuple[int, tuple[int, ...], _Dtype, bool, bytes | str]) -> None:
        _, shape, dtype, fortran, data = state
        if isinstance(data, str):  # Python 2's bytes
            data = data.encode("latin1")
        flat = np.frombuffer(data, dtype.dtype)
        self.value = flat.reshape(shape, order="F" if fortran else "C")


class _ArrayUnpickler(pickle.Unpickler):
    """Reads NumPy arrays in plain containers, and refuses all else before it is called."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) == ("numpy", "dtype"):
            return _Dtype
        if (module, name) == ("_codecs", "encode"):
            return lambda text, *_: text.encode("latin1")
        if module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            if name == "_reconstruct":
                return _Array
            if name == "scalar":
                return lambda *_: None  # a learning rate or a count; no parameter is one
        if (module, name) == ("numpy", "ndarray"):
            return _Array
        raise LamettaError(f"path must hold NumPy arrays alone, got {module}.{name}")


def _unpickle(path: Path) -> Mapping[object, object]:
    if not path.is_file():
        raise LamettaError(f"no such file: {str(path)!r}")
    with path.open("rb") as file, raise_as("path must be a pickle of NumPy arrays", str(path)):
        try:
            # Python 2 wrote these files: its strings are bytes.
            stored = _ArrayUnpickler(file, encoding="latin1").load()
        except LamettaError as error:
            raise LamettaError(f"{error} in {str(path)!r}") from None
    if isinstance(stored, Mapping):
        stored = stored.get("model", stored)
    if not isinstance(stored, Mapping):
        raise LamettaError(f"path must hold a dict of arrays, got {type(stored).__name__}")
    return {k: v.value if isinstance(v, _Array) else v for k, v in stored.items()}


_MSRA_NAME = re.compile(
    r"(?:(?:res_)?conv1|res([2-5])_(\d+)_branch(1|2[abc]))(?:_bn_(\w+)|_([wb]))", re.ASCII
)
# PyTorch's names for the parts of a batch norm, and those of Caffe2, detectron2 and TensorFlow.
_NORM = {
    **dict.fromkeys(("s", "gamma"), "weight"),
    **dict.fromkeys(("b", "beta"), "bias"),
    **dict.fromkeys(("rm", "running_mean", "moving_mean"), "running_mean"),
    # Caffe2's name says that it is the inverse, but it is not.
    **dict.fromkeys(("riv", "running_var", "moving_variance"), "running_var"),
}


def convert_msra(path: PathLike, output: PathLike) -> None:
    """Convert a ResNet of MSRA, as detectron2 publishes it, for ``paper:resnet50_msra``.

    The pickle is read by an unpickler that admits NumPy arrays alone. A bias before a batch norm
    is subtracted from its mean, which gives the same network.

    Parameters
    ----------
    path : path
        ``R-50.pkl`` or ``R-101.pkl`` of detectron2, with its batch norms' statistics.
    output : path
        The ``.safetensors`` file to write, with torchvision's names.

    Examples
    --------
    >>> convert_msra("R-50.pkl", "resnet50_msra.safetensors")  # doctest: +SKIP
    """
    state, biases = _msra_units(Path(path))
    if state and not any(key.endswith("running_var") for key in state):
        raise LamettaError(
            "path must hold the batch norms' statistics, as detectron2's files do and those of "
            f"Detectron do not, got none in {str(path)!r}"
        )
    for conv, (mean, bias) in biases.items():
        if mean in state:
            if bias.shape != state[mean].shape:
                raise LamettaError(
                    f"path must hold {conv} of shape {tuple(state[mean].shape)}, "
                    f"got {tuple(bias.shape)}"
                )
            state[mean] = state[mean] - bias
    _write(state, Path(path), Path(output))


def _msra_units(
    path: Path,
) -> tuple[dict[str, torch.Tensor], dict[str, tuple[str, torch.Tensor]]]:
    """Tensors by torchvision's names; biases by Caffe2's, each with the mean that takes it up."""
    state: dict[str, torch.Tensor] = {}
    biases: dict[str, tuple[str, torch.Tensor]] = {}
    for name, array in _unpickle(path).items():
        if head := re.fullmatch(r"(?:pred|fc1000)_([wb])", str(name)):
            if head[1] == "w":  # it may be stored as a 1x1 convolution
                state["fc.weight"] = _tensor(name, array, 2, 4).flatten(1)
            else:
                state["fc.bias"] = _tensor(name, array, 1)
        elif match := _MSRA_NAME.fullmatch(str(name)):
            stage, index, branch, norm, kind = match.groups()
            conv_name, norm_name = _torchvision_unit(stage, index, branch)
            if norm in _NORM:
                state[f"{norm_name}.{_NORM[norm]}"] = _tensor(name, array, 1)
            elif kind == "w":
                state[f"{conv_name}.weight"] = _tensor(name, array, 4)
            elif kind == "b":
                biases[str(name)] = f"{norm_name}.running_mean", _tensor(name, array, 1)
    return state, biases


def _torchvision_unit(stage: str | None, index: str, branch: str) -> tuple[str, str]:
    """Name the convolution and the batch norm of one of Caffe2's branches."""
    if stage is None:
        return "conv1", "bn1"
    block = f"layer{int(stage) - 1}.{int(index)}"
    if branch == "1":
        return f"{block}.downsample.0", f"{block}.downsample.1"
    position = "abc".index(branch[1]) + 1
    return f"{block}.conv{position}", f"{block}.bn{position}"


_SIMCLR_NAME = re.compile(
    r"base_model/(conv2d|batch_normalization)(?:_(\d+))?"
    r"/(kernel|gamma|beta|moving_mean|moving_variance)(?::0)?",
    re.ASCII,
)
_SIMCLR_HEAD = re.compile(r"head_supervised/linear_layer/dense/(kernel|bias)(?::0)?")


def convert_simclr(path: PathLike, output: PathLike) -> None:
    """Convert a ResNet of SimCLR v2 with its linear head, for ``paper:resnet50_simclr``.

    Parameters
    ----------
    path : path
        An ``.npz`` of the checkpoint's variables under their own names, such as
        ``base_model/conv2d_1/kernel:0``; the ``:0`` may be absent. Networks with selective
        kernels are not read.
    output : path
        The ``.safetensors`` file to write, with torchvision's names.

    Examples
    --------
    >>> convert_simclr("r50_1x_sk0.npz", "resnet50_simclr.safetensors")  # doctest: +SKIP
    """
    state, convs, norms = _simclr_units(Path(path))
    depths = {1 + 3 * sum(counts) + 4: d for d, (deep, counts) in DEPTHS.items() if deep}
    if len(convs) not in depths or len(norms) != len(convs):
        raise LamettaError(
            f"path must hold as many convolutions as batch norms, {_either(depths)}, "
            f"got {len(convs)} and {len(norms)} in {str(path)!r}"
        )
    ours = _tensorflow_order(DEPTHS[depths[len(convs)]][1])
    for (conv_name, norm_name), conv, norm in zip(ours, convs, norms, strict=True):
        if "kernel" in conv:
            state[f"{conv_name}.weight"] = conv["kernel"].permute(3, 2, 0, 1)  # HWIO to OIHW
        state |= {f"{norm_name}.{_NORM[key]}": norm[key] for key in norm if key in _NORM}
    _write(state, Path(path), Path(output))


def _simclr_units(
    path: Path,
) -> tuple[dict[str, torch.Tensor], list[dict[str, torch.Tensor]], list[dict[str, torch.Tensor]]]:
    """The head, and the variables of convolutions and of batch norms, in the order of numbers."""
    units: dict[str, dict[int, dict[str, torch.Tensor]]] = {"conv2d": {}, "batch_normalization": {}}
    head: dict[str, torch.Tensor] = {}
    for name, array in _read_npz(path):
        if part := _SIMCLR_HEAD.fullmatch(name):
            if part[1] == "kernel":
                head["fc.weight"] = _tensor(name, array, 2).T
            else:
                head["fc.bias"] = _tensor(name, array, 1)
        elif match := _SIMCLR_NAME.fullmatch(name):
            kind, number, variable = match.groups()
            values = _tensor(name, array, 4 if variable == "kernel" else 1)
            units[kind].setdefault(int(number or 0), {})[variable] = values
    convs, norms = ([of[number] for number in sorted(of)] for of in units.values())
    return head, convs, norms


def _read_npz(path: Path) -> Iterator[tuple[str, object]]:
    if not path.is_file():
        raise LamettaError(f"no such file: {str(path)!r}")
    expected = "path must be an .npz of arrays"
    with raise_as(expected, str(path)), np.load(path, allow_pickle=False) as stored:
        for name in stored.files:
            # Leaves momenta and counters unread.
            if _SIMCLR_NAME.fullmatch(name) or _SIMCLR_HEAD.fullmatch(name):
                yield name, stored[name]


def _tensorflow_order(counts: tuple[int, ...]) -> Iterator[tuple[str, str]]:
    """Name convolutions and batch norms in the order in which SimCLR's code makes them."""
    yield "conv1", "bn1"
    for stage, count in enumerate(counts, 1):
        for index in range(count):
            block = f"layer{stage}.{index}"
            if index == 0:  # the shortcut comes before the block's other convolutions
                yield f"{block}.downsample.0", f"{block}.downsample.1"
            for position in (1, 2, 3):
                yield f"{block}.conv{position}", f"{block}.bn{position}"


def _either(values: Iterable[int]) -> str:
    return " or ".join(map(str, values))


def _tensor(name: object, array: object, *ndims: int) -> torch.Tensor:
    if not isinstance(array, np.ndarray) or array.ndim not in ndims or array.dtype.kind != "f":
        got = getattr(array, "shape", type(array).__name__)
        raise LamettaError(
            f"path must hold {name} as floats of {_either(ndims)} dimensions, got {got}"
        )
    return torch.from_numpy(array.astype(np.float32))


def _write(state: dict[str, torch.Tensor], path: Path, output: Path) -> None:
    """Write a state dict that is a whole ResNet's, and nothing else."""
    blocks = tuple(
        len({key.split(".")[1] for key in state if key.startswith(f"layer{stage}.")})
        for stage in range(1, 5)
    )
    shape = ("layer1.0.conv3.weight" in state, blocks)
    depth = next((depth for depth, known in DEPTHS.items() if known == shape), None)
    if depth is None or not {"conv1.weight", "fc.weight"} <= set(state):
        raise LamettaError(
            f"path must hold a ResNet of depth {_either(DEPTHS)} with its head, "
            f"got {len(state)} of its arrays, blocks {list(blocks)}, in {str(path)!r}"
        )
    with torch.device("meta"):
        net = ResNet(depth, width=len(state["conv1.weight"]), classes=len(state["fc.weight"]))
    if difference := state_dict_mismatch(net, state):
        raise LamettaError(f"path must hold a ResNet-{depth}, got {str(path)!r}: {difference}")
    with atomic_write(output) as temporary:
        safetensors_module().save_file({k: v.contiguous() for k, v in state.items()}, temporary)
