"""WordNet's nouns: class maps from ImageNet's classes onto their ancestors."""

import difflib
import itertools
import lzma
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import Self

from lametta.classmap import ClassMap
from lametta.data.classes.imagenet import C16, IMAGENET
from lametta.taxonomy import Taxonomy
from lametta.types import LamettaError


@dataclass(frozen=True, eq=False)
class WordNet:
    """Nouns and what they are kinds of. `load_wordnet` gives WordNet 3.0's.

    Parameters
    ----------
    hypernyms : mapping of str to tuple of str
        For each synset those that it is a kind or an instance of, in WordNet's order.
    entries : mapping of str to str
        For each synset its words with a space between them, ``dog:1 domestic_dog``; a word of
        several senses has the number of this one.
    instances : set of str
        Single things, as Mount Everest. ImageNet's own hierarchy has the other synsets alone.

    Examples
    --------
    >>> graph = load_wordnet()
    >>> graph.words("n02084071")
    ('dog', 'domestic dog', 'Canis familiaris')
    >>> [graph.words(synset)[0] for synset in graph.hypernyms["n02084071"]]
    ['canine', 'domestic animal']
    >>> graph.senses["turtle"]  # the sweater comes first
    ('n04502197', 'n01662784')
    """

    hypernyms: Mapping[str, tuple[str, ...]]
    entries: Mapping[str, str]
    instances: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read lines of ``synset TAB hypernyms TAB words``; an ``i`` marks those of instances."""
        rows = [line.split("\t") for line in text.splitlines()]
        edges = [(child, up) for child, ups, _ in rows for up in ups.split() if up[0] == "n"]
        kinds = {synset for edge in edges for synset in edge}
        hypernyms = {child: tuple(ups.replace("i", "n").split()) for child, ups, _ in rows}
        instances = frozenset(child for child, up in hypernyms.items() if up and child not in kinds)
        return cls(hypernyms, {synset: words for synset, _, words in rows}, instances)

    @cached_property
    def senses(self) -> Mapping[str, tuple[str, ...]]:
        """The synsets of each word, the most frequent sense first; words as in ``domestic_cat``."""
        numbered: dict[str, list[tuple[int, str]]] = {}
        for synset, entry in self.entries.items():
            for item in entry.lower().split():
                word, _, number = item.partition(":")
                numbered.setdefault(word, []).append((int(number or 1), synset))
        return {
            word: tuple(synset for _, synset in sorted(senses)) for word, senses in numbered.items()
        }

    def words(self, synset: str) -> tuple[str, ...]:
        """The words of a synset; the first is its usual name."""
        self._check(synset)
        items = self.entries[synset].split()
        return tuple(item.partition(":")[0].replace("_", " ") for item in items)

    def ancestors(self, synset: str) -> dict[str, int]:
        """All that a synset is, itself included, each with the fewest steps that lead there."""
        self._check(synset)
        steps = {synset: 0}
        queue = [synset]
        for child in queue:  # grows on the way
            for parent in self.hypernyms[child]:
                if parent not in steps:
                    steps[parent] = steps[child] + 1
                    queue.append(parent)
        return steps

    def nearest_kind(self, synset: str) -> str:
        """The synset itself, or what it is an instance of: the nearest in ImageNet's hierarchy."""
        return next(up for up in self.ancestors(synset) if up not in self.instances)

    def tree(self) -> Self:
        """The same nouns, each with its first hypernym alone."""
        return replace(self, hypernyms={synset: up[:1] for synset, up in self.hypernyms.items()})

    def _check(self, synset: str) -> None:
        if synset not in self.hypernyms:
            raise LamettaError(
                f"synset must be a noun of WordNet 3.0, n02084071 say, got {synset!r}"
            )


@cache
def load_wordnet() -> WordNet:
    """The nouns of WordNet 3.0, read at the first call.

    Examples
    --------
    >>> len(load_wordnet().hypernyms)
    82115
    """
    packed = (resources.files("lametta.data") / "assets" / "wordnet-nouns.txt.xz").read_bytes()
    return WordNet.parse(lzma.decompress(packed).decode())


