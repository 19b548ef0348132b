"""ROID and CMF against the published numbers."""

import numpy as np
import pytest

from lametta.torch import CMF, ROID
from tests.torch.golden import Vectors, golden, replay
from tests.torch.views import recorded

SETTINGS = {
    "roid_bench": (ROID, {}),
    "cmf_bench": (CMF, {}),
    "cmf_bench_q1": (CMF, {"noise": 50}),
}


@golden
@pytest.mark.parametrize("file", SETTINGS)
def test_published_numbers(file, dtype, device):
    vectors, (kind, options) = Vectors(file, dtype, device), SETTINGS[file]
    options |= {"lr": 1e-3, "optimizer": "adam", "batch_size": 16}
    method = recorded(kind, vectors)(vectors.classifier(), **options)

    def state():
        found = {"q": method.mean}
        if kind is CMF:
            hidden = {f"hidden.{name}": value for name, value in method.hidden.items()}
            found |= {"hidden_var": np.float64(method.variance), **hidden}
        return found

    def check(row, prediction):
        assert prediction.info["learned_from"] == (vectors["weight"][row] > 0).sum()

    gaps = replay(method, vectors, state, check=check)
    assert {"out", "loss", "q", "grad.layer3.bn.bias", "param.layer3.bn.bias"} <= {*gaps}
