"""LAME: Laplacian adjusted maximum-likelihood estimation (Boudiaf et al., CVPR 2022).

For a batch with source probabilities q and affinities w, LAME seeks the assignments z that minimize

    E(z) = sum_i KL(z_i || q_i) - 1/2 sum_ij w_ij z_i.z_j

by the concave-convex procedure, whose every step is a softmax (the paper's equation 6):

    z_ik <- q_ik exp(sum_j w_ij z_jk) / sum_k' q_ik' exp(sum_j w_ij z_jk')

The paper writes E without the 1/2, but its update belongs to the energy with it. Where W is
symmetric and positive semi-definite, E never rises.
"""

from importlib.util import find_spec
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from array_api_compat import device, is_jax_array, is_torch_array

from lametta._arrays import (
    is_host_array,
    log,
    matmul,
    namespace,
    nearest_by_products,
    row_norms,
    softmax,
    squares_fit,
    widen,
)
from lametta._inputs import check_options, check_shapes, check_streams, checked_values
from lametta._solvers.host import Solution, scratch, solve
from lametta.affinity import Affinity, Neighbors, knn, linear, rbf
from lametta.types import Array, LamettaError

_HAS_TRITON = find_spec("triton") is not None
# How many updates run between two looks at whether z rests: a look makes the host wait for the
# device.
_UPDATES_PER_LOOK = 4
# From this batch size on, W is a list of neighbors and not a matrix.
_LARGE_BATCH = 2048


class LameResult(NamedTuple):
    """What `lame` gives.

    Attributes
    ----------
    probs : array [N, K]
        Corrected probabilities, in the library, dtype and device of the input.
    n_iter : int
        How many updates were made; on CUDA a 0-d tensor, so that the host need not wait.
    converged : bool
        Whether the last update moved no probability by more than ``tol``; False for ``tol=0``,
        where nobody looked. On CUDA a 0-d tensor.
    energy : 0-d array
        E(z) of the result, summed over the batch.
    """

    probs: Array
    n_iter: int
    converged: bool
    energy: Array


def lame(
    features: Array,
    probs: Array,
    /,
    *,
    affinity: Affinity = knn(5),
    weight: float = 1.0,
    max_iter: int = 100,
    tol: float = 1e-5,
    lengths: Array = None,
) -> LameResult:
    """Correct the predictions of one batch by pulling similar samples together.

    Parameters
    ----------
    features : array [N, d], or [B, N, d]
        The classifier's features; only their directions matter. With three dimensions, these are
        the batches of B streams, which are corrected each for itself; on CUDA at one go.
    probs : array [N, K], or [B, N, K]
        The classifier's probabilities, from the same array library and device.
    affinity : callable
        ``affinity(features) -> W [N, N]``: `knn` (default), `rbf`, `linear` or your own.
    weight : float
        Factor on W: 0 returns the source, larger values correct more strongly.
    max_iter : int
        The most updates to make.
    tol : float
        Stop once an update moves no probability by more than this. With 0, exactly ``max_iter``
        updates run with no data-dependent control flow, and the values of the input are not
        checked: for ``jax.jit``, CUDA graphs and exporters.
    lengths : array of int [B], or sequence of int, optional
        How many samples of each stream there are, where streams are of unequal length. What comes
        after them only fills the array; it counts for nothing and is given back as it came.

    Returns
    -------
    LameResult
        ``(probs, n_iter, converged, energy)``; for several streams the last three are arrays [B].

    Raises
    ------
    LamettaError
        If an argument is not as described; the message names it, what was expected and what came.

    Notes
    -----
    Half precision is computed in float32. The result does not depend on the order of the batch,
    up to rounding and to ties between equally near neighbors.

    On CUDA, `knn` runs in Triton kernels without the host ever waiting for the device. A look at
    the values would make it wait, so there they are not checked: NaN gives NaN.

    Examples
    --------
    >>> import numpy as np
    >>> features = np.array([[1.0, 0.0], [0.9, 0.1], [0.8, 0.1], [0.0, 1.0]])
    >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.4, 0.6], [0.1, 0.9]])
    >>> lame(features, probs, affinity=knn(2)).probs.round(2)
    array([[0.98, 0.02],
           [0.95, 0.05],
           [0.81, 0.19],
           [0.34, 0.66]])
    """
    xp = namespace(features=features, probs=probs)
    check_options(weight, max_iter, tol)
    if features.ndim == 3:
        options = {"affinity": affinity, "weight": weight, "max_iter": max_iter, "tol": tol}
        return _streams(xp, features, probs, lengths, options)
    if lengths is not None:
        raise LamettaError(f"lengths must come with several streams [B, N, d], got {lengths!r}")
    check_shapes(xp, features, probs)
    if probs.shape[0] > 0 and _suits_cuda(affinity, weight, features, probs):
        streams = _on_cuda(
            features[None],
            probs[None],
            affinity=affinity,
            weight=weight,
            max_iter=max_iter,
            tol=tol,
        )
        return LameResult(*(tensor[0] for tensor in streams))
    x, q = widen(xp, features), widen(xp, probs)
    if q.shape[0] == 0:
        solution = Solution(q, 0, True, xp.sum(q))
    elif tol > 0 and _suits_host(affinity, weight) and is_host_array(x) and is_host_array(q):
        solution = _on_host(xp, x, q, probs.dtype, affinity, weight, max_iter, tol)
    else:
        if tol > 0:
            q = checked_values(xp, x, q, probs.dtype)
        w = _weights(xp, x, q, affinity, weight, check=tol > 0)
        solution = _iterate(xp, q, w, max_iter, tol)
    z, n_iter, converged, energy = solution
    return LameResult(xp.astype(z, probs.dtype, copy=False), n_iter, converged, energy)


