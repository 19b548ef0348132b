"""Every method gives on a GPU what it gives on a CPU; all of it is skipped where there is none."""

import numpy as np
import pytest
import torch

from lametta import methods
from lametta.correctors.base import has_use_for_prototypes
from lametta.torch.augment import Views
from lametta.types import Prototypes
from tests.conftest import make_batch, softmax
from tests.torch.golden import Net
from tests.torch.test_every import AUGMENTS, NAMES, make, same, values

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

DEVICE = "cuda"
INPUTS = torch.rand(96, 3, 8, 8, generator=torch.Generator().manual_seed(0)).double()
ADAPTERS = [*NAMES, "prudent_bn", "tent+aetta", "tent+probation", "tent+prudent", "note+neo"]
OUTPUTS = [name for name in methods.names() if not methods.find(name).needs_network]
OUTPUTS.remove("source")
OPTIONS = {"update_every": 8, "capacity": 16, "lr": 0.01}


def answers(name, device, **options):
    """A method, its answers to the stream, and the network's values before and after it."""
    known = methods.find(name).parameters()
    net = Net().double().to(device)
    options = {key: value for key, value in (OPTIONS | options).items() if key in known}
    method, before = make(name, net, **options), values(net)
    found = [method.step(part).probs.cpu() for part in INPUTS.to(device).split(8)]
    return method, torch.cat(found), before, net


@pytest.mark.parametrize("name", ADAPTERS)
def test_network_methods_answer_as_on_a_cpu(name, monkeypatch):
    """With draws that are made on the host, which the noise of views and CoTTA's masks are not."""
    for one in AUGMENTS:
        monkeypatch.setattr(methods.find(one).components[0].factory, "transform", Views(noise=0))
    results = [answers(name, device, restore=0, resets=False) for device in (DEVICE, "cpu")]
    (_, found, _, net), (_, expected, _, other) = results
    torch.testing.assert_close(found, expected, atol=1e-8, rtol=0)
    state = other.state_dict()
    for key, value in net.state_dict().items():
        assert value.device.type == DEVICE
        torch.testing.assert_close(value.cpu(), state[key], atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("name", ADAPTERS)
def test_network_methods_give_the_network_back(name):
    """Bit for bit, and begin anew as they began, with draws of the device."""
    method, first, before, net = answers(name, DEVICE)
    assert first.isfinite().all()
    method.reset()
    assert same(values(net), before)
    again = torch.cat([method.step(part).probs.cpu() for part in INPUTS.to(DEVICE).split(8)])
    torch.testing.assert_close(again, first, atol=1e-8, rtol=0)  # sums of a GPU have no order


@pytest.mark.parametrize("name", OUTPUTS)
def test_correctors_answer_as_in_numpy(name):
    features, _ = make_batch(200, 10, d=12)
    rng = np.random.default_rng(1)
    weight, bias = rng.normal(size=(10, 12)), rng.normal(size=10)
    probs, found = softmax(features @ weight.T + bias), []
    for as_array in (np.asarray, lambda array: torch.tensor(array, device=DEVICE)):
        corrector = methods.find(name).corrector({})
        if has_use_for_prototypes(corrector):
            corrector.use(Prototypes(as_array(weight), as_array(bias)))
        parts = [slice(start, start + 32) for start in range(0, 200, 32)]
        batches = [(as_array(features[part]), as_array(probs[part])) for part in parts]
        found.append([corrector.correct(*batch).probs for batch in batches])
    assert all(isinstance(one, torch.Tensor) and one.device.type == DEVICE for one in found[1])
    expected = torch.from_numpy(np.concatenate(found[0]))
    limit = 1e-4 if name == "lame" else 1e-8  # LAME ends at a tolerance, on a host by other steps
    torch.testing.assert_close(torch.cat(found[1]).cpu(), expected, atol=limit, rtol=0)
