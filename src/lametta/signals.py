"""Diagnostics of a batch of predictions that need no labels."""

from types import ModuleType
from typing import Any

from array_api_compat import array_namespace, is_torch_array

from lametta._arrays import widen
from lametta.types import Array


def signals(probs: Array, source: Array | None = None, /) -> dict[str, Any]:
    """Describe predictions [N, K], and how they differ from the source's where those are known.

    Returns
    -------
    dict
        ``entropy``, the mean over samples, low where the predictions are confident;
        ``diversity``, the entropy of the mean prediction, low where they collapse onto few classes;
        ``changed``, the share of samples whose predicted class is not the source's. All are 0-d
        arrays of the input's library, so that no device has to wait; an empty batch has none.

    Examples
    --------
    >>> import numpy as np
    >>> {name: round(float(x), 3) for name, x in signals(np.eye(2), np.ones((2, 2)) / 2).items()}
    {'entropy': 0.0, 'diversity': 0.693, 'changed': 0.5}
    """
    if probs.shape[0] == 0:
        return {}
    xp = array_namespace(probs)
    p = widen(xp, probs)
    found = {"entropy": xp.mean(_entropy(xp, p)), "diversity": _entropy(xp, xp.mean(p, axis=0))}
    if source is not None:
        differs = xp.argmax(probs, axis=1) != xp.argmax(source, axis=1)
        found["changed"] = xp.mean(xp.astype(differs, p.dtype))
    return found


def _entropy(xp: ModuleType, p: Array) -> Array:
    if is_torch_array(p):  # one kernel instead of four
        return xp.special.entr(p).sum(-1)
    # The floor only keeps 0 log 0 from being NaN.
    return -xp.sum(p * xp.log(xp.clip(p, min=1e-30)), axis=-1)
