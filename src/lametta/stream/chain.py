"""Markov order: the next class or domain depends on the last."""

from dataclasses import KW_ONLY, dataclass

import numpy as np

from lametta._checks import is_number
from lametta.stream._draws import Floats, Groups, Index, Rng, uniform, weighted
from lametta.stream._groups import (
    factorize,
    needed_groups,
    rank_in_group,
)
from lametta.types import LamettaError


@dataclass(frozen=True)
class markov:  # noqa: N801 - read as a value: order=markov()
    """The class of the next sample is likely that of the last, and so is its group.

    Two Markov chains run side by side, as in UniTTA (Du et al. 2024): the next sample is of the
    same class with probability ``stay``, and of the same domain, which is a group, with probability
    ``stay_domain``, independently of each other. Otherwise the chain moves to another class or
    domain, drawn in proportion to the samples that each has left. Inside a class and domain,
    samples come in random order.

    Every sample comes once. So a chain also moves on where nothing is left to stay with: where the
    domain is used up or, since the domain is drawn first, the class is used up in that domain.

    Parameters
    ----------
    stay : float or "iid"
        How likely the class stays. ``"iid"`` does not look at classes: any sample may be next.
    stay_domain : float or "iid"
        How likely the domain stays, up to 1, where one domain comes after another. ``"iid"`` does
        not look at groups, and there need be none.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> labels = np.repeat([0, 1, 2], 6)
    >>> labels[Scenario(markov(0.8))(labels).index]
    array([0, 0, 1, 1, 1, 1, 2, 2, 2, 0, 0, 0, 0, 1, 1, 2, 2, 2])
    """

    stay: float | str = 0.95
    _: KW_ONLY
    stay_domain: float | str = "iid"

    def __post_init__(self) -> None:
        for name in ("stay", "stay_domain"):
            value = getattr(self, name)
            chance = is_number(value) and 0 <= value <= 1
            if not chance and not (isinstance(value, str) and value == "iid"):
                raise LamettaError(f"{name} must be 'iid' or from 0 to 1, got {value!r}")

    def __call__(self, labels: Index, groups: Groups | None, rng: Rng, /) -> Index:
        classes = domains = np.zeros(len(labels), np.int64)
        if self.stay != "iid":
            classes, _ = factorize(labels)
        if self.stay_domain != "iid":
            domains, _ = factorize(needed_groups("markov", groups))
        shape = int(domains.max()) + 1, int(classes.max()) + 1
        urns = domains * shape[1] + classes
        path = self._path(np.bincount(urns, minlength=shape[0] * shape[1]).reshape(shape), rng)
        # The t-th visit to a state takes the t-th of its samples, which are in random order.
        visit, rank = rank_in_group(path, False, rng), rank_in_group(urns, True, rng)
        arrival = np.empty_like(path)
        arrival[np.lexsort((visit, path))] = np.lexsort((rank, urns))
        return arrival

    def _path(self, left: Index, rng: Rng) -> Index:
        """The state of each sample [N], a domain and a class in one number; uses up ``left``."""
        n, n_classes = int(left.sum()), left.shape[1]
        in_domain = left.sum(axis=1)
        path = np.empty(n, np.int64)
        domain = label = -1
        for t, draws in enumerate(uniform(rng, 4 * n).reshape(n, 4)):
            domain = _next(domain, in_domain, self.stay_domain, draws[:2])
            label = _next(label, left[domain], self.stay, draws[2:])
            in_domain[domain] -= 1
            left[domain, label] -= 1
            path[t] = domain * n_classes + label
        return path


def _next(at: int, left: Index, stay: float | str, draws: Floats) -> int:
    """The next state: this one, or another in proportion to the samples that each has left."""
    if len(left) == 1:
        return 0
    others = left
    if at >= 0:
        if left[at] and draws[0] < float(stay):
            return at
        others = left.copy()
        others[at] = 0
        if not others.any():
            return at
    return weighted(draws[1], others)
