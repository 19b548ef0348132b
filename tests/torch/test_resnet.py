import pytest
import torch
from torch import nn

from lametta.torch.resnet import ResNet
from tests.torch.nets import IMAGES, logits, stir


def by_hand(state, x, depth, stride_in_1x1=False, same_pool=False):
    """A bottleneck ResNet from its tensors alone."""

    def unit(x, conv, norm, stride):
        weight = state[f"{conv}.weight"]
        x = nn.functional.conv2d(x, weight, None, stride, padding=weight.shape[-1] // 2)
        gamma, beta, mean, var = (
            state[f"{norm}.{key}"][:, None, None]
            for key in ("weight", "bias", "running_mean", "running_var")
        )
        return (x - mean) / (var + 1e-5).sqrt() * gamma + beta

    x = unit(x, "conv1", "bn1", 2).relu()
    pad = (0, 1, 0, 1) if same_pool else (1, 1, 1, 1)
    x = nn.functional.max_pool2d(nn.functional.pad(x, pad, value=-torch.inf), 3, 2)
    for stage, count in enumerate({50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}[depth], 1):
        for i in range(count):
            block, stride = f"layer{stage}.{i}", 2 if stage > 1 and i == 0 else 1
            first, second = (stride, 1) if stride_in_1x1 else (1, stride)
            y = unit(x, f"{block}.conv1", f"{block}.bn1", first).relu()
            y = unit(y, f"{block}.conv2", f"{block}.bn2", second).relu()
            y = unit(y, f"{block}.conv3", f"{block}.bn3", 1)
            if i == 0:
                x = unit(x, f"{block}.downsample.0", f"{block}.downsample.1", stride)
            x = (x + y).relu()
    return x.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize("depth", [50, 101])
@pytest.mark.parametrize("options", [{}, {"stride_in_1x1": True}, {"same_pool": True}], ids=str)
def test_resnet_by_hand(depth, options):
    net = stir(ResNet(depth, width=4, classes=6, **options))
    wanted = by_hand(net.state_dict(), IMAGES, depth, **options)
    torch.testing.assert_close(logits(net), wanted, rtol=1e-3, atol=1e-3 * wanted.abs().max())


def test_same_pool_pads_odd_sides_evenly():
    net, usual = (stir(ResNet(18, width=4, same_pool=same)) for same in (True, False))
    with torch.no_grad():
        odd, even = IMAGES[..., :61, :61], IMAGES
        torch.testing.assert_close(net(odd), usual(odd))
        assert not torch.allclose(net(even), usual(even))


@pytest.mark.parametrize(
    ("depth", "parameters", "entries"),
    [(18, 11_689_512, 122), (50, 25_557_032, 320), (101, 44_549_160, 626)],
)
def test_resnet_is_as_large_as_torchvisions(depth, parameters, entries):
    with torch.device("meta"):
        net = ResNet(depth)
    assert sum(p.numel() for p in net.parameters()) == parameters
    state = net.state_dict()
    assert len(state) == entries
    assert {"bn1.num_batches_tracked", "layer2.0.downsample.1.running_var", "fc.bias"} <= set(state)
    assert ("layer1.0.downsample.0.weight" in state) == (depth > 34)
