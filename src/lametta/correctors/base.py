"""Bases of correctors: input checks, prototypes, state as plain arrays, invariants, ring buffer."""

import copy
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias, TypeVar, cast

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from lametta._arrays import Floats, finite_products, namespace, to_numpy, widen
from lametta._lame import check_shapes
from lametta._locks import FairLock
from lametta._solvers.problem import checked_probs
from lametta.correctors._params import Params
from lametta.signals import signals
from lametta.types import (
    Adapter,
    Array,
    Corrector,
    LamettaError,
    Prediction,
    Prototypes,
    Stateful,
    UsesPrototypes,
)

State: TypeAlias = dict[str, NDArray[Any]]
Method = TypeVar("Method", bound=Corrector | Adapter)

_SIZES = "sizes"  # the entry of a state that says which d and K its stream has
_MOST = 2.0**53  # samples, and sums of probabilities: float64 counts no further
_SLACK = 1.01e-3  # of sums of probabilities, as of those that are given


@dataclass
class HostCorrector(Params):
    """Base of correctors that work in host memory: input checks, conversion, prototypes."""

    needs: ClassVar[Collection[str]] = frozenset()
    takes: ClassVar[Collection[str]] = frozenset()  # what it can do without, but not as well

    prototypes: Prototypes | None = field(default=None, init=False, repr=False, compare=False)

    def use(self, prototypes: Prototypes, /) -> None:
        """Take the prototypes of the classes, where the method has a use for them."""
        if not has_use_for_prototypes(self):
            raise LamettaError(f"prototypes must not be given to {type(self).__name__}")
        weight = check_prototypes(prototypes).weight
        bias = None if prototypes.bias is None else _plain("bias", prototypes.bias)
        self.prototypes = Prototypes(_plain("weight", weight), bias)

    def _check(self, features: Array, probs: Array) -> tuple[int, int]:
        """The d and K of a batch whose shapes, and prototypes, fit."""
        check_shapes(namespace(features=features, probs=probs), features, probs)
        if lacks_prototypes(self):
            give_prototypes(self, None, "nobody: call use(lametta.types.Prototypes(weight, bias))")
        sizes = features.shape[1], probs.shape[1]
        self._check_sizes(*sizes)
        return sizes

    def _check_sizes(self, d: int, k: int) -> None:
        if self.prototypes is not None and tuple(self.prototypes.weight.shape) != (k, d):
            raise LamettaError(
                f"features and probs must have the d and K of the prototypes, "
                f"{self.prototypes.weight.shape[::-1]}, got {(d, k)}"
            )


def host_values(features: Array, probs: Array) -> tuple[Floats, Floats]:
    """A batch as NumPy arrays of float32 or float64, whose values are checked."""
    x, q = widen(np, _values("features", features)), widen(np, _values("probs", probs))
    return x, checked_probs(probs.dtype, x, q, np)


def as_prediction(
    rows: Floats, info: Mapping[str, float], features: Array, probs: Array, q: Floats
) -> Prediction:
    """The rows [N, K] in the library, dtype and device of ``probs``, whose values are ``q``."""
    answer = (
        rows.astype(probs.dtype, copy=False)
        if isinstance(probs, np.ndarray)
        else namespace(probs=probs).asarray(rows, dtype=probs.dtype, device=device(probs))
    )
    return Prediction(answer, features, {**info, **signals(rows, q)})


