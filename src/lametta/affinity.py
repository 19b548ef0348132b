"""Affinities: weights W [N, N] between the samples of a batch (kNN, scenes, RBF, linear).

An affinity is a callable ``affinity(features) -> W [N, N]``; anything that fits may be given to
`lametta.lame`. Ours scale features to length 1 themselves.
"""

from dataclasses import KW_ONLY, dataclass
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from array_api_compat import device, is_jax_array, is_numpy_array, is_torch_array

from lametta._arrays import (
    check_matrix,
    is_host_array,
    matmul,
    namespace,
    namespace_of,
    to_numpy,
    unit_rows,
    widen,
)
from lametta._checks import check_choice, check_flag, check_integer, check_number
from lametta._neighbors import approximately_nearest, nearest
from lametta.registry import GROUPS, FactoryRegistry
from lametta.types import Array, LamettaError

_ROUNDING = 1e-5  # of 1 - cosine: what is as near is the same


class Affinity(Protocol):
    """A callable from features [N, d] to non-negative or signed weights W [N, N]."""

    def __call__(self, features: Array, /) -> Array: ...


@dataclass(frozen=True)
class Neighbors:
    """W as a list, ``W[i, index[i, j]] = value`` and all else 0, that multiplies like W."""

    index: Array
    value: float = 1.0

    def __getitem__(self, rows: Any) -> "Neighbors":
        return Neighbors(self.index[rows], self.value)

    def __matmul__(self, z: Array) -> Array:
        n, k = self.index.shape
        if is_numpy_array(z) and k > 0:  # methods, which cost less than functions: this is hot
            total = z.take(self.index[:, 0], axis=0)
            for column in range(1, k):
                total += z.take(self.index[:, column], axis=0)
            return total if self.value == 1 else total * self.value
        xp = namespace_of(z)
        if k == 0:
            return xp.zeros((n, z.shape[1]), dtype=z.dtype, device=device(z))
        if is_torch_array(z):  # gathers and sums in one pass
            total = xp.nn.functional.embedding_bag(self.index, z, mode="sum")
        else:
            total = sum(xp.take(z, self.index[:, j], axis=0) for j in range(k))
        return total if self.value == 1 else total * self.value

    def dense(self, dtype: Any) -> Array:
        """The same W as an [N, N] array."""
        n = self.index.shape[0]
        if is_numpy_array(self.index):
            w = np.zeros((n, n), dtype)
            w[np.arange(n)[:, None], self.index] = self.value
            return w
        xp = namespace_of(self.index)
        every = xp.arange(n, device=device(self.index))
        hit = xp.any(self.index[:, :, None] == every, axis=1)
        return xp.astype(hit, dtype) * self.value


@dataclass(frozen=True)
class knn:  # noqa: N801 - read as a verb: affinity=knn(5)
    """The k nearest neighbors of each sample, all of one weight.

    A sample is never its own neighbor, whatever duplicates surround it. With ``direction="own"``
    the strength of the correction is at most k, however large the batch: this is the safe default.

    Parameters
    ----------
    k : int
        How many neighbors; a batch of N samples has at most N - 1.
    direction : {"own", "reverse", "both"}
        Who pulls on sample i. Its ``"own"`` k nearest neighbors, as in the paper's released code:
        row i of W marks them with 1. With ``"reverse"``, the samples that have i among theirs, as
        the formula in the paper's appendix is printed: W is the transpose, with as few as none and
        as many as N - 1 marks in a row. With ``"both"``, the mean of the two.
    symmetric : bool
        Average W with its transpose: another way to write ``direction="both"``.
    method : {"exact", "faiss"}
        How neighbors are found. faiss finds most of them, much faster where there are many samples,
        and has to be installed; it works in host memory.

    Notes
    -----
    The fast solvers take lists of k neighbors a sample, so ``"own"`` alone. The other directions
    are solved with W as a matrix [N, N], also where there are many samples.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]])
    >>> knn(1)(features)
    array([[0., 1., 0.],
           [1., 0., 0.],
           [0., 1., 0.]])
    >>> knn(1, direction="reverse")(features)
    array([[0., 1., 0.],
           [1., 0., 1.],
           [0., 0., 0.]])
    """

    k: int = 5
    _: KW_ONLY
    direction: str = "own"
    symmetric: bool = False
    method: str = "exact"

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)
        check_choice("direction", self.direction, ("own", "reverse", "both"))
        check_flag("symmetric", self.symmetric)
        check_choice("method", self.method, ("exact", "faiss"))
        if self.symmetric and self.direction == "reverse":
            raise LamettaError(
                "symmetric must be False where direction is 'reverse', got True; "
                "direction 'both' is the mean of the two"
            )

    @property
    def is_symmetric(self) -> bool:
        """Whether W is made symmetric, however that was asked for."""
        return self.symmetric or self.direction == "both"

    def __call__(self, features: Array, /) -> Array:
        xp = namespace(features=features)
        w = self.neighbors(features).dense(features.dtype)
        if self.direction == "reverse":
            w = w.T
        return _finish(xp, w, features, self.is_symmetric)

    def neighbors(self, features: Array, /) -> Neighbors:
        """The own neighbors of each sample as a list, whatever the direction."""
        if self.method == "exact":
            return Neighbors(nearest(*_checked(features), self.k))
        xp, x = _unit(features)
        k = min(self.k, x.shape[0] - 1)
        if k < 1:
            return Neighbors(nearest(xp, x, self.k))
        return Neighbors(xp.asarray(approximately_nearest(to_numpy(x), k), device=device(x)))


