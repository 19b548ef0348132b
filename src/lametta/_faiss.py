"""Approximate neighbors through faiss: an inverted file over clusters of directions."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lametta._packages import package

# faiss asks for 39 samples a cluster to train on.
_SAMPLES_PER_LIST = 39
# One of every 16, within these bounds: with more, the cost would grow with the square of N again.
_LISTS_LOOKED_AT = 8, 64


def approximately_nearest(x: NDArray[Any], k: int) -> NDArray[np.int64]:
    """Indices [N, k] of rows that are near to each row of length 1, itself left out.

    The rows are clustered, and neighbors are looked for in the clusters nearest to a row. Where
    these hold fewer than k other rows, all rows are looked at.
    """
    faiss = package("faiss", "faiss-cpu", "knn(method='faiss')")
    n, d = x.shape
    x = np.ascontiguousarray(x, dtype=np.float32)
    lists = max(1, min(int(4 * math.sqrt(n)), n // _SAMPLES_PER_LIST))
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(d), d, lists, faiss.METRIC_INNER_PRODUCT)
    index.train(x[:: max(1, n // (64 * lists))])
    index.add(x)
    least, most = _LISTS_LOOKED_AT
    index.nprobe = min(max(least, lists // 16), most)
    found = _without_self(index.search(x, k + 1)[1])
    short = np.flatnonzero((found < 0).any(axis=1))
    if len(short):
        index.nprobe = lists
        found[short] = _without_self(index.search(x[short], k + 1)[1], short)
    return found


def _without_self(
    found: NDArray[np.int64], rows: NDArray[np.intp] | None = None
) -> NDArray[np.int64]:
    """Drop a row from its own neighbors, or the last of them where it is not among them."""
    rows = np.arange(len(found)) if rows is None else rows
    own = found == rows[:, None]
    own[~own.any(axis=1), -1] = True
    others: NDArray[np.int64] = found[~own].reshape(len(found), -1)
    return others
