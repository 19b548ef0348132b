"""timm's networks, of random weights, under every network method; skipped without timm."""

import pytest
import torch

from lametta import LamettaError
from lametta.torch import wrap
from tests.torch.golden import PLAIN
from tests.torch.test_every import NAMES, options_of, same, values

timm = pytest.importorskip("timm", reason="timm is not installed")

NETS = {"resnet18": {}, "vit_tiny_patch16_224": {"img_size": 64}, "convnext_atto": {}}
OF_BATCH_NORMS = ("adabn", "alpha_bn", "ema_bn", "ttbn", "note", "half_bn")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
IMAGES = torch.rand(16, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module", params=NETS)
def net(request):
    torch.manual_seed(0)
    made = timm.create_model(request.param, pretrained=False, num_classes=10, **NETS[request.param])
    return made.to(DEVICE).eval()


@pytest.mark.filterwarnings("ignore:net has no batch normalizations:UserWarning")
@pytest.mark.parametrize("name", [*NAMES, "prudent_bn", "tent+aetta", "tent+probation"])
def test_every_method(net, name):
    before, images = values(net), IMAGES.to(DEVICE)
    has_batch_norms = any(isinstance(m, torch.nn.BatchNorm2d) for m in net.modules())
    model = wrap(net, name, preprocess=PLAIN, **options_of(name))
    if name in OF_BATCH_NORMS and not has_batch_norms:
        with pytest.raises(LamettaError, match=r"batch normalization.*, got none"):
            model(images)
    else:
        for part in images.split(8):
            probs = model(part)
            assert probs.isfinite().all()
            torch.testing.assert_close(probs.sum(1), torch.ones(8, device=DEVICE))
    model.reset()
    assert same(values(net), before)
