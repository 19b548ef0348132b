"""Threads that share a wrapped network: docs/cameras.md's example, for every method."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from lametta import Corrected, Output, Prudent, methods
from lametta.correctors import StatefulCorrector
from lametta.torch import NetworkMethod, Preprocess, wrap
from lametta.torch.digits import digits_net
from tests.conftest import make_batch

QUICK = {"views": 2, "copies": 4}


@pytest.fixture
def taken(monkeypatch):
    """What methods with memory took in, one batch after the other: features, or inputs."""
    seen = []
    for kind, name in ((StatefulCorrector, "_correct"), (NetworkMethod, "_step")):
        original = getattr(kind, name)

        def recorded(self, x, *args, original=original):
            seen.append(x.numpy().tobytes())
            return original(self, x, *args)

        monkeypatch.setattr(kind, name, recorded)
    return seen


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow(2) if name == "memo" else ())
        for name in (*methods.METHODS, "average+lame", "tent+prudent")
    ],
)
def test_answers_are_those_of_one_thread(name, taken):
    """Bit for bit, in the order in which the batches were taken in."""
    torch.manual_seed(0)
    method = methods.find(name)
    few = {key: value for key, value in QUICK.items() if key in method.parameters()}
    batches = [torch.rand(8, 3, 8, 8) for _ in range(20)]
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 1), digits_net()).eval()
    model = wrap(net, name, preprocess=Preprocess(), **few)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(model, batches))
    order = range(20)
    if method.stateful:
        given = [x if method.needs_network else model.model(x).features for x in batches]
        keys = [x.numpy().tobytes() for x in given]
        order = [keys.index(one) for one in taken if one in keys]  # prudent_bn has both kinds
    assert sorted(order) == list(range(20))
    model.reset()
    for i in order:
        assert torch.equal(model(batches[i]), together[i])


def test_frames_are_corrected_in_the_order_of_the_calls():
    """However long their forward passes take."""
    features, probs = make_batch(6, 4)

    def network(i):
        time.sleep(0.02 * (6 - i))  # those who come last are done first
        return Output(features[i : i + 1], np.log(probs[i : i + 1]))

    adapter, found = Corrected(network, Prudent()), {}

    def call(i):
        found[i] = adapter.step(i).probs

    threads = [threading.Thread(target=call, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
        time.sleep(0.002)
    for thread in threads:
        thread.join()
    alone = Corrected(network, Prudent())
    for i in range(6):
        np.testing.assert_array_equal(found[i], alone.step(i).probs)