@dataclass(frozen=True)
class Choice:
    """The synset that a name was taken for.

    Attributes
    ----------
    name : str
        The name as it was given.
    synset : str
        The sense that covers the most of the model's classes; the most frequent of several such.
        Where none covers any, the most frequent one that is of a kind with a class.
    senses : mapping of str to int
        The synsets that were considered, the most frequent sense first, and how many of the model's
        classes are a kind of each.

    Examples
    --------
    >>> choice = resolve("car")
    >>> choice.synset, choice.covered, list(choice.senses.values())
    ('n02958343', 10, [10, 2, 0, 0, 0])
    """

    name: str
    synset: str
    senses: Mapping[str, int]

    @property
    def covered(self) -> int:
        """How many of the model's classes are a kind of the synset."""
        return self.senses[self.synset]


def resolve(
    target: str, sources: Sequence[str] = IMAGENET, *, graph: WordNet | None = None
) -> Choice:
    """Find the synset that a name stands for.

    Parameters
    ----------
    target : str
        A noun (``"red panda"``), a numbered sense (``"tiger.n.02"``) or a synset (``"n02129604"``),
        in upper or lower case, with spaces or underscores.
    sources : sequence of str
        The synsets of the model's classes, ImageNet's 1000 by default.
    graph : WordNet, optional
        Another hierarchy than that of `load_wordnet`.

    Examples
    --------
    >>> resolve("tiger")  # the person comes first, but is no class of ImageNet
    Choice(name='tiger', synset='n02129604', senses={'n10710632': 0, 'n02129604': 1})
    >>> resolve("raccoon").synset  # the animal: a procyonid as two classes are, and not the fur
    'n02508021'
    """
    graph = load_wordnet() if graph is None else graph
    classes = tuple(sources)
    covered = _covered(graph, classes)
    senses = {synset: covered[synset] for synset in _candidates(target, graph, classes)}

    def fits(synset: str) -> tuple[int, bool]:
        return senses[synset], any(covered[up] for up in graph.hypernyms[synset])

    return Choice(target, max(senses, key=fits), senses)


def ancestral_map(
    targets: Sequence[str] | Mapping[str, str],
    sources: Sequence[str] = IMAGENET,
    *,
    drop_empty: bool = False,
    pooling: str = "mean",
    graph: WordNet | None = None,
) -> ClassMap:
    """Map each of a model's classes to its closest ancestor among the targets, or to none.

    A target that is a kind of another is closer than that, however many is-a steps lead to each: no
    dog goes to "animal" where "dog" is a target. Of the others the closest is the one in the fewest
    steps, and of several such the lowest synset id.

    Parameters
    ----------
    targets : sequence of str, or mapping of str to str
        Names or synsets as `resolve` takes them; a mapping gives each a name for the class map.
    sources, graph
        As for `resolve`.
    drop_empty : bool
        Leave out targets that no class goes to. Otherwise they are an error.
    pooling : {"mean", "sum", "max"}
        As in `ClassMap`.

    Examples
    --------
    >>> ancestral_map(["fox", "red panda", "elephant"]).groups
    ((277, 278, 279, 280), (387,), (385, 386))
    """
    if isinstance(targets, str):
        raise LamettaError(f"targets must be several names, got the string {targets!r}")
    graph = load_wordnet() if graph is None else graph
    names = _by_synset(targets, sources, graph)
    members = _members(names.keys(), sources, graph)
    empty = [names[synset] for synset, group in members.items() if not group]
    if empty and not drop_empty:
        raise LamettaError(
            "targets must each be the closest ancestor of a class of the model, "
            f"got none for {', '.join(empty)}; drop_empty leaves such targets out"
        )
    groups = {names[synset]: group for synset, group in members.items() if group}
    return ClassMap(groups, n_source=len(sources), pooling=pooling)


def _members(
    targets: Collection[str], sources: Sequence[str], graph: WordNet
) -> dict[str, list[int]]:
    """The classes whose closest ancestor among the targets each target is."""
    members: dict[str, list[int]] = {target: [] for target in targets}
    above = {target: graph.ancestors(target).keys() - {target} for target in targets}
    for index, synset in enumerate(sources):
        steps = graph.ancestors(synset)
        reached = steps.keys() & members.keys()
        closest = reached.difference(*(above[target] for target in reached))
        if closest:
            members[min(closest, key=lambda target: (steps[target], target))].append(index)
    return members


