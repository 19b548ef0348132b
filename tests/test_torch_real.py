"""A real network on real images: ResNet-20 on CIFAR-10, one class after the other."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import lametta
from lametta import LAME, Corrected, Source
from lametta.torch import Classifier, adabn, select, tent

from .conftest import shared

EXAMPLE = Path(__file__).parents[1] / "examples" / "silent_collapse.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture
def net(example):
    return example["load_network"](shared("data", "cifar10", "resnet20-12fca82f.th"))


@pytest.fixture(scope="module")
def stream(example):
    return example["load_stream"](shared("data", "cifar10", "test-3000.zip"), per_class=100)


def run(adapter, stream, batch_size=16):
    """Accuracy in percent and mean entropy."""
    x, y = stream
    steps = [adapter.step(batch) for batch in x.split(batch_size)]
    hits = torch.cat([step.probs.argmax(1) for step in steps]) == y
    return 100 * hits.float().mean().item(), np.mean([float(s.info["entropy"]) for s in steps])


def test_the_paper_in_small(net, stream):
    model = Classifier(net)
    assert model.head is net.linear
    source, entropy = run(Source(model), stream)
    assert 78 < source < 86
    assert run(Corrected(model, LAME()), stream)[0] > source + 5
    # Entropy minimization: the entropy falls whatever the learning rate, the accuracy with it.
    accuracies = []
    for lr in (1e-3, 1e-2, 1e-1):
        adapter = tent(model, lr=lr, bn_momentum=0.0)
        accuracy, sharp = run(adapter, stream)
        assert sharp < entropy
        accuracies.append(accuracy)
        adapter.reset()
    assert accuracies[0] > source - 2
    assert accuracies[1] < source - 20
    assert accuracies[2] < 20
    assert run(Source(model), stream) == (source, entropy)
    # Batch statistics of a single class are no help either; LAME on top of them still corrects.
    adapter = adabn(model, momentum=0.1)
    alone = run(adapter, stream)[0]
    adapter.reset()
    assert alone < source
    hybrid = Corrected(adapter, LAME())
    assert run(hybrid, stream)[0] > alone


def test_layers_of_a_real_network(net, stream):
    layers = select.layers_of(net, stream[0][:2])
    assert sum(layer.is_norm for layer in layers) == 19
    halves = (select.norm & select.first_half, select.norm & select.second_half)
    assert [sum(map(half, layers)) for half in halves] == [10, 9]
    assert lametta.torch.wrap(net)(stream[0][:64]).shape == (64, 10)
