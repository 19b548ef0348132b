"""kNN solver in NumPy: active set of samples, head and tail of classes, reused buffers.

It is the fixed-point iteration of `lametta._solvers.plain` with less work. Three things are left
out, none of which may show in the result:

- **samples**: one whose neighbors did not move has nothing to update, so that only an *active set*
  is. Before the iteration counts as converged, all samples are updated once more;
- **classes**: most of a thousand hardly matter to any sample: these are the *tail*, below;
- **allocations**: buffers are reused, since fresh pages cost more than the arithmetic on them.

A run that ``max_iter`` cuts short is not at a fixed point, so that what was left out on the way
would show: it is repeated exactly.

PyTorch's tensors are seen as NumPy arrays here: at these sizes NumPy's calls cost less, and BLAS
does products this small on one thread. A second pool of threads beside PyTorch's would stall both
for milliseconds.

Head and tail
-------------
A class that no sample finds likely, one of the *tail*, has exponents a = W z near 0. All that the
tail adds to an update is one number for each sample, its part of the norm (the denominator): its
*mass* sum_k q_ik exp(a_ik), over the classes k of the tail. That number changes little, so it need
not be computed anew at every update: it starts from a = 0, and `Tail.refresh` recomputes it, mostly
once, when z is nearly at its end. The iteration itself is on the other classes, the *head*.
Simply dropping unlikely classes would gain nothing: real networks keep about 1e-4 on each of a
thousand classes.

The error of the mass can be bounded when it matters, at the end. A refresh with the norms norm'_i
takes q_ik / norm'_i for z_ik in the tail, where q_ik exp(a_ik) / norm_i would be exact. In class k
the two differ by no more than the share

    change_k = max_i |exp(a_ik) norm'_i / norm_i - 1|,

and so do the exponents, since W >= 0. The relative error of the norm of sample i is then at most

    sum_k q_ik exp(a_ik) a_ik change_k exp(change_k max_j a_jk) / norm_i.

This is of second order in the exponents, because a refresh moves classes whose exponents are not
small into the head. Where the bound is at most 4 ``tol`` in the end, the last update is within
4 ``tol`` of the exact one. Where it is not, another refresh follows, which leaves fewer classes in
the tail, and the iteration continues.
"""

import math
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, cast

import numpy as np
from array_api_compat import device, is_jax_array, is_torch_array
from numpy.typing import NDArray

from lametta._arrays import (
    Floats,
    finite_products,
    is_host_array,
    row_norms,
    squares_fit,
    widen,
)
from lametta._locks import check_interrupt
from lametta._neighbors import nearest_by_products
from lametta._solvers.plain import LARGE_BATCH, has_few_neighbors
from lametta._solvers.problem import Problem, Solution, checked_probs
from lametta.affinity import Neighbors, knn
from lametta.types import Array

_FIRST_CHECK = 3  # updates before the first convergence check
_CHECK_EVERY = 4  # from then on; a check costs as much as an update
_CHECK_EVERY_DENSE = 2  # in small batches, where all samples are updated until the end
_FEW_UPDATES = 20  # of a run that is likely to be cut short: it is exact from the start
_ONE_THREAD = 2**20  # multiplications in a matrix product that BLAS does on one thread
_ONE_THREAD_DOT = 2**13  # the same for a matrix and a vector

_FEW_CLASSES = 64  # too few for a tail to pay
_LIKELY = 0.15  # a class whose exponents may start above this belongs to the head
_MAX_FIRST_ERROR = 0.03  # the largest share of a norm, on average, that the tail may miss at first
_MAX_EXPONENT = 0.02  # the largest exponents that the first refresh leaves in the tail
_FIRST_REFRESH = 2e-3  # refresh for the first time once z moves by no more than this
_BLOCK = 2**16  # entries that are worked on at a time: they fit a processor's own cache

_MAX_REUSED = 2**19  # entries of the largest buffer that is kept for the next call


def fits(problem: Problem) -> bool:
    """Whether this solver can do it: k neighbors, host memory, a result that may be looked at."""
    return (
        problem.tol > 0
        and has_few_neighbors(problem.affinity, problem.weight)
        and is_host_array(problem.features)
        and is_host_array(problem.probs)
    )


