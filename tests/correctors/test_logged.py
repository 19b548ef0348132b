"""Logged: hands on diagnostics, and is otherwise the corrector that it holds."""

import asyncio
import copy
import pickle

import numpy as np
import pytest

import lametta
from lametta import LamettaError
from lametta.correctors import Logged
from lametta.testing import check_corrector

RNG = np.random.default_rng(0)
FEATURES, PROBS = RNG.normal(size=(48, 6)), RNG.dirichlet(np.ones(4), size=48)
BATCHES = np.split(np.arange(48), 6)


def _silent(info, step):
    pass


@pytest.mark.slow
@pytest.mark.parametrize("make", [lametta.LAME, lametta.Prudent], ids=["lame", "prudent"])
def test_the_contract(make):
    check_corrector(Logged(make(), _silent))


@pytest.mark.parametrize("inner", [lametta.LAME(), lametta.Prudent()], ids=["lame", "prudent"])
def test_answers_are_those_of_what_it_holds(inner):
    logged = Logged(copy.deepcopy(inner), _silent)
    for batch in BATCHES:
        given = FEATURES[batch], PROBS[batch]
        np.testing.assert_array_equal(logged.correct(*given).probs, inner.correct(*given).probs)
    assert logged.stateful == lametta.correctors.base.is_stateful(inner)
    other = Logged(type(inner)(), _silent)
    other.load_state_dict(logged.state_dict())
    assert other.state_dict().keys() == logged.state_dict().keys()


def test_every_so_often_numbers_are_handed_on():
    seen = []
    logged = Logged(lametta.LAME(), lambda info, step: seen.append((step, dict(info))), every=2)
    for batch in BATCHES:
        logged.correct(FEATURES[batch], PROBS[batch])
    assert [step for step, _ in seen] == [0, 2, 4]
    assert all(isinstance(x, int | float) for _, info in seen for x in info.values())
    logged.reset()
    logged.correct(FEATURES, PROBS)
    assert seen[-1][0] == 6  # a logger takes no step twice


def test_streams_share_the_function_and_the_count():
    """A logger has a connection and a lock: it cannot be copied."""

    class Logger:
        def __deepcopy__(self, memo):
            raise AssertionError("copied")

        def __call__(self, info, step):
            steps.append(step)

    steps = []
    streams = lametta.Streams(Logged(lametta.Prudent(), Logger()))
    for batch in BATCHES:
        streams.correct(FEATURES[batch], PROBS[batch], "ab"[batch[0] // 8 % 2])
    assert steps == list(range(6))


class _Steps(list):
    def __call__(self, info, step):
        self.append(step)


def test_a_pickled_one_goes_on_counting():
    logged = Logged(lametta.LAME(), _Steps())
    logged.correct(FEATURES, PROBS)
    resumed = pickle.loads(pickle.dumps(logged))
    for corrector in (logged, resumed):
        corrector.correct(FEATURES, PROBS)
    assert logged.on_info == resumed.on_info == [0, 1]


def test_what_awaits_gets_the_answers_of_one_thread():
    """Batches of a stream in their order, streams side by side, the loop never held up."""
    expected = {}
    for name in "abc":
        corrector = lametta.Prudent()
        expected[name] = [corrector.correct(FEATURES[b], PROBS[b]).probs for b in BATCHES]
    streams = lametta.Streams(lametta.Prudent())

    async def camera(name):
        return name, [
            (await asyncio.to_thread(streams.correct, FEATURES[b], PROBS[b], name)).probs
            for b in BATCHES
        ]

    async def every():
        return dict(await asyncio.gather(*map(camera, "abc")))

    found = asyncio.run(every())
    for name in "abc":
        np.testing.assert_array_equal(found[name], expected[name])


def test_what_cannot_be_called_is_refused():
    with pytest.raises(LamettaError, match="on_info must be callable, got str"):
        Logged(lametta.LAME(), "wandb")
    with pytest.raises(LamettaError, match="every must be an integer >= 1, got 0"):
        Logged(lametta.LAME(), _silent, every=0)