@dataclass(frozen=True)
class scenes:  # noqa: N801
    """The k nearest neighbors, of which near-copies together weigh as much as one: for video.

    All neighbors of a frame are pictures of one scene, and say the same thing k times: `knn` makes
    the frame nearly certain of its own errors. Here each neighbor j of sample i weighs 1 over the
    number of near-copies that j has among the neighbors of i and i itself, j counted::

        W_ij = 1 / |{l in N(i) or l = i: 1 - cos(x_l, x_j) <= link median}|    for j in N(i),

    where the median is that of the distance 1 - cos over all pairs of the batch. Where no samples
    are near-copies this is `knn`.

    Parameters
    ----------
    k : int
        How many neighbors; a batch of N samples has at most N - 1.
    link : float
        How near a near-copy is, as a share of the median distance.

    Examples
    --------
    Two pictures of one thing, and one of another:

    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.99, 0.01], [0.0, 1.0]])
    >>> scenes(2)(features)
    array([[0. , 0.5, 1. ],
           [0.5, 0. , 1. ],
           [0.5, 0.5, 0. ]])
    """

    k: int = 5
    _: KW_ONLY
    link: float = 0.4

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)
        check_number("link", self.link, above=0)

    def __call__(self, features: Array, /) -> Array:
        xp, x = _unit(features)
        n = x.shape[0]
        marks = Neighbors(nearest(xp, x, self.k)).dense(x.dtype)
        if n < 2:
            return xp.astype(marks, features.dtype)
        eye = xp.eye(n, dtype=x.dtype, device=device(x))
        distance = (1 - matmul(xp, x, x.T)) * (1 - eye)
        # Sorted, the n zeros of the diagonal and then each pair twice, but for rounding.
        ordered = xp.sort(xp.reshape(distance, (-1,)))
        middle = n + n * (n - 1) // 2
        median = (ordered[middle - 1] + ordered[middle]) / 2
        near = distance <= xp.clip(self.link * median, min=_ROUNDING)
        copies = matmul(xp, marks + eye, xp.astype(near, x.dtype))
        return xp.astype(marks / xp.clip(copies, min=1), features.dtype)


