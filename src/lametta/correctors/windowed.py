"""Windowed: a batch corrector on a sliding window; LAME incrementally."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats, top_k, unit_rows
from lametta._checks import check_integer
from lametta._locks import check_interrupt
from lametta._solvers.plain import has_few_neighbors
from lametta.correctors.base import (
    Invariant,
    State,
    StatefulCorrector,
    any_finite,
    check_can_correct,
    checked_prediction,
    distribution,
    filled,
    is_stateful,
    unit_or_zero,
    within,
)
from lametta.correctors.lame import LAME
from lametta.types import Corrector, LamettaError, Prototypes, UsesPrototypes

_FEW_CLASSES = 64  # too few for a tail to pay
_SHARED = 10  # times tol, the largest second-order term of a class in the tail
_NONE = -2  # less than any cosine
_AT_REST = 10  # times tol, the most that neighbors may move while the newest sample is at rest


@dataclass
class Windowed(StatefulCorrector):
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
        if is_stateful(self.corrector):
            raise LamettaError(
                "corrector must have no memory of its own, since it is shown each sample in many "
                f"windows, got {type(self.corrector).__name__}, which needs no window"
            )

        # The window is the batch that it needs.
        needs = frozenset(getattr(self.corrector, "needs", ())) - {"batch"}
        self.needs = needs  # type: ignore[misc]
        self.takes = getattr(self.corrector, "takes", frozenset())  # type: ignore[misc]
        self.prototypes = getattr(self.corrector, "prototypes", None)

    def use(self, prototypes: Prototypes, /) -> None:
        """Give prototypes to the corrector; forget all samples."""
        super().use(prototypes)
        cast(UsesPrototypes, self.corrector).use(prototypes)

    @property
    def _updates_neighbors(self) -> bool:
        inner = self.corrector
        return (
            type(inner) is LAME
            and has_few_neighbors(inner.affinity, inner.weight)
            and inner.affinity.method == "exact"
            and inner.tol > 0
        )

    def init_state(self, d: int, k: int) -> State:
        if self._updates_neighbors:
            return _init_window(self.size, d, k)
        return {
            "features": filled((self.size, d)),  # the newest are the last
            "probs": filled((self.size, k)),
            "count": np.zeros((), np.int64),
        }

    def invariants(self) -> Mapping[str, Invariant]:
        if not self._updates_neighbors:
            used = distribution(lambda state: slice(max(self.size - int(state["count"]), 0), None))
            return {"count": within(0), "features": any_finite(), "probs": within(0, 1.01) & used}
        inner: Any = self.corrector
        return _window_invariants(inner.affinity.k, inner.weight)

    def update(
        self, state: State, features: Floats, probs: Floats
    ) -> tuple[Floats, dict[str, float]]:
        if self._updates_neighbors:
            rows, _ = super().update(state, features, probs)
        else:
            rows = self._slide(state, features, probs)
        return rows, {"window": min(int(state["count"]), self.size)}

    def update_one(self, state: State, x: Floats, q: Floats) -> Floats:
        inner: Any = self.corrector
        if x.dtype != np.float32:  # float64, whose range is larger
            x = (x / (np.abs(x).max() or 1)).astype(np.float32)
        q = (q / q.sum()).astype(np.float32, copy=False)
        slot = _insert(state, x, q, inner.affinity.k, inner.weight)
        row = _solve_newest(state, slot, inner.weight, inner.max_iter, inner.tol)
        if row is None:  # not converged: the answer depends on how many updates are made
            order = _by_age(state)
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
            check_interrupt()
            window = slice(max(0, end - self.size), end)
            answer = self.corrector.correct(joined["features"][window], joined["probs"][window])
            rows.append(checked_prediction(answer, self.corrector).probs[-1])
        for name, every in joined.items():
            last = every[-self.size :]
            state[name][self.size - len(last) :] = last
        state["count"] += len(probs)
        return np.stack(rows)


def _init_window(size: int, d: int, k: int) -> State:
    """The state of LAME on an empty window, which is a ring buffer."""
    return {
        "features": filled((size, d), 0, np.float32),  # of length 1
        "probs": filled((size, k), 0, np.float32),
        "cosine": filled((size, size), _NONE, np.float32),  # of features
        "overlap": filled((size, size), 0, np.float32),  # inner products of probabilities
        "weights": filled((size, size), 0, np.float32),  # W
        "kth_cosine": filled(size, _NONE, np.float32),  # to the k-th neighbor
        # Sums over samples i, and over pairs i and j, class by class: q_i, q_i^2, and q_i q_j^2.
        "total": filled(k),
        "squares": filled(k),
        "shared": filled(k),
        "count": np.zeros((), np.int64),  # of all samples so far
    }


def _window_invariants(k: int, weight: float) -> dict[str, Invariant]:
    """What holds of that state: what was computed from the window fits it."""

    def are_neighbors(w: NDArray[Any], state: State) -> bool:
        is_weight = (w == 0) | (w == np.float32(weight))
        return bool(is_weight.all() and ((w != 0).sum(axis=1) <= k).all())

    def are_products(overlap: NDArray[Any], state: State) -> bool:
        n, q = min(int(state["count"]), len(overlap)), state["probs"]
        return bool((abs(overlap - q @ q.T)[:n, :n] <= 1e-3).all())

    def are_sums(kept: NDArray[Any], sums: Floats) -> bool:
        return bool((abs(kept - sums) <= 1e-3).all())

    used = distribution(lambda state: slice(int(state["count"])))
    return {
        "count": within(0),
        "features": unit_or_zero(),
        "probs": within(0, 1.01) & used,
        "cosine": within(_NONE, 1.01),
        "overlap": Invariant("the inner products of probs", are_products),
        "weights": Invariant(f"{weight:g} for at most {k} neighbors, else 0", are_neighbors),
        "kth_cosine": within(_NONE, 1.01),
        "total": Invariant(
            "the sums of probs", lambda x, state: are_sums(x, state["probs"].sum(axis=0))
        ),
        "squares": Invariant(
            "the sums of their squares",
            lambda x, state: are_sums(x, (state["probs"] ** 2).sum(axis=0)),
        ),
        "shared": within(-1),
    }


def _by_age(state: State) -> NDArray[np.intp]:
    """The places of the window's samples, the oldest first."""
    size, count = len(state["weights"]), int(state["count"])
    n = min(count, size)
    return (np.arange(n) + count) % n if n else np.arange(0)