@dataclass
class BatchCorrector(HostCorrector):
    """Base of correctors that answer each batch by itself; a subclass writes ``answer``.

    The base checks inputs and converts them from and to any array library. Prototypes are asked for
    as in `StatefulCorrector`.

    Examples
    --------
    >>> class Mean(BatchCorrector):
    ...     def answer(self, features, probs):
    ...         return (probs + probs.mean(axis=0)) / 2, {}
    >>> Mean().correct(np.ones((2, 3)), np.eye(2)).probs
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """

    ordered: ClassVar[bool] = False
    stateful: ClassVar[bool] = False
    causal: ClassVar[bool] = False

    def answer(self, features: Floats, probs: Floats) -> tuple[Floats, dict[str, float]]:
        """Answer a batch of one sample or more by rows [N, K], and ``info``.

        Features and probabilities are NumPy arrays of float32 or float64, checked before, which
        must not be changed.
        """
        raise NotImplementedError(f"{type(self).__name__} must have answer(features, probs)")

    def correct(self, features: Array, probs: Array, /) -> Prediction:
        """Correct one batch: features [N, d] and probs [N, K]."""
        self._check(features, probs)
        if probs.shape[0] == 0:
            return Prediction(probs, features)
        x, q = host_values(features, probs)
        with finite_products():
            rows, info = self.answer(x, q)
        return as_prediction(rows, info, features, probs, q)

    def reset(self) -> None:
        """Do nothing: there is no state."""


