"""LAME: Laplacian adjusted maximum-likelihood estimation (Boudiaf et al., CVPR 2022).

For a batch with source probabilities q and affinities w, LAME seeks the assignments z that minimize

    E(z) = sum_i KL(z_i || q_i) - 1/2 sum_ij w_ij z_i.z_j

by the concave-convex procedure, whose every step is a softmax (the paper's equation 5):

    z_ik <- q_ik exp(sum_j w_ij z_jk) / sum_k' q_ik' exp(sum_j w_ij z_jk')

The paper writes E without the 1/2, but its update belongs to the energy with it. Where W is
symmetric and positive semi-definite, E never rises.

This module checks what it is given and picks a solver; `lametta._solvers.plain` has the update in
the words of the equation, the others give the same result with less work.
"""

import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from array_api_compat import device

from lametta._arrays import check_matrix, namespace, widen
from lametta._checks import check_callable, check_integer, check_number
from lametta._solvers import cuda, host, plain
from lametta._solvers.problem import Problem
from lametta.affinity import Affinity, knn
from lametta.types import Array, LamettaError

_SOLVERS = (cuda, host, plain)  # the first that fits
_STRONGEST = 1e6  # weight; anything near it makes neighbors equal, and more would overflow


class LameResult(NamedTuple):
    """Result of `lame`: corrected probabilities, and how the iteration ended.

    Attributes
    ----------
    probs : array [N, K]
        Corrected probabilities, in the library, dtype and device of the input.
    n_iter : int, or 0-d tensor
        How many updates were made. On CUDA it stays on the device, so that the host need not wait;
        ``int(n_iter)`` works on both.
    converged : bool, or 0-d tensor
        Whether the last update moved no probability by more than ``tol``; False for ``tol=0``,
        where nobody looked. On CUDA it stays on the device; ``bool(converged)`` works on both.
    energy : 0-d array
        E(z) of the result, summed over the batch.

    Notes
    -----
    It is a tuple, which JAX takes apart and puts together: what ``jax.jit`` returns has 0-d arrays
    for ``n_iter``, which is ``max_iter``, and ``converged``, which is False; what ``jax.vmap``
    returns has all four with the mapped axis in front.

    Examples
    --------
    >>> import numpy as np
    >>> result = lame(np.eye(6), np.full((6, 2), 0.5))
    >>> result.probs.shape, result.converged
    ((6, 2), True)
    """

    probs: Array
    n_iter: int | Array
    converged: bool | Array
    energy: Array


class LameStreamsResult(NamedTuple):
    """Result of `lame_streams`: a `LameResult` with an entry for each of the B streams.

    Attributes
    ----------
    probs : array [B, N, K]
        Corrected probabilities.
    n_iter : array of int32 [B]
        How many updates were made.
    converged : array of bool [B]
        Whether the last update moved no probability by more than ``tol``.
    energy : array [B]
        E(z) of each stream.

    Examples
    --------
    >>> import numpy as np
    >>> result = lame_streams(np.ones((4, 6, 3)), np.full((4, 6, 2), 0.5))
    >>> result.probs.shape, result.n_iter.shape
    ((4, 6, 2), (4,))
    """

    probs: Array
    n_iter: Array
    converged: Array
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
        Factor on W, up to 1e6: 0 returns the source, larger values correct more strongly.
    max_iter : int
        The most updates to make.
    tol : float
        Stop once an update moves no probability by more than this. With 0, exactly ``max_iter``
        updates run with no data-dependent control flow, and the values of the input are not
        checked: for ``jax.jit``, ``jax.vmap``, CUDA graphs and exporters.

    Returns
    -------
    LameResult
        ``(probs, n_iter, converged, energy)``.

    Raises
    ------
    LamettaError
        If an argument is not as described; the message names it, what was expected and what came.

    See Also
    --------
    lame_streams : The same for many streams at once.

    Notes
    -----
    Half precision is computed in float32. The result does not depend on the order of the batch,
    up to rounding and to ties between equally near neighbors.

    On CUDA, `knn` runs in Triton kernels without the host ever waiting for the device, up to 4096
    samples a batch; larger ones wait a few times, unless a graph captures them. A look at the
    values would make it wait, so there they are not checked: NaN gives NaN.

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
    check_options(affinity, weight, max_iter, tol)
    check_shapes(xp, features, probs)
    if probs.shape[0] == 0:
        return LameResult(probs, 0, True, xp.sum(widen(xp, probs)))
    problem = Problem(xp, features, probs, affinity, weight, max_iter, tol)
    solver = next(solver for solver in _SOLVERS if solver.fits(problem))
    z, n_iter, converged, energy = solver.solve(problem)
    return LameResult(xp.astype(z, probs.dtype, copy=False), n_iter, converged, energy)


