"""The single checks of `lametta.testing`, and the batches that they are made with."""

import copy
import pickle
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from lametta._arrays import namespace_of, to_numpy
from lametta.correctors.base import clone
from lametta.types import Adapter, Array, Corrector, LamettaError, Prediction

Method: TypeAlias = Corrector | Adapter
Batch: TypeAlias = tuple[Array, ...]
"""The arguments of one ``correct`` or ``step``."""


def check_rows(method: Method, stream: Sequence[Batch]) -> None:
    """Predictions must be rows of probabilities."""
    method = clone(method)
    for batch in stream:
        _check_rows(_run(method, copy.deepcopy(batch)), len(batch[0]), "a batch")


def check_inputs_are_kept(method: Method, stream: Sequence[Batch]) -> None:
    """Inputs must not be changed."""
    method = clone(method)
    for batch in stream:
        given = copy.deepcopy(batch)
        _run(method, given)
        same(given, batch, "inputs must not be changed")


def check_reset_is_exact(method: Method, stream: Sequence[Batch]) -> None:
    """A reset and a replay must give the same bits."""
    method = clone(method)
    expected = play(method, stream)
    method.reset()
    same(play(method, stream), expected, "reset() and a replay must give the same bits")


def check_copies_continue(method: Method, stream: Sequence[Batch]) -> None:
    """A copy in mid-stream must continue alike, whatever the original does meanwhile."""
    half, one = len(stream) // 2, clone(method)
    expected = play(clone(method), stream)[half:]
    play(one, stream[:half])
    resumed = pickle.loads(pickle.dumps(one)) if is_picklable(one) else copy.deepcopy(one)
    play(one, stream[::-1])
    continued = play(resumed, stream[half:])
    same(continued, expected, "a copy in mid-stream must continue alike, on its own")


def check_order_plays_no_part(method: Method, stream: Sequence[Batch]) -> None:
    """Permuting a batch must permute its prediction, and no more."""
    first = stream[0]
    order = np.random.default_rng(0).permutation(len(first[0]))
    permuted = tuple(_take(array, order) for array in first)
    (expected,), (found,) = play(clone(method), [first]), play(clone(method), [permuted])
    gap = np.abs(found - expected[order]).max(initial=0)
    require(
        np.allclose(found, expected[order], atol=1e-4),
        "permuting a batch must permute the prediction, or the method say that it is ordered; "
        f"it differs by up to {gap:.2g}",
    )


ALONG_A_STREAM: tuple[Callable[..., None], ...] = (
    check_rows,
    check_inputs_are_kept,
    check_reset_is_exact,
    check_copies_continue,
)
"""What every method is checked for."""


def check_edge(method: Method, edge: str, batch: Batch) -> None:
    """An unusual batch must work, or be refused by an error that names the argument."""
    what = edge.replace("_", " ")
    with may_refuse(what, "features", "probs", "x ", "batch"):
        prediction = _run(clone(method), batch)
        if isinstance(method, Corrector):
            wanted, got = batch[1].dtype, prediction.probs.dtype
            require(got == wanted, f"{what}: probs must stay {wanted}, got {got}")
        _check_rows(prediction, len(batch[0]), what)


def check_library(corrector: Corrector, library: str) -> None:
    """Array library, dtype and device must come back as they went in."""
    xp = sys.modules["jax.numpy" if library == "jax" else library]
    for dtype in (xp.float16, xp.float32, xp.float64):
        if library == "jax" and dtype == xp.float64 and xp.zeros(0, float).dtype != dtype:
            continue  # JAX has float64 only where the user switched it on
        features, probs = (xp.asarray(array.copy(), dtype=dtype) for array in make_batch(16, 0))
        found = clone(corrector).correct(features, probs).probs
        require(type(found) is type(probs), f"probs must stay {type(probs)}, got {type(found)}")
        require(found.dtype == dtype, f"probs must stay {probs.dtype}, got {found.dtype}")
        require(device(found) == device(probs), f"probs must stay on {device(probs)}")


def check_model_is_given_back(adapter: Adapter, stream: Sequence[Batch]) -> None:
    """After a reset the model under the adapter must give the same bits as before."""
    adapter = clone(adapter)
    model: Any = adapter
    while not callable(model):
        model = getattr(model, "base", None) or getattr(model, "model", None)
        if model is None:
            return
    before = model(*stream[0])
    play(adapter, stream)
    adapter.reset()
    after = model(*stream[0])
    for name in ("features", "logits"):
        message = f"reset() must give back the model exactly, its {name} differ"
        same(getattr(after, name), getattr(before, name), message)


