"""k-nearest-neighbor search by cosine: exact on any array, approximate with faiss.

The approximate search is an inverted file over clusters of directions. Samples are compared by
codes of four bits, each for one entry or a few, which a processor looks up by the dozen in its
registers; the best of them are compared again by all their entries.
"""

import math
from types import ModuleType
from typing import Any

import numpy as np
from array_api_compat import device, is_numpy_array, is_torch_array
from numpy.typing import NDArray

from lametta._arrays import matmul, row_norms, squares_fit, top_k, unit_rows
from lametta._checks import import_optional
from lametta.types import Array

_BLOCK = 2**24  # entries of the matrix of inner products that are made at a time

_FEW_SAMPLES = 8192  # up to so many are all compared
# With N^0.5 clusters, of which so many are searched, the cost grows with N^1.5.
_CLUSTERS_SEARCHED = 128
_TRAINING_SAMPLES = 64  # for each cluster
_MAX_CODES = 128  # for each sample; where there are more entries, a code is for several
_BITS = 4
_CANDIDATES = 16  # times k, which are compared by all their entries
_QUERY_BLOCK = 2**16  # samples that are searched for at a time: each has a list of clusters


def nearest(xp: ModuleType, x: Array, k: int) -> Array:
    """Indices [N, min(k, N - 1)] of the rows nearest to each row in direction, itself left out.

    The distance is Euclidean between rows of length 1, through inner products and a block of rows
    at a time, so that memory grows with N and not with its square.
    """
    n = x.shape[0]
    norms = row_norms(xp, x)
    if squares_fit(xp, norms):
        scale, zero = 1 / norms, None
    else:
        x = unit_rows(xp, x)
        # A zero row is at distance 1 from the others, as a row at 60 degrees is: exactly, or the
        # rounding of their lengths would decide which of them are nearest to it.
        scale, zero = None, xp.astype(xp.all(x == 0, axis=1), x.dtype)
    # One block has no loop, so that exporters can leave N open.
    starts = [0] if n * n <= _BLOCK else list(range(0, n, max(1, _BLOCK // n)))
    found = []
    for start, stop in zip(starts, [*starts[1:], n], strict=True):
        similarity = matmul(xp, x[start:stop, :], x.T)
        if zero is not None:
            similarity = similarity + zero / 2
        found.append(nearest_by_products(xp, similarity, k, scale, start))
    return found[0] if len(found) == 1 else xp.concat(found, axis=0)


def nearest_by_products(
    xp: ModuleType, products: Array, k: int, scale: Array | None, start: int = 0
) -> Array:
    """Find the same neighbors from a block of inner products, which is overwritten.

    Row i of ``products`` is row ``start + i`` times all rows; ``scale`` [N] is 1 over the length of
    each row. The length of row i itself changes no ranking, so that it is left out.
    """
    if scale is not None:
        products *= scale
    n = products.shape[1]
    most = k if k < n else max(n - 1, 0)  # not min, which exporters would leave open
    return top_k(xp, _without_self(xp, products, start), most)


def _without_self(xp: ModuleType, similarity: Array, start: int) -> Array:
    """Put minus infinity where a row meets itself; the block starts with row ``start``."""
    if is_numpy_array(similarity):
        np.fill_diagonal(similarity[:, start:], -np.inf)
        return similarity
    if is_torch_array(similarity):
        similarity.diagonal(start).fill_(-xp.inf)
        return similarity
    rows = xp.arange(similarity.shape[0], device=device(similarity))
    columns = xp.arange(similarity.shape[1], device=device(similarity))
    return xp.where(rows[:, None] + start == columns, -xp.inf, similarity)


def approximately_nearest(x: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices [N, k] of rows that are near to each row of length 1, itself left out.

    The rows are clustered, and neighbors are looked for in the clusters nearest to a row. Where
    these hold fewer than k other rows, all rows are looked at.
    """
    faiss = import_optional("faiss", "faiss-cpu", "knn(method='faiss')")
    n = len(x)
    entries = math.ceil(x.shape[1] / _MAX_CODES)  # for each code
    padding = -x.shape[1] % entries
    x = np.ascontiguousarray(np.pad(x, ((0, 0), (0, padding))), dtype=np.float32)
    d = x.shape[1]
    exact = faiss.IndexFlatIP(d)
    if n <= _FEW_SAMPLES:
        exact.add(x)
        return _search(exact, x, k, np.arange(n))
    clusters = round(math.sqrt(n))
    codes = faiss.IndexIVFPQFastScan(
        exact, d, clusters, d // entries, _BITS, faiss.METRIC_INNER_PRODUCT
    )
    codes.train(x[:: max(1, n // (_TRAINING_SAMPLES * clusters))])
    codes.add(x)
    index = faiss.IndexRefineFlat(codes, faiss.swig_ptr(x))
    index.k_factor = _CANDIDATES
    codes.nprobe = min(_CLUSTERS_SEARCHED, clusters)
    found = _search(index, x, k, np.arange(n))
    short = np.flatnonzero((found < 0).any(axis=1))
    if len(short):
        codes.nprobe = clusters
        found[short] = _search(index, x, k, short)
    return found


def _search(index: Any, x: NDArray[Any], k: int, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Neighbors [R, k] of some rows, themselves left out."""
    found = np.empty((len(rows), k), np.int64)
    for start in range(0, len(rows), _QUERY_BLOCK):
        some = rows[start : start + _QUERY_BLOCK]
        near = index.search(x[some], k + 1)[1]
        own = near == some[:, None]
        own[~own.any(axis=1), -1] = True  # where a row is not among them, the last of them goes
        found[start : start + _QUERY_BLOCK] = near[~own].reshape(len(some), k)
    return found
