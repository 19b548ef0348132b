"""MEMO against the published numbers."""

import pytest
import torch

from lametta.torch import MEMO
from tests.torch.golden import TOLERANCE, Vectors, difference, golden
from tests.torch.views import moved

SETTINGS = {"memo_orig": {}, "memo_bench": {"momentum": 0.9, "bn_momentum": 0.1}}


@golden
@pytest.mark.parametrize("file", SETTINGS)
def test_published_numbers(file, dtype, device):
    vectors = Vectors(file, dtype, device)
    draws = list(vectors["aug"])

    class Recorded(MEMO):
        def transform(self, pixels, generator):
            rows = draws.pop(0)
            return torch.cat([moved(x[None], row) for x, row in zip(pixels, rows, strict=True)])

    method = Recorded(vectors.classifier(), copies=32, lr=0.005, **SETTINGS[file])
    images = vectors.tensor(vectors.problem["x"][0][:4])
    names = [name for name in vectors.arrays if name.startswith("param.")]
    for row, image in enumerate(images):
        prediction = method.step(image[None])
        net = dict(method.model.net.named_parameters())
        found = {"out": prediction.probs[0], "loss": prediction.info["loss"]}
        found |= {name: net[name[6:].replace(".layer.", ".")] for name in names}
        for name, value in found.items():
            expected = torch.tensor(vectors[name][row])
            expected = expected.softmax(0) if name == "out" else expected
            assert difference(value, expected) < TOLERANCE[dtype], (name, row)
