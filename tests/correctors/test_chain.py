"""Correctors in sequence: their traits, their state, and what they must return."""

import numpy as np
import pytest

from lametta import LAME, LamettaError, Memory, Prediction, Prudent, Streams, Windowed
from lametta.correctors import Average, Chain
from lametta.testing import yield_checks
from tests.conftest import make_batch

CHAINS = [
    # The chain, and whether it is ordered, stateful and causal.
    (Chain((Average(), Memory())), (True, True, True)),
    (Chain((Average(), LAME())), (True, True, False)),
    (Chain((LAME(), Prudent())), (True, True, False)),
    (Chain((LAME(), LAME(weight=0.5))), (False, False, False)),
]


@pytest.mark.parametrize(("chain", "traits"), CHAINS, ids=repr)
def test_traits_are_those_of_what_is_held(chain, traits):
    for one in (chain, Chain((chain,)), Streams(chain)):
        assert (one.ordered, one.stateful, one.causal) == traits
    mixed = Chain((chain, LAME()))
    assert (mixed.ordered, mixed.stateful, mixed.causal) == (*traits[:2], False)


@pytest.mark.parametrize(
    ("chain", "check"),
    [
        pytest.param(chain, check, id=f"{i}-{check.__name__}")
        for i, (chain, _) in enumerate(CHAINS)
        for check in yield_checks(chain)
    ],
)
def test_contract(chain, check):
    check(chain)


def test_a_state_is_loaded_whole_or_not_at_all():
    chain = Chain((Average(), Memory()))
    chain.correct(*make_batch(8, 3))
    before = chain.state_dict()
    other = Chain((Average(), Memory()))
    other.correct(*make_batch(8, 3, seed=1))
    state = other.state_dict()
    bad = {**state, "1.seen": np.array(np.nan)}  # of the second: the first could be loaded
    with pytest.raises(LamettaError, match="must be finite"):
        chain.load_state_dict(bad)
    for name, array in chain.state_dict().items():
        assert np.array_equal(array, before[name])
    with pytest.raises(LamettaError, match="state must be arrays by name, got list"):
        chain.load_state_dict([])


def test_info_is_that_of_all():
    features, probs = make_batch(12, 3)
    first, second = LAME(max_iter=1, tol=0), Average()
    one = first.correct(features, probs)
    two = Average().correct(features, one.probs)
    info = Chain((first, second)).correct(features, probs).info
    assert info["n_iter"] == 1  # of the first, which alone counts
    assert info["entropy"] == pytest.approx(two.info["entropy"])
    whole = np.mean(two.probs.argmax(axis=1) != probs.argmax(axis=1))
    assert info["changed"] == pytest.approx(whole)
    assert info["changed"] != pytest.approx(two.info["changed"])


def test_a_chain_has_converged_where_all_have():
    batch = make_batch(12, 3)
    done, stopped = LAME(), LAME(max_iter=1, tol=0)
    for chain in ((done, stopped), (stopped, done), (stopped, done, Average())):
        assert not Chain(chain).correct(*batch).info["converged"]
    assert Chain((done, LAME(weight=0.5))).correct(*batch).info["converged"]
    assert "converged" not in Chain((Average(),)).correct(*batch).info


class Bare:
    """One that returns the probabilities alone, as a stranger may."""

    def correct(self, features, probs):
        return probs

    def reset(self): ...


class Narrow(Bare):
    """One that forgets a class."""

    def correct(self, features, probs):
        return Prediction(probs[:, 1:])


def test_each_must_keep_the_shape():
    with pytest.raises(
        LamettaError, match=r"Narrow.correct must return probs \(6, 3\), got \(6, 2\)"
    ):
        Chain((Narrow(), LAME())).correct(*make_batch(6, 3))


@pytest.mark.parametrize(
    "correct",
    [
        lambda *batch: Chain((LAME(), Bare())).correct(*batch),
        lambda *batch: Windowed(Bare()).correct(*batch),
        lambda *batch: Streams(Bare()).correct(*batch, "camera"),
        lambda *batch: Streams(Bare()).correct(*batch, list("ababab")),
    ],
    ids=["chain", "windowed", "one stream", "several streams"],
)
def test_a_bare_array_is_no_prediction(correct):
    message = r"Bare\.correct must return lametta\.Prediction, got ndarray"
    with pytest.raises(LamettaError, match=message):
        correct(*make_batch(6, 3))
