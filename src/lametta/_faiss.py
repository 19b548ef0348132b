"""Approximate neighbors through faiss: an inverted file over clusters of directions.

Samples are compared by codes of four bits, each for one entry or a few, which a processor looks up
by the dozen in its registers; the best of them are compared again by all their entries.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lametta._checks import import_optional

_FEW_SAMPLES = 8192  # up to so many are all compared
# With N^0.5 clusters, of which so many are looked at, the cost grows with N^1.5.
_CLUSTERS_LOOKED_AT = 128
_TRAINING_SAMPLES = 64  # for each cluster
_MOST_CODES = 128  # for each sample; where there are more entries, a code is for several
_BITS = 4
_COMPARED_AGAIN = 16  # times k
_BLOCK = 2**16  # samples whose neighbors are looked for at a time: each has a list of clusters


def approximately_nearest(x: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices [N, k] of rows that are near to each row of length 1, itself left out.

    The rows are clustered, and neighbors are looked for in the clusters nearest to a row. Where
    these hold fewer than k other rows, all rows are looked at.
    """
    faiss = import_optional("faiss", "faiss-cpu", "knn(method='faiss')")
    n = len(x)
    entries = math.ceil(x.shape[1] / _MOST_CODES)  # for each code
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
    index.k_factor = _COMPARED_AGAIN
    codes.nprobe = min(_CLUSTERS_LOOKED_AT, clusters)
    found = _search(index, x, k, np.arange(n))
    short = np.flatnonzero((found < 0).any(axis=1))
    if len(short):
        codes.nprobe = clusters
        found[short] = _search(index, x, k, short)
    return found


def _search(index: Any, x: NDArray[Any], k: int, rows: NDArray[np.intp]) -> NDArray[np.int64]:
    """Neighbors [R, k] of some rows, themselves left out."""
    found = np.empty((len(rows), k), np.int64)
    for start in range(0, len(rows), _BLOCK):
        some = rows[start : start + _BLOCK]
        near = index.search(x[some], k + 1)[1]
        own = near == some[:, None]
        own[~own.any(axis=1), -1] = True  # where a row is not among them, the last of them goes
        found[start : start + _BLOCK] = near[~own].reshape(len(some), k)
    return found
