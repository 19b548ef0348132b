"""The contracts of `lametta.types` as code: run these on your own methods, too.

Each check runs on a fresh copy, and raises `AssertionError` with what it found. A method may refuse
an input instead of handling it, by a `LamettaError` whose message names the argument.
"""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device, to_device

from lametta._arrays import widen
from lametta.types import Adapter, Array, Corrector, LamettaError, Prediction

__all__ = ["check_adapter", "check_corrector"]


def check_corrector(corrector: Corrector, /) -> None:
    """Check that an output-only method keeps the contract.

    Rows of probabilities, in the input's library, dtype and device (NumPy, and PyTorch and JAX
    where they are imported already), for ordinary batches and at the edges: no sample, one sample,
    fewer samples than neighbors, duplicates, zero features, one-hot and tiny probabilities, half
    precision. Inputs stay as they are; a reset and a replay give the same bits; a pickled copy
    continues the stream alike; the order of a batch plays no part; copies share no state.

    Parameters
    ----------
    corrector : Corrector
        Is copied, and not changed.

    Raises
    ------
    AssertionError
        If the method does not keep the contract.

    Examples
    --------
    >>> from lametta import LAME
    >>> check_corrector(LAME())
    """
    stream = [_batch(24, seed) for seed in range(4)]
    _check_stream(corrector, lambda method, batch: method.correct(*batch), stream)
    _check_edges(corrector)
    _check_libraries(corrector)


def check_adapter(adapter: Adapter, x: Any, /, *, batch_size: int = 8) -> None:
    """Check that an adapter keeps the contract.

    As `check_corrector`, for whatever the adapter takes; and the model under it, where it is at
    ``adapter.base`` or ``adapter.model``, must give the same bits after a reset as before.

    Parameters
    ----------
    adapter : Adapter
        Is copied, and not changed.
    x : array [M, ...]
        Inputs for the adapter, at least two batches of them, and no two alike to the model: which
        of several equally near samples are neighbors may depend on their order.
    batch_size : int
        How many to give at a time.

    Raises
    ------
    AssertionError
        If the adapter does not keep the contract.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta import LAME, Corrected, Output
    >>> def model(x):
    ...     return Output(features=x, logits=x[:, :3])
    >>> check_adapter(Corrected(model, LAME()), np.random.default_rng(0).normal(size=(32, 5)))
    """
    _require(
        len(x) >= 2 * batch_size, f"x must hold two batches of {batch_size}, got {len(x)} inputs"
    )
    batches = [x[i : i + batch_size] for i in range(0, len(x) - batch_size + 1, batch_size)]
    _check_stream(adapter, lambda method, batch: method.step(*batch), [(b,) for b in batches])
    for n in (0, 1):
        with _Allowed(f"a batch of {n}"):
            _check_rows(_fresh(adapter).step(x[:n]), n, f"a batch of {n}")
    _check_model_untouched(adapter, batches)


def _check_stream(method: Any, run: Callable[[Any, Any], Prediction], stream: list[Any]) -> None:
    """The checks that correctors and adapters share; an element of ``stream`` is a tuple."""
    first, one = _fresh(method), _fresh(method)
    kept = copy.deepcopy(stream)
    expected = []
    for batch in stream:
        prediction = run(first, batch)
        _check_rows(prediction, len(batch[0]), "a batch")
        expected.append(_values(prediction.probs))
    _same(stream, kept, "inputs must not be changed")

    first.reset()
    replayed = [_values(run(first, batch).probs) for batch in stream]
    _same(replayed, expected, "reset() and a replay must give the same bits")

    half = len(stream) // 2
    for batch in stream[:half]:
        run(one, batch)
    resumed = pickle.loads(pickle.dumps(one)) if _is_picklable(one) else copy.deepcopy(one)
    # What another copy does in between must not show.
    for batch in reversed(stream):
        run(one, batch)
    continued = [_values(run(resumed, batch).probs) for batch in stream[half:]]
    _same(continued, expected[half:], "a copy in mid-stream must continue alike, on its own")

    order = np.random.default_rng(0).permutation(len(stream[0][0]))
    permuted = tuple(_take(array, order) for array in stream[0])
    found = _values(run(_fresh(method), permuted).probs)
    _require(
        np.allclose(found, expected[0][order], atol=1e-4),
        "permuting a batch must permute the prediction; it differs by up to "
        f"{np.abs(found - expected[0][order]).max():.2g}",
    )


def _check_edges(corrector: Corrector) -> None:
    for name, features, probs in _edges():
        with _Allowed(name):
            prediction = _fresh(corrector).correct(features, probs)
            _require(
                prediction.probs.dtype == probs.dtype,
                f"{name}: probs must stay {probs.dtype}, got {prediction.probs.dtype}",
            )
            _check_rows(prediction, len(features), name)


