"""LAME with k nearest neighbors in host memory: the same iteration, less of it.

**Most classes hardly matter.** A class that no sample finds likely, one of the *tail*, has
exponents a = W z near 0. What the tail adds to the denominator of the update, the norm, is one
number for each sample, its mass sum_k q_ik exp(a_ik), and it need not follow every update: it
starts from a = 0, and `_Tail.refresh` computes it anew, mostly once. The iteration is on the other
classes, the *head*. A plain cut-off would gain nothing: real networks keep about 1e-4 on each of a
thousand classes.

How wrong the mass can be is known when it matters, at the end. A refresh takes q_ik / norm'_i for
z_ik in the tail, which is q_ik exp(a_ik) / norm_i by now. In class k they differ by no more than a
share

    change_k = max_i |exp(a_ik) norm'_i / norm_i - 1|,

and so do the exponents, as W >= 0. The norm of sample i is then wrong by no more than a share

    sum_k q_ik exp(a_ik) a_ik change_k exp(change_k max_j a_jk) / norm_i.

It is of second order in the exponents: a refresh sends classes whose exponents are not that small
to the head. Where it is at most 4 ``tol`` in the end, the last update is within 4 ``tol`` of the
exact one; where it is not, another refresh follows, which keeps fewer classes, and the iteration
goes on. A run that ``max_iter`` cuts short may be off by more, up to 1e-3 on real networks, since
its path began with another mass; where few updates are allowed there is no tail.

**Most samples soon rest.** A sample none of whose neighbors moved has nothing to update. Before
the iteration calls itself converged, all samples are updated once more.

**Fresh memory costs more than the arithmetic on it**, so that calls write over what the calls
before them left. PyTorch's tensors are seen as NumPy arrays here: at these sizes NumPy's calls cost
less, and BLAS does products this small on one thread. A second pool of threads beside PyTorch's
stalls both for milliseconds.
"""

import math
import threading
from typing import Any, NamedTuple

import numpy as np

from lametta.affinity import Neighbors

_FIRST_LOOK = 3  # after how many updates to look at what still moves
_UPDATES_PER_LOOK = 4  # from then on; a look costs as much as an update
_UPDATES_PER_CHEAP_LOOK = 2  # in small batches, where all samples are updated until the end
_FEW_CLASSES = 64  # too few for a tail to pay
_FEW_UPDATES = 20  # too few for a tail to be right in the end
_LIKELY = 0.15  # a class whose exponents may begin above this is not of the tail
_IGNORED = 0.03  # the most of a norm, on average, that the tail may get wrong at first
_FIRST_REFRESH = 2e-3  # of the tail: once z moves by no more than this
_LIMIT = 0.02  # of the exponents that the first refresh leaves in the tail
_ONE_THREAD = 2**20  # multiplications in a matrix product that BLAS does on one thread
_ONE_THREAD_DOT = 2**13  # the same for a matrix and a vector
_BLOCK = 2**16  # entries that are worked on at a time: they fit a processor's own cache
_KEPT = 2**19  # entries of an array that is kept for the next call


class Solution(NamedTuple):
    """Assignments z [N, K] and how they came about, as in `lametta.LameResult`."""

    z: Any
    n_iter: int
    converged: bool
    energy: Any


