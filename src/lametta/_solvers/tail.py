"""Why most classes need not follow every update, and how wrong that can be.

A class that no sample finds likely, one of the *tail*, has exponents a = W z near 0. All that the
tail adds to an update is one number for each sample, its part of the norm (the denominator): its
*mass* sum_k q_ik exp(a_ik), over the classes k of the tail. That number changes little, so it need
not be computed anew at every update: it starts from a = 0, and `Tail.refresh` recomputes it, mostly
once, when z is nearly at its end. The iteration itself is on the other classes, the *head*.
Simply dropping unlikely classes would gain nothing: real networks keep about 1e-4 on each of a
thousand classes.

How wrong the mass is can be bounded when it matters, at the end. A refresh with the norms norm'_i
takes q_ik / norm'_i for z_ik in the tail, where q_ik exp(a_ik) / norm_i would be exact. In class k
the two differ by no more than the share

    change_k = max_i |exp(a_ik) norm'_i / norm_i - 1|,

and so do the exponents, since W >= 0. The norm of sample i is then wrong by no more than the share

    sum_k q_ik exp(a_ik) a_ik change_k exp(change_k max_j a_jk) / norm_i.

This is of second order in the exponents, because a refresh moves classes whose exponents are not
small into the head. Where the bound is at most 4 ``tol`` in the end, the last update is within
4 ``tol`` of the exact one. Where it is not, another refresh follows, which leaves fewer classes in
the tail, and the iteration continues.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import Floats
from lametta._solvers.memory import Memory
from lametta.affinity import Neighbors

_FEW_CLASSES = 64  # too few for a tail to pay
_LIKELY = 0.15  # a class whose exponents may start above this belongs to the head
_IGNORED = 0.03  # the most of a norm, on average, that the tail may get wrong at first
_LIMIT = 0.02  # the largest exponents that the first refresh leaves in the tail
_FIRST_REFRESH = 2e-3  # refresh for the first time once z moves by no more than this
_BLOCK = 2**16  # entries that are worked on at a time: they fit a processor's own cache


class Tail:
    """The classes outside the head.

    Columns of the head are in these arrays too, since leaving them out would cost a copy; they are
    multiplied by 0.
    """

    scaled: Floats  # q exp(a), of the last refresh
    exponents: Floats  # q exp(a) a
    top: Floats  # the largest exponent of each class
    norm: Floats  # the norms that the last refresh was given

    def __init__(self, q: Floats, w: Neighbors, head: NDArray[np.intp], memory: Memory) -> None:
        self.q, self.w, self.memory = q, w, memory
        self.member = np.ones(q.shape[1], q.dtype)
        self.member[head] = 0
        self.mass = np.vecdot(q, self.member)
        self.limit = _LIMIT
        self.fresh = False  # until the first refresh

    def refresh(self, norm: Floats) -> NDArray[np.intp]:
        """Recompute the mass with the current norms; return the classes that join the head."""
        q, memory, (n, n_classes) = self.q, self.memory, self.q.shape
        z = memory("tail z", q.shape, q.dtype)
        np.multiply(q, (self.w.value / norm)[:, None], out=z)
        if not self.fresh:
            self.scaled = np.empty_like(q)  # to be the result
        self.exponents = memory("exponents", q.shape, q.dtype)
        self.top, self.norm, self.fresh = np.zeros(n_classes, q.dtype), norm.copy(), True
        block = max(1, _BLOCK // n_classes)
        for start in range(0, n, block):
            rows = slice(start, start + block)
            index = self.w.index[rows]
            a = memory("tail a", (len(index), n_classes), q.dtype)
            gather(z, index, a, memory)
            np.maximum(self.top, a.max(axis=0), out=self.top)
            np.exp(a, out=self.scaled[rows])
            self.scaled[rows] *= q[rows]
            np.multiply(self.scaled[rows], a, out=self.exponents[rows])
        joining = np.flatnonzero(self.member * self.top > self.limit)
        self.member[joining] = 0
        self.limit /= 4
        self.mass = np.vecdot(self.scaled, self.member)
        return joining

    def is_due(self, most: float) -> bool:
        """Whether z, which moves by ``most``, is near enough its end for the first refresh."""
        return not self.fresh and most <= _FIRST_REFRESH

    def is_right(self, norm: Floats, tol: float) -> bool:
        """Whether an update with this tail is within 4 ``tol`` of the exact one."""
        return self.fresh and bool(self.wrong(norm) <= 4 * tol)

    def wrong(self, norm: Floats) -> Any:
        """Bound of the share by which any sample's norm is wrong; see the module's docstring."""
        ratio = self.norm / norm
        change = np.maximum(np.exp(self.top) * ratio.max() - 1, 1 - ratio.min()) * self.member
        return (np.vecdot(self.exponents, change * np.exp(change * self.top)) / norm).max()


def choose_head(q: Floats, w: Neighbors) -> NDArray[np.intp] | None:
    """Indices of the classes to start with in the head; None where all should be."""
    n, n_classes = q.shape
    if n_classes <= _FEW_CLASSES:
        return None
    # No exponent starts above its k neighbors' largest q, nor above the sum of all samples' q.
    total = q.sum(axis=0)
    start = np.minimum(q.max(axis=0) * w.index.shape[1], total) * w.value
    head = np.flatnonzero(start > _LIKELY)
    ignored = start @ total - start[head] @ total[head]
    # Soft predictions are mostly tail: the first updates would go astray with a wrong mass.
    return head if head.size <= n_classes // 2 and ignored <= _IGNORED * n else None


def gather(z: Floats, index: NDArray[np.intp], out: Floats, memory: Memory) -> None:
    """Write the sum of the rows of z that each row of ``index`` names."""
    if index.shape[1] == 0:
        out[:] = 0
        return
    # NumPy would go through a copy unless told that it need not check the indices.
    z.take(index[:, 0], axis=0, out=out, mode="clip")
    spare = memory("spare", out.shape, z.dtype)
    for column in range(1, index.shape[1]):
        out += z.take(index[:, column], axis=0, out=spare, mode="clip")