def _streams(
    xp: Any, features: Array, probs: Array, lengths: Array, options: dict[str, Any]
) -> LameResult:
    """Several batches, each for itself."""
    check_streams(xp, features, probs, lengths)
    streams, n = features.shape[:2]
    if n > 0 and _suits_cuda(options["affinity"], options["weight"], features, probs):
        if lengths is not None:
            lengths = xp.asarray(lengths, dtype=xp.int32, device=device(probs))
        return LameResult(*_on_cuda(features, probs, lengths=lengths, **options))
    results, rows = [], []
    for stream, length in enumerate([n] * streams if lengths is None else map(int, lengths)):
        if not 0 <= length <= n:
            raise LamettaError(f"lengths must lie in 0..{n}, got {length}")
        results.append(lame(features[stream, :length, :], probs[stream, :length, :], **options))
        rows.append(xp.concat([results[-1].probs, probs[stream, length:, :]], axis=0))
    place = {"device": device(probs)}
    return LameResult(
        xp.stack(rows),
        xp.asarray([result.n_iter for result in results], dtype=xp.int32, **place),
        xp.asarray([result.converged for result in results], dtype=xp.bool, **place),
        xp.stack([result.energy for result in results]),
    )


def _iterate(xp: Any, q: Array, w: "Array | Neighbors", max_iter: int, tol: float) -> Solution:
    """The update of the module's docstring until z rests, for any array library."""
    log_q = log(xp, q)
    z = q / xp.sum(q, axis=1, keepdims=True)
    a, n_iter, converged = xp.zeros_like(z), 0, False
    while n_iter < max_iter and not converged:
        a = matmul(xp, w, z)
        z_old, z = z, softmax(xp, log_q + a)
        n_iter += 1
        if tol > 0 and (n_iter % _UPDATES_PER_LOOK == 0 or n_iter == max_iter):
            converged = bool(xp.max(xp.abs(z - z_old)) <= tol)
    # log z - log q = a - log norm, with norm_i = sum_k q_ik exp(a_ik).
    log_norm = xp.max(log_q + a, axis=1) - xp.log(xp.max(z, axis=1))
    energy = xp.sum(z * a) - xp.sum(log_norm) - xp.sum(z * matmul(xp, w, z)) / 2
    return Solution(z, n_iter, converged, energy)