def solve(problem: Problem) -> Solution:
    """Find the neighbors and iterate, by way of NumPy."""
    xp, affinity = problem.xp, cast(knn, problem.affinity)
    x, q = widen(xp, problem.features), widen(xp, problem.probs)
    host_x, host_q = np.asarray(x), np.asarray(q)
    with borrow_buffers() as buffers, finite_products():
        products = None
        if affinity.method == "exact" and len(host_x) <= LARGE_BATCH:
            products = _products(xp, x, host_x, buffers)
        norms = row_norms(np, host_x) if products is None else np.sqrt(products.diagonal())
        norms_fit = squares_fit(np, norms)
        # Where the norms are finite, so are the values they come from.
        host_q = checked_probs(problem.probs.dtype, norms if norms_fit else host_x, host_q, np)
        if products is not None and norms_fit:
            index = nearest_by_products(np, products, affinity.k, 1 / norms)
        else:
            index = np.asarray(affinity.neighbors(x).index)
        w = Neighbors(index, float(problem.weight))
        z, n_iter, converged, energy = iterate(host_q, w, problem.max_iter, problem.tol, buffers)
    at = {"device": device(q)} if is_jax_array(q) else {}
    z, energy = (xp.asarray(np.asarray(array), **at) for array in (z, energy))
    return Solution(z, n_iter, converged, energy)


def iterate(q: Floats, w: Neighbors, max_iter: int, tol: float, buffers: "Buffers") -> Solution:
    """The update of `lametta._lame` from z = q, until it moves z by no more than ``tol``."""
    if max_iter == 0:
        return Solution(q, 0, False, -np.vecdot(q, w @ q).sum() / 2)
    if max_iter > _FEW_UPDATES:
        quick = _Iteration(q, w, tol, buffers, approximate=True).run(max_iter)
        if quick.converged:
            return quick
    return _Iteration(q, w, tol, buffers, approximate=False).run(max_iter)


class _Iteration:
    """A run of the iteration: z and its norms, which samples are updated, and the tail.

    With ``approximate``, samples and classes that hardly matter are left out on the way.
    """

    norm: Floats  # the denominators of the last update

    def __init__(
        self, q: Floats, w: Neighbors, tol: float, buffers: "Buffers", *, approximate: bool
    ) -> None:
        self.q, self.w, self.tol, self.buffers = q, w, tol, buffers
        self.approximate = approximate
        head = choose_head(q, w) if approximate else None
        self.tail = None if head is None else Tail(q, w, head, buffers)
        self.z = q.copy() if head is None else q.take(head, axis=1)
        self._activate_all()

    def _activate_all(self) -> None:
        """Make all samples active, in the classes of the head."""
        q, tail = self.q, self.tail
        if tail is not None:
            q = q.take(tail.head, axis=1)
        n, n_classes = q.shape
        mass = np.zeros(n, q.dtype) if tail is None else tail.mass
        self.is_dense = n * n * max(n_classes, 1) <= _ONE_THREAD
        w = self.w.dense(q.dtype) if self.is_dense else self.w
        self.active = self.all_samples = _ActiveSet(w, q, mass, self.buffers)
        self.spare_z = np.empty_like(self.z)  # what the next update is written to

    def run(self, max_iter: int) -> Solution:
        """Update and check by turns."""
        n_iter, next_check, converged = 0, min(_FIRST_CHECK, max_iter), False
        while n_iter < max_iter and not converged:
            check_interrupt()
            n_iter += 1
            if n_iter < next_check:
                self.update()
                continue
            wait = self.check(self.update(measure=True))
            converged = wait == 0
            next_check = min(n_iter + wait, max_iter)
        return self._solution(n_iter, converged)

    def update(self, measure: bool = False) -> Any:
        """Update the active samples; return, where asked for, by how much their z moved."""
        active, z = self.active, self.z
        if active is self.all_samples:
            new = self.spare_z
            self.norm = active.update(z, new)
            self.z, self.spare_z = new, z
            return new - z if measure else None
        new = self.spare_z[: len(active.mass)]
        new_norm = active.update(z, new)
        delta = new - z[active.rows] if measure else None
        z[active.rows], self.norm[active.rows] = new, new_norm
        return delta

    def check(self, delta: Floats) -> int:
        """Choose what is updated next; return after how many updates to check, 0 if converged."""
        most = np.abs(delta).max(initial=0)
        is_settled = most <= self.tol
        if is_settled and self.active is self.all_samples:
            if self.tail is None or self.tail.within_tolerance(self.norm, self.tol):
                return 0
            return self._refresh(self.tail)
        if self.tail is not None and self.tail.is_due(most):
            return self._refresh(self.tail)
        if is_settled:
            self.active = self.all_samples  # it ends with an update of all samples
            return 1
        if self.is_dense:
            return _CHECK_EVERY_DENSE
        return self._narrow(delta, most) if self.approximate else _CHECK_EVERY

    def _refresh(self, tail: "Tail") -> int:
        """Refresh the tail, and go on with all samples in a head that may have grown."""
        joining = tail.refresh(self.norm)
        joined = tail.scaled.take(joining, axis=1) / self.norm[:, None]
        self.z = np.concatenate([self.z, joined], axis=1)
        self._activate_all()
        return 1

    def _narrow(self, delta: Floats, most: float) -> int:
        """Leave samples active whose neighbors moved, where that spares enough of them."""
        n, all_samples = len(self.norm), self.all_samples
        moved = np.vecdot(delta, delta) > (self.tol / 8) ** 2
        rows = _active_rows(self.w, self.active.rows, moved)
        self.active = all_samples
        if 0 < rows.size <= 0.8 * n:  # to pick out nearly all would not pay
            self.active = _ActiveSet(self.w, all_samples.q, all_samples.mass, self.buffers, rows)
        is_near = most <= 20 * self.tol and 4 * len(self.active.mass) > n
        return 1 if is_near else _CHECK_EVERY  # a check costs much less than an update of many

    def _solution(self, n_iter: int, converged: bool) -> Solution:
        z, norm, tail, a = self.z, self.norm, self.tail, self.active.a
        if self.approximate and not converged:
            return Solution(z, n_iter, converged, np.nan)  # to be repeated
        # log z - log q = a - log norm in every class.
        energy = np.vecdot(z, a).sum() - np.log(norm).sum()
        if not converged:
            _product(self.active.w, z, a, self.buffers)
        energy -= np.vecdot(z, a).sum() / 2
        if tail is None:
            return Solution(z, n_iter, converged, energy)
        energy += (np.vecdot(tail.exponents, tail.member) / norm).sum() / 2
        tail.scaled *= (1 / norm)[:, None]
        tail.scaled[:, tail.head] = z
        return Solution(tail.scaled, n_iter, converged, energy)