@cache
def c16() -> ClassMap:
    """ImageNet-C16: 16 super-classes, each with its first classes, as many as the smallest has.

    Classes go up along first hypernyms alone, so that an accordion is a free-reed instrument and no
    keyboard instrument. This gives the 32 classes of the paper's data set.

    Examples
    --------
    >>> dict(zip(c16().names, c16().groups))["keyboard instrument"]
    (579, 687)
    """
    whole = ancestral_map(C16, graph=load_wordnet().tree())
    size = min(map(len, whole.groups))
    groups = {name: group[:size] for name, group in zip(whole.names, whole.groups, strict=True)}
    return ClassMap(groups, n_source=whole.n_source)


def wordnet_taxonomy(synsets: Sequence[str] = IMAGENET) -> Taxonomy:
    """What classes are kinds of in WordNet 3.0, each by its first hypernym: ImageNet's by default.

    Steps with a single part are left out, so that a level is a choice.

    Examples
    --------
    >>> taxonomy = wordnet_taxonomy(["n02129165", "n02129604", "n02084071"])  # lion, tiger, dog
    >>> taxonomy.paths
    (('carnivore', 'big cat', 'lion'), ('carnivore', 'big cat', 'tiger'), ('carnivore', 'dog'))
    """
    tree = load_wordnet().tree()
    paths = _branching([tuple(reversed(tree.ancestors(synset))) for synset in synsets])
    names = {one: load_wordnet().words(one)[0] for path in paths for one in path}
    often = Counter(names.values())  # two classes are called crane
    unique = {one: name if often[name] == 1 else f"{name} ({one})" for one, name in names.items()}
    return Taxonomy([[unique[one] for one in path] for path in paths])


def _branching(paths: Sequence[Sequence[str]]) -> list[list[str]]:
    """The paths without steps that have a single part; their ends stay."""
    parts: dict[str, set[str]] = {}
    for path in paths:
        for above, one in itertools.pairwise(path):
            parts.setdefault(above, set()).add(one)
    chosen = {one for one, below in parts.items() if len(below) > 1}
    return [[one for one in path if one in chosen or one == path[-1]] for path in paths]


@lru_cache(maxsize=8)
def _covered(graph: WordNet, sources: tuple[str, ...]) -> Counter[str]:
    """How many of the model's classes are a kind of each synset."""
    return Counter(ancestor for synset in sources for ancestor in graph.ancestors(synset))


def _candidates(target: str, graph: WordNet, sources: tuple[str, ...]) -> tuple[str, ...]:
    """The synsets that a name can stand for."""
    word = "_".join(target.lower().replace("_", " ").split())
    if word in graph.hypernyms:
        return (word,)
    if word in graph.senses:
        return graph.senses[word]
    if match := re.fullmatch(r"(.+)\.n\.(\d+)", word):
        word = match[1]
        senses = graph.senses.get(word, ())
        if 1 <= int(match[2]) <= len(senses):
            return (senses[int(match[2]) - 1],)
        if senses:
            raise LamettaError(
                f"target must be one of the {len(senses)} senses of {word}, got {target!r}"
            )
    # Of what covers a class, which is far less to compare with.
    known = {name.lower() for synset in _covered(graph, sources) for name in graph.words(synset)}
    near = difflib.get_close_matches(word.replace("_", " "), sorted(known), n=3)
    hint = f"; near it: {', '.join(near)}" if near else ""
    raise LamettaError(f"target must be a noun or a synset of WordNet 3.0, got {target!r}{hint}")


def _by_synset(
    targets: Sequence[str] | Mapping[str, str], sources: Sequence[str], graph: WordNet
) -> dict[str, str]:
    """The name of each target by its synset, in the order given."""
    named = targets.items() if isinstance(targets, Mapping) else zip(targets, targets, strict=True)
    names: dict[str, str] = {}
    for name, target in named:
        synset = resolve(target, sources, graph=graph).synset
        if synset in names:
            raise LamettaError(
                f"targets must be different synsets, got {synset} for {names[synset]} and {name}"
            )
        names[synset] = name
    return names
