"""Taxonomy: answers at the level at which they are sure, from species up to "animal"."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import check_classes, check_matrix, namespace, to_numpy
from lametta._checks import check_number
from lametta.types import Array, LamettaError


class Taxon(NamedTuple):
    """An answer at some level of a taxonomy.

    Attributes
    ----------
    name : str
        Of a class, or of what several classes are kinds of.
    level : int
        How many names are above it; 0 is the root.
    confidence : float
        The probability of all classes below it.

    Examples
    --------
    >>> Taxon("cat", 1, 0.9).name
    'cat'
    """

    name: str
    level: int
    confidence: float


@dataclass(frozen=True)
class Taxonomy:
    """What classes are kinds of, and answers as exact as they are sure.

    Probabilities of classes are added upward. An answer goes down from the root, to the likeliest
    part each time, for as long as that has the confidence asked for: a species, else its genus,
    else "animal". On any corrector's probabilities, such as those of `lametta.correctors.Track`.

    Parameters
    ----------
    paths : sequence of sequence of str, or of str
        For each class its names from the root down to its own, ``("animal", "cat", "lion")``, or
        the same with semicolons between them. All begin with one root. Names of different parts
        may be alike; they are told apart by what is above them.

    Examples
    --------
    >>> cats = Taxonomy(["animal;cat;lion", "animal;cat;tiger", "animal;dog"])
    >>> probs = np.array([[0.85, 0.1, 0.05], [0.5, 0.45, 0.05], [0.4, 0.2, 0.4]])
    >>> [taxon.name for taxon in cats.answer(probs, sure=0.8)]
    ['lion', 'cat', 'animal']
    """

    paths: tuple[tuple[str, ...], ...]
    _parts: dict[tuple[str, ...], NDArray[np.intp]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )
    _below: dict[tuple[str, ...], list[tuple[str, ...]]] = field(
        init=False, repr=False, compare=False, default_factory=dict
    )

    def __init__(self, paths: Sequence[Sequence[str] | str]) -> None:
        given = [path.split(";") if isinstance(path, str) else path for path in paths]
        cleaned = tuple(tuple(name.strip() for name in path) for path in given)
        object.__setattr__(self, "paths", cleaned)
        object.__setattr__(self, "_parts", _parts(cleaned))
        object.__setattr__(self, "_below", {})
        for part in self._parts:
            self._below.setdefault(part[:-1], []).append(part)

    def __len__(self) -> int:
        return len(self.paths)

    def answer(self, probs: Array, *, sure: float = 0.8) -> list[Taxon]:
        """The most exact part that is as likely as that, for each row of probabilities [N, K].

        Parameters
        ----------
        probs : array [N, K]
            Rows of probabilities, a column for each class.
        sure : float
            The confidence that an answer needs, above 0.5; the root always has it.
        """
        check_number("sure", sure, 0.5, 1)
        check_matrix(namespace(probs=probs), "probs", "[N, K]", probs)
        check_classes("probs", probs)
        if probs.shape[1] != len(self):
            raise LamettaError(f"probs must have {len(self)} columns, got {probs.shape[1]}")
        return [self._answer(row, sure) for row in to_numpy(probs).astype(float)]

    def _answer(self, row: NDArray[np.float64], sure: float) -> Taxon:
        part, confidence = self.paths[0][:1], float(row.sum())
        while below := self._below.get(part):
            shares = [float(row[self._parts[one]].sum()) for one in below]
            best = int(np.argmax(shares))
            if shares[best] < sure:
                break
            part, confidence = below[best], shares[best]
        return Taxon(part[-1], len(part) - 1, confidence)

    def holds(self, taxon: Taxon, label: int) -> bool:
        """Whether a class is what the answer says, or a kind of it."""
        path = self.paths[label]
        return taxon.level < len(path) and path[taxon.level] == taxon.name


def _parts(paths: Sequence[tuple[str, ...]]) -> dict[tuple[str, ...], NDArray[np.intp]]:
    """The classes of each part, root and classes included, or an error if it is no tree of them."""
    if len(paths) < 2 or not all(path and all(path) for path in paths):
        raise LamettaError("paths must name two classes or more, each from the root down")
    roots = sorted({path[0] for path in paths})
    if len(roots) > 1:
        raise LamettaError(f"paths must begin with one root, got {', '.join(roots[:3])}")
    parts: dict[tuple[str, ...], list[int]] = {}
    for i, path in enumerate(paths):
        for n in range(1, len(path) + 1):
            parts.setdefault(path[:n], []).append(i)
    if any(len(parts[path]) > 1 for path in paths):
        raise LamettaError("paths must end with each class once, and with no part of others")
    return {part: np.array(classes) for part, classes in parts.items()}
