"""TENT against the published numbers."""

import pytest
import torch

from lametta.torch import TENT
from tests.torch.golden import Vectors, golden, replay

SETTINGS = {
    "tent_orig": {"lr": 1e-3},
    "tent_bench_sgd": {"lr": 5e-3, "optimizer": "sgd", "weight_decay": 0},
}


@golden
@pytest.mark.parametrize("file", SETTINGS)
def test_published_numbers(file, dtype):
    """The field normalizes by the batch alone, and answers from the pass before the step."""
    vectors = Vectors(file, dtype)
    method = TENT(vectors.classifier(), bn_momentum=0, predict_first=True, **SETTINGS[file])
    losses = []
    replay(method, vectors, check=lambda row, prediction: losses.append(prediction.info["loss"]))
    torch.testing.assert_close(torch.stack(losses).double(), torch.tensor(vectors["loss"]))
