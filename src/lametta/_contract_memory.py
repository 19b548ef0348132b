"""The checks of `lametta.testing` for correctors that remember."""

import pickle
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from lametta._arrays import to_numpy
from lametta._contract import Batch, is_picklable, may_refuse, play, require, same, values
from lametta.correctors.base import clone
from lametta.types import Array, Corrector, LamettaError, Stateful

_ROUNDS = 4  # passes over the stream, after which a memory has to be full
_MUST = "must be refused by a LamettaError"
_SLACK = 256  # bytes by which a pickle may grow, since numbers get longer


def check_state_can_be_stored(corrector: Stateful, stream: Sequence[Batch]) -> None:
    """What is remembered must be plain arrays, from which a fresh copy continues bit for bit."""
    require(
        isinstance(corrector, Stateful),
        "a corrector with state must have state_dict() and load_state_dict(state)",
    )
    half, one, other = len(stream) // 2, clone(corrector), clone(corrector)
    expected = play(clone(corrector), stream)[half:]
    play(one, stream[:half])
    state = one.state_dict()
    stored = {name: _through_bytes(name, array) for name, array in state.items()}
    play(one, stream[::-1])
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
    same(play(other, stream[half:]), expected, message)
    other.reset()
    _same_state(other.state_dict(), clone(corrector).state_dict(), "reset() must forget all")


def check_state_is_bounded(corrector: Stateful, stream: Sequence[Batch]) -> None:
    """A stream twice as long must not have a larger state."""
    one = clone(corrector)
    sizes = []
    for _ in range(2):
        for _ in range(_ROUNDS):
            play(one, stream)
        # What is kept beside the arrays shows in the pickle.
        pickled = len(pickle.dumps(one)) if is_picklable(one) else 0
        sizes.append((sum(values(array).nbytes for array in one.state_dict().values()), pickled))
    (arrays, pickled), (arrays_later, pickled_later) = sizes
    require(
        arrays_later <= arrays and pickled_later <= pickled + _SLACK,
        f"the state must not grow along the stream, got {arrays} bytes of arrays and then "
        f"{arrays_later}, pickled {pickled} and then {pickled_later}",
    )


def check_what_is_refused_changes_nothing(corrector: Stateful, stream: Sequence[Batch]) -> None:
    """NaN and batches of another stream must be refused, and leave the state as it was."""
    one = clone(corrector)
    play(one, stream[:1])
    before = one.state_dict()
    for what, batch in _bad_batches(*stream[1]):
        with may_refuse(what, "features", "probs"):
            one.correct(*batch)
            raise AssertionError(f"{what}: {_MUST}")
        _same_state(one.state_dict(), before, f"{what}: what is refused must change no state")
    for what, state in _bad_states(before):
        with may_refuse(what, "state"):
            one.load_state_dict(state)
            raise AssertionError(f"{what}: {_MUST}")
        _same_state(one.state_dict(), before, f"{what}: what is refused must change no state")
    play(one, [tuple(array[:0] for array in stream[1])])
    _same_state(one.state_dict(), before, "a batch of 0 must change no state")


def check_cuts_play_no_part(corrector: Corrector, stream: Sequence[Batch]) -> None:
    """Wherever the stream is cut into batches, the answers must be the same."""
    whole = tuple(np.concatenate(arrays) for arrays in zip(*stream, strict=True))
    n = len(whole[0])
    (expected,) = play(clone(corrector), [whole])
    for size in (1, 7, n // 2):
        batches = [
            tuple(array[start : start + size] for array in whole) for start in range(0, n, size)
        ]
        found = np.concatenate(play(clone(corrector), batches))
        gap = np.abs(found - expected).max()
        require(
            gap <= 1e-6,
            f"batches of {size} must give the answers of one batch of {n}, or the method not say "
            f"that it is causal; they differ by up to {gap:.2g}",
        )


WITH_STATE: tuple[Callable[..., None], ...] = (
    check_state_can_be_stored,
    check_state_is_bounded,
    check_what_is_refused_changes_nothing,
)
"""What correctors that say that they are ``stateful`` are checked for."""


def _through_bytes(name: str, array: Array) -> Array:
    """As a file of safetensors would give it back."""
    found = to_numpy(array)
    require(
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
    require(
        found.keys() == expected.keys(), f"{message}, got {sorted(found)} for {sorted(expected)}"
    )
    same(list(found.values()), [expected[name] for name in found], message)
