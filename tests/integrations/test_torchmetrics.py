"""A wrapped network where torchmetrics, and so Lightning, want one."""

import pytest
import torch
from torch import nn

import lametta.torch
from lametta.torch import Classifier
from tests.test_docs import run_page


@pytest.mark.slow(2)
def test_metrics_of_corrected_probabilities_and_the_page(tmp_path, monkeypatch):
    from torchmetrics import MetricCollection  # here, since it takes every worker two seconds
    from torchmetrics.classification import MulticlassAccuracy, MulticlassCalibrationError

    labels = torch.arange(4).repeat_interleave(32)
    x = 1.5 * torch.eye(4, 8)[labels] + torch.randn(128, 8)
    net = nn.Sequential()
    net.body, net.fc = nn.Linear(8, 8), nn.Linear(8, 4)
    with torch.no_grad():
        net.body.weight.copy_(torch.eye(8)), net.body.bias.zero_()
        net.fc.weight.copy_(torch.eye(4, 8)), net.fc.bias.zero_()
    metrics = MetricCollection(
        {
            "accuracy": MulticlassAccuracy(num_classes=4, average="micro"),
            "calibration": MulticlassCalibrationError(num_classes=4),
        }
    )
    source = metrics.clone()
    module = nn.ModuleDict({"model": lametta.torch.wrap(net.eval(), "lame"), "metrics": metrics})
    module.train().eval()  # as a trainer does with the module that has it
    hits = []
    for rows in torch.arange(128).split(32):
        probs = module["model"](x[rows])
        output = Classifier(net)(x[rows])
        features, logits = output.features.detach(), output.logits.detach()
        expected = lametta.lame(features, logits.softmax(1)).probs
        assert torch.equal(probs, expected)
        metrics.update(probs, labels[rows])
        source.update(logits, labels[rows])
        hits += (probs.argmax(1) == labels[rows]).tolist()
    found, before = metrics.compute(), source.compute()
    assert float(found["accuracy"]) == sum(hits) / 128
    assert found["accuracy"] > before["accuracy"]
    assert 0 <= found["calibration"] <= 1
    run_page("docs/integrations/lightning.md", tmp_path, monkeypatch)
