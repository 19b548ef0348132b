"""Contract checks for correctors and adapters, open to third parties.

Each check is a function of the method, works on a clone of it, and raises `AssertionError` with
what it found. A method may refuse an input instead of handling it, by a `LamettaError` whose
message names the argument.
"""

import copy
import pickle
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from lametta._arrays import namespace_of, to_numpy
from lametta.correctors.base import clone, give_prototypes, lacks_prototypes
from lametta.types import Adapter, Array, Corrector, LamettaError, Prediction, Prototypes, Stateful

__all__ = ["check_adapter", "check_corrector", "yield_checks"]

Method: TypeAlias = Corrector | Adapter
Batch: TypeAlias = tuple[Array, ...]
"""The arguments of one ``correct`` or ``step``."""

_SIZES = 4, 6  # K and d of all batches
_PASSES = 4  # passes over the stream, after which a memory has to be full
_MUST = "must be refused by a LamettaError"
_SLACK = 256  # bytes by which a pickle may grow, since numbers get longer


def check_corrector(corrector: Corrector, /) -> None:
    """Check that an output-only method keeps the contract: all of `yield_checks`, one by one.

    Rows of probabilities, in the input's library, dtype and device (NumPy, and PyTorch and JAX
    where they are imported already), for ordinary batches and at the edges: no sample, one sample,
    fewer samples than neighbors, duplicates, zero features, one-hot and tiny probabilities, half
    precision. Inputs stay as they are; a reset and a replay give the same bits; a pickled copy
    continues the stream alike; copies share no state. The order of a batch plays no part, unless
    the corrector says that it is ``ordered``.

    One that says that it is ``stateful`` has to be a `lametta.types.Stateful`: a fresh copy that is
    given its state continues bit for bit, the state does not grow along the stream, and what is
    refused (NaN, other numbers of columns, an invalid state) leaves it as it was. One that says
    that it is ``causal`` answers alike wherever the stream is cut into batches. One that needs
    prototypes is given some.

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
    for check in yield_checks(corrector):
        check(corrector)


def check_adapter(adapter: Adapter, x: Array, /, *, batch_size: int = 8) -> None:
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
    for check in yield_checks(adapter, x, batch_size=batch_size):
        check(adapter)


def yield_checks(
    method: Method, x: Array | None = None, /, *, batch_size: int = 8
) -> Iterator[Callable[[Method], None]]:
    """Give the checks of a corrector, or of an adapter with its inputs ``x``, each by itself.

    Each is a function of the method whose ``__name__`` says what it checks, for
    ``pytest.mark.parametrize``: then one failure does not hide the next.

    Parameters
    ----------
    method : Corrector or Adapter
        What will be checked; only its traits are looked at here.
    x : array [M, ...]
        As for `check_adapter`; for adapters alone.
    batch_size : int
        As for `check_adapter`.

    Examples
    --------
    >>> from lametta import LAME
    >>> [check.__name__ for check in yield_checks(LAME())][:3]
    ['check_rows', 'check_inputs_unchanged', 'check_reset_is_exact']
    """
    if isinstance(method, Corrector):
        yield from _of_corrector(method)
    else:
        yield from _of_adapter(method, x, batch_size)


def _of_corrector(method: Corrector) -> Iterator[Callable[[Method], None]]:
    stream = [_make_batch(24, seed) for seed in range(4)]
    checks = _along_a_stream(method)
    if getattr(method, "stateful", False):
        checks += _WITH_STATE
    if getattr(method, "causal", False):
        checks.append(check_batch_split_invariance)
    yield from _named_checks(checks, stream, _edges())
    for library in ("numpy", "torch", "jax"):
        if library in sys.modules:
            yield _named(f"check_{library}_is_kept", check_library, library=library)


def _of_adapter(
    method: Adapter, x: Array | None, batch_size: int
) -> Iterator[Callable[[Method], None]]:
    given = 0 if x is None else len(x)
    if x is None or given < 2 * batch_size:
        raise AssertionError(f"x must hold two batches of {batch_size}, got {given} inputs")
    starts = range(0, given - batch_size + 1, batch_size)
    stream = [(x[start : start + batch_size],) for start in starts]
    edges = [(f"batch_of_{n}", (x[:n],)) for n in (0, 1)]
    yield from _named_checks([*_along_a_stream(method), check_model_restored], stream, edges)


def _along_a_stream(method: Method) -> list[Callable[..., None]]:
    ordered = getattr(method, "ordered", False)
    return [*_ALONG_A_STREAM, *([] if ordered else [check_permutation_equivariance])]


def _named_checks(
    checks: Iterable[Callable[..., None]],
    stream: Sequence[Batch],
    edges: Iterable[tuple[str, Batch]],
) -> Iterator[Callable[[Method], None]]:
    for check in checks:
        yield _named(check.__name__, check, stream=stream)
    for edge, batch in edges:
        yield _named(f"check_{edge}", check_edge, edge=edge, batch=batch)


def _named(name: str, check: Callable[..., None], **arguments: Any) -> Callable[[Method], None]:
    bound: Any = partial(_with_prototypes, check, **arguments)
    bound.__name__ = name
    bound.__doc__ = check.__doc__
    return bound  # type: ignore[no-any-return]


def _with_prototypes(check: Callable[..., None], method: Method, /, **arguments: Any) -> None:
    """Make a check of a method, or of a copy with the prototypes that it lacks."""
    if lacks_prototypes(method):
        method = copy.deepcopy(method)
        rng = np.random.default_rng(0)
        given = Prototypes(rng.normal(size=_SIZES), rng.normal(size=_SIZES[0]))
        give_prototypes(method, given, "the check")
    check(method, **arguments)


def check_rows(method: Method, stream: Sequence[Batch]) -> None:
    """Predictions must be rows of probabilities."""
    method = clone(method)
    for batch in stream:
        _check_rows(_run(method, copy.deepcopy(batch)), len(batch[0]), "a batch")


def check_inputs_unchanged(method: Method, stream: Sequence[Batch]) -> None:
    """Inputs must not be changed."""
    method = clone(method)
    for batch in stream:
        given = copy.deepcopy(batch)
        _run(method, given)
        _same(given, batch, "inputs must not be changed")


def check_reset_is_exact(method: Method, stream: Sequence[Batch]) -> None:
    """A reset and a replay must give the same bits, and a corrector's state be the first one."""
    fresh, method = clone(method), clone(method)
    expected = _run_stream(method, stream)
    method.reset()
    # A short stream may leave no trace in answers, while an adapter's corrector keeps still.
    held: Any = getattr(method, "corrector", None)
    if hasattr(held, "state_dict"):
        first: Any = getattr(fresh, "corrector", None)
        _same_state(held.state_dict(), first.state_dict(), "reset() must forget all")
    _same(_run_stream(method, stream), expected, "reset() and a replay must give the same bits")


