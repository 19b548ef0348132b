"""Options as scikit-learn reads and sets them, for every corrector of the table."""

import copy

import numpy as np
import pytest
from sklearn.base import clone

from lametta import LAME, LamettaError, Prudent, Streams, Windowed, knn, linear, methods
from lametta.correctors import LabelShift, Smoothing, Track
from lametta.correctors.base import give_prototypes
from lametta.correctors.chain import Chain
from lametta.types import Prototypes
from tests.conftest import make_batch

PARTS = [methods.find(name).components[0] for name in methods.METHODS]
CORRECTORS = [part.factory for part in PARTS if part.is_corrector]


@pytest.mark.parametrize("make", [*CORRECTORS, lambda: Streams(Track()), lambda: Chain((LAME(),))])
def test_a_clone_has_the_options_and_no_memory(make):
    corrector = make()
    if not isinstance(corrector, Streams):
        features, probs = make_batch(8, 3)
        weight = np.random.default_rng(0).normal(size=(3, features.shape[1]))
        give_prototypes(corrector, Prototypes(weight), "the test")
        corrector.correct(features, probs)
    cloned = clone(corrector)
    assert cloned == make()
    assert cloned is not corrector
    if hasattr(cloned, "state_dict"):
        assert cloned.state_dict() == {}
    assert corrector.set_params() is corrector
    assert corrector == make()
    assert type(corrector)(**corrector.get_params(deep=False)) == make()


def test_options_of_what_is_held():
    windowed = Windowed(LAME(knn(3), weight=0.5), size=8)
    assert windowed.get_params()["corrector__affinity__k"] == 3
    assert windowed.get_params()["corrector__weight"] == 0.5
    assert list(windowed.get_params(deep=False)) == ["corrector", "size"]
    inner = windowed.corrector
    windowed.set_params(corrector__affinity__k=2, size=4, corrector__weight=1)
    assert windowed == Windowed(LAME(knn(2), weight=1), size=4)
    assert inner == LAME(knn(3), weight=0.5)  # someone else may hold it, too
    assert LAME() == LAME(knn(5))  # the default is held by all
    windowed.set_params(corrector=LAME(linear()), corrector__affinity__row_sum=5)
    assert windowed.corrector.affinity == linear(row_sum=5)
    assert Streams(Windowed()).set_params(corrector__size=3).corrector == Windowed(size=3)


def test_new_options_begin_a_new_stream():
    features, probs = make_batch(8, 3)
    used = LabelShift(size=4)
    used.correct(features, probs)
    used.set_params(size=6)
    expected = LabelShift(size=6).correct(features, probs).probs
    np.testing.assert_array_equal(used.correct(features, probs).probs, expected)


@pytest.mark.parametrize(
    ("corrector", "params", "message"),
    [
        (LAME(), {"wieght": 2}, "wieght is no option of LAME.*did you mean 'weight'"),
        (LAME(), {"weight": -1}, "weight must be"),
        (LAME(), {"affinity__k": 0}, "k must be an integer >= 1, got 0"),
        (LAME(linear()), {"affinity__k": 3}, "k is no option of linear, which has row_sum, symm"),
        (Smoothing(), {"decay__x": 3}, "x is no option of float, which has none"),
        (Prudent(), {"size": 3}, "size is no option of Prudent, which has none"),
        (Windowed(), {"size": 3, "corrector": Track()}, "corrector must have no memory"),
    ],
)
def test_a_refused_option_changes_nothing(corrector, params, message):
    before = copy.deepcopy(corrector)
    with pytest.raises(LamettaError, match=message):
        corrector.set_params(**params)
    assert corrector == before