class _ActiveSet:
    """The samples that are updated, all or some of them, with what their update needs."""

    def __init__(
        self,
        w: "Neighbors | Floats",
        q: Floats,
        mass: Floats,
        buffers: "Buffers",
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        self.rows = rows  # None for all
        if rows is not None:
            w, q, mass = w[rows], q.take(rows, axis=0), mass[rows]
        self.w, self.q, self.mass, self.buffers = w, q, mass, buffers
        self.ones = np.ones(q.shape[1], q.dtype)
        self.sums = np.dot if q.size <= _ONE_THREAD_DOT else np.vecdot  # both faster than a sum
        self.a = buffers("a", q.shape, q.dtype)

    def update(self, z: Floats, out: Floats) -> Floats:
        """Write new rows of z; return their norm. The exponents stay in ``a``."""
        _product(self.w, z, self.a, self.buffers)
        np.exp(self.a, out=out)
        out *= self.q
        norm: Floats = self.sums(out, self.ones)
        norm += self.mass
        out /= norm[:, None]
        return norm


def _active_rows(
    w: Neighbors, rows: NDArray[np.intp] | None, moved: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Indices of the samples with a neighbor that moved."""
    moving = np.zeros(w.index.shape[0], dtype=bool)
    moving[slice(None) if rows is None else rows] = moved
    return np.flatnonzero(moving.take(w.index.T).any(axis=0))


class Tail:
    """The classes outside the head, whose part of the norms is recomputed rarely.

    Columns of the head are in these arrays too, since leaving them out would cost a copy; they are
    multiplied by 0.
    """

    scaled: Floats  # q exp(a), of the last refresh
    exponents: Floats  # q exp(a) a
    top: Floats  # the largest exponent of each class
    norm: Floats  # the norms that the last refresh was given

    def __init__(self, q: Floats, w: Neighbors, head: NDArray[np.intp], buffers: "Buffers") -> None:
        self.q, self.w, self.head, self.buffers = q, w, head, buffers
        self.member = np.ones(q.shape[1], q.dtype)
        self.member[head] = 0
        self.mass = np.vecdot(q, self.member)
        self.limit = _MAX_EXPONENT
        self.fresh = False  # until the first refresh

    def refresh(self, norm: Floats) -> NDArray[np.intp]:
        """Recompute the mass with the current norms; return the classes that join the head."""
        q, buffers, (n, n_classes) = self.q, self.buffers, self.q.shape
        z = buffers("tail z", q.shape, q.dtype)
        np.multiply(q, (self.w.value / norm)[:, None], out=z)
        if not self.fresh:
            self.scaled = np.empty_like(q)  # to be the result
        self.exponents = buffers("exponents", q.shape, q.dtype)
        self.top, self.norm, self.fresh = np.zeros(n_classes, q.dtype), norm.copy(), True
        block = max(1, _BLOCK // n_classes)
        for start in range(0, n, block):
            check_interrupt()
            rows = slice(start, start + block)
            index = self.w.index[rows]
            a = buffers("tail a", (len(index), n_classes), q.dtype)
            _gather(z, index, a, buffers)
            np.maximum(self.top, a.max(axis=0), out=self.top)
            np.exp(a, out=self.scaled[rows])
            self.scaled[rows] *= q[rows]
            np.multiply(self.scaled[rows], a, out=self.exponents[rows])
        joining = np.flatnonzero(self.member * self.top > self.limit)
        self.head = np.concatenate([self.head, joining])
        self.member[joining] = 0
        self.limit /= 4
        self.mass = np.vecdot(self.scaled, self.member)
        return joining

    def is_due(self, most: float) -> bool:
        """Whether z, which moves by ``most``, is near enough its end for the first refresh."""
        return not self.fresh and most <= _FIRST_REFRESH

    def within_tolerance(self, norm: Floats, tol: float) -> bool:
        """Whether an update with this tail is within 4 ``tol`` of the exact one."""
        return self.fresh and bool(self.error_bound(norm) <= 4 * tol)

    def error_bound(self, norm: Floats) -> Any:
        """Bound of the relative error of any sample's norm; see the module's docstring."""
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
    missed = start @ total - start[head] @ total[head]
    # Soft predictions are mostly tail: the first updates would go astray with a wrong mass.
    return head if head.size <= n_classes // 2 and missed <= _MAX_FIRST_ERROR * n else None


def _product(w: "Neighbors | Floats", z: Floats, out: Floats, buffers: "Buffers") -> Floats:
    """W z."""
    if not isinstance(w, Neighbors):
        return np.matmul(w, z, out=out)
    _gather(z, w.index, out, buffers)
    return out if w.value == 1 else np.multiply(out, w.value, out=out)


def _gather(z: Floats, index: NDArray[np.intp], out: Floats, buffers: "Buffers") -> None:
    """Write the sum of the rows of z that each row of ``index`` names."""
    if index.shape[1] == 0:
        out[:] = 0
        return
    # NumPy would go through a copy unless told that it need not check the indices.
    z.take(index[:, 0], axis=0, out=out, mode="clip")
    gathered = buffers("gathered", out.shape, z.dtype)
    for column in range(1, index.shape[1]):
        out += z.take(index[:, column], axis=0, out=gathered, mode="clip")


def _products(xp: ModuleType, x: Array, host_x: Floats, buffers: "Buffers") -> Floats:
    """Inner products [N, N] of all rows, as a NumPy array."""
    products = buffers("products", (x.shape[0], x.shape[0]), host_x.dtype)
    if is_torch_array(x):  # NumPy's threads beside PyTorch's would stall both for milliseconds
        xp.matmul(x, x.T, out=xp.from_numpy(products))
        return products
    with np.errstate(over="ignore", invalid="ignore"):
        return np.matmul(host_x, host_x.T, out=products)


class Buffers:
    """Scratch arrays by name, with whatever was in them before."""

    def __init__(self) -> None:
        self._arrays: dict[str, NDArray[Any]] = {}

    def __call__(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        size = math.prod(shape)
        if size > _MAX_REUSED:
            return np.empty(shape, dtype)
        array = self._arrays.get(name)
        if array is None or array.size < size or array.dtype != dtype:
            array = self._arrays[name] = np.empty(size, dtype)
        return array[:size].reshape(shape)


# A call owns what it takes from here until it puts it back: so calls from other threads, and from a
# signal handler that interrupts a call, never write to each other's arrays.
_free: deque[Buffers] = deque(maxlen=8)


@contextmanager
def borrow_buffers() -> Iterator[Buffers]:
    """Buffers for one call."""
    try:
        buffers = _free.pop()
    except IndexError:
        buffers = Buffers()
    try:
        yield buffers
    finally:
        _free.append(buffers)
