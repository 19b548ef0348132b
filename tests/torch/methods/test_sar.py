"""SAR against the published numbers."""

import pytest
import torch

from lametta.torch import SAR, Classifier
from tests.torch.golden import Net, Vectors, golden, replay

RELEASED = {"lr": 0.005, "released": True, "keep_average": True}


@golden
@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("sar_orig", RELEASED),
        ("sar_orig_rho05", RELEASED | {"rho": 0.5}),
        ("sar_orig_layer4", RELEASED),
        ("sar_orig_reset", RELEASED),
        ("sar_bench", RELEASED | {"keep_average": False}),
        ("sar_bench_reset", RELEASED | {"keep_average": False}),
    ],
)
def test_published_numbers(file, options, dtype, device):
    vectors = Vectors(file, dtype, device)
    method = SAR(vectors.classifier(), **options)

    def state():
        network = method._network
        assert [*network.parameters] == [*vectors["adapted"]]
        momenta = [network.optimizer.state[p] for p in network.parameters.values()]
        buffers = {
            f"momentum_buffer.{name}": momentum["momentum_buffer"]
            for name, momentum in zip(network.parameters, momenta, strict=True)
        }
        return {"ema": method.average, **buffers}

    assert {"loss2", "grad2.layer1.bn.weight"} <= {*replay(method, vectors, state)}


def test_a_batch_without_sure_samples_moves_nothing():
    """In the paper; the published codes let the momentum go on."""
    inputs = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    moved = {}
    for released in (False, True):
        net = Net()
        method = SAR(Classifier(net), margin=1.0, lr=0.1, reset_below=0, released=released)
        method.step(inputs)
        before = net.layer1.bn.weight.detach().clone()
        method.margin = 0.0
        method.step(inputs)
        moved[released] = not torch.equal(net.layer1.bn.weight, before)
    assert moved == {False: False, True: True}


def test_a_collapse_begins_anew_with_its_optimizer():
    inputs = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    net = Net()
    method = SAR(Classifier(net), margin=1.0, lr=0.1, reset_below=9.0)
    first = method.step(inputs)
    assert first.info["drift"] == 0
    assert method.average is None
    assert torch.equal(method.step(inputs).probs, first.probs)
