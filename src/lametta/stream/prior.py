"""Class priors: Zipf, long tail, given ratios; the registry of priors.

A prior is a callable ``prior(labels, rng)`` that gives the positions of the samples to stream, in
the order of the data set; only `zipf` gives some more than once. One whose class says ``grouped =
True`` is called with the groups [N], or None, as a third argument.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Protocol

import numpy as np

from lametta._checks import check_choice, check_integer, check_number, is_number
from lametta.registry import GROUPS, FactoryRegistry, summary_of
from lametta.stream._draws import Floats, Groups, Index, Rng, below, permutation, uniform
from lametta.stream._groups import (
    factorize,
    group_index,
    needed_groups,
    rank_in_group,
)
from lametta.types import LamettaError

# How many percent of the classes have to hold less than how many percent of the samples.
_RULES = {"validation": (20, 80), "test": (10, 90)}
_MOST_DRAWS = 1000
_MAX_CLASSES = 10**6  # a list has an entry for each


class Prior(Protocol):
    """A callable from labels [N] and a generator to positions [M], in ascending order.

    Examples
    --------
    >>> as_is()(np.array([0, 0, 1, 1]), np.random.default_rng(0))
    array([0, 1, 2, 3])
    """

    def __call__(self, labels: Index, rng: Rng, /) -> Index: ...


@dataclass(frozen=True)
class as_is:  # noqa: N801 - read as a value: prior=as_is()
    """All samples, once.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> sorted(Scenario(prior=as_is())([0, 1, 1]).index.tolist())
    [0, 1, 2]
    """

    def __call__(self, labels: Index, rng: Rng, /) -> Index:
        return np.arange(len(labels))


@dataclass(frozen=True)
class zipf:  # noqa: N801
    """The paper's prior shift: the size of each class follows a Zipf distribution.

    Each class that occurs gets a Zipf(a) variate. Their shares of all samples, rounded down, are
    the new class sizes, and that many samples are drawn from each class with replacement. Sizes are
    drawn anew until the largest 20 % of the classes hold less than 80 % of all samples (10 % and
    90 % in the test variant); with few classes, the largest one. A class may get no sample, and
    rounding makes the stream a little shorter than the data set. A single class stays as large as
    it is.

    Parameters
    ----------
    a : float
        The exponent, above 1 and up to 100: the less, the more one class prevails.
    variant : {"validation", "test"}
        Which limit on the largest classes holds.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat(np.arange(5), 10)
    >>> np.bincount(labels[Scenario(prior=zipf())(labels).index], minlength=5)
    array([ 5,  5,  5, 27,  5])
    """

    a: float = 2
    variant: str = "validation"

    def __post_init__(self) -> None:
        check_number("a", self.a, most=100, above=1)
        check_choice("variant", self.variant, _RULES)

    def __call__(self, labels: Index, rng: Rng, /) -> Index:
        _, codes = np.unique(labels, return_inverse=True)
        grouped, begin, sizes = group_index(codes)
        drawn = np.repeat(np.arange(len(sizes)), self._counts(len(sizes), len(labels), rng))
        return np.sort(grouped[begin[drawn] + below(rng, sizes[drawn])])

    def _counts(self, n_classes: int, n: int, rng: Rng) -> list[int]:
        if n_classes == 1:
            return [n]
        classes, samples = _RULES[self.variant]
        top = max(n_classes * classes // 100, 1)
        for _ in range(_MOST_DRAWS):
            variates = _zipf_variates(self.a, n_classes, rng)
            total = sum(variates)
            counts = [variate * n // total for variate in variates]
            if sum(sorted(counts)[-top:]) < n * samples // 100:
                return counts
        raise LamettaError(
            f"labels must leave room for the limit of {self}, got {n} samples of {n_classes} "
            f"classes, in which {_MOST_DRAWS} draws gave no class sizes that keep it"
        )


@dataclass(frozen=True)
class ratios:  # noqa: N801
    """Classes in given proportions, without repetition.

    Samples are left out at random until the proportions hold, to one sample a class, and no more of
    them than that takes: at least one class stays complete.

    Parameters
    ----------
    shares : sequence of float, or mapping of class to float
        The share of each class, in any unit. A class that has none is left out.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat([0, 1, 2], 10)
    >>> np.bincount(labels[Scenario(prior=ratios([4, 1, 2]))(labels).index])
    array([10,  2,  5])
    """

    shares: Sequence[float] | Mapping[int, float]

    def __post_init__(self) -> None:
        # One form for both, which can be hashed and written to a manifest.
        object.__setattr__(self, "shares", _by_class(self.shares))

    def __call__(self, labels: Index, rng: Rng, /) -> Index:
        classes, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
        size = dict(zip(classes.tolist(), sizes.tolist(), strict=True))
        # Read as decimals, since 0.7 / 0.1 is less than 7 in binary.
        share = {c: Fraction(str(s)) for c, s in enumerate(_by_class(self.shares)) if s > 0}
        for wanted in share:
            if wanted not in size:
                raise LamettaError(f"shares must be of classes in labels, got class {wanted}")
        scale = min(size[c] / share[c] for c in share)
        counts = np.array([math.floor(scale * share.get(c, 0)) for c in size])
        return np.flatnonzero(rank_in_group(codes, True, rng) < counts[codes])


@dataclass(frozen=True)
class effective_classes:  # noqa: N801
    """Only so many of the classes, chosen at random, with all their samples.

    Parameters
    ----------
    n : int
        How many classes.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.arange(100) % 10
    >>> np.unique(labels[Scenario(prior=effective_classes(3))(labels).index])
    array([1, 2, 5])
    """

    n: int

    def __post_init__(self) -> None:
        check_integer("n", self.n, 1)

    def __call__(self, labels: Index, rng: Rng, /) -> Index:
        classes, codes = np.unique(labels, return_inverse=True)
        if self.n > len(classes):
            raise LamettaError(f"n must be <= {len(classes)}, the classes in labels, got {self.n}")
        return np.flatnonzero(permutation(rng, len(classes))[codes] < self.n)


@dataclass(frozen=True)
class long_tail:  # noqa: N801
    """Classes that get rarer exponentially, and domains too, without repetition.

    The classes are put in random order. The first keeps all its samples, the last one in
    ``imbalance``, and the shares of those between fall exponentially; who is left out is random.
    Domains, which are groups, likewise, by a factor of their own. UniTTA (Du et al. 2024) has 10
    for classes and 5 for domains.

    Parameters
    ----------
    imbalance : float
        How many times as many samples the largest class has as the smallest; 1 leaves them alone.
    domain_imbalance : float
        The same for groups.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat([0, 1, 2], 100)
    >>> np.bincount(labels[Scenario(prior=long_tail(4))(labels).index])
    array([ 25,  50, 100])
    """

    imbalance: float = 10
    domain_imbalance: float = 1

    grouped: ClassVar[bool] = True  # it is called with the groups as well

    def __post_init__(self) -> None:
        check_number("imbalance", self.imbalance, 1)
        check_number("domain_imbalance", self.domain_imbalance, 1)

    def __call__(self, labels: Index, rng: Rng, groups: Groups | None = None, /) -> Index:
        classes, names = factorize(labels)
        domains = np.zeros_like(classes)
        if self.domain_imbalance > 1:
            domains, _ = factorize(needed_groups("long_tail", groups, what="prior"))
        share = _tail(classes, self.imbalance, rng) * _tail(domains, self.domain_imbalance, rng)
        urns, _ = factorize(domains * len(names) + classes)
        # A little more than the product, whose last bit may differ between machines.
        kept = np.floor(np.bincount(urns)[urns] * share + 1e-9)
        if not kept.any():
            raise LamettaError(f"labels must leave room for {self}, got {len(labels)} samples")
        return np.flatnonzero(rank_in_group(urns, True, rng) < kept)


def _tail(codes: Index, imbalance: float, rng: Rng) -> Floats:
    """The share of the samples [N] to keep, by the rank of their group in a random order."""
    last = max(int(codes.max()), 1)
    rank = permutation(rng, int(codes.max()) + 1)[codes]
    return np.asarray(float(imbalance) ** (-rank / last))


def _zipf_variates(a: float, n: int, rng: Rng) -> list[int]:
    """Variates by rejection from a continuous envelope (Devroye 1986, section X.6).

    With a = 2 the powers are plain quotients. With others they may differ between machines in the
    last bit, which matters only where that bit decides: in one of 10^15 draws or so.
    """
    half = 2.0 ** (a - 1)
    accepted: list[int] = []
    while len(accepted) < n:
        u, v = 1 - uniform(rng, n), uniform(rng, n)
        with np.errstate(over="ignore"):
            x = np.floor(np.minimum(u ** (-1 / (a - 1)), 2.0**62))
        step = (1 + 1 / x) ** (a - 1)
        kept = x[v * x * (step - 1) / (half - 1) <= step / half]
        accepted += kept.astype(np.int64).tolist()
    return accepted[:n]


def _by_class(shares: Sequence[float] | Mapping[int, float]) -> tuple[float, ...]:
    """The share of each class from 0, whichever way they were given."""
    if isinstance(shares, Mapping):
        shares = _to_list(shares)
    elif not _is_list(shares):
        raise LamettaError(f"shares must be a sequence or a mapping, got {shares!r}")
    for share in shares:
        if not is_number(share) or share < 0:
            raise LamettaError(f"shares must be finite numbers >= 0, got {share!r}")
    if not any(share > 0 for share in shares):
        raise LamettaError(f"shares must be > 0 for at least one class, got {shares!r}")
    return tuple(float(share) for share in shares)


def _is_list(shares: object) -> bool:
    if isinstance(shares, np.ndarray):
        return shares.ndim > 0
    return isinstance(shares, Sequence) and not isinstance(shares, str)


def _to_list(shares: Mapping[int, float]) -> list[float]:
    """The share of each class from 0; that of a class which is not named is 0."""
    try:  # keys of TOML and JSON are text
        given = {int(str(label)): share for label, share in shares.items()}
    except ValueError:
        given = {-1: 0.0}
    if min(given, default=0) < 0:
        raise LamettaError(f"shares must be of classes numbered from 0, got {[*shares]}")
    if max(given, default=0) > _MAX_CLASSES:
        raise LamettaError(f"shares must be of classes <= {_MAX_CLASSES}, got {max(given)}")
    return [given.get(label, 0) for label in range(max(given, default=-1) + 1)]


PRIORS: FactoryRegistry[Prior] = FactoryRegistry(
    "prior",
    {
        "as_is": as_is,
        "zipf": zipf,
        "ratios": ratios,
        "long_tail": long_tail,
        "effective_classes": effective_classes,
    },
    group=GROUPS["priors"],
    makes=Prior,
)
"""The priors by name, for files and for ``lametta list``."""


def priors() -> dict[str, str]:
    """The names of the priors, and what each is.

    Examples
    --------
    >>> priors()["as_is"]
    'All samples, once.'
    """
    return {name: summary_of(prior) for name, prior in PRIORS.items()}
