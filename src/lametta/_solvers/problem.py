"""Problem and Solution: what a solver is given and returns, and the check of probabilities."""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from array_api_compat import is_jax_array, is_numpy_array

from lametta._arrays import row_sums, to_numpy
from lametta._checks import ONE_OF_SEVERAL
from lametta.affinity import Affinity
from lametta.types import Array, LamettaError


class Problem(NamedTuple):
    """The arguments of `lametta.lame`, checked but for their values, and their namespace."""

    xp: ModuleType
    features: Array
    probs: Array
    affinity: Affinity
    weight: float
    max_iter: int
    tol: float


class Solution(NamedTuple):
    """Assignments z [N, K] and how they came about, as in `lametta.LameResult`."""

    z: Array
    n_iter: "int | Array"
    converged: "bool | Array"
    energy: Array


def checked_probs(dtype: Any, x: Array, q: Array, xp: ModuleType) -> Array:
    """Return q with rows that sum to 1, or say what is wrong with the values of x or q.

    ``x`` is the features, or their norms, which are finite where the features are; ``q`` is the
    probabilities in float32 or float64, which came in ``dtype``; both in the namespace ``xp``.
    """
    half = dtype is not q.dtype and str(dtype).endswith("float16")  # bfloat16 too
    slack = 2e-2 if half else 1e-3
    sums = row_sums(xp, q)
    try:
        if is_numpy_array(q):  # methods, which cost less than functions: this is hot
            right = np.isfinite(x).all() and q.min() >= 0 and abs(sums - 1).max() <= slack
        else:
            off = xp.max(xp.abs(sums - 1))
            right = bool(xp.all(xp.isfinite(x)) & (xp.min(q) >= 0) & (off <= slack))
        if right:
            return q / sums[:, None] if half else q
    except TypeError:
        if is_jax_array(q):
            raise LamettaError(
                "tol must be 0 under jax.jit and jax.vmap, got a traced array"
            ) from None
        raise
    raise _wrong_values(x, q, sums, xp)


def _wrong_values(x: Array, q: Array, sums: Array, xp: ModuleType) -> LamettaError:
    """What is wrong with the values of features or probabilities, of which something is."""
    for name, array in ("features", x), ("probs", q):
        if not bool(xp.all(xp.isfinite(array))):
            what = "NaN" if bool(xp.any(xp.isnan(array))) else "infinity"
            return LamettaError(f"{name} must be finite, got {what}")
    if bool(xp.min(q) < 0):
        return LamettaError(f"probs must be >= 0, got {float(to_numpy(xp.min(q)))}")
    row = int(xp.argmax(xp.abs(sums - 1)))
    total = float(to_numpy(sums[row]))
    return LamettaError(
        f"probs must have rows that sum to 1, got {total:.6g} in row {row}; {ONE_OF_SEVERAL}"
    )
