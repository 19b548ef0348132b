"""Adapters that change nothing in the model: the baseline, and a corrector on top of anything."""

from dataclasses import dataclass
from typing import Any, ClassVar

from lametta._arrays import namespace_of, softmax, widen
from lametta.signals import signals
from lametta.types import Adapter, Corrector, LamettaError, Model, Output, Prediction


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

    def step(self, x: Any, /) -> Prediction:
        """Predict one batch."""
        output = self.model(x)
        if not isinstance(output, Output):
            raise LamettaError(f"model must return lametta.Output, got {type(output).__name__}")
        xp = namespace_of(output.logits)
        probs = softmax(xp, widen(xp, output.logits))
        probs = xp.astype(probs, output.logits.dtype, copy=False)
        return Prediction(probs, output.features, signals(probs))

    def reset(self) -> None:
        """Do nothing: there is no state."""


@dataclass
class Corrected:
    """A corrector on top of a frozen model, or of another adapter.

    Parameters
    ----------
    base : Model or Adapter
        What gives features and probabilities.
    corrector : Corrector
        What corrects them.

    Notes
    -----
    The diagnostics of the base are kept in ``Prediction.info`` with ``base_`` before their names.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta import LAME
    >>> model = lambda x: Output(features=x, logits=x @ np.eye(2))
    >>> adapter = Corrected(model, LAME())
    >>> prediction = adapter.step(np.array([[2.0, 0.0], [1.9, 0.0], [0.9, 1.0]]))
    >>> prediction.probs.argmax(axis=1)
    array([0, 0, 0])
    >>> sorted(prediction.info)[:3]
    ['base_diversity', 'base_entropy', 'changed']
    """

    base: Model | Adapter
    corrector: Corrector

    def step(self, x: Any, /) -> Prediction:
        """Predict one batch and correct the prediction."""
        base = self.base if isinstance(self.base, Adapter) else Source(self.base)
        before = base.step(x)
        if before.features is None:
            raise LamettaError("base must give features with its predictions, got None")
        after = self.corrector.correct(before.features, before.probs)
        info = {f"base_{name}": value for name, value in before.info.items()}
        return Prediction(after.probs, after.features, info | dict(after.info))

    def reset(self) -> None:
        """Reset the base, where it has state, and the corrector."""
        if isinstance(self.base, Adapter):
            self.base.reset()
        self.corrector.reset()