def check_pickle_mid_stream(method: Method, stream: Sequence[Batch]) -> None:
    """A copy in mid-stream must continue alike, whatever the original does meanwhile."""
    half, one = len(stream) // 2, clone(method)
    expected = _run_stream(clone(method), stream)[half:]
    _run_stream(one, stream[:half])
    resumed = pickle.loads(pickle.dumps(one)) if _is_picklable(one) else copy.deepcopy(one)
    _run_stream(one, stream[::-1])
    continued = _run_stream(resumed, stream[half:])
    _same(continued, expected, "a copy in mid-stream must continue alike, on its own")


def check_permutation_equivariance(method: Method, stream: Sequence[Batch]) -> None:
    """Permuting a batch must permute its prediction, and no more."""
    first = stream[0]
    order = np.random.default_rng(0).permutation(len(first[0]))
    permuted = tuple(_take(array, order) for array in first)
    (expected,) = _run_stream(clone(method), [first])
    (found,) = _run_stream(clone(method), [permuted])
    gap = np.abs(found - expected[order]).max(initial=0)
    _require(
        np.allclose(found, expected[order], atol=1e-4),
        "permuting a batch must permute the prediction, or the method say that it is ordered; "
        f"it differs by up to {gap:.2g}",
    )


_ALONG_A_STREAM: tuple[Callable[..., None], ...] = (
    check_rows,
    check_inputs_unchanged,
    check_reset_is_exact,
    check_pickle_mid_stream,
)
"""What every method is checked for."""


