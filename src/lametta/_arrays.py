"""Array operations beyond the standard: dtypes, softmax, row norms, count sketch, top-k rows."""

import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import (
    array_namespace,
    is_array_api_obj,
    is_cupy_array,
    is_jax_array,
    is_jax_namespace,
    is_numpy_array,
    is_numpy_namespace,
    is_torch_array,
)
from numpy.typing import NDArray

from lametta._checks import ONE_OF_SEVERAL
from lametta.types import Array, LamettaError

Floats: TypeAlias = NDArray[np.floating]
"""An array of NumPy's, of floats of any width."""


def namespace(**arrays: Array) -> ModuleType:
    """Return the one array namespace of the named arguments, or say which of them is wrong."""
    if all(type(array) is np.ndarray for array in arrays.values()):  # the quick way: this is hot
        return np
    for name, array in arrays.items():
        _check_array(name, array)
    try:
        xp = namespace_of(*arrays.values())
    except TypeError:
        kinds = {name: type(array).__module__.split(".")[0] for name, array in arrays.items()}
        got = " and ".join(f"{name} from {kind}" for name, kind in kinds.items())
        raise LamettaError(
            f"{' and '.join(arrays)} must come from one array library, got {got}"
        ) from None
    if not is_numpy_namespace(xp) and not is_jax_namespace(xp):  # JAX moves arrays by itself
        _check_device(arrays)
    return xp


def _check_array(name: str, array: object) -> None:
    """Raise unless this is a dense array with values."""
    if isinstance(array, np.ma.MaskedArray):
        raise LamettaError(f"{name} must be an ordinary array, got a masked one: fill it first")
    if is_torch_array(array) and array.device.type == "meta":
        raise LamettaError(f"{name} must have values, got a tensor on the meta device")
    if is_torch_array(array) and array.layout != sys.modules["torch"].strided:
        raise LamettaError(f"{name} must be a dense array, got one of layout {array.layout}")
    if not is_array_api_obj(array):  # None and numbers, which array_namespace would let pass
        kind = type(array).__name__
        raise LamettaError(f"{name} must be an array (NumPy, PyTorch, JAX, CuPy, ...), got {kind}")


def _check_device(arrays: Mapping[str, Array]) -> None:
    places = {name: getattr(array, "device", None) for name, array in arrays.items()}
    if len(set(places.values())) > 1:
        got = " and ".join(f"{name} on {place}" for name, place in places.items())
        raise LamettaError(f"{' and '.join(arrays)} must be on one device, got {got}")


def namespace_of(*arrays: Array) -> ModuleType:
    """The namespace of arrays of one library.

    NumPy's is its own, which follows the standard in all that is used here: to load that of
    array-api-compat, which has all of NumPy in it, takes longer than to load NumPy.
    """
    if all(is_numpy_array(array) for array in arrays):
        return np
    found: ModuleType = array_namespace(*arrays)
    return found


def check_matrix(xp: ModuleType, name: str, shape: str, x: Array) -> None:
    """Raise unless ``x`` is a 2-D array of real floating numbers with at least one column."""
    if x.ndim != 2:
        raise LamettaError(f"{name} must be 2-D {shape}, got shape {tuple(x.shape)}")
    if x.shape[1] == 0:
        raise LamettaError(f"{name} must have a column or more, got none: shape {tuple(x.shape)}")
    if not _is_floating(xp, x):
        raise LamettaError(f"{name} must be of a floating dtype, got {x.dtype}")


def check_classes(name: str, x: Array) -> None:
    """Raise where there is one class alone: it would have probability 1 whatever comes."""
    if x.shape[-1] == 1:
        raise LamettaError(
            f"{name} must have a column for each of two classes or more, got shape "
            f"{tuple(x.shape)}: of a binary classifier with one output, take probabilities "
            f"[1 - p, p] or logits [0, z]; {ONE_OF_SEVERAL}"
        )


def _is_floating(xp: ModuleType, x: Array) -> bool:
    if type(x) is np.ndarray and x.dtype.kind == "f":
        return True
    try:
        return bool(xp.isdtype(x.dtype, "real floating"))
    except TypeError:  # NumPy's answer to the bfloat16 of ml_dtypes, which it does not know
        return "float" in str(x.dtype)


def widen(xp: ModuleType, x: Array) -> Array:
    """Half precision to float32; float32 and float64 as they are, in the machine's byte order."""
    if x.dtype in (xp.float32, xp.float64):
        return x
    is_wide = is_numpy_array(x) and x.dtype.itemsize >= 8  # of another byte order, or longer
    return xp.astype(x, xp.float64 if is_wide else xp.float32)


