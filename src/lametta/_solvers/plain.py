"""Fixed-point iteration for any affinity and any array library."""

from types import ModuleType
from typing import TypeGuard

from lametta._arrays import log, matmul, namespace, softmax, widen
from lametta._locks import check_interrupt
from lametta._solvers.problem import Problem, Solution, checked_probs
from lametta.affinity import Affinity, Neighbors, knn, linear, rbf, scenes
from lametta.types import Array, LamettaError

# Updates between two convergence checks: a check makes the host wait for the device.
_CHECK_EVERY = 4
# From this batch size on, W is a list of neighbors and not a matrix.
LARGE_BATCH = 2048
_MAX_EXPONENT = 50  # k times weight: its exponential stays far from overflow


def fits(problem: Problem) -> bool:
    """Whether this solver can do it: always."""
    return True


def solve(problem: Problem) -> Solution:
    """Iterate until z moves by no more than ``tol``, or ``max_iter`` times."""
    xp = problem.xp
    x, q = widen(xp, problem.features), widen(xp, problem.probs)
    if problem.tol > 0:
        q = checked_probs(problem.probs.dtype, x, q, xp)
    return iterate(xp, q, _weights(problem, x, q), problem.max_iter, problem.tol)


def iterate(
    xp: ModuleType, q: Array, w: "Array | Neighbors", max_iter: int, tol: float
) -> Solution:
    """Apply ``z <- softmax(log q + W z)``, the paper's equation 5, from z = q on."""
    log_q = log(xp, q)
    z = q / xp.sum(q, axis=1, keepdims=True)
    a, n_iter, converged = xp.zeros_like(z), 0, False
    while n_iter < max_iter and not converged:
        if tol > 0:  # a compiler sees no clock
            check_interrupt()
        a = matmul(xp, w, z)
        z_old, z = z, softmax(xp, log_q + a)
        n_iter += 1
        if tol > 0 and (n_iter % _CHECK_EVERY == 0 or n_iter == max_iter):
            converged = bool(xp.max(xp.abs(z - z_old)) <= tol)
    # log z - log q = a - log norm, with norm_i = sum_k q_ik exp(a_ik).
    log_norm = xp.max(log_q + a, axis=1) - xp.log(xp.max(z, axis=1))
    energy = xp.sum(z * a) - xp.sum(log_norm) - xp.sum(z * matmul(xp, w, z)) / 2
    return Solution(z, n_iter, converged, energy)


def is_directed_knn(affinity: Affinity) -> TypeGuard[knn]:
    """Whether W is k neighbors for each sample, all of one weight: a list, not a matrix."""
    return isinstance(affinity, knn) and affinity.direction == "own" and not affinity.symmetric


def has_few_neighbors(affinity: Affinity, weight: float) -> TypeGuard[knn]:
    """Whether, besides, no exponent overflows: what the faster solvers take."""
    return is_directed_knn(affinity) and affinity.k * weight <= _MAX_EXPONENT


def _weights(problem: Problem, x: Array, q: Array) -> "Array | Neighbors":
    """W times ``weight``, checked."""
    xp, affinity, n = problem.xp, problem.affinity, q.shape[0]
    if is_directed_knn(affinity) and n > LARGE_BATCH:
        return Neighbors(affinity.neighbors(x).index, float(problem.weight))
    w = affinity(x)
    namespace(probs=q, **{"affinity(features)": w})
    if tuple(w.shape) != (n, n):
        raise LamettaError(
            f"affinity(features) must have shape [N, N] = {(n, n)}, got {tuple(w.shape)}"
        )
    is_builtin = isinstance(affinity, knn | scenes | rbf | linear)
    if problem.tol > 0 and not is_builtin and not bool(xp.all(xp.isfinite(w))):
        raise LamettaError("affinity(features) must be finite, got NaN or infinity")
    return xp.astype(w, q.dtype) * problem.weight