def check_edge(method: Method, edge: str, batch: Batch) -> None:
    """An unusual batch must work, or be refused by an error that names the argument."""
    what = edge.replace("_", " ")
    with _expect_rejection(what, "features", "probs", "x ", "batch"):
        prediction = _run(clone(method), batch)
        if isinstance(method, Corrector):
            wanted, got = batch[1].dtype, prediction.probs.dtype
            _require(got == wanted, f"{what}: probs must stay {wanted}, got {got}")
        _check_rows(prediction, len(batch[0]), what)


def check_library(corrector: Corrector, library: str) -> None:
    """Array library, dtype and device must come back as they went in."""
    xp = sys.modules["jax.numpy" if library == "jax" else library]
    for dtype in (xp.float16, xp.float32, xp.float64):
        if library == "jax" and dtype == xp.float64 and xp.zeros(0, float).dtype != dtype:
            continue  # JAX has float64 only where the user switched it on
        features, probs = (xp.asarray(array.copy(), dtype=dtype) for array in _make_batch(16, 0))
        found = clone(corrector).correct(features, probs).probs
        _require(type(found) is type(probs), f"probs must stay {type(probs)}, got {type(found)}")
        _require(found.dtype == dtype, f"probs must stay {probs.dtype}, got {found.dtype}")
        _require(device(found) == device(probs), f"probs must stay on {device(probs)}")


def check_model_restored(adapter: Adapter, stream: Sequence[Batch]) -> None:
    """After a reset the model under the adapter must give the same bits as before."""
    adapter = clone(adapter)
    model: Any = adapter
    while not callable(model):
        model = getattr(model, "base", None) or getattr(model, "model", None)
        if model is None:
            return
    before = model(*stream[0])
    _run_stream(adapter, stream)
    adapter.reset()
    after = model(*stream[0])
    for name in ("features", "logits"):
        message = f"reset() must give back the model exactly, its {name} differ"
        _same(getattr(after, name), getattr(before, name), message)


def check_state_can_be_stored(corrector: Stateful, stream: Sequence[Batch]) -> None:
    """What is remembered must be plain arrays, from which a fresh copy continues bit for bit."""
    _require(
        isinstance(corrector, Stateful),
        "a corrector with state must have state_dict() and load_state_dict(state)",
    )
    half, one, other = len(stream) // 2, clone(corrector), clone(corrector)
    expected = _run_stream(clone(corrector), stream)[half:]
    _run_stream(one, stream[:half])
    state = one.state_dict()
    stored = {name: _through_bytes(name, array) for name, array in state.items()}
    _run_stream(one, stream[::-1])
    _same_state(state, stored, "state_dict() must give a copy")
    given = {name: array.copy() for name, array in stored.items()}
    try:
        other.load_state_dict(given)
    except LamettaError as error:
        message = f"load_state_dict() must take what state_dict() gave, got {error}"
        raise AssertionError(message) from error
    for array in given.values():
        array[...] = 0 if array.dtype.kind == "f" else array
    message = "load_state_dict() must continue where state_dict() was, from a copy"
    _same(_run_stream(other, stream[half:]), expected, message)
    other.reset()
    _same_state(other.state_dict(), clone(corrector).state_dict(), "reset() must forget all")


