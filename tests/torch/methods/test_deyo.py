"""DeYO against the published numbers."""

import pytest
import torch

from lametta import LamettaError
from lametta.torch import Classifier, DeYO
from tests.torch.golden import TOLERANCE, Net, Vectors, difference, golden, replay

AUTHORS = {"lr": 0.005, "min_drop": 0.2}
INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def recorded(vectors):
    """DeYO with the orders of the published run."""

    class Recorded(DeYO):
        row = -1

        def adapt(self, batch, net):
            self.row += 1
            return super().adapt(batch, net)

        def order(self, shape, generator):
            drawn = torch.tensor(vectors["perm"][self.row]).reshape(-1, shape[1])
            drawn = drawn[(drawn >= 0).all(1)]
            assert drawn.shape == shape
            return drawn

    return Recorded


@golden
@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("deyo_orig", AUTHORS),
        ("deyo_orig_strict", AUTHORS | {"min_drop": 0.75}),
        ("deyo_orig_pixel", AUTHORS | {"destroy": "pixel"}),
        ("deyo_orig_occ", AUTHORS | {"destroy": "occlusion"}),
        ("deyo_orig_10px", AUTHORS),
        ("deyo_bench", {"lr": 0.001, "min_drop": 0.2, "optimizer": "adam"}),
    ],
)
def test_published_numbers(file, options, dtype, device):
    vectors = Vectors(file, dtype, device)
    kind = DeYO if "occ" in file else recorded(vectors)
    method = kind(vectors.classifier(), **options)

    def check(row, prediction):
        assert prediction.info["backwards"] == int(vectors["stepped"][row])
        kept = int(vectors["keep1"][row].sum())
        assert prediction.info["forward_samples"] == len(vectors["out"][row]) + kept

    assert {"loss", "grad.layer1.bn.weight"} <= {*replay(method, vectors, check=check)}


@golden
def test_published_images_of_moved_patches(dtype, device):
    """Of 10 pixels a side, so that both resizes act."""
    vectors = Vectors("deyo_orig_10px", dtype, device)
    method = recorded(vectors)(None)
    for row, x in enumerate(vectors.tensor(vectors["x"])):
        method.row, kept = row, vectors["keep1"][row]
        if kept.any():
            found = method.destroyed(x[kept], None)
            assert difference(found, vectors["x_destroyed"][row][kept]) < TOLERANCE[dtype]


def test_patches_are_only_moved():
    x = torch.arange(2 * 64.0).reshape(2, 1, 8, 8)
    found = DeYO(None).destroyed(x, torch.Generator().manual_seed(0))
    assert torch.equal(found.flatten(1).sort().values, x.flatten(1))
    assert not torch.equal(found, x)
    tile = found[0, 0, :2, :2]  # whole, wherever it came from
    assert torch.equal(tile - tile[0, 0], x[0, 0, :2, :2])


def test_what_has_no_patches_is_refused():
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 4))
    with pytest.raises(LamettaError, match=r"x must be images \[N, C, H, W\], got .*\[8, 6\]"):
        DeYO(Classifier(net.eval(), head="2")).step(torch.rand(8, 6))
    with pytest.raises(LamettaError, match="x must be 9 pixels or more a side"):
        DeYO(Classifier(Net()), margin=1.0, patches=9).step(INPUTS)
    with pytest.raises(LamettaError, match="destroy must be"):
        DeYO(None, destroy="blur")