@dataclass
class StatefulCorrector(HostCorrector):
    """Base of correctors whose answers depend on the samples before; a subclass writes two methods.

    `init_state` gives the state before the first sample, and `update_one` answers one sample, or
    `update` a batch. The base checks inputs, converts them from and to any array library, and
    stores and loads the state. A state that is loaded must have the shapes of `init_state`, finite
    numbers, and what `invariants` declares beyond that.

    A method that works with the prototypes of the classes, as `lametta.types.UsesPrototypes` says,
    sets ``needs = frozenset({"prototypes"})`` and finds them in ``self.prototypes``, as NumPy
    arrays that fit d and K, from `init_state` on. One that can do without them sets ``takes``
    instead: then they are there where the model has some.

    The state lives in host memory, whatever library and device the samples come from. Threads may
    share a corrector: its calls are answered one at a time, in the order in which they come.

    Examples
    --------
    >>> @dataclass
    ... class Last(StatefulCorrector):
    ...     def init_state(self, d, k):
    ...         return {"answer": np.full(k, 1 / k)}
    ...
    ...     def update_one(self, state, x, q):
    ...         state["answer"] = (q + state["answer"]) / 2
    ...         return state["answer"].copy()
    >>> Last().correct(np.ones((2, 3)), np.array([[1.0, 0.0], [1.0, 0.0]])).probs
    array([[0.75 , 0.25 ],
           [0.875, 0.125]])
    """

    ordered: ClassVar[bool] = True  # the order inside a batch is time
    stateful: ClassVar[bool] = True
    causal: ClassVar[bool] = True  # wherever a stream is cut into batches, the answers are the same

    _state: State = field(default_factory=dict, init=False, repr=False, compare=False)
    _lock: FairLock = field(default_factory=FairLock, init=False, repr=False, compare=False)

    def init_state(self, d: int, k: int) -> State:
        """Make the state before the first sample of d features and K classes: arrays by name.

        Their shapes never change, so that memory is bounded. It is also asked for the shapes alone,
        of sizes that a file claims: `filled` makes arrays that take no memory yet.
        """
        raise NotImplementedError(f"{type(self).__name__} must have init_state(d, k)")

    def invariants(self) -> "Mapping[str, Invariant]":
        """Declare what holds of each array in every state, by name: `within`, `distribution`, ...

        A state in which it does not hold is refused, so that `update` need not expect it.
        """
        return {}

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        """Answer a batch of one sample or more, in the order of time: rows [N, K], and ``info``.

        The arrays of the state are changed, in place or by new ones. Features and probabilities are
        NumPy arrays of float32 or float64, which must not be changed. They were checked before:
        nothing is raised here.
        """
        rows = [self.update_one(state, x, q) for x, q in zip(features, probs, strict=True)]
        return rows[0][None] if len(rows) == 1 else np.stack(rows), {}

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        """Answer one sample, x [d] and q [K], by a row [K]; else as `update`, which calls it."""
        raise NotImplementedError(f"{type(self).__name__} must have update or update_one")

    def use(self, prototypes: Prototypes, /) -> None:
        """Take the prototypes of the classes, where the method has a use for them; forget all."""
        with self._lock:
            super().use(prototypes)
            self._state = {}

    def correct(self, features: Array, probs: Array, /) -> Prediction:
        """Correct the next samples of the stream: features [N, d] and probs [N, K].

        A batch that is refused leaves the state as it was.
        """
        with self._lock:
            return self._correct(features, probs)

    def _correct(self, features: Array, probs: Array) -> Prediction:
        sizes = self._check(features, probs)
        if self._state:
            check_sizes(self._state[_SIZES], sizes, "this stream", "; reset() begins another")
        if probs.shape[0] == 0:
            return Prediction(probs, features)
        x, q = host_values(features, probs)
        if not self._state:
            self._state = self._first(*sizes)
        with finite_products():
            rows, info = self.update(self._state, x, q)
        return as_prediction(rows, info, features, probs, q)

    def reset(self) -> None:
        """Forget all samples."""
        with self._lock:
            self._state = {}

    def state_dict(self) -> State:
        """Give a copy of what is remembered, as arrays by name; none before the first sample."""
        with self._lock:
            return {name: np.array(array, order="C") for name, array in self._state.items()}

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from the `state_dict` of a corrector with the same options."""
        if not isinstance(state, Mapping):
            raise LamettaError(f"state must be arrays by name, got {type(state).__name__}")
        given = {str(name): to_numpy(array) for name, array in state.items()}
        if given and lacks_prototypes(self):
            give_prototypes(self, None, "nobody: call use before load_state_dict")
        if given:
            self.check_state(given)
        loaded = {name: np.array(array, order="C") for name, array in given.items()}
        with self._lock:
            self._state = loaded

    def __getstate__(self) -> dict[str, object]:
        return {**vars(self), "_state": StatefulCorrector.state_dict(self)}  # never amid a call

    def _first(self, d: int, k: int) -> State:
        self._check_sizes(d, k)
        begun = self._template(d, k).items()
        return {name: x if x.flags.writeable else np.array(x) for name, x in begun}

    def _template(self, d: int, k: int) -> State:
        """The state before the first sample, whose arrays may be those of `filled`."""
        return {_SIZES: np.array([d, k]), **self.init_state(d, k)}

    def state_nbytes(self, d: int, k: int) -> int:
        """How many bytes the state of a stream of d features and K classes takes."""
        self._check_sizes(d, k)
        return sum(int(array.nbytes) for array in self._template(d, k).values())

    def check_state(self, state: State) -> None:
        """Raise `LamettaError` unless this can be a state of a corrector with these options.

        Nothing is allocated by what the state claims: its arrays are compared with templates.
        """
        self._check_arrays(state)
        check_invariants(state, self.invariants())

    def _check_arrays(self, state: State) -> None:
        """Raise unless names, shapes and types are those of a state, and all numbers finite."""
        sizes = _sizes_of(state)
        # An array that grows with d or K is as large as they are: beyond the largest that is given,
        # other sizes show as other shapes, without arrays of the sizes that are claimed.
        most = 4096 + max(array.size for array in state.values())
        d, k = map(int, sizes)
        try:
            self._check_sizes(d, k)
            claimed = (d, k) if self.prototypes else (min(d, most), min(k, most))
            expected = self._template(*claimed)
        except (MemoryError, ValueError, OverflowError):
            raise LamettaError(
                f"state['{_SIZES}'] must be d and K of a stream, got {sizes}"
            ) from None
        others = (state[name].shape != array.shape for name, array in expected.items())
        if max(d, k) > most and state.keys() == expected.keys() and any(others):
            raise LamettaError(f"state['{_SIZES}'] must be d and K of a stream, got {sizes}")
        check_arrays(state, expected)


def check_arrays(state: State, expected: State, prefix: str = "") -> None:
    """Raise unless names, shapes and types are those expected, and all numbers finite."""
    if state.keys() != expected.keys():
        names, got = (", ".join(prefix + name for name in arrays) for arrays in (expected, state))
        raise LamettaError(f"state must hold {names}, got {got}")
    for name, array in expected.items():
        given, where = state[name], f"state[{prefix + name!r}]"
        if given.shape != array.shape or given.dtype != array.dtype:
            raise LamettaError(
                f"{where} must be {array.dtype} of shape {array.shape}, got {given.dtype} of shape "
                f"{given.shape}"
            )
        if not np.isfinite(given).all():
            raise LamettaError(f"{where} must be finite, got NaN or infinity")


def check_invariants(state: State, invariants: "Mapping[str, Invariant]", prefix: str = "") -> None:
    """Raise unless what is declared of arrays holds of them."""
    with np.errstate(all="ignore"):  # of numbers that are refused
        for name, invariant in invariants.items():
            if not invariant.holds(state[name], state):
                raise LamettaError(
                    f"state[{prefix + name!r}] must be {invariant.says}, got numbers from "
                    f"{state[name].min():g} to {state[name].max():g}"
                )


def _sizes_of(state: State) -> NDArray[np.int64]:
    """The d and K that a state says it is of."""
    sizes = state.get(_SIZES)
    if sizes is None or sizes.shape != (2,) or sizes.dtype != np.int64 or sizes.min() < 1:
        raise LamettaError(f"state['{_SIZES}'] must be the integers d and K, got {sizes!r:.100}")
    return sizes


Remembering = StatefulCorrector  # its name of before


def advance(
    corrector: Stateful, state: Mapping[str, Array], features: Array, probs: Array, /
) -> tuple[dict[str, Array], Prediction]:
    """Correct the next samples of a stream whose state is kept elsewhere: nothing is changed.

    This is the form that stream processors ask for: state in, state out.

    Parameters
    ----------
    corrector : Stateful
        Only its options count, not what it remembers.
    state : mapping of str to array
        What the call before gave; empty at the start of a stream.
    features, probs
        As for `lametta.Corrector.correct`.

    Returns
    -------
    state : dict of str to array
        The state after these samples.
    prediction : Prediction
        What the corrector says.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta.correctors import Average, advance
    >>> state, probs = {}, np.array([[0.9, 0.1], [0.3, 0.7]])
    >>> for row in probs:
    ...     state, prediction = advance(Average(), state, row[None], row[None])
    >>> prediction.probs
    array([[0.6, 0.4]])
    """
    own = copy.deepcopy(corrector)
    own.load_state_dict(state)
    prediction = checked_prediction(own.correct(features, probs), own)
    return own.state_dict(), prediction


def clone(method: Method) -> Method:
    """A copy of a corrector, or of an adapter, with the same options and no state."""
    own = copy.deepcopy(method)
    own.reset()
    return own


def normalized(row: Floats) -> Floats:
    """A row [K] scaled to sum 1."""
    scaled: Floats = row / row.sum()
    return scaled


def _values(name: str, array: Array) -> Floats:
    try:
        values: Floats = to_numpy(array)
    except Exception as error:
        # Whatever a library raises for an array without values, as under jax.jit.
        raise LamettaError(f"{name} must have values, got {type(array).__name__}") from error
    return values


def check_sizes(known: Iterable[int], sizes: Iterable[int], stream: str, hint: str = "") -> None:
    """Raise unless these are the numbers of columns that a stream has."""
    for name, before, now in zip(("features", "probs"), known, sizes, strict=True):
        if before != now:
            raise LamettaError(
                f"{name} must have {before} columns as before in {stream}, got {now}{hint}"
            )


class Composite:
    """Base of what is made of other methods, whose traits it passes on."""

    def _held(self) -> tuple[Corrector | Adapter, ...]:
        raise NotImplementedError

    @property
    def ordered(self) -> bool:
        """Whether the order inside a batch is time to any of them."""
        return any(getattr(one, "ordered", False) for one in self._held())

    @property
    def stateful(self) -> bool:
        """Whether any of them has a state, so that a batch may change the next answers."""
        return any(map(is_stateful, self._held()))

    @property
    def causal(self) -> bool:
        """Whether answers depend on the past alone, not on later samples of a batch."""
        return all(getattr(one, "causal", False) for one in self._held())


class CompositeCorrector(Composite):
    """A corrector made of others, which takes the prototypes that they have a use for."""

    def _held(self) -> tuple[Corrector, ...]:
        raise NotImplementedError

    def reset(self) -> None:
        """Forget all samples."""
        raise NotImplementedError

    @property
    def needs(self) -> frozenset[str]:
        """What any of them has to be given."""
        return frozenset().union(*(getattr(one, "needs", ()) for one in self._held()))

    @property
    def takes(self) -> frozenset[str]:
        """What any of them takes where there is some."""
        return frozenset().union(*(getattr(one, "takes", ()) for one in self._held()))

    @property
    def prototypes(self) -> Prototypes | None:
        """Those that were given; None as long as any of them wants some."""
        if any(map(wants_prototypes, self._held())):
            return None
        users = filter(has_use_for_prototypes, self._held())
        return next((getattr(one, "prototypes", None) for one in users), None)

    def use(self, prototypes: Prototypes, /) -> None:
        """Give prototypes to those that have a use for them; forget all samples."""
        self.reset()
        for one in filter(has_use_for_prototypes, self._held()):
            cast(UsesPrototypes, one).use(prototypes)


def is_stateful(method: Corrector | Adapter) -> bool:
    """Whether a method says that it has a state; one that does not say is taken by its methods."""
    try:
        return bool(method.stateful)  # type: ignore[union-attr]
    except AttributeError:
        return isinstance(method, Stateful | Adapter)


def checked_prediction(prediction: object, method: Corrector | Adapter) -> Prediction:
    """What a method returned, if it is a `Prediction`; the methods of others may be wrong."""
    if isinstance(prediction, Prediction):
        return prediction
    call = "correct" if isinstance(method, Corrector) else "step"
    raise LamettaError(
        f"{type(method).__name__}.{call} must return lametta.Prediction, "
        f"got {type(prediction).__name__}"
    )


def has_use_for_prototypes(corrector: object) -> bool:
    """Whether a corrector needs prototypes, or takes them where there are some."""
    return any("prototypes" in getattr(corrector, trait, ()) for trait in ("needs", "takes"))


def wants_prototypes(corrector: object) -> bool:
    """Whether a corrector has a use for prototypes and has not been given them."""
    return has_use_for_prototypes(corrector) and getattr(corrector, "prototypes", None) is None


def lacks_prototypes(corrector: object) -> bool:
    """Whether a corrector cannot work without prototypes, and has not been given them."""
    needs: Collection[str] = getattr(corrector, "needs", ())
    return "prototypes" in needs and getattr(corrector, "prototypes", None) is None


def give_prototypes(corrector: object, found: Prototypes | None, source: str) -> None:
    """Give a corrector the prototypes that it wants, if it does; raise where it needs absent ones.

    ``source`` says in the message who had none, and what to do about it.
    """
    if found is not None and wants_prototypes(corrector):
        cast(UsesPrototypes, corrector).use(check_prototypes(found))
    elif lacks_prototypes(corrector):
        raise LamettaError(
            f"{_lacking(corrector)} needs prototypes, the weights [K, d] of a linear head, got "
            f"none from {source}"
        )


def _lacking(corrector: object) -> str:
    """The name of a corrector that lacks prototypes, or of the one that it holds and that does."""
    held = (getattr(corrector, "corrector", None), *getattr(corrector, "correctors", ()))
    return next(map(_lacking, filter(lacks_prototypes, held)), type(corrector).__name__)


def check_prototypes(given: object) -> Prototypes:
    """The prototypes that are given; raise where it is something else."""
    if not isinstance(given, Prototypes):
        got = type(given).__name__
        raise LamettaError(f"prototypes must be a lametta.types.Prototypes, got {got}")
    return given


def _plain(name: str, array: Array) -> Floats:
    values: Floats = widen(np, _values(f"{name} of prototypes", array))
    if not np.isfinite(values).all():
        raise LamettaError(f"{name} of prototypes must be finite, got NaN or infinity")
    return values


def check_can_correct(corrector: object, argument: str = "corrector") -> None:
    """Raise unless this is a corrector; one with memory must be able to store it."""
    if not isinstance(corrector, Corrector) or isinstance(corrector, type):
        got = type(corrector).__name__
        if isinstance(corrector, type):
            got = f"the class {corrector.__name__}: write {corrector.__name__}()"
        raise LamettaError(f"{argument} must have correct and reset, got {got}")
    if getattr(corrector, "stateful", False) and not isinstance(corrector, Stateful):
        raise LamettaError(
            f"{argument} must have state_dict and load_state_dict, since it remembers, got "
            f"{type(corrector).__name__}"
        )


def filled(shape: int | tuple[int, ...], value: float = 0, dtype: Any = np.float64) -> NDArray[Any]:
    """An array of one value for `StatefulCorrector.init_state`, which takes no memory yet.

    Examples
    --------
    >>> filled((2**20, 2**20)).shape
    (1048576, 1048576)
    """
    return np.broadcast_to(np.asarray(value, dtype), shape)


class Invariant(NamedTuple):
    """Condition on an array that holds in every state of a corrector.

    Attributes
    ----------
    says : str
        What the array must be, for messages.
    holds : callable
        Whether it is; it is given the array, finite and of the right shape, and the state.
    """

    says: str
    holds: Callable[[NDArray[Any], State], bool]

    def __and__(self, other: "Invariant") -> "Invariant":
        return Invariant(
            f"{self.says}, and {other.says}",
            lambda array, state: self.holds(array, state) and other.holds(array, state),
        )


def within(low: float, high: float = _MOST) -> Invariant:
    """Every number lies between two; a count or a sum, if no upper one is given.

    Examples
    --------
    >>> within(0, 1).holds(np.array([0.5, 2.0]), {})
    False
    """
    says = f"from {low:g} to {high:g}"
    return Invariant(says, lambda array, _: bool((array >= low).all() and (array <= high).all()))


def any_finite() -> Invariant:
    """Any number will do, as of features."""
    return Invariant("finite", lambda *_: True)


def distribution(of: Callable[[State], slice] | None = None, *, or_zero: bool = False) -> Invariant:
    """Rows are probabilities: those that ``of`` selects, or all; ``or_zero`` lets rows be 0.

    Examples
    --------
    >>> distribution().holds(np.array([[0.5, 0.5], [0.0, 0.0]]), {})
    False
    >>> distribution(or_zero=True).holds(np.array([[0.5, 0.5], [0.0, 0.0]]), {})
    True
    """

    def holds(array: NDArray[Any], state: State) -> bool:
        sums = (array if of is None else array[of(state)]).sum(axis=-1, dtype=float)
        right = abs(sums - 1) <= _SLACK
        return bool(array.min(initial=0) >= 0 and (right | (sums == 0) if or_zero else right).all())

    return Invariant("rows of probabilities", holds)


def unit_or_zero() -> Invariant:
    """Rows have length 1, or are zero where nothing is kept."""

    def holds(array: NDArray[Any], _: State) -> bool:
        squares = np.vecdot(array, array)
        return bool(((abs(squares - 1) <= 0.01) | ~array.any(axis=-1)).all())

    return Invariant("rows of length 1 or 0", holds)


def state_nbytes(corrector: object, d: int, k: int) -> int:
    """How many bytes of state a stream of d features and K classes needs; 0 if it is not known."""
    measure = getattr(corrector, "state_nbytes", None)
    return 0 if measure is None else int(measure(d, k))


def ring_buffer(size: int, k: int) -> State:
    """The state of an empty ring buffer of rows [K]."""
    return {"rows": filled((size, k), 0, np.float32), "count": np.zeros((), np.int64)}


def ring_buffer_invariants() -> dict[str, Invariant]:
    """What holds of the state of a ring buffer of probabilities."""
    used = distribution(lambda state: slice(int(state["count"])))
    return {"count": within(0), "rows": within(0, 1 + _SLACK) & used}


def append(state: State, row: Floats) -> Floats:
    """Put a row in the place of the oldest; return all rows so far, in no particular order."""
    rows = state["rows"]
    rows[int(state["count"]) % len(rows)] = row
    state["count"] += 1
    return rows[: min(int(state["count"]), len(rows))]
