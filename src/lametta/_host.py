"""LAME with k nearest neighbors in host memory: the same iteration, less of it.

Two facts make it cheap. Both need weights >= 0, for which the denominator of the update, the norm
of a row, is at least 1 throughout.

**Most classes hardly move.** Let a = W q be the first exponent. In a class where a_ik <= 1/4 for
all i, no later exponent exceeds 1.43 a_ik: if that holds for one update it holds for the next,
since then z_jk <= q_jk exp(1.43 / 4), and exp(1.43 / 4) <= 1.43. So in these classes, the tail,
exp(x) may be replaced by 1 + x, and all they add to the norm of row i is one number,

    mass_i + sum_j pull_ij / norm_j,    mass_i = sum_k q_ik,    pull_ij = w_ij sum_k q_ik q_jk,

with k over the tail. What is left out, terms in q_ik a_ik^2 and q_ik a_ik max_j a_jk, is a share of
the norm that `_split` keeps below 8 ``tol``, so no update differs by more than 2 ``tol`` from the
exact one. A plain cut-off would gain nothing: real networks keep about 1e-4 on each of a thousand
classes.

**Most samples soon rest.** A sample none of whose neighbors moved has nothing to update. Before
the iteration calls itself converged, all samples are updated once more.

PyTorch's tensors are seen as NumPy arrays here: at these sizes NumPy's calls cost less, and BLAS
does products this small on one thread. A second pool of threads beside PyTorch's stalls both for
milliseconds.
"""

from typing import Any, NamedTuple

import numpy as np

from lametta.affinity import Neighbors

_UPDATES_PER_LOOK = 3  # updates between two looks at what still moves
_FEW_CLASSES = 64  # too few for a tail to pay
_CUTS = 2.0 ** -np.arange(8, dtype=np.float32)  # sizes of the tail to try, in units of tol
_ONE_THREAD = 2**20  # multiplications in a matrix product that BLAS does on one thread


class Solution(NamedTuple):
    """Assignments z [N, K] and how they came about, as in `lametta.LameResult`."""

    z: Any
    n_iter: int
    converged: bool
    energy: Any


class _Part(NamedTuple):
    """The problem for some of the samples and the classes outside the tail."""

    w: Any
    q: Any
    mass: Any
    pull: Any

    def at(self, rows: Any) -> "_Part":
        return _Part(*(None if field is None else field[rows] for field in self))


def solve(q: Any, w: Neighbors, max_iter: int, tol: float) -> Solution:
    """Iterate the update of `lametta.lame` from q [N, K] until it rests."""
    n = q.shape[0]
    a = w @ q
    head = _split(q, a, tol)
    whole = _Part(w, q, None, None)
    if head is not None:
        tail, a_tail, a = q.copy(), a, a.take(head, axis=1)
        tail[:, head] = 0
        whole = _Part(w, q.take(head, axis=1), np.einsum("ij->i", tail), _overlap(w, tail))
    if n * a.size <= _ONE_THREAD:
        dense = (None if m is None else m.dense(q.dtype) for m in (whole.w, whole.pull))
        whole = _Part(next(dense), whole.q, whole.mass, next(dense))

    z, inv_norm = whole.q, np.ones(n, q.dtype)
    part, rows, n_iter, converged = whole, None, 0, False
    while n_iter < max_iter and not converged:
        if n_iter:
            a = part.w @ z
        new = np.exp(a)
        new *= part.q
        norm = np.add.reduce(new, axis=1)
        if head is not None:
            norm += part.mass
            norm += part.pull @ inv_norm
        new /= norm[:, None]
        n_iter += 1
        look = n_iter % _UPDATES_PER_LOOK == 0 or n_iter >= max_iter - 1
        if look:
            moved = new - (z if rows is None else z[rows])
            np.abs(moved, out=moved)
        if rows is None:
            z, inv_norm, inv_norm_old = new, 1 / norm, inv_norm
        else:
            z[rows], inv_norm[rows] = new, 1 / norm
        if look:
            rests = moved.max() <= tol
            converged = bool(rests) and rows is None
            # The last update is one of all samples, whether it ends in rest or not.
            rows = None if rests or n_iter == max_iter - 1 else _awake(whole.w, rows, moved, tol)
            part = whole if rows is None else whole.at(rows)

    if n_iter == 0:
        return Solution(q, 0, False, -np.vdot(z, a) / 2)
    # log z - log q = a - log norm in every class.
    energy = np.vdot(z, a) + np.log(inv_norm).sum() - np.vdot(z, whole.w @ z) / 2
    if head is None:
        return Solution(z, n_iter, converged, energy)
    # Fresh memory would cost more than the arithmetic on it: write over what is there.
    tail *= inv_norm_old[:, None]
    _multiply(w, tail, out=a_tail)
    tail *= (inv_norm / inv_norm_old)[:, None]
    pulled = a_tail if converged else w @ tail
    energy += np.vdot(tail, a_tail) - np.vdot(tail, pulled) / 2
    a_tail += 1
    tail *= a_tail
    tail[:, head] = z
    return Solution(tail, n_iter, converged, energy)


def _split(q: Any, a: Any, tol: float) -> Any:
    """Indices of the classes to iterate on; None for all."""
    n_classes = q.shape[1]
    if n_classes <= _FEW_CLASSES:
        return None
    top = a.max(axis=0)
    cost = top * (1.5 + 7 * top)
    share = q * a
    reach = share.max(axis=0) * cost
    reach[top > 0.25] = np.inf
    # The larger the tail the better: the first cut that keeps the promise wins.
    tails = reach[:, None] <= _CUTS * tol
    left_out = (share @ np.where(tails, cost[:, None], q.dtype.type(0))).max(axis=0)
    kept = np.flatnonzero(left_out <= 8 * tol)
    if kept.size == 0:
        return None
    head = np.flatnonzero(~tails[:, kept[0]])
    return head if 0 < head.size <= n_classes // 2 else None


def _overlap(w: Neighbors, tail: Any) -> Neighbors:
    """w_ij sum_k tail_ik tail_jk for each pair of neighbors."""
    if tail.shape[0] <= 128:
        overlap = np.take_along_axis(tail @ tail.T, w.index, axis=1)
    else:
        columns = [np.einsum("ij,ij->i", tail, tail.take(column, axis=0)) for column in w.index.T]
        overlap = np.stack(columns, axis=1)
    return Neighbors(w.index, w.value * overlap)


def _multiply(w: Neighbors, z: Any, out: Any) -> None:
    np.take(z, w.index[:, 0], axis=0, out=out, mode="clip")
    for column in w.index.T[1:]:
        out += z.take(column, axis=0)
    out *= w.value


def _awake(w: Any, rows: Any, moved: Any, tol: float) -> Any:
    """Indices of the samples with a neighbor that moved; None for all."""
    if not isinstance(w, Neighbors):
        return None
    moving = np.zeros(w.index.shape[0], dtype=bool)
    moving[slice(None) if rows is None else rows] = moved.max(axis=1) > tol / 8
    awake = np.flatnonzero(moving[w.index].any(axis=1))
    return awake if awake.size else None
