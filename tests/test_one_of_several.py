"""Multi-label classification and regression: every entry refuses them with the same sentence."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neighbors import KNeighborsClassifier
from torch import nn
from typer.testing import CliRunner

import lametta
from lametta import LamettaError
from lametta._checks import ONE_OF_SEVERAL
from lametta.cli import app
from lametta.integrations.sklearn import CorrectedClassifier
from lametta.torch import wrap

FEATURES = np.random.default_rng(0).normal(size=(30, 4))
SEVERAL = 1 / (1 + np.exp(-FEATURES[:, :3]))  # yes or no to each of three classes
LABELS = (FEATURES[:, :3] > 0).astype(int)
X = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def _net(k, *behind, **config):
    net = nn.Sequential()
    net.body, net.fc = nn.Linear(4, 5), nn.Linear(5, k)
    for i, module in enumerate(behind):
        net.add_module(str(i), module)
    if config:
        net.config = SimpleNamespace(**config)
    return net.eval()


@pytest.mark.parametrize(
    "entry",
    [
        lambda: lametta.lame(FEATURES, SEVERAL),
        lambda: lametta.Prudent().correct(FEATURES, SEVERAL),
        lambda: lametta.Streams(lametta.Prudent()).correct(FEATURES, SEVERAL, "a"),
        lambda: lametta.lame(FEATURES, SEVERAL[:, :1]),
        lambda: wrap(_net(3, nn.Sigmoid()), head="fc")(X),
        lambda: wrap(_net(3, problem_type="multi_label_classification", num_labels=3), head="fc"),
        lambda: wrap(_net(1, problem_type="regression", num_labels=1), head="fc"),
        lambda: CorrectedClassifier(KNeighborsClassifier()).fit(FEATURES, LABELS),
        lambda: CorrectedClassifier(OneVsRestClassifier(LogisticRegression())).fit(
            FEATURES, LABELS
        ),
        lambda: CorrectedClassifier(Ridge()).fit(FEATURES, FEATURES[:, 0]),
    ],
)
def test_an_entry_refuses_it(entry):
    with pytest.raises(LamettaError) as error:
        entry()
    assert str(error.value).endswith(ONE_OF_SEVERAL)


@pytest.mark.parametrize("command", ["correct", "try"])
@pytest.mark.parametrize("name", ["several.npz", "one.npz", "several.csv"])
def test_a_command_refuses_it(command, name, tmp_path):
    path = tmp_path / name
    if name == "several.csv":
        path.write_text("prob_a,prob_b\n0.9,0.8\n0.2,0.1\n")
    else:
        rows = SEVERAL if name == "several.npz" else SEVERAL[:, :1]
        np.savez(path, features=FEATURES, probs=rows)
    out = tmp_path / ("out.html" if command == "try" else "out.npz")
    result = CliRunner().invoke(app, [command, str(path), "-o", str(out)])
    assert result.exit_code == 2
    assert ONE_OF_SEVERAL in result.stderr.replace("\n", " ")