def check_state_is_bounded(corrector: Stateful, stream: Sequence[Batch]) -> None:
    """A stream twice as long must not have a larger state."""
    one = clone(corrector)
    sizes = []
    for _ in range(2):
        for _ in range(_PASSES):
            _run_stream(one, stream)
        # What is kept beside the arrays shows in the pickle.
        pickled = len(pickle.dumps(one)) if _is_picklable(one) else 0
        sizes.append((sum(_values(array).nbytes for array in one.state_dict().values()), pickled))
    (arrays, pickled), (arrays_later, pickled_later) = sizes
    _require(
        arrays_later <= arrays and pickled_later <= pickled + _SLACK,
        f"the state must not grow along the stream, got {arrays} bytes of arrays and then "
        f"{arrays_later}, pickled {pickled} and then {pickled_later}",
    )


def check_rejected_input_keeps_state(corrector: Stateful, stream: Sequence[Batch]) -> None:
    """NaN and batches of another stream must be refused, and leave the state as it was."""
    one = clone(corrector)
    _run_stream(one, stream[:1])
    before = one.state_dict()
    for what, batch in _bad_batches(*stream[1]):
        with _expect_rejection(what, "features", "probs"):
            one.correct(*batch)
            raise AssertionError(f"{what}: {_MUST}")
        _same_state(one.state_dict(), before, f"{what}: what is refused must change no state")
    for what, state in _bad_states(before):
        with _expect_rejection(what, "state"):
            one.load_state_dict(state)
            raise AssertionError(f"{what}: {_MUST}")
        _same_state(one.state_dict(), before, f"{what}: what is refused must change no state")
    _run_stream(one, [tuple(array[:0] for array in stream[1])])
    _same_state(one.state_dict(), before, "a batch of 0 must change no state")


