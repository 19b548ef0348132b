"""NEO, against the numbers of its authors' code and its identity for linear heads."""

import numpy as np
import pytest

from lametta import LamettaError
from lametta.correctors import NEO
from lametta.testing import check_corrector
from lametta.types import Prototypes
from tests.correctors.golden import DTYPES, close, linear, run, softmax, vectors

VARIANTS = {"neo": None, "neo_continual": 0.1}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_it_gives_its_authors_numbers(name, dtype):
    found, states = run(NEO(VARIANTS[name]), linear(dtype))
    assert found.dtype == dtype
    close(found, softmax(vectors(name)["out"]), dtype)
    close([state["center"] for state in states], vectors(name)["center"], dtype)


@pytest.mark.parametrize("rate", [None, 0.3])
def test_probabilities_alone_are_enough_for_a_head_without_bias(rate):
    rng = np.random.default_rng(0)
    head = Prototypes(rng.normal(size=(4, 6)))
    batches = rng.normal(size=(3, 9, 6)) + 2
    by_features, by_probs = NEO(rate), NEO(rate)
    by_features.use(head)
    for features in batches:
        probs = softmax(head.logits(features))
        expected = by_features.correct(features, probs).probs
        np.testing.assert_allclose(by_probs.correct(features, probs).probs, expected)
    assert by_probs.state_dict()["center_of_logs"].shape == (4,)
    with pytest.raises(LamettaError, match="state must hold sizes, center_of_logs, count"):
        by_probs.load_state_dict(by_features.state_dict())


def test_with_prototypes_it_keeps_the_contract_too():
    given = NEO()
    given.use(Prototypes(np.random.default_rng(0).normal(size=(4, 6)), np.arange(4.0)))
    check_corrector(given)
    for rate in (0, 1.5, "fast"):
        with pytest.raises(LamettaError, match="rate must be a finite number"):
            NEO(rate)