def lame_streams(
    features: Array,
    probs: Array,
    lengths: Array | None = None,
    /,
    *,
    affinity: Affinity = knn(5),
    weight: float = 1.0,
    max_iter: int = 100,
    tol: float = 1e-5,
) -> LameStreamsResult:
    """Correct one batch of each of many streams; on CUDA all of them in one launch.

    Parameters
    ----------
    features : array [B, N, d]
        The classifier's features, for each of B streams.
    probs : array [B, N, K]
        The classifier's probabilities.
    lengths : array of int [B], or sequence of int, optional
        How many samples each stream has, where streams are of unequal length. What comes after
        them only fills the array; it counts for nothing and is given back as it came.
    affinity, weight, max_iter, tol
        As for `lame`.

    Returns
    -------
    LameStreamsResult
        ``(probs, n_iter, converged, energy)``, the last three arrays [B].

    Notes
    -----
    A stream with NaN, or with rows that are no probabilities, costs nobody else: its rows come back
    as NaN, with a warning. If no stream can be corrected, that is an error. On CUDA values are not
    looked at, as in `lame`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> features, probs = rng.normal(size=(3, 8, 4)), rng.dirichlet(np.ones(2), size=(3, 8))
    >>> result = lame_streams(features, probs, [8, 8, 5])
    >>> result.probs.shape, result.n_iter.shape
    ((3, 8, 2), (3,))
    """
    xp = namespace(features=features, probs=probs)
    check_options(affinity, weight, max_iter, tol)
    _check_streams(xp, features, probs, lengths)
    n_streams, n = features.shape[:2]
    problem = Problem(xp, features, probs, affinity, weight, max_iter, tol)
    if n > 0 and cuda.fits(problem):
        if lengths is not None:
            lengths = xp.asarray(lengths, dtype=xp.int32, device=device(probs))
        return LameStreamsResult(*cuda.solve_streams(problem, lengths))
    given = [n] * n_streams if lengths is None else [int(length) for length in lengths]
    results, errors = _solve_each(problem, given)
    if len(errors) == n_streams:
        raise errors[0]
    for stream, reason in errors.items():
        warnings.warn(f"stream {stream} is left out of this batch: {reason}", stacklevel=2)
    return _stacked(xp, results, probs, given)


def _stacked(
    xp: ModuleType, results: Sequence[LameResult], probs: Array, lengths: Sequence[int]
) -> LameStreamsResult:
    """The results of all streams in arrays, with what only filled them given back."""
    place = {"device": device(probs)}
    rows = [
        xp.concat([result.probs, probs[stream, length:, :]], axis=0)
        for stream, (result, length) in enumerate(zip(results, lengths, strict=True))
    ]
    return LameStreamsResult(
        xp.stack(rows),
        xp.asarray([int(result.n_iter) for result in results], dtype=xp.int32, **place),
        xp.asarray([bool(result.converged) for result in results], dtype=xp.bool, **place),
        xp.stack([result.energy for result in results]),
    )


def _solve_each(
    problem: Problem, lengths: Sequence[int]
) -> tuple[list[LameResult], dict[int, LamettaError]]:
    """Solve stream after stream; the result of one that is refused is NaN."""
    xp, n = problem.xp, problem.features.shape[1]
    options = {name: getattr(problem, name) for name in ("affinity", "weight", "max_iter", "tol")}
    results, errors = [], {}
    for stream, length in enumerate(lengths):
        if not 0 <= length <= n:
            raise LamettaError(f"lengths must lie in 0..{n}, got {length}")
        x, q = (array[stream, :length, :] for array in (problem.features, problem.probs))
        try:
            results.append(lame(x, q, **options))
        except LamettaError as error:
            nothing = xp.full_like(q, xp.nan)
            results.append(LameResult(nothing, 0, False, xp.sum(widen(xp, nothing))))
            errors[stream] = error
    return results, errors


def check_options(affinity: object, weight: object, max_iter: object, tol: object) -> None:
    """Raise unless these are options of `lame`."""
    check_callable("affinity", affinity, "a callable from features [N, d] to W [N, N]")
    check_number("weight", weight, 0, _STRONGEST)
    check_integer("max_iter", max_iter, 0)
    check_number("tol", tol, 0)


def check_shapes(xp: ModuleType, features: Array, probs: Array) -> None:
    """Raise unless these are features [N, d] and probs [N, K], of whatever values."""
    if features.ndim == probs.ndim == 3:
        raise LamettaError(
            f"features must be 2-D [N, d], got shape {tuple(features.shape)}; "
            "lame_streams takes several streams [B, N, d]"
        )
    check_matrix(xp, "features", "[N, d]", features)
    check_matrix(xp, "probs", "[N, K]", probs)
    if features.shape[0] != probs.shape[0]:
        raise LamettaError(
            "features and probs must have one row for each sample, "
            f"got {features.shape[0]} and {probs.shape[0]} rows"
        )


def _check_streams(xp: ModuleType, features: Array, probs: Array, lengths: Array | None) -> None:
    shapes = tuple(features.shape), tuple(probs.shape)
    if [len(shape) for shape in shapes] != [3, 3] or shapes[0][:2] != shapes[1][:2]:
        raise LamettaError(
            f"features and probs must be [B, N, d] and [B, N, K], got shapes {shapes[0]} and "
            f"{shapes[1]}"
        )
    n_streams = features.shape[0]
    if n_streams == 0:
        raise LamettaError("features must hold a stream or more, got none")
    check_shapes(xp, features[0, :, :], probs[0, :, :])
    if lengths is not None:
        _check_lengths(lengths, n_streams)


def _check_lengths(lengths: Array, n_streams: int) -> None:
    listed = lengths.tolist() if hasattr(lengths, "tolist") else lengths
    whole = isinstance(listed, list | tuple) and all(
        isinstance(n, int) and not isinstance(n, bool) for n in listed
    )
    if not whole or len(listed) != n_streams:
        raise LamettaError(
            f"lengths must have one entry a stream, {n_streams} integers, got {lengths!r}"
        )