@dataclass(frozen=True)
class rbf:  # noqa: N801
    """A Gaussian of the distance, as wide as the mean distance to the k-th neighbor.

    As the paper has it, W is dense with ones on the diagonal, and its row sums, so the strength of
    the correction, grow with the batch: a batch of 256 i.i.d. samples collapses onto few classes.
    Give ``row_sum`` unless you reproduce the paper or know that batches hold one class.

    Parameters
    ----------
    k : int
        Which neighbor sets the bandwidth; the sample itself does not count.
    row_sum : float, optional
        Drop the diagonal and scale each row to this sum, so that the strength does not depend on
        the batch size; 5 is as strong as ``knn(5)``.
    symmetric : bool
        Average W with its transpose; of use with ``row_sum``, which makes W asymmetric.

    Examples
    --------
    >>> import numpy as np
    >>> rbf(1)(np.array([[1.0, 0.0], [0.0, 1.0]])).round(3)
    array([[1.   , 0.607],
           [0.607, 1.   ]])
    """

    k: int = 5
    _: KW_ONLY
    row_sum: float | None = None
    symmetric: bool = False

    def __post_init__(self) -> None:
        check_integer("k", self.k, 1)
        check_flag("symmetric", self.symmetric)
        _check_row_sum(self.row_sum)

    def __call__(self, features: Array, /) -> Array:
        # 1 - cos of near duplicates cancels in float32, and the bandwidth would magnify that.
        xp, x = _unit(features, double=True)
        n = x.shape[0]
        if n == 0:
            return xp.zeros((0, 0), dtype=features.dtype, device=device(features))
        square = xp.vecdot(x, x)
        square = square[:, None] + square - 2 * matmul(xp, x, x.T)
        eye = xp.eye(n, dtype=x.dtype, device=device(x))
        square = xp.where(eye > 0, xp.zeros_like(square), xp.clip(square, min=0))
        # Sorted rows begin with the zero of the sample itself.
        kth = xp.sqrt(xp.sort(square, axis=1)[:, min(self.k, n - 1)])
        # Duplicates alone would give a bandwidth of 0, and then 0 / 0.
        width = xp.clip(xp.mean(kth), min=1e-6)
        w = xp.exp(-square / (2 * width**2))
        return _finish(xp, _scaled(xp, w, self.row_sum), features, self.symmetric)


@dataclass(frozen=True)
class linear:  # noqa: N801
    """The cosine of the angle between two samples.

    Row sums grow with the batch even faster than those of `rbf`; the same advice holds.

    Parameters
    ----------
    row_sum : float, optional
        Drop the diagonal and negative cosines, and scale each row to this sum.
    symmetric : bool
        Average W with its transpose; of use with ``row_sum``, which makes W asymmetric.

    Examples
    --------
    >>> import numpy as np
    >>> linear()(np.array([[2.0, 0.0], [3.0, 4.0]]))
    array([[1. , 0.6],
           [0.6, 1. ]])
    """

    _: KW_ONLY
    row_sum: float | None = None
    symmetric: bool = False

    def __post_init__(self) -> None:
        check_flag("symmetric", self.symmetric)
        _check_row_sum(self.row_sum)

    def __call__(self, features: Array, /) -> Array:
        xp, x = _unit(features)
        return _finish(xp, _scaled(xp, matmul(xp, x, x.T), self.row_sum), features, self.symmetric)


AFFINITIES: FactoryRegistry[Affinity] = FactoryRegistry(
    "affinity",
    {
        "knn": knn,
        "scenes": scenes,
        "rbf": rbf,
        "linear": linear,
    },
    group=GROUPS["affinities"],
    makes=Affinity,
)
"""The affinities by name, for experiments and the command."""


def _checked(features: Array) -> tuple[ModuleType, Array]:
    xp = namespace(features=features)
    check_matrix(xp, "features", "[N, d]", features)
    x = widen(xp, features)
    # Elsewhere a look would wait; NumPy's, since under jax.jit JAX's own operations are traced.
    if is_host_array(x) and not np.isfinite(np.asarray(x)).all():
        raise LamettaError("features must be finite, got NaN or infinity")
    return xp, x


def _unit(features: Array, *, double: bool = False) -> tuple[ModuleType, Array]:
    xp, x = _checked(features)
    # JAX has float64 only where the user switched it on, Apple's GPUs have none.
    if double and not is_jax_array(x) and getattr(x.device, "type", None) != "mps":
        x = xp.astype(x, xp.float64)
    return xp, unit_rows(xp, x)


def _scaled(xp: ModuleType, w: Array, row_sum: float | None) -> Array:
    """Rows without self-affinity and negative entries, scaled to ``row_sum``."""
    if row_sum is None:
        return w
    eye = xp.eye(w.shape[0], dtype=w.dtype, device=device(w))
    w = xp.clip(w * (1 - eye), min=0)
    total = xp.sum(w, axis=1, keepdims=True)
    return w * (row_sum / xp.where(total > 0, total, xp.ones_like(total)))


def _finish(xp: ModuleType, w: Array, features: Array, symmetric: bool) -> Array:
    if symmetric:
        w = (w + w.T) / 2
    return xp.astype(w, features.dtype)


def _check_row_sum(row_sum: object) -> None:
    if row_sum is not None:
        check_number("row_sum", row_sum, above=0)
