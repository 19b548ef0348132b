"""Source and Corrected: adapters that leave the network as it is, and pass on traits."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, cast

from lametta._arrays import check_classes, namespace_of, softmax, widen
from lametta._locks import FairLock
from lametta.correctors.base import (
    Composite,
    checked_prediction,
    give_prototypes,
    is_stateful,
    wants_prototypes,
)
from lametta.correctors.streams import Streams
from lametta.signals import signals
from lametta.types import (
    DEFAULT,
    Adapter,
    Array,
    Corrector,
    Id,
    LamettaError,
    Model,
    Output,
    Prediction,
    Prototypes,
    Stateful,
)


@dataclass
class Source:
    """The frozen model's own predictions: the baseline.

    Parameters
    ----------
    model : Model
        A callable from inputs to `Output`.

    Examples
    --------
    >>> import numpy as np
    >>> adapter = Source(lambda x: Output(features=x, logits=x @ np.eye(2)))
    >>> adapter.step(np.array([[0.0, 1.0]])).probs.round(2)
    array([[0.27, 0.73]])
    """

    model: Model

    needs_network: ClassVar[bool] = False  # outputs of any model will do
    stateful: ClassVar[bool] = False
    causal: ClassVar[bool] = True
    passes: ClassVar[tuple[float, float] | None] = (1, 0)

    def step(self, x: Any, /) -> Prediction:
        """Predict one batch."""
        output = self.model(x)
        if not isinstance(output, Output):
            raise LamettaError(f"model must return lametta.Output, got {type(output).__name__}")
        xp = namespace_of(output.logits)
        check_classes("logits", output.logits)
        probs = softmax(xp, widen(xp, output.logits))
        probs = xp.astype(probs, output.logits.dtype, copy=False)
        return Prediction(probs, output.features, signals(probs), returned=output.returned)

    def reset(self) -> None:
        """Do nothing: there is no state."""


@dataclass
class Corrected(Composite):
    """A corrector on top of a frozen model, or of another adapter.

    Threads may share it. Forward passes run side by side, but for a base that remembers, too; a
    corrector that remembers is called for one of them at a time, in the order in which they came.

    Parameters
    ----------
    base : Model or Adapter
        What gives features and probabilities.
    corrector : Corrector or Streams
        What corrects them. One that needs prototypes and has none is given those of the model.

    Notes
    -----
    Its traits are those of base and corrector: it is ``ordered`` or ``stateful`` where either is,
    ``causal`` where both are.

    The diagnostics of the base are kept in ``Prediction.info`` with ``base_`` before their names,
    and its probabilities in ``Prediction.source``.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta import LAME
    >>> model = lambda x: Output(features=x, logits=x @ np.eye(2))
    >>> adapter = Corrected(model, LAME())
    >>> prediction = adapter.step(np.array([[2.0, 0.0], [1.9, 0.0], [0.9, 1.0]]))
    >>> prediction.probs.argmax(axis=1), prediction.source.argmax(axis=1)
    (array([0, 0, 0]), array([0, 0, 1]))
    >>> sorted(prediction.info)[:3]
    ['base_diversity', 'base_entropy', 'changed']
    """

    base: Model | Adapter
    corrector: Corrector | Streams
    _streams: Streams | None = field(default=None, init=False, repr=False, compare=False)
    _lock: FairLock = field(default_factory=FairLock, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if wants_prototypes(self.corrector):
            name = type(self.base).__name__
            source = f"{name}, which has no prototypes; give the corrector some by its use()"
            give_prototypes(self.corrector, prototypes_of(self.base), source)

    def _held(self) -> tuple[Corrector | Adapter, ...]:
        corrector = cast(Corrector, self.corrector)
        return (self.base, corrector) if isinstance(self.base, Adapter) else (corrector,)

    def step(self, x: Any, /, *, stream: Id | Sequence[Id] | Array | None = None) -> Prediction:
        """Predict one batch and correct the prediction.

        ``stream`` says whose samples these are, one id for all or one for each, as for
        `lametta.Streams`: each stream has a copy of the corrector, and a base that remembers has to
        keep streams apart, too, as `lametta.torch.HalfBN` does. Without it, all samples are one
        stream's.
        """
        if isinstance(self.corrector, Streams) and stream is None:
            stream = DEFAULT
        if stream is not None:
            return self._step_streams(x, stream)
        corrector = cast(Corrector, self.corrector)
        remembers = is_stateful(corrector)
        # Where both remember, they see the batches in one order.
        alone = remembers and isinstance(self.base, Adapter) and is_stateful(self.base)
        with self._lock.queue() as turn:  # here, and not when a pass is done: passes may overtake
            if alone:
                turn.wait()
            before = self._before(x)
            if remembers and not alone:
                turn.wait()
            after = corrector.correct(before.features, before.probs)
            return _joined(before, checked_prediction(after, corrector))

    def _step_streams(self, x: Any, stream: Any) -> Prediction:
        streams = self.streams
        remembers = self._remembers_below
        of = {"stream": stream} if remembers and self.by_stream else {}
        # Base and corrector see a stream's batches in one order.
        with self._lock if remembers else nullcontext():
            before = self._before(x, **of)
            return _joined(before, streams.correct(before.features, before.probs, stream))

    @property
    def _remembers_below(self) -> bool:
        return isinstance(self.base, Adapter) and is_stateful(self.base)

    @property
    def by_stream(self) -> bool:
        """Whether it keeps streams apart: a base that remembers has to do so, too."""
        return not self._remembers_below or bool(getattr(self.base, "by_stream", False))

    @property
    def streams(self) -> Streams:
        """The memories of streams by id, for calls that say whose samples they bring."""
        if isinstance(self.corrector, Streams):
            return self.corrector
        if not self.by_stream:
            raise LamettaError(
                f"stream must be left out, since {type(self.base).__name__} under the corrector "
                "remembers all samples together, got ids of streams"
            )
        with self._lock:
            if self._streams is None:
                self._streams = Streams(self.corrector)
            return self._streams

    def reset(self) -> None:
        """Reset the base, where it has state, and the corrector; forget all streams."""
        if isinstance(self.base, Adapter):
            self.base.reset()
        with self._lock:
            self.corrector.reset()
            if self._streams is not None:
                self._streams.reset()

    def state_dict(self) -> dict[str, Array]:
        """Give a copy of what is remembered, by a base that can be stored, too: arrays by name."""
        held = {"base": self._stored_base(), "corrector": self.corrector, "streams": self._streams}
        return {
            f"{part}.{name}": array
            for part, one in held.items()
            if isinstance(one, Stateful) or (part == "base" and one is not None)
            for name, array in one.state_dict().items()
        }

    def load_state_dict(self, state: Mapping[str, Array], /) -> None:
        """Continue from what `state_dict` gave."""
        parts: dict[str, dict[str, Array]] = {"base": {}, "corrector": {}, "streams": {}}
        for key, array in state.items():
            part, _, name = key.partition(".")
            if part not in parts:
                raise LamettaError(f"state must have names of corrector or streams, got {key!r}")
            parts[part][name] = array
        base = self._stored_base()
        if base is None and parts["base"]:
            got = ", ".join(parts["base"])
            raise LamettaError(f"state must hold none of {type(self.base).__name__}, got {got}")
        if isinstance(self.corrector, Stateful):
            self.corrector.load_state_dict(parts["corrector"])
        elif parts["corrector"]:
            raise LamettaError(
                f"state must be empty for {type(self.corrector).__name__}, which remembers "
                f"nothing, got {', '.join(parts['corrector'])}"
            )
        if parts["streams"] or self._streams is not None:
            self.streams.load_state_dict(parts["streams"])
        if base is not None:
            base.load_state_dict(parts["base"])

    def _stored_base(self) -> Any:
        """The base, where it is an adapter whose state can be stored as arrays."""
        can_be = isinstance(self.base, Adapter) and hasattr(self.base, "state_dict")
        return self.base if can_be else None

    def _before(self, x: Any, **of: Any) -> Prediction:
        base = self.base if isinstance(self.base, Adapter) else Source(self.base)
        before = checked_prediction(base.step(x, **of), base)
        if before.features is None:
            raise LamettaError("base must give features with its predictions, got None")
        return before


def prototypes_of(base: object) -> Prototypes | None:
    """The prototypes of a model, also under adapters; None where it has none to give."""
    while True:
        found = getattr(base, "prototypes", None)
        if isinstance(found, Prototypes):
            return found
        if not isinstance(base, Adapter):
            return None
        base = getattr(base, "model", getattr(base, "base", None))


def _joined(before: Prediction, after: Prediction) -> Prediction:
    info = {f"base_{name}": value for name, value in before.info.items()}
    source = before.probs if before.source is None else before.source
    return replace(after, info=info | dict(after.info), source=source, returned=before.returned)