def _insert(state: State, x: Floats, q: Floats, k: int, weight: float) -> int:
    """Put a sample in the place of the oldest one, and update who is whose neighbor.

    The inner products of the newest sample with the others are one row. Neighbors change only where
    the sample that leaves was one, or the new one is nearer than the last of them.
    """
    slot = int(state["count"]) % len(state["weights"])
    state["count"] += 1
    order = _by_age(state)
    n = len(order)
    _count_in(state, slot, q)
    features, cosine = state["features"][:n], state["cosine"][:n, :n]
    features[slot] = x = _unit(x)
    # No matrix product, whose rounding may depend on the row: exact duplicates must tie.
    near = np.vecdot(features, x)
    if not near.all():
        near = _with_zeros(features, x, near)
    w, kth_cosine = state["weights"], state["kth_cosine"]
    reaches = (w[:n, slot] > 0) | (near > kth_cosine[:n])
    reaches[slot] = True
    cosine[slot] = cosine[:, slot] = near
    cosine[slot, slot] = _NONE
    rows = np.flatnonzero(reaches)[:, None]
    w[rows[:, 0]] = 0
    m = min(k, n - 1)
    if m:
        # In the order of time, so that of equally near samples the older is taken, as `knn` does.
        found = order[top_k(np, cosine[rows, order], m)]
        w[rows, found] = weight
        if m == k:
            kth_cosine[rows[:, 0]] = cosine[rows, found].min(axis=1)
    return slot


def _count_in(state: State, slot: int, q: Floats) -> None:
    probs, total, squares, shared = (
        state[name] for name in ("probs", "total", "squares", "shared")
    )
    old = probs[slot].astype(float)
    square = old * old
    total -= old
    squares -= square
    shared -= old * squares + square * total
    probs[slot] = q
    new = q.astype(float)
    square = new * new
    shared += new * squares + square * total
    total += new
    squares += square
    n = min(int(state["count"]), len(probs))
    state["overlap"][slot, :n] = state["overlap"][:n, slot] = np.vecdot(probs[:n], q)


