"""Online label shift: class shares that change over time, one class that prevails at a time."""

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np

from lametta._checks import check_choice, check_number
from lametta.stream._draws import Floats, Groups, Index, Rng, below, permutation, uniform
from lametta.stream._groups import check_count, factorize, group_index

_SHAPES = ("monotone", "square", "sinusoidal", "bernoulli")


@dataclass(frozen=True)
class label_shift:  # noqa: N801 - read as a value: order=label_shift()
    """The shares of the classes move between two distributions, again and again or once.

    Half of the classes, drawn at random, make the first distribution, and the others the second;
    which is shown when follows the protocols of online label shift (Bai et al. 2022; Baby et al.
    2023). In a stream of T samples the second one's share

    - ``"monotone"`` rises linearly from 0 to 1;
    - ``"square"`` is 0 for half a period and 1 for the other half, in turns;
    - ``"sinusoidal"`` is half of 1 plus a sine;
    - ``"bernoulli"`` is 0 or 1, and switches with probability ``1 / period`` at each sample.

    Every sample comes once. Where one half has more samples than its share of the time has room
    for, they fill up the other's time evenly.

    Parameters
    ----------
    shape : {"monotone", "square", "sinusoidal", "bernoulli"}
        How the share changes.
    contrast : float
        How far apart the two distributions are: at 1 they have no class in common, at 0 they are
        equal, and the stream is i.i.d.; between them the share moves between ``(1 - contrast) / 2``
        and ``(1 + contrast) / 2``.
    period : int, optional
        In samples; by default the square root of T, rounded down. The protocols count in batches:
        the period of T / 64 batches is ``64 * (T / 64) ** 0.5`` samples.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.arange(16) % 2
    >>> labels[Scenario(label_shift("square", period=8))(labels).index]
    array([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0])
    """

    shape: str = "monotone"
    _: KW_ONLY
    contrast: float = 1.0
    period: int | None = None

    def __post_init__(self) -> None:
        check_choice("shape", self.shape, _SHAPES)
        check_number("contrast", self.contrast, 0, 1)
        if self.period is not None:
            check_count("period", self.period)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        codes, names = factorize(labels)
        is_second = 2 * permutation(rng, len(names))[codes] >= len(names)
        share = 0.5 + self.contrast * (self._schedule(len(labels), rng) - 0.5)
        # The second half takes as many times as it has samples, each about as likely as its share.
        taken = np.argsort(uniform(rng, len(labels)) - share, kind="stable")
        time_of_second = np.zeros(len(labels), bool)
        time_of_second[taken[: is_second.sum()]] = True
        shuffled = permutation(rng, len(labels))
        arrival = np.empty_like(shuffled)
        for second in (False, True):
            arrival[time_of_second == second] = shuffled[is_second[shuffled] == second]
        return arrival

    def _schedule(self, n: int, rng: Rng) -> Floats:
        """The share [n] of the second distribution at each time.

        A sine may differ between machines in the last bit, which matters only where that bit
        decides between two samples: in one of 10^12 streams or so.
        """
        time, period = np.arange(n), self.period or math.isqrt(n)
        if self.shape == "monotone":
            return (time + 0.5) / n
        if self.shape == "square":
            return (2 * time // period % 2).astype(np.float64)
        if self.shape == "sinusoidal":
            return 0.5 + 0.5 * np.sin(2 * np.pi * (time % period) / period)
        return (np.cumsum(uniform(rng, n) < 1 / period) % 2).astype(np.float64)


@dataclass(frozen=True)
class imbalanced:  # noqa: N801
    """One class prevails at a time, in random order: samples are drawn with replacement.

    The imbalanced label shifts of SAR (Niu et al., ICLR 2023). While a class prevails, it is
    ``ratio`` times as likely as each of the others. The class of each sample is drawn first, and
    then one of its samples, so that some samples come often and others never.

    Parameters
    ----------
    ratio : float
        From 1, where all classes are alike and the stream is i.i.d., to the 500,000 that stand for
        infinity.
    draws : int
        How many samples come while a class prevails.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat([0, 1, 2], 4)
    >>> labels[Scenario(imbalanced(1000, draws=4))(labels).index]
    array([2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0])
    """

    ratio: float = 500_000
    _: KW_ONLY
    draws: int = 100

    def __post_init__(self) -> None:
        check_number("ratio", self.ratio, 1, 1e9)
        check_count("draws", self.draws)

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        codes, names = factorize(labels)
        grouped, begin, sizes = group_index(codes)
        n = len(names) * self.draws
        prevailing = np.repeat(permutation(rng, len(names)), self.draws)
        # Weights are ratio and K - 1 times 1.
        other = uniform(rng, n) * (self.ratio + len(names) - 1) < len(names) - 1
        another = below(rng, np.broadcast_to(max(len(names) - 1, 1), n))
        another += another >= prevailing
        drawn = np.where(other, another, prevailing)
        del prevailing, other, another  # a stream may be long
        places = below(rng, sizes[drawn])
        places += begin[drawn]
        positions: Index = grouped[places]
        return positions