def _check_rows(prediction: object, n: int, name: str) -> None:
    if not isinstance(prediction, Prediction):
        raise AssertionError(f"{name}: got {type(prediction)}, not a Prediction")
    probs = values(prediction.probs)
    require(probs.ndim == 2, f"{name}: probs must be 2-D [N, K], got shape {probs.shape}")
    require(len(probs) == n, f"{name}: probs must have {n} rows, got {len(probs)}")
    require(np.isfinite(probs).all(), f"{name}: probs must be finite")
    require((probs >= 0).all(), f"{name}: probs must be >= 0, got {probs.min(initial=0)}")
    slack = 1e-2 if "16" in str(prediction.probs.dtype) else 1e-5
    sums = probs.sum(axis=1)
    require((abs(sums - 1) < slack).all(), f"{name}: rows must sum to 1, got {sums}")
    for key, value in prediction.info.items():
        require(np.isfinite(float(value)), f"{name}: info[{key!r}] must be a number, got {value}")


def make_batch(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features [n, 6] and probabilities [n, 4] of four overlapping classes, not to be written."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=n)
    features = np.abs(rng.normal(size=(4, 6))[labels] + 0.5 * rng.normal(size=(n, 6)))
    logits = 2 * np.eye(4)[labels] + rng.normal(size=(n, 4))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for array in (features, probs):
        array.flags.writeable = False
    return features, probs


def edges() -> Iterator[tuple[str, Batch]]:
    """Unusual batches of features and probabilities, by name."""
    for n in (0, 1, 2):
        yield f"batch_of_{n}", make_batch(n, 0)
    features, probs = make_batch(12, 0)
    yield "duplicate_samples", (np.ones_like(features), probs)
    yield "zero_features", (features * (np.arange(12) % 3 > 0)[:, None], probs)
    yield "one_hot_probabilities", (features, np.eye(4)[probs.argmax(axis=1)])
    tiny = np.where(np.eye(4)[probs.argmin(axis=1)] > 0, 1e-30, probs)
    yield "tiny_probabilities", (features, tiny / tiny.sum(axis=1, keepdims=True))
    yield "half_precision", (features.astype(np.float16), probs.astype(np.float16))


def require(condition: object, message: str) -> None:
    # Not an assert statement, which python -O would drop.
    if not condition:
        raise AssertionError(message)


@contextmanager
def may_refuse(what: str, *words: str) -> Iterator[None]:
    """Let a `LamettaError` with one of these words, names of arguments, end the block; no other."""
    try:
        yield
    except AssertionError:
        raise
    except LamettaError as error:
        named = any(word in str(error) for word in words)
        require(named, f"{what}: the error must name the argument, got {error}")
    except Exception as error:
        raise AssertionError(f"{what}: raised {error!r}") from error


def _run(method: Method, batch: Batch) -> Prediction:
    return method.correct(*batch) if isinstance(method, Corrector) else method.step(*batch)


def play(method: Method, stream: Sequence[Batch]) -> list[NDArray[Any]]:
    """The answers to all batches."""
    # On copies: only one check is meant to find a method that writes to its inputs.
    return [values(_run(method, copy.deepcopy(batch)).probs) for batch in stream]


def is_picklable(method: object) -> bool:
    """Whether pickle can take it; a model that is a local function is no fault of the method."""
    try:
        pickle.dumps(method)
    except (AttributeError, pickle.PicklingError, TypeError) as error:
        model = getattr(method, "base", None) or getattr(method, "model", None)
        require(model is not None, f"must be picklable, got {error!r}")
        return False
    return True


def _take(array: Array, order: NDArray[np.intp]) -> Array:
    xp = namespace_of(array)
    return xp.take(array, xp.asarray(order, device=device(array)), axis=0)


def values(array: Array) -> NDArray[Any]:
    """The values as NumPy has them, wide enough to compare."""
    found: NDArray[Any] = to_numpy(array)
    return found.astype(np.result_type(found, np.float32), copy=False)


def same(found: Any, expected: Any, message: str) -> None:
    """Raise unless these arrays, or sequences of arrays, are equal bit for bit."""
    if isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            same(one, other, message)
        return
    one, other = values(found), values(expected)
    gap = np.abs(one - other).max(initial=0) if one.shape == other.shape else np.inf
    require(np.array_equal(one, other), f"{message} (by up to {gap:.2g})")
