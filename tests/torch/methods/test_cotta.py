"""CoTTA against the published numbers."""

import pytest
import torch

from lametta.torch import CoTTA
from tests.torch.golden import Vectors, golden, replay
from tests.torch.views import recorded

ADAM = {"lr": 1e-3, "optimizer": "adam"}
SGD = {"symmetric": True}  # as the released codes have it for ImageNet
SETTINGS = {
    "cotta_cifar_orig": ADAM,
    "cotta_cifar_bench": ADAM,
    "cotta_imagenet_orig": SGD,
    "cotta_imagenet_bench": SGD,
}


@golden
@pytest.mark.parametrize("file", SETTINGS)
def test_published_numbers(file, dtype, device):
    vectors = Vectors(file, dtype, device)
    config = vectors.config

    class Restoring(recorded(CoTTA, vectors)):
        def masks(self, net):
            rows = {n: vectors[f"restore.{n}"][self.row] for n in net.parameters}
            return {n: torch.tensor(row, device=device) for n, row in rows.items()}

    method = Restoring(
        vectors.classifier(), decay=config["mt"], unsure_below=config["ap"], **SETTINGS[file]
    )
    names = [n for n, _ in method.model.net.named_parameters()]

    def state():
        net = method._network
        student = {f"student.{name}": net.parameters[name] for name in names}
        return student | {f"teacher.{name}": net.teacher().parameters[name] for name in names}

    def check(row, prediction):
        unsure = vectors["anchor_confidence"][row] < config["ap"]
        assert prediction.info["views"] == (32 if unsure else 1)

    gaps = replay(method, vectors, state, check=check)
    assert len(gaps) == 2 + 2 * len(names)
