"""Methods by name: parameters, and the adapters that they become."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

import lametta.torch
from lametta import LAME, Corrected, LamettaError, Output, Source, knn, linear, rbf
from lametta.affinity import AFFINITIES
from lametta.bench.methods import KINDS, LAYERS, build, check_params, is_output_only
from lametta.methods import METHODS, find
from lametta.torch import Classifier, select
from tests.conftest import make_batch

LAYER_CHOICES = ["first_half", "second_half", "everything"]


def test_layers_are_those_of_select():
    offered = {name for name, value in vars(select).items() if isinstance(value, select.Selector)}
    assert set(LAYERS) | {part for parts in LAYERS.values() for part in parts} >= offered
    assert {part for parts in LAYERS.values() for part in parts} == offered - {"everything"}


@pytest.mark.parametrize("kind", METHODS)
def test_parameters_are_those_of_the_methods(kind):
    fields = KINDS[kind].model_fields
    known = {}
    for affinity in AFFINITIES if kind == "lame" else [None]:
        chosen = {} if affinity is None else {"affinity": affinity}
        known |= find(kind).parameters(chosen)
    assert set(fields) == set(known)
    for name in fields.keys() - {"layers"}:
        assert fields[name].default == known[name].default


def test_kinds():
    networks = {"tent", "shot_im", "pseudo_label", "adabn"}
    assert set(KINDS) == {"source", "lame"} | networks | {f"{name}+lame" for name in networks}
    assert [kind for kind in KINDS if is_output_only(kind)] == ["source", "lame"]
    for name in networks:
        both = KINDS[name].model_fields.keys(), KINDS["lame"].model_fields.keys()
        assert not both[0] & both[1]
        assert KINDS[f"{name}+lame"].model_fields.keys() == both[0] | both[1]


def bank(features, probs):
    return lambda index: Output(features[index], np.log(probs[index]))


@pytest.mark.parametrize(
    ("params", "corrector"),
    [
        ({}, LAME()),
        ({"k": 2, "weight": 0.5}, LAME(knn(2), weight=0.5)),
        ({"affinity": "rbf", "k": 3, "row_sum": 4.0}, LAME(rbf(3, row_sum=4.0))),
        ({"affinity": "linear", "symmetric": True}, LAME(linear(symmetric=True))),
        ({"affinity": "knn", "max_iter": 3, "tol": 0}, LAME(knn(5), max_iter=3, tol=0)),
    ],
    ids=str,
)
def test_build_lame(params, corrector):
    model = bank(*make_batch(40, 5))
    adapter = build("lame", params, model)
    assert adapter == Corrected(model, corrector)
    step = adapter.step(np.arange(20))
    np.testing.assert_array_equal(step.probs, Corrected(model, corrector).step(np.arange(20)).probs)


def make_net():
    """Eight blocks, so that halves are four layers each."""
    net = nn.Sequential()
    for i in range(8):
        net.append(nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1))
        net.append(nn.BatchNorm2d(4))
    net.append(nn.AdaptiveAvgPool2d(1))
    net.append(nn.Flatten())
    net.fc = nn.Linear(4, 3)
    return net.eval()


def moved(net, kind, params):
    """Places among the modules of the network whose parameters a step changes."""
    before = copy.deepcopy(net.state_dict())
    with Classifier(net) as model:
        adapter = build(kind, params, model)
        adapter.step(torch.randn(8, 3, 6, 6))
        found = [
            i for i, module in enumerate(net)
            if any(not torch.equal(p, before[f"{i}.{n}"])
                   for n, p in module.named_parameters() if f"{i}.{n}" in before)
        ]  # fmt: skip
        adapter.reset()
    return found


@pytest.mark.parametrize("layers", LAYERS)
def test_layers_by_name(layers):
    kind = nn.Conv2d if layers.startswith("conv") else nn.BatchNorm2d
    net = make_net()
    blocks = range(16)
    if "half" in layers:
        # A convolution comes right before its normalization: the ninth is in the second half.
        blocks = range(8) if "first" in layers else range(8, 16)
    expected = [i for i in blocks if isinstance(net[i], kind)]
    assert moved(net, "shot_im", {"layers": layers, "lr": 0.1}) == expected


def test_normalization_layers_are_the_default():
    net = make_net()
    assert (
        moved(net, "tent", {}) == moved(net, "tent", {"layers": "everything"}) == [*range(1, 16, 2)]
    )


@pytest.mark.parametrize("kind", ["tent", "shot_im", "pseudo_label", "adabn"])
def test_lame_on_top_of_a_network_method(kind):
    net, x = make_net(), torch.randn(16, 3, 6, 6)
    with Classifier(net) as model:
        base = getattr(lametta.torch, kind)(model, momentum=0.3)
        expected = Corrected(base, LAME(knn(2))).step(x)
        base.reset()
        adapter = build(f"{kind}+lame", {"momentum": 0.3, "k": 2}, model)
        torch.testing.assert_close(adapter.step(x).probs, expected.probs, rtol=0, atol=0)
        adapter.reset()


def test_build_checks_its_arguments():
    model = bank(*make_batch(8, 3))
    assert build("source", {}, model) == Source(model)
    with pytest.raises(LamettaError, match="model must be a lametta.torch.Classifier for tent"):
        build("tent", {}, model)
    with pytest.raises(LamettaError, match="kind must be one of source, .*did you mean 'tent'"):
        build("tant", {}, model)
    with pytest.raises(LamettaError, match="params of lame .* k: must be greater than 0, got 0"):
        build("lame", {"k": 0}, model)
    with pytest.raises(LamettaError, match="lr: must be one of none, got 'lr'"):
        build("source", {"lr": 1}, model)


def test_check_params_finds_everything():
    found = check_params("lame", {"k": 0, "affinity": "cosine", "wait": 1})
    assert sorted(problem.keys for problem in found) == [("affinity",), ("k",), ("wait",)]
