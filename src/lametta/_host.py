"""LAME with k nearest neighbors in host memory: the same iteration, less of it.

**Most classes hardly matter.** A class that no sample finds likely, one of the *tail*, has
exponents a = W z near 0. What the tail adds to the denominator of the update, the norm, is one
number for each sample, its mass sum_k q_ik exp(a_ik), and it need not follow every update: it
starts from a = 0, and `_Tail.refresh` computes it anew, at least once. The iteration is on the
other classes, the *head*. A plain cut-off would gain nothing: real networks keep about 1e-4 on each
of a thousand classes.

How wrong the mass can be is known when it matters, at the end. The z_ik of the tail are now
q_ik exp(a_ik) / norm_i, with a of the last refresh; a was computed from such z, with a' and norm'
of that time. In class k they have thus changed since by no more than a share

    change_k = max_i |exp(a_ik - a'_ik) norm'_i / norm_i - 1|,

and so have the exponents, as W >= 0. The norm of sample i is then wrong by no more than a share

    sum_k q_ik exp(a_ik) a_ik change_k exp(change_k max_j a_jk) / norm_i.

Where that is at most 4 ``tol``, the last update is within 4 ``tol`` of the exact one; where it is
not, another refresh follows and the iteration goes on. A run that ``max_iter`` cuts short may be
off by more, up to 1e-3 on real networks, since its path began with another mass; where few updates
are allowed there is no tail.

**Most samples soon rest.** A sample none of whose neighbors moved has nothing to update. Before
the iteration calls itself converged, all samples are updated once more.

PyTorch's tensors are seen as NumPy arrays here: at these sizes NumPy's calls cost less, and BLAS
does products this small on one thread. A second pool of threads beside PyTorch's stalls both for
milliseconds.
"""

from typing import Any, NamedTuple

import numpy as np

from lametta.affinity import Neighbors

_UPDATES_PER_LOOK = 3  # updates between two looks at what still moves, when it moves a lot
_FEW_CLASSES = 64  # too few for a tail to pay
_FEW_UPDATES = 20  # too few for a tail to be right in the end
_LIKELY = 0.15  # a class whose exponents may begin above this is not of the tail
_IGNORED = 0.03  # the most of a norm, on average, that the tail may get wrong at first
_FIRST_REFRESH = 1e-3  # of the tail: once z moves by no more than this
_ONE_THREAD = 2**20  # multiplications in a matrix product that BLAS does on one thread


class Solution(NamedTuple):
    """Assignments z [N, K] and how they came about, as in `lametta.LameResult`."""

    z: Any
    n_iter: int
    converged: bool
    energy: Any


class _Tail:
    """The classes outside the head, as the module's docstring has it.

    Columns of the head are in its arrays too, since to leave them out would cost a copy; they
    count for nothing.
    """

    norm: Any  # at the last refresh
    top: Any  # the largest exponent of each class
    most: Any  # bounds of exp(a - a')
    least: Any
    exponents: Any  # q exp(a) a

    def __init__(self, q: Any, w: Neighbors, head: Any) -> None:
        self.q, self.w, self.head = q, w, head
        self.member = np.ones(q.shape[1], q.dtype)
        self.member[head] = 0
        self.scaled = q  # q exp(a)
        self.mass = np.vecdot(q, self.member)
        self.fresh = False  # until the first refresh

    def refresh(self, norm: Any) -> None:
        """Compute the mass from the exponents of now."""
        z = self.scaled / norm[:, None]
        a = self.w @ z
        a[:, self.head] = 0
        top = a.max(axis=0)
        # At the first refresh a' = 0; later a is within a share, the change, of it.
        step = self._change(norm) * self.top if self.fresh else top
        self.most = np.exp(step)
        self.least = 1 / self.most if self.fresh else 1.0
        self.top, self.norm, self.fresh = top, norm.copy(), True
        # Fresh memory would cost more than the arithmetic on it: write over what is there.
        self.scaled = np.exp(a, out=z)
        self.scaled *= self.q
        self.mass = np.vecdot(self.scaled, self.member)
        a *= self.scaled
        self.exponents = a

    def _change(self, norm: Any) -> Any:
        ratio = self.norm / norm
        return np.maximum(self.most * ratio.max() - 1, 1 - self.least * ratio.min())

    def wrong(self, norm: Any) -> Any:
        """Bound of the share by which the norm of each sample is wrong."""
        change = self._change(norm)
        return self.exponents @ (change * np.exp(change * self.top)) / norm

    def is_settled(self, norm: Any, tol: float) -> bool:
        """Whether an update with this tail is within 4 ``tol`` of the exact one."""
        return self.fresh and bool(self.wrong(norm).max() <= 4 * tol)