def to_numpy(x: Array) -> Any:
    """The values as a NumPy array: off their device, without gradient, bfloat16 as float32."""
    if type(x) is np.ndarray:  # as it nearly always is
        return x
    if is_torch_array(x):
        x = x.detach().cpu()
        return (x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy()
    return x.get() if is_cupy_array(x) else np.asarray(x)


def is_host_array(x: Array) -> bool:
    """Whether NumPy can see the values as they are: in host memory, not traced, no gradient."""
    if is_torch_array(x):
        torch = sys.modules["torch"]
        traced = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(x)
        return x.device.type == "cpu" and not x.requires_grad and not traced
    if is_jax_array(x):
        jax = sys.modules["jax"]
        return not isinstance(x, jax.core.Tracer) and x.devices() <= set(jax.devices("cpu"))
    return is_numpy_array(x)


def log(xp: ModuleType, x: Array) -> Array:
    """Logarithm with log 0 = -inf, silently, and with a gradient of 0 there."""
    positive = x > 0
    return xp.where(positive, xp.log(xp.where(positive, x, xp.ones_like(x))), -xp.inf)


def matmul(xp: ModuleType, a: Any, b: Array) -> Array:
    """``a @ b`` in the precision of its factors, which JAX would round on an accelerator."""
    return xp.matmul(a, b, precision="highest") if is_jax_array(a) else a @ b


def finite_products() -> np.errstate:
    """Silence warnings of invalid values in NumPy's products of finite numbers.

    With AVX-512, OpenBLAS 0.3.31 may set the flag for a matrix of five columns in float32: it also
    multiplies what happens to lie beside them in memory, and then drops those products.
    """
    return np.errstate(invalid="ignore")


def softmax(xp: ModuleType, x: Array) -> Array:
    """Softmax of each row."""
    if is_torch_array(x):  # one fused kernel
        return x.softmax(-1)
    e = xp.exp(x - xp.max(x, axis=-1, keepdims=True))
    return e / xp.sum(e, axis=-1, keepdims=True)


def probabilities(name: str, logits: NDArray[Any]) -> NDArray[Any]:
    """Softmax of NumPy's logits, which have to be finite; half precision as float32."""
    check_classes(name, logits)
    if not np.isfinite(logits).all():
        raise LamettaError(f"{name} must be finite, got NaN or infinity")
    probs: NDArray[Any] = softmax(np, widen(np, logits))
    return probs


def from_top_k(
    n_classes: int, classes: Sequence[int], shares: Sequence[float]
) -> NDArray[np.float64]:
    """A distribution [K] from the probabilities of the likeliest few; the others share the rest.

    No other class gets more than the least likely of those listed. Rows sum to 1, however the
    shares were rounded.

    Examples
    --------
    >>> from_top_k(5, [2], [0.6])
    array([0.1, 0.1, 0.6, 0.1, 0.1])
    >>> from_top_k(4, [0, 3], [0.2, 0.1]).round(2)
    array([0.4, 0.2, 0.2, 0.2])
    """
    others = n_classes - len(classes)
    rest = min(max(1 - sum(shares), 0.0) / others, min(shares)) if others else 0.0
    row = np.full(n_classes, rest)
    row[list(classes)] = shares
    total = row.sum()
    return row / total if total > 0 else np.full(n_classes, 1 / n_classes)


def row_norms(xp: ModuleType, x: Array) -> Array:
    """Length [N] of each row; infinity where its square leaves the range of the dtype."""
    if is_torch_array(x):
        return xp.linalg.vector_norm(x, axis=1)
    with np.errstate(over="ignore"):
        return xp.sqrt(xp.vecdot(x, x))


def row_sums(xp: ModuleType, x: Array) -> Array:
    """Sum [N] of each row."""
    if is_numpy_array(x):  # less than half the time of a sum
        return np.vecdot(x, np.ones(x.shape[1], x.dtype))
    return xp.sum(x, axis=1)


def squares_fit(xp: ModuleType, norms: Array) -> bool:
    """Whether squares of these lengths stay in range; False where to check would cost too much."""
    if not is_host_array(norms) or norms.shape[0] == 0:
        return False
    tiny, huge = (1e-15, 1e15) if norms.dtype == xp.float32 else (1e-120, 1e120)
    return float(norms.min()) > tiny and float(norms.max()) < huge


def unit_rows(xp: ModuleType, x: Array) -> Array:
    """Scale each row to length 1; zero rows stay zero."""
    norms = row_norms(xp, x)
    if squares_fit(xp, norms):
        return x / norms[:, None]
    # Squares of very small or large entries leave the range of the dtype: first bring the
    # largest entry of each row to 1.
    peak = xp.max(xp.abs(x), axis=1, keepdims=True)
    x = x / xp.where(peak > 0, peak, xp.ones_like(peak))
    norms = row_norms(xp, x)[:, None]
    return x / xp.where(norms > 0, norms, xp.ones_like(norms))


def count_sketch(features: Floats, bins: int) -> Floats:
    """Sum columns, with random signs, into no more than ``bins``: about the same cosines."""
    n, d = features.shape
    if d <= bins:
        return features
    folds = -(-d // bins)
    signed = np.zeros((n, folds * bins), features.dtype)
    np.multiply(features, _signs(d), out=signed[:, :d], casting="same_kind")
    folded: Floats = signed.reshape(n, folds, bins).sum(axis=1)
    return folded


@lru_cache(maxsize=8)
def _signs(d: int) -> NDArray[np.float32]:
    # Bits of a multiplicative hash, which no version of a generator changes.
    bits = (np.arange(d, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
    return (1 - 2 * (bits & np.uint64(1)).astype(np.float32)).astype(np.float32)


def top_k(xp: ModuleType, x: Array, k: int) -> Array:
    """Column indices [N, k] of the largest entries of each row; overwrites NumPy's ``x``."""
    if is_torch_array(x):
        return x.topk(k, dim=1, sorted=False).indices
    if is_jax_array(x):
        return sys.modules["jax"].lax.top_k(x, k)[1]
    if not is_numpy_array(x):
        return xp.argsort(x, axis=1, descending=True)[:, :k]
    if k > 16:
        return np.argpartition(x, -k, axis=1)[:, -k:]
    # For a few neighbors, taking one maximum after the other beats a partition fivefold.
    found = np.empty((x.shape[0], k), dtype=np.intp)
    rows = np.arange(x.shape[0])
    for column in range(k):
        found[:, column] = best = x.argmax(axis=1)
        x[rows, best] = -np.inf
    return found