def _on_host(
    xp: Any, x: Array, q: Array, dtype: Any, affinity: knn, weight: float, max_iter: int, tol: float
) -> Solution:
    """The same for k neighbors in host memory, by way of NumPy and with much of the work spared."""
    host_x, host_q = np.asarray(x), np.asarray(q)
    products = None
    if affinity.method == "exact" and x.shape[0] <= _LARGE_BATCH:
        products = _products(xp, x, host_x)
    norms = row_norms(np, host_x) if products is None else np.sqrt(products.diagonal())
    fits = squares_fit(np, norms)
    # Where the norms are good, so are the values they come from.
    host_q = checked_values(np, norms if fits else host_x, host_q, dtype)
    if products is not None and fits:
        index = nearest_by_products(np, products, affinity.k, 1 / norms)
    else:
        index = np.asarray(affinity.neighbors(x).index)
    z, n_iter, converged, energy = solve(host_q, Neighbors(index, float(weight)), max_iter, tol)
    place = {"device": device(q)} if is_jax_array(q) else {}
    z, energy = (xp.asarray(np.asarray(array), **place) for array in (z, energy))
    return Solution(z, n_iter, converged, energy)


def _products(xp: Any, x: Array, host_x: Any) -> Any:
    """Inner products [N, N] of all rows, as a NumPy array."""
    products = scratch("products", (x.shape[0], x.shape[0]), host_x.dtype)
    if is_torch_array(x):  # NumPy's threads beside PyTorch's would stall both for milliseconds
        xp.matmul(x, x.T, out=xp.from_numpy(products))
        return products
    with np.errstate(over="ignore", invalid="ignore"):
        return np.matmul(host_x, host_x.T, out=products)


def _on_cuda(
    features: Array,
    probs: Array,
    *,
    affinity: knn,
    weight: float,
    max_iter: int,
    tol: float,
    lengths: Array = None,
) -> Any:
    """The same for k neighbors in streams [B, N, d] on an NVIDIA GPU, with kernels of our own."""
    from lametta._solvers import cuda as _cuda

    return _cuda.solve(features, probs, affinity.k, weight, max_iter, tol, lengths)


def _weights(
    xp: Any, x: Array, q: Array, affinity: Affinity, weight: float, *, check: bool
) -> "Array | Neighbors":
    if _is_plain_knn(affinity) and x.shape[0] > _LARGE_BATCH:
        return Neighbors(affinity.neighbors(x).index, float(weight))
    w = affinity(x)
    namespace(probs=q, **{"affinity(features)": w})
    n = q.shape[0]
    if tuple(w.shape) != (n, n):
        raise LamettaError(
            f"affinity(features) must have shape [N, N] = {(n, n)}, got {tuple(w.shape)}"
        )
    if check and not isinstance(affinity, knn | rbf | linear) and not bool(xp.all(xp.isfinite(w))):
        raise LamettaError("affinity(features) must be finite, got NaN or infinity")
    return xp.astype(w, q.dtype) * weight


def _is_plain_knn(affinity: Affinity) -> TypeGuard[knn]:
    return isinstance(affinity, knn) and not affinity.symmetric


def _suits_host(affinity: Affinity, weight: float) -> TypeGuard[knn]:
    """Whether `lametta._solvers.host` can solve it: neighbors, and exponents far from overflow."""
    return _is_plain_knn(affinity) and affinity.k * weight <= 50


def _suits_cuda(affinity: Affinity, weight: float, features: Array, probs: Array) -> TypeGuard[knn]:
    """Whether `lametta._solvers.cuda` can solve it; where not, plain PyTorch does."""
    if not (is_torch_array(probs) and probs.is_cuda and _HAS_TRITON and _is_plain_knn(affinity)):
        return False
    from lametta._solvers import cuda as _cuda

    return affinity.method == "exact" and _cuda.fits(features, probs, affinity.k, weight)
