"""LAME with k nearest neighbors in host memory: the same iteration, with less work.

Three things are spared, none of which may show in the result:

- **classes**: most of a thousand hardly matter to any sample; `lametta._solvers.tail` has the
  argument;
- **samples**: one whose neighbors did not move has nothing to update. Before the iteration calls
  itself converged, all samples are updated once more;
- **fresh memory**, by `lametta._solvers.memory`.

A run that ``max_iter`` cuts short is not at a fixed point, so that what was spared on the way would
show: it is repeated with nothing spared.

PyTorch's tensors are seen as NumPy arrays here: at these sizes NumPy's calls cost less, and BLAS
does products this small on one thread. A second pool of threads beside PyTorch's would stall both
for milliseconds.
"""

from types import ModuleType
from typing import cast

import numpy as np
from array_api_compat import device, is_jax_array, is_torch_array
from numpy.typing import NDArray

from lametta._arrays import (
    Floats,
    finite_products,
    is_host_array,
    nearest_by_products,
    row_norms,
    squares_fit,
    widen,
)
from lametta._solvers.memory import Memory, borrowed
from lametta._solvers.plain import LARGE_BATCH, has_few_neighbors
from lametta._solvers.problem import Problem, Solution, checked_probs
from lametta._solvers.tail import Tail, choose_head, gather
from lametta.affinity import Neighbors, knn
from lametta.types import Array

_FIRST_LOOK = 3  # after how many updates to look at what still moves
_UPDATES_PER_LOOK = 4  # from then on; a look costs as much as an update
_UPDATES_PER_CHEAP_LOOK = 2  # in small batches, where all samples are updated until the end
_FEW_UPDATES = 20  # of a run that is likely to be cut short: nothing is spared from the start
_ONE_THREAD = 2**20  # multiplications in a matrix product that BLAS does on one thread
_ONE_THREAD_DOT = 2**13  # the same for a matrix and a vector


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
    with borrowed() as memory, finite_products():
        products = None
        if affinity.method == "exact" and len(host_x) <= LARGE_BATCH:
            products = _products(xp, x, host_x, memory)
        norms = row_norms(np, host_x) if products is None else np.sqrt(products.diagonal())
        norms_fit = squares_fit(np, norms)
        # Where the norms are finite, so are the values they come from.
        host_q = checked_probs(problem.probs.dtype, norms if norms_fit else host_x, host_q, np)
        if products is not None and norms_fit:
            index = nearest_by_products(np, products, affinity.k, 1 / norms)
        else:
            index = np.asarray(affinity.neighbors(x).index)
        w = Neighbors(index, float(problem.weight))
        z, n_iter, converged, energy = iterate(host_q, w, problem.max_iter, problem.tol, memory)
    place = {"device": device(q)} if is_jax_array(q) else {}
    z, energy = (xp.asarray(np.asarray(array), **place) for array in (z, energy))
    return Solution(z, n_iter, converged, energy)


def iterate(q: Floats, w: Neighbors, max_iter: int, tol: float, memory: Memory) -> Solution:
    """The update of `lametta._lame` from z = q, until it moves z by no more than ``tol``."""
    if max_iter == 0:
        return Solution(q, 0, False, -np.vecdot(q, w @ q).sum() / 2)
    if max_iter > _FEW_UPDATES:
        quick = _iterate(q, w, max_iter, tol, memory, spare=True)
        if quick.converged:
            return quick
    return _iterate(q, w, max_iter, tol, memory, spare=False)


class _Part:
    """The samples that are updated, all or some of them, with what their update needs."""

    def __init__(
        self,
        w: "Neighbors | Floats",
        q: Floats,
        mass: Floats,
        memory: Memory,
        rows: NDArray[np.intp] | None = None,
    ) -> None:
        self.rows = rows  # None for all
        if rows is not None:
            w, q, mass = w[rows], q.take(rows, axis=0), mass[rows]
        self.w, self.q, self.mass, self.memory = w, q, mass, memory
        self.ones = np.ones(q.shape[1], q.dtype)
        self.sums = np.dot if q.size <= _ONE_THREAD_DOT else np.vecdot  # both faster than a sum
        self.a = memory("a", q.shape, q.dtype)

    def update(self, z: Floats, out: Floats) -> Floats:
        """Write new rows of z; return their norm. The exponents stay in ``a``."""
        _product(self.w, z, self.a, self.memory)
        np.exp(self.a, out=out)
        out *= self.q
        norm: Floats = self.sums(out, self.ones)
        norm += self.mass
        out /= norm[:, None]
        return norm