class _Scratch(threading.local):
    """Arrays by name, with whatever was in them, in memory that the calls of a thread share."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
        size = math.prod(shape)
        if size > _KEPT:
            return np.empty(shape, dtype)
        held = self.held.get(name)
        if held is None or held.size < size or held.dtype != dtype:
            held = self.held[name] = np.empty(size, dtype)
        return held[:size].reshape(shape)


scratch = _Scratch()


class _Tail:
    """The classes outside the head, as the module's docstring has it.

    Columns of the head are in its arrays too, since to leave them out would cost a copy; they
    count for nothing.
    """

    scaled: Any  # q exp(a), of the last refresh
    exponents: Any  # q exp(a) a
    top: Any  # the largest exponent of each class
    norm: Any

    def __init__(self, q: Any, w: Neighbors, head: Any) -> None:
        self.q, self.w = q, w
        self.member = np.ones(q.shape[1], q.dtype)
        self.member[head] = 0
        self.mass = np.vecdot(q, self.member)
        self.limit = _LIMIT
        self.fresh = False  # until the first refresh

    def refresh(self, norm: Any) -> Any:
        """Compute the mass from the exponents of now; the classes that leave the tail."""
        q, (n, n_classes) = self.q, self.q.shape
        z = np.multiply(q, (self.w.value / norm)[:, None], out=scratch("tail z", q.shape, q.dtype))
        if not self.fresh:
            self.scaled = np.empty_like(q)  # to be the result
        self.exponents = scratch("exponents", q.shape, q.dtype)
        self.top, self.norm, self.fresh = np.zeros(n_classes, q.dtype), norm.copy(), True
        block = max(1, _BLOCK // n_classes)
        for start in range(0, n, block):
            rows = slice(start, start + block)
            index = self.w.index[rows]
            a = scratch("tail a", (len(index), n_classes), q.dtype)
            _gather(z, index, a)
            np.maximum(self.top, a.max(axis=0), out=self.top)
            np.exp(a, out=self.scaled[rows])
            self.scaled[rows] *= q[rows]
            np.multiply(self.scaled[rows], a, out=self.exponents[rows])
        joining = np.flatnonzero(self.member * self.top > self.limit)
        self.member[joining] = 0
        self.limit /= 4
        self.mass = np.vecdot(self.scaled, self.member)
        return joining

    def is_due(self, most: float, left: int) -> bool:
        """Whether z, which moves by ``most``, is near enough its end for the first refresh."""
        return not self.fresh and (most <= _FIRST_REFRESH or left == 1)

    def is_right(self, norm: Any, tol: float) -> bool:
        """Whether an update with this tail is within 4 ``tol`` of the exact one."""
        return self.fresh and bool(self.wrong(norm) <= 4 * tol)

    def wrong(self, norm: Any) -> Any:
        """Bound of the share by which any sample's norm is wrong."""
        ratio = self.norm / norm
        change = np.maximum(np.exp(self.top) * ratio.max() - 1, 1 - ratio.min()) * self.member
        return (np.vecdot(self.exponents, change * np.exp(change * self.top)) / norm).max()


class _Part:
    """The samples that are updated, all or some of them, with what their update needs."""

    def __init__(self, w: Any, q: Any, mass: Any, rows: Any = None) -> None:
        self.rows = rows  # None for all
        if rows is not None:
            w, q, mass = w[rows], q.take(rows, axis=0), mass[rows]
        self.w, self.q, self.mass = w, q, mass
        self.ones = np.ones(q.shape[1], q.dtype)
        self.sums = np.dot if q.size <= _ONE_THREAD_DOT else np.vecdot  # both faster than a sum
        self.a = scratch("a", q.shape, q.dtype)

    def update(self, z: Any, out: Any) -> Any:
        """Write new rows of z; their norm. The exponents stay in ``a``."""
        _product(self.w, z, self.a)
        np.exp(self.a, out=out)
        out *= self.q
        norm = self.sums(out, self.ones)
        norm += self.mass
        out /= norm[:, None]
        return norm


