"""Probabilities of all classes from those of the likeliest few."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def spread(n_classes: int, classes: Sequence[int], shares: Sequence[float]) -> NDArray[np.float64]:
    """A row [K] from the probabilities of some classes; the others share the rest equally.

    The listed classes are the likeliest, so no other class gets more than the least likely of
    them. Rows sum to 1, however the shares were rounded.

    Examples
    --------
    >>> spread(5, [2], [0.6])
    array([0.1, 0.1, 0.6, 0.1, 0.1])
    >>> spread(4, [0, 3], [0.2, 0.1]).round(2)
    array([0.4, 0.2, 0.2, 0.2])
    """
    others = n_classes - len(classes)
    rest = min(max(1 - sum(shares), 0.0) / others, min(shares)) if others else 0.0
    row = np.full(n_classes, rest)
    row[list(classes)] = shares
    total = row.sum()
    return row / total if total > 0 else np.full(n_classes, 1 / n_classes)