def _unit(x: Floats) -> Floats:
    norm = float(np.sqrt(x @ x))
    return x / norm if 1e-15 < norm < 1e15 else cast(Floats, unit_rows(np, x[None])[0])


def _with_zeros(features: Floats, x: Floats, near: Floats) -> Floats:
    """A row of zeros is at distance 1 from all others, as are rows whose cosine is 1/2."""
    zero = ~features.any(axis=1)
    if x.any():
        return np.where(zero, np.float32(0.5), near)
    return np.where(zero, np.float32(1), np.float32(0.5))


def _solve_newest(
    state: State, slot: int, weight: float, max_iter: int, tol: float
) -> Floats | None:
    """LAME on the window, for the newest sample alone: its row [K]; None if it does not converge.

    The updates start from z = q in each window, as those of `lametta.lame` do: started from where
    the window before ended, they could end in another fixed point. Three things make them cheap:

    - **classes**: those that hardly two samples share, the *tail*, take part only through their
      mass in the norms (the denominators). To first order in its exponents, that of sample i is

          sum_k q_ik + sum_j w_ij sum_k q_ik q_jk / norm_j        over the classes k of the tail,

      whose inner products q_i.q_j are kept like those of features;
    - **samples**: the updates end when the newest sample and its neighbors are at rest, whatever
      the rest of the window does;
    - **the last two updates**, on all classes, are of those few samples alone.
    """
    n = min(int(state["count"]), len(state["weights"]))
    q, w = state["probs"][:n], state["weights"][:n, :n]
    near = np.flatnonzero(w[slot])
    if near.size == 0:
        return cast(Floats, q[slot].copy())
    head = _head(state, weight, tol)
    solved = _iterate(q.take(head, axis=1), w, state["overlap"][:n, :n], slot, near, max_iter, tol)
    if solved is None:
        return None
    z, scale = solved
    ones = np.ones(q.shape[1], q.dtype)
    w_near = w[near]
    a = (w_near * scale) @ q
    a[:, head] = w_near @ z
    a = _updated(a, q[near], ones)
    return _updated(w[slot, near] @ a, q[slot], ones)


def _head(state: State, weight: float, tol: float) -> NDArray[np.intp]:
    """The classes whose exponents matter to the norms beyond the first order.

    The second order in class k is sum_ik q_ik a_ik^2 / 2, where a_ik is a sum of some q_jk.
    """
    shared = state["shared"]
    if len(shared) <= _FEW_CLASSES:
        return np.arange(len(shared))
    return np.flatnonzero(shared * weight**2 > _SHARED * tol)


def _updated(a: Floats, q: Floats, ones: Floats) -> Floats:
    """Rows q exp(a), scaled to sum 1."""
    np.exp(a, out=a)
    a *= q
    a /= np.dot(a, ones)[..., None]
    return a


def _iterate(
    q: Floats,
    w: Floats,
    overlap: Floats,
    slot: int,
    near: NDArray[np.intp],
    max_iter: int,
    tol: float,
) -> tuple[Floats, Floats] | None:
    """Give z in the classes of the head, and 1 / norm, once the newest sample is at rest."""
    ones = np.ones(q.shape[1], q.dtype)
    rest = 1 - np.dot(q, ones)
    shared = w * (overlap - np.dot(q, q.T))
    z, new, spare, a = q, np.empty_like(q), np.empty_like(q), np.empty_like(q)
    scale, mass, before, looked = np.ones(len(q), q.dtype), rest, 1.0, 0
    for n_iter in range(1, max_iter - 1):
        look = n_iter == 1 or n_iter % 2 == 0
        if look:  # as often as need be: it changes little
            mass = np.dot(shared, scale)
            mass += rest
        np.dot(w, z, out=a)
        np.exp(a, out=new)
        new *= q
        norm = np.dot(new, ones)
        norm += mass
        scale = 1 / norm
        new *= scale[:, None]
        if look:
            moved = float(abs(new[slot] - z[slot]).max(initial=0))
            # What is left after the two updates that follow, if moves shrink as they do now.
            ratio = min((moved / before) ** (1 / (n_iter - looked)), 0.999) if before else 0.0
            if (
                moved * ratio**3 <= (1 - ratio) * tol
                and abs(new[near] - z[near]).max(initial=0) <= _AT_REST * tol
            ):
                return new, scale
            before, looked = moved, n_iter
        z, new, spare = new, spare, new
    return None
