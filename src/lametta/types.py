"""Records and protocols that cross a boundary: Output, Prediction, Model, Corrector, Adapter."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, TypeAlias, runtime_checkable

Array: TypeAlias = Any
"""An array of any library with an array API namespace: NumPy, PyTorch, JAX, CuPy, ..."""

Id: TypeAlias = str | int
"""What tells one stream from another."""

DEFAULT: Id = "default"
"""The stream of samples that come without an id, where others have one."""


class LamettaError(ValueError):
    """Bad input. The message names the argument, what was expected and what came.

    Examples
    --------
    >>> import lametta
    >>> lametta.knn(0)
    Traceback (most recent call last):
    lametta.types.LamettaError: k must be an integer >= 1, got 0
    """


class LamettaDeprecationWarning(DeprecationWarning):
    """Something of lametta will go. The message says what to use, and in which version it goes.

    Examples
    --------
    >>> import warnings
    >>> warnings.simplefilter("error", LamettaDeprecationWarning)  # in the tests of a project
    """


@dataclass(frozen=True)
class Output:
    """Outputs of a frozen model for one batch: features and logits.

    Attributes
    ----------
    features : array [N, d]
        The input of the classifier head.
    logits : array [N, K]
        The class scores before the softmax.
    returned : object
        All that a network returned, as it did, if it is one that returns more than logits.

    Examples
    --------
    >>> import numpy as np
    >>> Output(features=np.ones((2, 3)), logits=np.zeros((2, 5))).logits.shape
    (2, 5)
    """

    features: Array
    logits: Array
    returned: Any = None


@dataclass(frozen=True, repr=False)
class Prediction:
    """Prediction of a corrector or an adapter for one batch: rows of probabilities, and more.

    Attributes
    ----------
    probs : array [N, K]
        Probability rows, in the library, dtype and device of the input.
    features : array [N, d] or None
        The features the prediction was made from, so that correctors chain.
    info : mapping of str to number
        Diagnostics that need no labels. Values are Python numbers. Only those that lie on an
        accelerator are 0-d arrays, or times, until someone reads them: ``float(value)`` works on
        each, and `plain` makes numbers of all.
    source : array [N, K] or None
        The probabilities before the correction: the network's own, or those of an adapted network
        under the corrector.
    returned : object
        As in `Output`.

    Examples
    --------
    >>> import numpy as np
    >>> Prediction(np.array([[0.9, 0.1]]), info={"changed": 0.0})
    Prediction(probs=float64[1, 2], info={'changed': 0.0})
    """

    probs: Array
    features: Array | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    source: Array | None = None
    returned: Any = None

    def __repr__(self) -> str:
        arrays = {"probs": self.probs, "features": self.features, "source": self.source}
        shown = [f"{name}={_shape(x)}" for name, x in arrays.items() if x is not None]
        others = {name: x for name, x in vars(self).items() if name not in arrays and x}
        info = {name: _short(x) for name, x in others.pop("info", {}).items()}
        said = ", ".join(f"{name!r}: {value}" for name, value in info.items())
        shown += [f"info={{{said}}}"] if said else []
        shown += [f"{name}={type(x).__name__}" for name, x in others.items()]
        return f"{type(self).__name__}({', '.join(shown)})"

    def plain(self) -> Self:
        """The same with Python's numbers in ``info``; this waits for an accelerator."""
        numbers = {
            name: value if isinstance(value, int | float) else float(value)
            for name, value in self.info.items()
        }
        return replace(self, info=numbers)


def _shape(array: Array) -> str:
    """An array by its dtype, shape and, off the host, its device: float32[64, 10] on cuda:0."""
    kind = str(getattr(array, "dtype", type(array).__name__)).rpartition(".")[2]
    device = str(getattr(array, "device", "cpu"))
    place = "" if "cpu" in device.lower() else f" on {device}"
    return f"{kind}{list(getattr(array, 'shape', ()))}{place}"


def _short(value: object) -> str:
    """A number in a few digits; what lies on an accelerator is not waited for."""
    return f"{value:.4g}" if isinstance(value, float) and value % 1 else repr(value)[:40]


