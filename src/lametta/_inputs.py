"""What `lametta.lame` takes, and what it says of anything else."""

from numbers import Integral
from typing import Any

from array_api_compat import is_jax_array

from lametta._arrays import check_matrix, row_sums
from lametta.types import Array, LamettaError


def check_shapes(xp: Any, features: Array, probs: Array) -> None:
    """Raise unless these are features [N, d] and probs [N, K] of the same samples."""
    check_matrix(xp, "features", "[N, d]", features)
    check_matrix(xp, "probs", "[N, K]", probs)
    if features.shape[0] != probs.shape[0]:
        raise LamettaError(
            "features and probs must have one row for each sample, "
            f"got {features.shape[0]} and {probs.shape[0]} rows"
        )


def check_streams(xp: Any, features: Array, probs: Array, lengths: Any) -> None:
    """Raise unless these are batches of several streams, with a length for each or none."""
    shapes = tuple(features.shape), tuple(probs.shape)
    if [len(shape) for shape in shapes] != [3, 3] or shapes[0][:2] != shapes[1][:2]:
        raise LamettaError(
            f"features and probs must be [B, N, d] and [B, N, K], got shapes {shapes[0]} and "
            f"{shapes[1]}"
        )
    streams = features.shape[0]
    if streams == 0:
        raise LamettaError("features must hold a stream or more, got none")
    check_shapes(xp, features[0, :, :], probs[0, :, :])
    if lengths is not None and (getattr(lengths, "ndim", 1) != 1 or len(lengths) != streams):
        raise LamettaError(f"lengths must have one entry a stream, {streams}, got {lengths!r}")


def check_options(weight: float, max_iter: int, tol: float) -> None:
    """Raise unless these are options of `lametta.lame`."""
    if not 0 <= weight < float("inf"):
        raise LamettaError(f"weight must be a finite number >= 0, got {weight!r}")
    if isinstance(max_iter, bool) or not isinstance(max_iter, Integral) or max_iter < 0:
        raise LamettaError(f"max_iter must be an integer >= 0, got {max_iter!r}")
    if not 0 <= tol < float("inf"):
        raise LamettaError(f"tol must be a finite number >= 0, got {tol!r}")


def checked_values(xp: Any, x: Array, q: Array, dtype: Any) -> Array:
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
