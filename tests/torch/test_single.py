"""Batches of one image in the network methods."""

import pytest
import torch
from torch import nn

from lametta import LamettaError
from lametta.torch import Classifier, adabn, wrap
from lametta.torch.resnet import ResNet
from tests.torch.nets import Tiny, stir
from tests.torch.test_adapt import METHODS, bits, make_net, same

ONE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=METHODS.values(), ids=METHODS)
def method(request):
    return request.param


def test_statistics_of_one_image_are_those_of_its_pixels():
    net = make_net()
    adabn(Classifier(net), momentum=1.0).step(ONE)
    with torch.no_grad():
        maps = net.block.conv1(net.stem(ONE))[0].flatten(1)  # [C, pixels]
    torch.testing.assert_close(net.block.norm1.running_mean, maps.mean(1), atol=1e-6, rtol=0)
    torch.testing.assert_close(net.block.norm1.running_var, maps.var(1), atol=1e-6, rtol=0)


def test_one_image_is_a_batch(method):
    net = make_net()
    before = bits(net)
    adapter = method(Classifier(net), lr=0.1)
    for _ in range(3):
        probs = adapter.step(ONE).probs
        assert probs.shape == (1, 4)
        assert torch.isfinite(probs).all()
    assert not same(bits(net), before)
    assert all(torch.isfinite(value).all() for value in bits(net).values())
    assert not any(len(module._forward_pre_hooks) for module in net.block.modules())
    adapter.reset()
    assert same(bits(net), before)


def test_maps_of_one_pixel_keep_their_statistics(method):
    """A ResNet-18 sees 32 pixels as 1 x 1 in its last stage, and 2 x 2 in the one before."""
    net = stir(ResNet(18, width=8, classes=5))
    before = bits(net)
    x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(2))
    adapter = method(Classifier(net), lr=0.01)
    probs = adapter.step(x).probs
    assert torch.isfinite(probs).all()
    for name, module in net.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            kept = torch.equal(module.running_mean, before[f"{name}.running_mean"])
            assert kept == name.startswith("layer4"), name
            assert not module.training
    assert all(torch.isfinite(value).all() for value in bits(net).values())
    adapter.step(torch.cat([x, x + 1]))  # two images have statistics there too
    moved = net.layer4[1].bn2.running_mean
    assert not torch.equal(moved, before["layer4.1.bn2.running_mean"])


def test_vectors_of_one_sample_are_refused_before_anything_changes(method):
    net = nn.Sequential()
    net.body, net.pool = Tiny(4), nn.Flatten()
    net.norm, net.fc = nn.BatchNorm1d(4), nn.Linear(4, 3)
    net.eval()
    before = bits(net)
    adapter = method(Classifier(net, head="fc"), lr=0.1)
    message = r"2 samples or more where .* sees vectors \[N, d\], got 1 and \[1, 4\]: one value"
    with pytest.raises(LamettaError, match=message):
        adapter.step(ONE)
    assert same(bits(net), before)
    assert not any(module.training for module in net.modules())
    assert torch.isfinite(adapter.step(torch.cat([ONE, ONE + 1])).probs).all()


def test_one_image_of_a_stream_that_ends_so():
    """What the last batch of a stream may be, alone and under LAME."""
    stream = torch.randn(9, 3, 8, 8, generator=torch.Generator().manual_seed(3))
    model = wrap(make_net(), "tent+lame")
    shapes = [model(stream[i : i + 4]).shape for i in (0, 4, 8)]
    assert shapes == [(4, 4), (4, 4), (1, 4)]