@dataclass(frozen=True, eq=False)
class Prototypes:
    """A vector for each class, by which features become logits: ``features @ weight.T + bias``.

    They are the weights of a linear head, or the embeddings of texts in a zero-shot model. Nobody
    changes them, so that copies of what holds them share them.

    Attributes
    ----------
    weight : array [K, d]
        A row for each class.
    bias : array [K] or None
        What is added to the logits, if anything is.

    Examples
    --------
    >>> import numpy as np
    >>> Prototypes(np.eye(2, 3), np.array([0.5, 0.0])).logits(np.array([[1.0, 2.0, 3.0]]))
    array([[1.5, 2. ]])
    """

    weight: Array
    bias: Array | None = None

    def __post_init__(self) -> None:
        shape = tuple(getattr(self.weight, "shape", ()))
        if len(shape) != 2 or 0 in shape:
            raise LamettaError(f"weight of prototypes must have shape [K, d], got {shape}")
        if self.bias is not None and tuple(getattr(self.bias, "shape", ())) != shape[:1]:
            got = tuple(getattr(self.bias, "shape", ()))
            raise LamettaError(f"bias of prototypes must have shape [{shape[0]}], got {got}")

    def logits(self, features: Array, /) -> Array:
        """The logits [N, K] of features [N, d] of the same library."""
        logits = features @ self.weight.T
        return logits if self.bias is None else logits + self.bias

    def __deepcopy__(self, memo: object) -> Self:
        return self


@dataclass(frozen=True, repr=False)
class StreamsPrediction(Prediction):
    """Prediction of `lametta.Streams` for one batch, with the errors of streams.

    Attributes
    ----------
    errors : mapping of id to LamettaError
        The streams that were refused, and why. Their rows of ``probs`` are NaN.

    Examples
    --------
    >>> import numpy as np
    >>> StreamsPrediction(np.eye(2)).errors
    {}
    """

    errors: Mapping[Id, LamettaError] = field(default_factory=dict)


@runtime_checkable
class Model(Protocol):
    """A frozen source of features and logits.

    Examples
    --------
    >>> def model(x):
    ...     return Output(features=x, logits=x[:, :3])
    >>> isinstance(model, Model)
    True
    """

    def __call__(self, x: Any, /) -> Output: ...


@runtime_checkable
class Corrector(Protocol):
    """An output-only method: it sees no input and no weights.

    Examples
    --------
    >>> import lametta
    >>> isinstance(lametta.LAME(), Corrector)
    True
    """

    def correct(self, features: Array, probs: Array, /) -> Prediction:
        """Correct one batch: features [N, d] and probs [N, K] to a `Prediction`."""
        ...

    def reset(self) -> None:
        """Return to exactly the state after construction."""
        ...


@runtime_checkable
class UsesPrototypes(Corrector, Protocol):
    """A corrector that may have to be given `Prototypes` before its first sample.

    It does where ``"prototypes"`` is in its ``needs``. Whatever drives it calls `use` once, at the
    start, unless ``prototypes`` is no longer None; ``reset`` keeps them.

    Examples
    --------
    >>> import lametta
    >>> isinstance(lametta.Prudent(), UsesPrototypes), lametta.Prudent().needs
    (True, frozenset())
    """

    @property
    def needs(self) -> Collection[str]:
        """What it has to be given, ``{"prototypes"}`` or nothing."""
        ...

    @property
    def prototypes(self) -> Prototypes | None:
        """What it was given."""
        ...

    def use(self, prototypes: Prototypes, /) -> None:
        """Take the prototypes of the classes, and forget all samples."""
        ...


@runtime_checkable
class Stateful(Corrector, Protocol):
    """A corrector that remembers, and whose memory can be stored: arrays by name, no pickle.

    Its memory is bounded and ``reset`` is exact. ``ordered`` is True where the order inside a batch
    is time, ``causal`` where batches cut anywhere give the same answers.

    Examples
    --------
    >>> import lametta
    >>> isinstance(lametta.Prudent(), Stateful), isinstance(lametta.LAME(), Stateful)
    (True, False)
    """

    def state_dict(self) -> dict[str, Array]:
        """Give a copy of what is remembered: no arrays before the first sample."""
        ...

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from what `state_dict` gave; raise `LamettaError` if it cannot be that."""
        ...


@runtime_checkable
class Adapter(Protocol):
    """What a benchmark or a server drives.

    Examples
    --------
    >>> import lametta
    >>> adapter = lametta.Source(lambda x: Output(x, x))
    >>> isinstance(adapter, Adapter)
    True
    """

    def step(self, x: Any, /) -> Prediction:
        """Predict this batch, then perhaps change the adapter's own state."""
        ...

    def reset(self) -> None:
        """Return to exactly the state after construction."""
        ...