def check_batch_split_invariance(corrector: Corrector, stream: Sequence[Batch]) -> None:
    """Wherever the stream is cut into batches, the answers must be the same."""
    whole = tuple(np.concatenate(arrays) for arrays in zip(*stream, strict=True))
    n = len(whole[0])
    (expected,) = _run_stream(clone(corrector), [whole])
    for size in (1, 7, n // 2):
        batches = [
            tuple(array[start : start + size] for array in whole) for start in range(0, n, size)
        ]
        found = np.concatenate(_run_stream(clone(corrector), batches))
        gap = np.abs(found - expected).max()
        _require(
            gap <= 1e-6,
            f"batches of {size} must give the answers of one batch of {n}, or the method not say "
            f"that it is causal; they differ by up to {gap:.2g}",
        )


_WITH_STATE: tuple[Callable[..., None], ...] = (
    check_state_can_be_stored,
    check_state_is_bounded,
    check_rejected_input_keeps_state,
)
"""What correctors that say that they are ``stateful`` are checked for."""


def _through_bytes(name: str, array: Array) -> Array:
    """As a file of safetensors would give it back."""
    found = to_numpy(array)
    _require(
        isinstance(found, np.ndarray) and found.dtype.kind in "biuf",
        f"state_dict()[{name!r}] must be an array of numbers, got {type(array).__name__}",
    )
    return np.frombuffer(bytearray(found.tobytes()), found.dtype).reshape(found.shape)


def _bad_batches(features: Array, probs: Array) -> Iterator[tuple[str, Batch]]:
    for what, place in (("NaN features", 0), ("NaN probabilities", 1)):
        batch = [features.copy(), probs.copy()]
        batch[place][-1, -1] = np.nan  # the last, by when the others may have been taken in
        yield what, tuple(batch)
    yield "fewer classes", (features, probs[:, 1:] / probs[:, 1:].sum(axis=1, keepdims=True))
    yield "fewer features", (features[:, 1:], probs)
    yield "fewer rows of features", (features[1:], probs)


def _bad_states(state: dict[str, Array]) -> Iterator[tuple[str, dict[str, Array]]]:
    for name, array in state.items():
        yield f"a state without {name!r}", {key: state[key] for key in state if key != name}
        yield f"a larger {name!r}", {**state, name: np.stack([to_numpy(array)] * 2)}
        if to_numpy(array).dtype.kind == "f" and array.size:
            yield f"NaN in {name!r}", {**state, name: to_numpy(array) * np.nan}
    yield "an entry too many in a state", {**state, "no such entry": np.zeros(1)}


def _same_state(found: dict[str, Array], expected: dict[str, Array], message: str) -> None:
    _require(
        found.keys() == expected.keys(), f"{message}, got {sorted(found)} for {sorted(expected)}"
    )
    _same(list(found.values()), [expected[name] for name in found], message)


def _check_rows(prediction: object, n: int, name: str) -> None:
    if not isinstance(prediction, Prediction):
        raise AssertionError(f"{name}: got {type(prediction)}, not a Prediction")
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


def _make_batch(n: int, seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Features [n, 6] and probabilities [n, 4] of four overlapping classes, not to be written."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(4, size=n)
    features = np.abs(rng.normal(size=(4, 6))[labels] + 0.5 * rng.normal(size=(n, 6)))
    logits = 2 * np.eye(4)[labels] + rng.normal(size=(n, 4))
    probs = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for array in (features, probs):
        array.flags.writeable = False
    return features, probs


def _edges() -> Iterator[tuple[str, Batch]]:
    """Unusual batches of features and probabilities, by name."""
    for n in (0, 1, 2):
        yield f"batch_of_{n}", _make_batch(n, 0)
    features, probs = _make_batch(12, 0)
    yield "duplicate_samples", (np.ones_like(features), probs)
    yield "zero_features", (features * (np.arange(12) % 3 > 0)[:, None], probs)
    yield "one_hot_probabilities", (features, np.eye(4)[probs.argmax(axis=1)])
    tiny = np.where(np.eye(4)[probs.argmin(axis=1)] > 0, 1e-30, probs)
    yield "tiny_probabilities", (features, tiny / tiny.sum(axis=1, keepdims=True))
    yield "half_precision", (features.astype(np.float16), probs.astype(np.float16))


def _require(condition: object, message: str) -> None:
    # Not an assert statement, which python -O would drop.
    if not condition:
        raise AssertionError(message)


@contextmanager
def _expect_rejection(what: str, *words: str) -> Iterator[None]:
    """Let a `LamettaError` with one of these words, names of arguments, end the block; no other."""
    try:
        yield
    except AssertionError:
        raise
    except LamettaError as error:
        named = any(word in str(error) for word in words)
        _require(named, f"{what}: the error must name the argument, got {error}")
    except Exception as error:
        raise AssertionError(f"{what}: raised {error!r}") from error


def _run(method: Method, batch: Batch) -> Prediction:
    return method.correct(*batch) if isinstance(method, Corrector) else method.step(*batch)


def _run_stream(method: Method, stream: Sequence[Batch]) -> list[NDArray[Any]]:
    """The answers to all batches."""
    # On copies: only one check is meant to find a method that writes to its inputs.
    return [_values(_run(method, copy.deepcopy(batch)).probs) for batch in stream]


def _is_picklable(method: object) -> bool:
    """Whether pickle can take it; a model that is a local function is no fault of the method."""
    try:
        pickle.dumps(method)
    except (AttributeError, pickle.PicklingError, TypeError) as error:
        model = getattr(method, "base", None) or getattr(method, "model", None)
        _require(model is not None, f"must be picklable, got {error!r}")
        return False
    return True


def _take(array: Array, order: NDArray[np.intp]) -> Array:
    xp = namespace_of(array)
    return xp.take(array, xp.asarray(order, device=device(array)), axis=0)


def _values(array: Array) -> NDArray[Any]:
    """The values as NumPy has them, wide enough to compare."""
    found: NDArray[Any] = to_numpy(array)
    return found.astype(np.result_type(found, np.float32), copy=False)


def _same(found: Any, expected: Any, message: str) -> None:
    """Raise unless these arrays, or sequences of arrays, are equal bit for bit."""
    if isinstance(expected, list | tuple):
        for one, other in zip(found, expected, strict=True):
            _same(one, other, message)
        return
    one, other = _values(found), _values(expected)
    gap = np.abs(one - other).max(initial=0) if one.shape == other.shape else np.inf
    _require(np.array_equal(one, other), f"{message} (by up to {gap:.2g})")
