"""Random draws that are stable across machines and NumPy versions.

NumPy promises that the raw integers of a bit generator never change. It does not promise what its
distributions make of them. So all draws here come from the raw integers, by arithmetic that is
defined to the last bit: integers, sorts, and single operations of IEEE 754.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Index: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Groups: TypeAlias = npt.NDArray[np.generic]
"""Text or integers [N]."""
Rng: TypeAlias = np.random.Generator


def generator(seed: int) -> Rng:
    """The generator that everything random in a stream comes from."""
    return np.random.Generator(np.random.PCG64(seed))


def permutation(rng: Rng, n: int) -> Index:
    """The numbers below n in random order."""
    return np.argsort(_raw(rng, n), kind="stable").astype(np.int64)


def uniform(rng: Rng, n: int) -> Floats:
    """Numbers [n] of 53 random bits in [0, 1)."""
    bits = _raw(rng, n)
    bits >>= np.uint64(11)
    found: Floats = bits.astype(np.float64)
    found *= 2.0**-53
    return found


def below(rng: Rng, limits: Index) -> Index:
    """A random integer below each of the limits [n], from 0."""
    # The largest uniform number times a limit still rounds to less than the limit.
    found = uniform(rng, len(limits))
    found *= limits
    return found.astype(np.int64)


def weighted(draw: float, weights: Index) -> int:
    """The position that a uniform number stands for, each as likely as its integer weight."""
    up_to = np.cumsum(weights)
    return int(np.searchsorted(up_to, int(draw * up_to[-1]), side="right"))


def _raw(rng: Rng, n: int) -> npt.NDArray[np.uint64]:
    return rng.bit_generator.random_raw(n)
