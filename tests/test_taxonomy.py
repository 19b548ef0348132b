"""Taxonomy: answers as exact as they are sure, held against sums by hand."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.correctors import Track
from lametta.data.classes.imagenet import IMAGENET, IMAGENET_NAMES
from lametta.data.classes.wordnet import wordnet_taxonomy
from lametta.taxonomy import Taxon, Taxonomy

PATHS = [
    "animal;cat;lion",
    "animal;cat;tiger",
    "animal;dog",
    "animal;bird;crane",
    "animal;bird;owl",
]
ANIMALS = Taxonomy(PATHS)


@pytest.mark.parametrize("sure", [0.6, 0.8, 0.95])
def test_an_answer_is_the_most_exact_part_that_is_sure(sure):
    probs = np.random.default_rng(0).dirichlet(np.full(5, 0.3), size=200)
    parts = {tuple(path.split(";")[:n]) for path in PATHS for n in (1, 2, 3)}
    for row, taxon in zip(probs, ANIMALS.answer(probs, sure=sure), strict=True):
        shares = {
            part: sum(
                q for q, path in zip(row, PATHS, strict=True) if path.startswith(";".join(part))
            )
            for part in parts
        }
        likely = [part for part, share in shares.items() if share >= sure - 1e-12]
        best = max(likely, key=len)
        assert (taxon.name, taxon.level) == (best[-1], len(best) - 1)
        assert taxon.confidence == pytest.approx(shares[best])
        assert sum(len(part) == len(best) for part in likely) == 1  # above one half there is one


def test_an_answer_holds_for_what_is_a_kind_of_it():
    assert ANIMALS.holds(Taxon("cat", 1, 0.9), 1)
    assert ANIMALS.holds(Taxon("animal", 0, 1.0), 2)
    assert not ANIMALS.holds(Taxon("cat", 1, 0.9), 2)
    assert not ANIMALS.holds(Taxon("lion", 2, 0.9), 2)  # a path that is shorter


def test_a_track_grows_more_exact():
    probs = np.tile([[0.45, 0.35, 0.1, 0.05, 0.05]], (12, 1))
    probs[:, :2] += np.random.default_rng(0).normal(scale=0.05, size=(12, 2)) * [[1, -1]]
    probs /= probs.sum(axis=1, keepdims=True)
    names = [taxon.name for taxon in ANIMALS.answer(Track().correct(probs, probs).probs, sure=0.6)]
    assert names[0] == "cat"
    assert names[-1] in ("cat", "lion")
    assert {*names} <= {"cat", "lion"}


def test_imagenets_classes_are_leaves_of_wordnet():
    taxonomy = wordnet_taxonomy()
    assert len(taxonomy) == len(IMAGENET)
    lion = IMAGENET_NAMES.index("lion")
    assert taxonomy.paths[lion][-3:] == ("feline", "big cat", "lion")
    (answer,) = taxonomy.answer(np.eye(1000)[[lion]])
    assert answer.name == "lion"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["animal;cat"], "two classes or more"),
        (["animal;cat", "plant;oak"], "one root, got animal, plant"),
        (["animal;cat", "animal;cat"], "each class once"),
        (["animal;cat", "animal;cat;lion"], "with no part of others"),
        (["animal;cat", "animal;;lion"], "from the root down"),
    ],
)
def test_what_is_no_taxonomy_is_refused(paths, message):
    with pytest.raises(LamettaError, match=message):
        Taxonomy(paths)


def test_probabilities_of_other_classes_are_refused():
    with pytest.raises(LamettaError, match="probs must have 5 columns, got 3"):
        ANIMALS.answer(np.full((1, 3), 1 / 3))
    with pytest.raises(LamettaError, match="sure must be"):
        ANIMALS.answer(np.eye(5), sure=0.4)
