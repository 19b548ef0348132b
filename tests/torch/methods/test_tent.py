"""TENT against the published numbers."""

from dataclasses import dataclass

import pytest
import torch

from lametta.torch import TENT, Outputs, own
from tests.torch.golden import TOLERANCE, Vectors, difference, golden, replay

SETTINGS = {
    "tent_orig": {"lr": 1e-3},
    "tent_bench_sgd": {"lr": 5e-3, "optimizer": "sgd", "weight_decay": 0},
}


@golden
@pytest.mark.parametrize("file", SETTINGS)
def test_published_numbers(file, dtype, device):
    """The field normalizes by the batch alone, and answers from the pass before the step."""
    vectors = Vectors(file, dtype, device)
    method = TENT(vectors.classifier(), bn_momentum=0, predict_first=True, **SETTINGS[file])
    assert {"loss", "grad.layer1.bn.weight"} <= {*replay(method, vectors)}


@golden
def test_published_numbers_of_single_samples_in_a_sliding_window(dtype, device):
    """As the benchmark has it: the window answers each sample, and is learned from once full."""

    @dataclass(kw_only=True)
    class Sliding(TENT):
        window: int
        seen: list = own(factory=list)

        def adapt(self, batch, net):
            self.seen.append(batch.inputs)
            place = (len(self.seen) - 1) % self.window
            # Its samples lie in a ring, in which the newest takes the place of the oldest.
            last = self.seen[-self.window :]
            ring = last if len(last) < self.window else last[-place - 1 :] + last[: -place - 1]
            out = net(torch.cat(ring))
            if place == self.window - 1:
                net.step(self.loss(out))
            return Outputs(out.features[place, None], out.logits[place, None])

    vectors = Vectors("sliding_window_tent_bn", dtype, device)
    model = vectors.classifier()
    method = Sliding(model, bn_momentum=0, lr=1e-3, window=vectors.config["window"])
    samples = vectors.tensor(vectors.problem["x"][[0, 3]].reshape(-1, 1, 3, 8, 8))
    names = dict(zip(vectors.problem["batch_names"], range(8), strict=True))
    assert (names["iid0"], names["corr0"]) == (0, 3)
    parameters = dict(model.net.named_parameters())
    for row, sample in enumerate(samples[: len(vectors["out"])]):
        prediction = method.step(sample)
        assert prediction.info["backwards"] == vectors["updated"][row]
        out = torch.tensor(vectors["out"][row]).softmax(0)
        gaps = {"out": difference(prediction.probs[0], out)}
        for name in (name for name in vectors.arrays if name.startswith("param.")):
            gaps[name] = difference(parameters[name[6:]], vectors[name][row])
        assert max(gaps.values()) < TOLERANCE[dtype], (row, gaps)


@golden
@pytest.mark.parametrize("kind", ["bn", "gn"])
def test_the_networks_of_the_vectors(kind, dtype, device):
    """By running statistics, and by those of the batch."""
    vectors = Vectors("memo_orig" if kind == "gn" else "tent_orig", dtype, device)
    problem, model = vectors.problem, vectors.classifier()
    by_batch = TENT(model, bn_momentum=0, lr=0, predict_first=True)
    for row, x in enumerate(vectors.tensor(problem["x"])):
        found = model(x)
        assert difference(found.logits, problem["logits_eval"][row]) < TOLERANCE[dtype]
        assert difference(found.features, problem["features_eval"][row]) < TOLERANCE[dtype]
        expected = torch.tensor(problem["logits_batchstats"][row]).softmax(1)
        assert difference(by_batch.step(x).probs, expected) < TOLERANCE[dtype]