def solve(q: Any, w: Neighbors, max_iter: int, tol: float) -> Solution:
    """Iterate the update of `lametta.lame` from q [N, K] until it rests."""
    if max_iter == 0:
        return Solution(q, 0, False, -np.vdot(q, w @ q) / 2)
    head = _head(q, w) if max_iter > _FEW_UPDATES else None
    tail = None if head is None else _Tail(q, w, head)
    z = q_head = q if head is None else q.take(head, axis=1)
    n, n_classes = z.shape
    ones, norm = np.ones(n_classes, q.dtype), np.ones(n, q.dtype)
    w_head: Any = w.dense(q.dtype) if n * n * n_classes <= _ONE_THREAD else w

    goal = tol if tail is None else max(tol, _FIRST_REFRESH)  # movement that calls for an action
    rows, w_rows, q_rows = None, w_head, q_head
    n_iter, next_look, converged = 0, 2, False
    while n_iter < max_iter and not converged:
        a = w_rows @ z
        new = np.exp(a)
        new *= q_rows
        new_norm = np.vecdot(new, ones)  # faster than a sum, and as accurate
        if tail is not None:
            new_norm += tail.mass if rows is None else tail.mass[rows]
        new /= new_norm[:, None]
        n_iter += 1
        left = max_iter - n_iter
        look = n_iter >= next_look or left <= 1
        if look:
            moved = new - (z if rows is None else z[rows])
            np.abs(moved, out=moved)
        if rows is None:
            z, norm = new, new_norm
        else:
            z[rows], norm[rows] = new, new_norm
        if not look:
            continue
        most = moved.max(initial=0)
        next_look = n_iter + (1 if most <= 3 * goal else _UPDATES_PER_LOOK)
        if most > goal and left > 1:
            rows = _awake(w_head, rows, moved, tol)
        else:
            if tail is None or tail.is_settled(norm, tol):
                converged = rows is None and bool(most <= tol)
            elif left:
                tail.refresh(norm)
            goal = max(goal / 10, tol)
            rows = None  # the last update is one of all samples, whether it ends in rest or not
        w_rows, q_rows = (w_head, q_head) if rows is None else (w_head[rows], q_head[rows])

    # log z - log q = a - log norm in every class.
    energy = np.vdot(z, a - (w_head @ z) / 2) - np.log(norm).sum()
    if tail is not None:
        energy += np.vdot(tail.exponents @ tail.member, 1 / norm) / 2
        tail.scaled /= norm[:, None]
        tail.scaled[:, head] = z
        z = tail.scaled
    return Solution(z, n_iter, converged, energy)


def _head(q: Any, w: Neighbors) -> Any:
    """Indices of the classes to iterate on; None for all."""
    n, n_classes = q.shape
    if n_classes <= _FEW_CLASSES:
        return None
    # No exponent begins above its k neighbors' largest q, nor above the sum of all samples' q.
    total = np.ones(n, q.dtype) @ q
    begin = np.minimum(q.max(axis=0) * w.index.shape[1], total) * w.value
    head = np.flatnonzero(begin > _LIKELY)
    begin[head] = 0
    # Soft predictions are mostly tail, and would be led astray before its mass is right.
    ignored = begin @ total / n
    return head if head.size <= n_classes // 2 and ignored <= _IGNORED else None


def _awake(w: Any, rows: Any, moved: Any, tol: float) -> Any:
    """Indices of the samples with a neighbor that moved; None for all."""
    if not isinstance(w, Neighbors):
        return None
    moving = np.zeros(w.index.shape[0], dtype=bool)
    moving[slice(None) if rows is None else rows] = moved.max(axis=1) > tol / 8
    awake = np.flatnonzero(moving[w.index].any(axis=1))
    return awake if awake.size else None
