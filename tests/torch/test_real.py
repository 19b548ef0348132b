"""A real network on real images: ResNet-20 on CIFAR-10, one class after the other."""

import runpy
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

import lametta
from lametta import LAME, Adapter, Corrected, Source
from lametta.torch import Classifier, adabn, select, tent
from tests.conftest import shared

EXAMPLE = Path(__file__).parents[2] / "examples" / "silent_collapse.py"


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLE))


@pytest.fixture
def net(example):
    return example["load_network"](shared("data", "cifar10", "resnet20-12fca82f.th"))


@pytest.fixture(scope="module")
def stream(example):
    return example["load_stream"](shared("data", "cifar10", "test-3000.zip"), per_class=26)


@dataclass
class Noted:
    """An adapter that keeps its predictions, which a corrector on top of it has besides its own."""

    base: Adapter
    steps: list = field(default_factory=list)

    def step(self, x):
        self.steps.append(self.base.step(x))
        return self.steps[-1]

    def reset(self):
        self.base.reset()


def measured(steps, labels):
    """Accuracy in percent and mean entropy."""
    hits = torch.cat([step.probs.argmax(1) for step in steps]) == labels
    return 100 * hits.float().mean().item(), np.mean([float(s.info["entropy"]) for s in steps])


def run(adapter, stream, batch_size=16):
    x, y = stream
    return measured([adapter.step(batch) for batch in x.split(batch_size)], y)


@pytest.mark.slow(6)
def test_the_paper_in_small(net, stream):
    model = Classifier(net)
    assert model.head is net.linear
    # Fewer images tell as much, but for the rate that fails slowly.
    short = tuple(values.unflatten(0, (10, 26))[:, :20].flatten(0, 1) for values in stream)
    before, own = model(short[0][:16]).logits, Noted(Source(model))
    corrected = run(Corrected(own, LAME()), short)[0]
    source, entropy = measured(own.steps, short[1])
    assert 78 < source < 86
    assert corrected > source + 5
    # Entropy minimization: the entropy falls whatever the learning rate, the accuracy with it.
    for lr, part, least, most in (
        (1e-3, short, -2, 20),
        (3e-2, stream, -60, -20),
        (1e-1, short, -80, -60),
    ):
        adapter = tent(model, lr=lr, bn_momentum=0.0)
        accuracy, sharp = run(adapter, part)
        adapter.reset()
        plain, blurred = (source, entropy) if part is short else run(Source(model), part)
        assert sharp < blurred
        assert least < accuracy - plain < most
    assert torch.equal(model(short[0][:16]).logits, before)
    # Batch statistics of a single class are no help either; LAME on top of them still corrects.
    statistics = Noted(adabn(model, momentum=0.1))
    corrected = run(Corrected(statistics, LAME()), short)[0]
    alone = measured(statistics.steps, short[1])[0]
    assert alone < source
    assert corrected > alone


@pytest.mark.slow
def test_layers_of_a_real_network(net, stream):
    layers = select.layers_of(net, stream[0][:2])
    assert sum(layer.is_norm for layer in layers) == 19
    halves = (select.norm & select.first_half, select.norm & select.second_half)
    assert [sum(map(half, layers)) for half in halves] == [10, 9]
    assert lametta.torch.wrap(net)(stream[0][:64]).shape == (64, 10)


@pytest.fixture(params=["vit", "resnet"])
def hf_net(request):
    """A Hugging Face image classifier, small, as its config makes it."""
    hf = pytest.importorskip("transformers")
    if request.param == "vit":
        config = hf.ViTConfig(
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=64,
            image_size=32,
            patch_size=8,
            num_labels=5,
        )
        return hf.ViTForImageClassification(config).eval()
    config = hf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=5
    )
    return hf.ResNetForImageClassification(config).eval()


@pytest.mark.slow
def test_hugging_face_networks(hf_net):
    x, passes = torch.randn(12, 3, 32, 32), []
    hf_net.register_forward_hook(lambda *_: passes.append(1))
    model = Classifier(hf_net)
    output = model(x)
    assert len(passes) == 1
    with torch.no_grad():
        states = hf_net(x, output_hidden_states=True)
        body = hf_net.vit(x).last_hidden_state[:, 0] if hasattr(hf_net, "vit") else None
        if body is None:
            body = hf_net.resnet(x).pooler_output.flatten(1)
    torch.testing.assert_close(output.logits, states.logits)
    torch.testing.assert_close(output.features, body)
    assert Corrected(model, LAME()).step(x).probs.shape == (12, 5)
    adapter = tent(model, lr=0.1)
    assert float(adapter.step(x).info["drift"]) > 0
    adapter.reset()
    torch.testing.assert_close(model(x).logits, output.logits, atol=0, rtol=0)
