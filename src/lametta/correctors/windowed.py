"""Any corrector, for samples that come one by one or in batches of any size."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lametta._arrays import Floats
from lametta._checks import check_integer
from lametta._solvers.plain import has_few_neighbors
from lametta.correctors import _window
from lametta.correctors._chain import check_can_correct
from lametta.correctors._state import Remembering, State
from lametta.correctors.lame import LAME
from lametta.types import Corrector, LamettaError


@dataclass
class Windowed(Remembering):
    """Answer each sample at once, by a corrector of batches that sees the last samples with it.

    However samples arrive, one by one or in batches, each is answered with the ``size`` last ones,
    itself among them, as its batch. Answers are final: no later sample changes them.

    Parameters
    ----------
    corrector : Corrector
        What corrects a window; it must have no memory of its own. `LAME` by default.
    size : int
        How many samples a window has.

    Notes
    -----
    `LAME` with `knn` updates neighbors instead of finding them anew, and only the newest sample's
    answer is computed, in float32: it is that of `lametta.lame` on the window to the same ``tol``.
    A stream's state is the window: with ``size`` S, ``S (d + K) + 3 S^2`` numbers of four bytes and
    2 K of eight, 650 kB at S = 64, K = 1000 and d = 1280. Other correctors are called with each
    window; their state is ``S (d + K)`` numbers of eight bytes.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.1]])
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6]])
    >>> stream = Windowed(size=64)
    >>> for x, q in zip(features, probs):
    ...     print(stream.correct(x[None], q[None]).probs.round(2))
    [[0.9 0.1]]
    [[0.91 0.09]]
    [[0.81 0.19]]
    """

    corrector: Corrector = field(default_factory=LAME)
    size: int = 64

    def __post_init__(self) -> None:
        check_integer("size", self.size, 1)
        check_can_correct(self.corrector)
        if getattr(self.corrector, "stateful", False):
            raise LamettaError(
                "corrector must have no memory of its own, since it is shown each sample in many "
                f"windows, got {type(self.corrector).__name__}, which needs no window"
            )

    @property
    def _updates_neighbors(self) -> bool:
        inner = self.corrector
        return (
            type(inner) is LAME
            and has_few_neighbors(inner.affinity, inner.weight)
            and inner.affinity.method == "exact"
            and inner.tol > 0
        )

    def _begin(self, d: int, k: int) -> State:
        if self._updates_neighbors:
            return _window.begin(self.size, d, k)
        return {
            "features": np.zeros((self.size, d)),  # the newest are the last
            "probs": np.zeros((self.size, k)),
            "count": np.zeros((), np.int64),
        }

    def _advance(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        if self._updates_neighbors:
            rows, _ = super()._advance(state, features, probs)
        else:
            rows = self._slide(state, features, probs)
        return rows, {"window": min(int(state["count"]), self.size)}

    def _next(self, state: State, x: Floats, q: Floats) -> Floats:
        inner: Any = self.corrector
        if x.dtype != np.float32:  # float64, whose range is larger
            x = (x / (np.abs(x).max() or 1)).astype(np.float32)
        q = (q / q.sum()).astype(np.float32, copy=False)
        slot = _window.insert(state, x, q, inner.affinity.k, inner.weight)
        row = _window.newest(state, slot, inner.weight, inner.max_iter, inner.tol)
        if row is None:  # not converged: the answer depends on how many updates are made
            order = _window.order_of(state)
            row = inner.correct(state["features"][order], state["probs"][order]).probs[-1]
        return row

    def _slide(self, state: State, features: Floats, probs: Floats) -> Floats:
        """Call the corrector with each window; the state changes only if all go well."""
        n = min(int(state["count"]), self.size)
        joined = {
            name: np.vstack([state[name][self.size - n :].astype(new.dtype), new])
            for name, new in (("features", features), ("probs", probs))
        }
        rows = []
        for end in range(n + 1, n + len(probs) + 1):
            window = slice(max(0, end - self.size), end)
            answer = self.corrector.correct(joined["features"][window], joined["probs"][window])
            rows.append(answer.probs[-1])
        for name, every in joined.items():
            last = every[-self.size :]
            state[name][self.size - len(last) :] = last
        state["count"] += len(probs)
        return np.stack(rows)
