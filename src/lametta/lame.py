"""LAME: Laplacian adjusted maximum-likelihood estimation (Boudiaf et al., CVPR 2022).

For a batch with source probabilities q and affinities w, LAME seeks the assignments z that minimize

    E(z) = sum_i KL(z_i || q_i) - 1/2 sum_ij w_ij z_i.z_j

by the concave-convex procedure, whose every step is a softmax (the paper's equation 6):

    z_ik <- q_ik exp(sum_j w_ij z_jk) / sum_k' q_ik' exp(sum_j w_ij z_jk')

The paper writes E without the 1/2, but its update belongs to the energy with it. Where W is
symmetric and positive semi-definite, E never rises.
"""

from importlib.util import find_spec
from numbers import Integral
from typing import Any, NamedTuple, TypeGuard

import numpy as np
from array_api_compat import device, is_jax_array, is_torch_array

from lametta._arrays import (
    check_matrix,
    is_host_array,
    log,
    matmul,
    namespace,
    nearest,
    row_norms,
    row_sums,
    softmax,
    squares_fit,
    widen,
)
from lametta._host import Solution, solve
from lametta.affinity import Affinity, Neighbors, knn, linear, rbf
from lametta.types import Array, LamettaError

_HAS_TRITON = find_spec("triton") is not None
# How many updates run between two looks at whether z rests: a look makes the host wait for the
# device.
_UPDATES_PER_LOOK = 4
# From this batch size on, W is a list of neighbors and not a matrix.
_LARGE_BATCH = 2048
# Up to this batch size BLAS compares all samples on one thread.
_ONE_THREAD_BATCH = 64


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
) -> LameResult:
    """Correct the predictions of one batch by pulling similar samples together.

    Parameters
    ----------
    features : array [N, d]
        The classifier's features; only their directions matter.
    probs : array [N, K]
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

    Returns
    -------
    LameResult
        ``(probs, n_iter, converged, energy)``.

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
    _check_shapes(xp, features, probs)
    _check_options(weight, max_iter, tol)
    x, q = widen(xp, features), widen(xp, probs)
    if q.shape[0] == 0:
        solution = Solution(q, 0, True, xp.sum(q))
    elif _suits_cuda(affinity, weight, features, probs):
        solution = _on_cuda(features, probs, affinity.k, weight, max_iter, tol)
    elif tol > 0 and _suits_host(affinity, weight) and is_host_array(x) and is_host_array(q):
        solution = _on_host(xp, x, q, probs.dtype, affinity.k, weight, max_iter, tol)
    else:
        if tol > 0:
            q = _checked_values(xp, x, q, probs.dtype)
        w = _weights(xp, x, q, affinity, weight, check=tol > 0)
        solution = _iterate(xp, q, w, max_iter, tol)
    z, n_iter, converged, energy = solution
    return LameResult(xp.astype(z, probs.dtype, copy=False), n_iter, converged, energy)


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
    xp: Any, x: Array, q: Array, dtype: Any, k: int, weight: float, max_iter: int, tol: float
) -> Solution:
    """The same for k neighbors in host memory, by way of NumPy and with much of the work spared."""
    host_x, host_q = np.asarray(x), np.asarray(q)
    norms = row_norms(np, host_x)
    # Where the norms are good, so are the values they come from.
    host_q = _checked_values(np, norms if squares_fit(np, norms) else host_x, host_q, dtype)
    if x.shape[0] <= _ONE_THREAD_BATCH:
        index = nearest(np, host_x, k, norms)
    else:  # NumPy's threads beside PyTorch's would stall both for milliseconds
        index = np.asarray(nearest(xp, x, k))
    z, n_iter, converged, energy = solve(host_q, Neighbors(index, float(weight)), max_iter, tol)
    place = {"device": device(q)} if is_jax_array(q) else {}
    z, energy = (xp.asarray(np.asarray(array), **place) for array in (z, energy))
    return Solution(z, n_iter, converged, energy)


def _on_cuda(
    features: Array, probs: Array, k: int, weight: float, max_iter: int, tol: float
) -> Solution:
    """The same for k neighbors on an NVIDIA GPU, with kernels of our own."""
    from lametta import _cuda  # loads PyTorch and Triton

    streams: Any = _cuda.solve(features[None], probs[None], k, weight, max_iter, tol)
    return Solution(*(tensor[0] for tensor in streams))


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
    """Whether `lametta._host` can solve it: neighbors, and exponents far from overflow."""
    return _is_plain_knn(affinity) and affinity.k * weight <= 50


def _suits_cuda(affinity: Affinity, weight: float, features: Array, probs: Array) -> TypeGuard[knn]:
    """Whether `lametta._cuda` can solve it; where not, plain PyTorch does."""
    if not (is_torch_array(probs) and probs.is_cuda and _HAS_TRITON and _is_plain_knn(affinity)):
        return False
    from lametta import _cuda

    return _cuda.fits(features, probs, affinity.k, weight)


def _check_shapes(xp: Any, features: Array, probs: Array) -> None:
    check_matrix(xp, "features", "[N, d]", features)
    check_matrix(xp, "probs", "[N, K]", probs)
    if features.shape[0] != probs.shape[0]:
        raise LamettaError(
            "features and probs must have one row for each sample, "
            f"got {features.shape[0]} and {probs.shape[0]} rows"
        )


def _check_options(weight: float, max_iter: int, tol: float) -> None:
    if not 0 <= weight < float("inf"):
        raise LamettaError(f"weight must be a finite number >= 0, got {weight!r}")
    if isinstance(max_iter, bool) or not isinstance(max_iter, Integral) or max_iter < 0:
        raise LamettaError(f"max_iter must be an integer >= 0, got {max_iter!r}")
    if not 0 <= tol < float("inf"):
        raise LamettaError(f"tol must be a finite number >= 0, got {tol!r}")


def _checked_values(xp: Any, x: Array, q: Array, dtype: Any) -> Array:
    """Return q with rows that sum to 1, or say what is wrong with the values of x or q."""
    half = str(dtype).endswith("float16")
    slack = 2e-2 if half else 1e-3
    sums = row_sums(xp, q)
    off = xp.max(xp.abs(sums - 1))
    try:
        if bool(xp.all(xp.isfinite(x)) & (xp.min(q) >= 0) & (off <= slack)):
            return q / sums[:, None] if half else q
    except TypeError:
        if is_jax_array(q):
            raise LamettaError("tol must be 0 under jax.jit, got a traced array") from None
        raise
    for name, array in ("features", x), ("probs", q):
        if not bool(xp.all(xp.isfinite(array))):
            what = "NaN" if bool(xp.any(xp.isnan(array))) else "infinity"
            raise LamettaError(f"{name} must be finite, got {what}")
    if bool(xp.min(q) < 0):
        raise LamettaError(f"probs must be >= 0, got {float(xp.min(q))}")
    row = int(xp.argmax(xp.abs(sums - 1)))
    raise LamettaError(
        f"probs must have rows that sum to 1, got {float(sums[row]):.6g} in row {row}"
    )
