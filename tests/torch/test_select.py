"""The halves that the released code adapts, on its networks."""

from collections import Counter

import pytest
import torch
from torch import nn

from lametta import LamettaError
from lametta.torch import Classifier, select, tent
from lametta.torch.cifar import resnet20
from lametta.torch.resnet import ResNet


class Block(nn.Module):
    """A block whose normalizations are called in turn."""

    def __init__(self, *norms):
        super().__init__()
        for i, norm in enumerate(norms, 1):
            self.add_module(f"bn{i}", norm)

    def forward(self, x):
        for norm in self.children():
            x = norm(x)
        return x


class EfficientNet(nn.Module):
    """The modules of timm's EfficientNet-B4 by name: 32 blocks in 7 stages, with a stem and head.

    A block of the first stage has two batch normalizations, of another one three.
    """

    def __init__(self, stages=(2, 4, 4, 6, 6, 8, 2)):
        super().__init__()
        self.conv_stem, self.bn1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.blocks = nn.Sequential(*(
            nn.Sequential(*(
                Block(*(nn.BatchNorm2d(4) for _ in range(3 if stage else 2))) for _ in range(count)
            ))
            for stage, count in enumerate(stages)
        ))  # fmt: skip
        self.conv_head, self.bn2 = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.classifier = nn.Linear(4, 3)

    def forward(self, x):
        x = self.bn2(self.conv_head(self.blocks(self.bn1(self.conv_stem(x)))))
        return self.classifier(x.mean((2, 3)))


def flat():
    """The same as the code that it was published with calls it: blocks in one list."""
    net = EfficientNet()
    net._blocks = nn.Sequential(*(block for stage in net.blocks for block in stage))
    del net.blocks
    object.__setattr__(net, "blocks", lambda x: net._blocks(x))
    return net


class ViT(nn.Module):
    """The modules of timm's ViT-B by name: 12 blocks of two normalizations, and one after them."""

    def __init__(self):
        super().__init__()
        self.patch_embed = nn.Linear(6, 4)
        self.blocks = nn.Sequential(*(Block(nn.LayerNorm(4), nn.LayerNorm(4)) for _ in range(12)))
        self.norm, self.head = nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.patch_embed(x[:, :, 0]))).mean(1))


IMAGES = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))


def halves(net):
    layers = select.layers_of(net.eval(), IMAGES)
    names = ("released_first_half", "released_second_half")
    return [[layer.name for layer in layers if select.LAYERS[name](layer)] for name in names]


@pytest.mark.parametrize(
    ("depth", "counts"), [(18, (10, 10)), (50, (24, 29)), (101, (24, 80))], ids=str
)
def test_halves_of_resnets(depth, counts):
    first, second = halves(ResNet(depth, width=4))
    assert (len(first), len(second)) == counts
    assert {name.partition(".")[0] for name in first} == {"bn1", "layer1", "layer2"}
    assert {name.partition(".")[0] for name in second} == {"layer3", "layer4"}


def blocks_of(names):
    """How many normalizations each block has in the order of blocks."""
    return list(Counter(name.rpartition(".")[0] for name in names).values())


def test_halves_of_efficientnet_b4():
    first, second = halves(EfficientNet())
    assert blocks_of(first) == [2, 2] + 15 * [3]  # blocks 0 to 16, without the stem
    assert first[-1] == "blocks.4.0.bn3"  # the 17th of the blocks 2 + 4 + 4 + 6 + 6 + 8 + 2
    assert blocks_of(second) == 15 * [3]  # blocks 17 to 31, without the head
    assert (second[0], second[-1]) == ("blocks.4.1.bn1", "blocks.6.1.bn3")
    first, second = halves(flat())
    assert (first[-1], second[0]) == ("_blocks.16.bn3", "_blocks.17.bn1")
    assert "bn1" not in first
    assert "bn2" not in second


def test_halves_of_a_vit():
    first, second = halves(ViT())
    assert first == [f"blocks.{i}.bn{j}" for i in range(7) for j in (1, 2)]
    assert second == [f"blocks.{i}.bn{j}" for i in range(7, 12) for j in (1, 2)]  # not "norm"


def test_networks_that_the_released_code_does_not_cut():
    net, _ = resnet20()  # three stages
    assert halves(net) == [[], []]
    adapter = tent(Classifier(net.eval()), layers="released_first_half")
    with pytest.raises(LamettaError, match="got none in 'released_first_half'"):
        adapter.step(IMAGES)


def test_a_step_moves_one_half_alone():
    net = EfficientNet().eval()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    tent(Classifier(net), layers="released_second_half", lr=0.1).step(IMAGES)
    moved = {name for name, value in net.state_dict().items() if not value.equal(before[name])}
    changed = {name.rpartition(".")[0] for name in moved}
    assert changed == set(halves(net)[1])


def is_narrow(layer):
    return any(parameter.ndim == 1 for parameter in layer.module.parameters())


NARROW = select.Selector(is_narrow)


def test_layers_of_other_packages_have_names(plug_in):
    plug_in("lametta.layers", narrow=f"{__name__}:is_narrow", number="math:pi")
    layers = select.layers_of(resnet20()[0].eval(), torch.rand(2, 3, 32, 32))
    expected = [is_narrow(layer) for layer in layers]
    assert any(expected)
    for name in ("narrow", f"python:{__name__}:is_narrow", f"python:{__name__}:NARROW"):
        assert [select.as_selector(name)(layer) for layer in layers] == expected
    with pytest.raises(LamettaError, match="layers must be a predicate on layers, got 3.14"):
        select.as_selector("number")
    assert all(select.as_selector("all")(layer) for layer in layers)


def test_tent_takes_the_names_of_layers():
    for layers in ("norms", "everything", "all"):
        tent(Classifier(resnet20()[0].eval()), layers=layers)
    with pytest.raises(LamettaError, match="got 'norm'; did you mean 'norms'"):
        tent(Classifier(resnet20()[0].eval()), layers="norm")