def _check_libraries(corrector: Corrector) -> None:
    for name in ("numpy", "torch", "jax"):
        if name not in sys.modules:
            continue
        xp = sys.modules["jax.numpy" if name == "jax" else name]
        for dtype in (xp.float16, xp.float32, xp.float64):
            if name == "jax" and dtype == xp.float64 and xp.zeros(0, float).dtype != dtype:
                continue  # JAX has float64 only where the user switched it on
            features, probs = (xp.asarray(array.copy(), dtype=dtype) for array in _batch(16, 0))
            found = _fresh(corrector).correct(features, probs).probs
            _require(
                type(found) is type(probs), f"probs must stay {type(probs)}, got {type(found)}"
            )
            _require(
                found.dtype == probs.dtype, f"probs must stay {probs.dtype}, got {found.dtype}"
            )
            _require(device(found) == device(probs), f"probs must stay on {device(probs)}")


def _check_model_untouched(adapter: Adapter, batches: list[Any]) -> None:
    adapter = _fresh(adapter)
    model: Any = adapter
    while not callable(model):
        model = getattr(model, "base", None) or getattr(model, "model", None)
        if model is None:
            return
    before = model(batches[0])
    for batch in batches:
        adapter.step(batch)
    adapter.reset()
    after = model(batches[0])
    for name in ("features", "logits"):
        message = f"reset() must give back the model exactly, its {name} differ"
        _same(getattr(after, name), getattr(before, name), message)


def _check_rows(prediction: Any, n: int, name: str) -> None:
    _require(
        isinstance(prediction, Prediction), f"{name}: got {type(prediction)}, not a Prediction"
    )
    probs = _values(prediction.probs)
    _require(probs.ndim == 2, f"{name}: probs must be 2-D [N, K], got shape {probs.shape}")
    _require(len(probs) == n, f"{name}: probs must have {n} rows, got {len(probs)}")
    _require(np.isfinite(probs).all(), f"{name}: probs must be finite")
    _require((probs >= 0).all(), f"{name}: probs must be >= 0, got {probs.min(initial=0)}")
    slack = 1e-2 if "16" in str(prediction.probs.dtype) else 1e-5
    sums = probs.sum(axis=1)
    _require((abs(sums - 1) < slack).all(), f"{name}: rows must sum to 1, got {sums}")
    for key, value in prediction.info.items():
        _require(np.isfinite(float(value)), f"{name}: info[{key!r}] must be a number, got {value}")


def _batch(n: int, seed: int) -> tuple[Any, Any]:
    """Features [n, 6] and probabilities [n, 4] of four overlapping classes, not to be written."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=n)
    features = np.abs(rng.normal(size=(4, 6))[labels] + 0.5 * rng.normal(size=(n, 6)))
    logits = 2 * np.eye(4)[labels] + rng.normal(size=(n, 4))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for array in (features, probs):
        array.flags.writeable = False
    return features, probs


def _edges() -> Iterator[tuple[str, Any, Any]]:
    for n in (0, 1, 2):
        yield f"a batch of {n}", *_batch(n, 0)
    features, probs = _batch(12, 0)
    yield "duplicate samples", np.ones_like(features), probs
    yield "zero features", features * (np.arange(12) % 3 > 0)[:, None], probs
    yield "one-hot probabilities", features, np.eye(4)[probs.argmax(axis=1)]
    tiny = np.where(np.eye(4)[probs.argmin(axis=1)] > 0, 1e-30, probs)
    yield "tiny probabilities", features, tiny / tiny.sum(axis=1, keepdims=True)
    yield "half precision", features.astype(np.float16), probs.astype(np.float16)


class _Allowed:
    """Let a `LamettaError` pass if it names an argument; say where any other error came from."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> bool:
        if isinstance(error, LamettaError):
            _require(
                any(word in str(error) for word in ("features", "probs", "x ", "batch")),
                f"{self.name}: the error must name the argument, got {error}",
            )
            return True
        if error is not None and not isinstance(error, AssertionError):
            raise AssertionError(f"{self.name}: raised {error!r}") from error
        return False


def _require(condition: Any, message: str) -> None:
    # Not an assert statement, which python -O would drop.
    if not condition:
        raise AssertionError(message)


def _fresh(method: Any) -> Any:
    method = copy.deepcopy(method)
    method.reset()
    return method


def _is_picklable(method: Any) -> bool:
    """Whether pickle can take it; a model that is a local function is no fault of the method."""
    try:
        pickle.dumps(method)
    except (AttributeError, pickle.PicklingError, TypeError) as error:
        model = getattr(method, "base", None) or getattr(method, "model", None)
        _require(model is not None, f"must be picklable, got {error!r}")
        return False
    return True


def _take(array: Array, order: Any) -> Array:
    xp = array_namespace(array)
    return xp.take(array, xp.asarray(order, device=device(array)), axis=0)


def _values(array: Array) -> Any:
    """The same values as a NumPy array that can be compared."""
    xp = array_namespace(array)
    array = array.detach() if hasattr(array, "detach") else array
    return np.asarray(to_device(widen(xp, array), "cpu"))


def _same(found: Any, expected: Any, message: str) -> None:
    if isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            _same(one, other, message)
        return
    one, other = _values(found), _values(expected)
    gap = np.abs(one - other).max(initial=0) if one.shape == other.shape else np.inf
    _require(np.array_equal(one, other), f"{message} (by up to {gap:.2g})")