def solve(q: Any, w: Neighbors, max_iter: int, tol: float) -> Solution:
    """Iterate the update of `lametta.lame` from q [N, K] until it rests."""
    if max_iter == 0:
        return Solution(q, 0, False, -np.vecdot(q, w @ q).sum() / 2)
    head = None if max_iter <= _FEW_UPDATES else _head(q, w)
    tail = None if head is None else _Tail(q, w, head)
    z = q.copy() if head is None else q.take(head, axis=1)
    part = whole = _whole(q, w, head, tail)
    spare = np.empty_like(z)
    n_iter, next_look, converged = 0, min(_FIRST_LOOK, max_iter), False
    while n_iter < max_iter and not converged:
        new = spare if part is whole else spare[: len(part.mass)]
        new_norm = part.update(z, new)
        n_iter += 1
        look = n_iter == next_look
        if look:
            moved = new - (z if part is whole else z[part.rows])
        if part is whole:
            z, spare, norm = new, z, new_norm
        else:
            z[part.rows], norm[part.rows] = new, new_norm
        if not look:
            continue

        wait = _UPDATES_PER_LOOK if whole.w is w else _UPDATES_PER_CHEAP_LOOK
        left = max_iter - n_iter
        most = np.abs(moved).max(initial=0)
        at_rest = part is whole and most <= tol
        if at_rest and (tail is None or tail.is_right(norm, tol)):
            converged = True
        elif tail is not None and left and (at_rest or tail.is_due(most, left)):
            joining = tail.refresh(norm)
            head = np.concatenate([head, joining])
            z = np.concatenate([z, tail.scaled.take(joining, axis=1) / norm[:, None]], axis=1)
            part = whole = _whole(q, w, head, tail)
            spare = np.empty_like(z)
            wait = 1
        elif most <= tol:
            part, wait = whole, 1  # it ends with an update of all samples
        elif whole.w is w:
            rows = _awake(w, part.rows, np.vecdot(moved, moved) > (tol / 8) ** 2)
            some = 0 < rows.size <= 0.8 * len(norm)  # to pick out nearly all would not pay
            part = _Part(w, whole.q, whole.mass, rows) if some else whole
            if most <= 20 * tol and 4 * len(part.mass) > len(norm):
                wait = 1  # a look costs much less than an update of many
        if left <= wait + 1:  # there is a look before the last update, and that is one of all
            part, wait = whole, max(left - 1, 1)
        next_look = n_iter + wait

    # log z - log q = a - log norm in every class.
    energy = np.vecdot(z, part.a).sum() - np.log(norm).sum()
    energy -= np.vecdot(z, part.a if converged else _product(whole.w, z, part.a)).sum() / 2
    if tail is None:
        return Solution(z, n_iter, converged, energy)
    energy += (np.vecdot(tail.exponents, tail.member) / norm).sum() / 2
    tail.scaled *= (1 / norm)[:, None]
    tail.scaled[:, head] = z
    return Solution(tail.scaled, n_iter, converged, energy)


def _head(q: Any, w: Neighbors) -> Any:
    """Indices of the classes to begin with; None for all."""
    n, n_classes = q.shape
    if n_classes <= _FEW_CLASSES:
        return None
    # No exponent begins above its k neighbors' largest q, nor above the sum of all samples' q.
    total = q.sum(axis=0)
    begin = np.minimum(q.max(axis=0) * w.index.shape[1], total) * w.value
    head = np.flatnonzero(begin > _LIKELY)
    ignored = begin @ total - begin[head] @ total[head]
    # Soft predictions are mostly tail, and would be led astray before its mass is right.
    return head if head.size <= n_classes // 2 and ignored <= _IGNORED * n else None


def _whole(q: Any, w: Neighbors, head: Any, tail: _Tail | None) -> _Part:
    """All samples, in the classes of the head."""
    if head is not None:
        q = q.take(head, axis=1)
    n, n_classes = q.shape
    mass = np.zeros(n, q.dtype) if tail is None else tail.mass
    is_small = n * n * max(n_classes, 1) <= _ONE_THREAD
    return _Part(w.dense(q.dtype) if is_small else w, q, mass)


def _product(w: Any, z: Any, out: Any) -> Any:
    """W z."""
    if not isinstance(w, Neighbors):
        return np.matmul(w, z, out=out)
    _gather(z, w.index, out)
    return out if w.value == 1 else np.multiply(out, w.value, out=out)


def _gather(z: Any, index: Any, out: Any) -> None:
    """Write the sum of the rows of z that each row of ``index`` names."""
    if index.shape[1] == 0:
        out[:] = 0
        return
    # NumPy would go through a copy unless told that it need not check the indices.
    z.take(index[:, 0], axis=0, out=out, mode="clip")
    spare = scratch("spare", out.shape, z.dtype)
    for column in range(1, index.shape[1]):
        out += z.take(index[:, column], axis=0, out=spare, mode="clip")


def _awake(w: Neighbors, rows: Any, moved: Any) -> Any:
    """Indices of the samples with a neighbor that moved."""
    moving = np.zeros(w.index.shape[0], dtype=bool)
    moving[slice(None) if rows is None else rows] = moved
    return np.flatnonzero(moving.take(w.index.T).any(axis=0))