def _iterate(
    q: Floats, w: Neighbors, max_iter: int, tol: float, memory: Memory, *, spare: bool
) -> Solution:
    """Iterate; with ``spare``, leave out classes and samples that hardly matter."""
    head = choose_head(q, w) if spare else None
    tail = None if head is None else Tail(q, w, head, memory)
    z = q.copy() if head is None else q.take(head, axis=1)
    part = whole = _whole(q, w, head, tail, memory)
    other = np.empty_like(z)  # what the next update is written to
    n_iter, next_look, converged = 0, min(_FIRST_LOOK, max_iter), False
    while n_iter < max_iter and not converged:
        new = other if part is whole else other[: len(part.mass)]
        new_norm = part.update(z, new)
        n_iter += 1
        look = n_iter == next_look
        if look:
            moved = new - (z if part is whole else z[part.rows])
        if part is whole:
            z, other, norm = new, z, new_norm
        else:
            z[part.rows], norm[part.rows] = new, new_norm
        if not look:
            continue

        wait = _UPDATES_PER_LOOK if whole.w is w else _UPDATES_PER_CHEAP_LOOK
        most = np.abs(moved).max(initial=0)
        settled = part is whole and most <= tol
        if settled and (tail is None or tail.is_right(norm, tol)):
            converged = True
        elif tail is not None and (settled or tail.is_due(most)):
            joining = tail.refresh(norm)
            head = np.concatenate([head, joining])
            z = np.concatenate([z, tail.scaled.take(joining, axis=1) / norm[:, None]], axis=1)
            part = whole = _whole(q, w, head, tail, memory)
            other = np.empty_like(z)
            wait = 1
        elif most <= tol:
            part, wait = whole, 1  # it ends with an update of all samples
        elif spare and whole.w is w:
            rows = _awake(w, part.rows, np.vecdot(moved, moved) > (tol / 8) ** 2)
            some = 0 < rows.size <= 0.8 * len(norm)  # to pick out nearly all would not pay
            part = _Part(w, whole.q, whole.mass, memory, rows) if some else whole
            if most <= 20 * tol and 4 * len(part.mass) > len(norm):
                wait = 1  # a look costs much less than an update of many
        next_look = min(n_iter + wait, max_iter)

    if spare and not converged:
        return Solution(z, n_iter, converged, np.nan)  # to be repeated
    # log z - log q = a - log norm in every class.
    energy = np.vecdot(z, part.a).sum() - np.log(norm).sum()
    energy -= np.vecdot(z, part.a if converged else _product(whole.w, z, part.a, memory)).sum() / 2
    if tail is None:
        return Solution(z, n_iter, converged, energy)
    energy += (np.vecdot(tail.exponents, tail.member) / norm).sum() / 2
    tail.scaled *= (1 / norm)[:, None]
    tail.scaled[:, head] = z
    return Solution(tail.scaled, n_iter, converged, energy)


def _whole(
    q: Floats, w: Neighbors, head: NDArray[np.intp] | None, tail: Tail | None, memory: Memory
) -> _Part:
    """All samples, in the classes of the head."""
    if head is not None:
        q = q.take(head, axis=1)
    n, n_classes = q.shape
    mass = np.zeros(n, q.dtype) if tail is None else tail.mass
    is_small = n * n * max(n_classes, 1) <= _ONE_THREAD
    return _Part(w.dense(q.dtype) if is_small else w, q, mass, memory)


def _product(w: "Neighbors | Floats", z: Floats, out: Floats, memory: Memory) -> Floats:
    """W z."""
    if not isinstance(w, Neighbors):
        return np.matmul(w, z, out=out)
    gather(z, w.index, out, memory)
    return out if w.value == 1 else np.multiply(out, w.value, out=out)


def _awake(
    w: Neighbors, rows: NDArray[np.intp] | None, moved: NDArray[np.bool_]
) -> NDArray[np.intp]:
    """Indices of the samples with a neighbor that moved."""
    moving = np.zeros(w.index.shape[0], dtype=bool)
    moving[slice(None) if rows is None else rows] = moved
    return np.flatnonzero(moving.take(w.index.T).any(axis=0))


def _products(xp: ModuleType, x: Array, host_x: Floats, memory: Memory) -> Floats:
    """Inner products [N, N] of all rows, as a NumPy array."""
    products = memory("products", (x.shape[0], x.shape[0]), host_x.dtype)
    if is_torch_array(x):  # NumPy's threads beside PyTorch's would stall both for milliseconds
        xp.matmul(x, x.T, out=xp.from_numpy(products))
        return products
    with np.errstate(over="ignore", invalid="ignore"):
        return np.matmul(host_x, host_x.T, out=products)
