"""What works for TENT works for every network method of the registry."""

import ast
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import nn

import lametta.torch.methods
from lametta import Corrected, LamettaError, Prudent, methods
from lametta.torch import AETTA, Classifier, NetworkMethod, wrap
from tests.torch.golden import PLAIN, Net

NAMES = [
    name
    for name in methods.names()
    if issubclass(methods.find(name).components[0].factory, NetworkMethod)
]
AUGMENTS = [name for name in NAMES if methods.find(name).augments_pixels]
# Filters that let every sample through, few views, and larger steps.
OPTIONS = {
    "margin": 1.0, "redundancy": 1.0, "min_drop": -1.0, "threshold": 0.0, "reset_below": 0.0,
    "unsure_below": 1.0, "views": 2, "copies": 2,
}  # fmt: skip
INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
FILES = sorted(Path(lametta.torch.methods.__file__).parent.glob("[!_]*.py"))


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


def options_of(name):
    known = methods.find(name).parameters()
    return {key: value for key, value in OPTIONS.items() if key in known}


def make(name, net=None, **options):
    return methods.find(name).build(
        Classifier(net or Net(), preprocess=PLAIN), options_of(name) | options
    )


def values(net):
    return {key: value.clone() for key, value in net.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_wrapped_it_gives_what_its_class_gives(name):
    method, wrapped = make(name), wrap(Net(), name, preprocess=PLAIN, **options_of(name))
    for i in (0, 8, 16):
        expected = method.step(INPUTS[i : i + 8])
        assert torch.equal(wrapped(INPUTS[i : i + 8]), expected.probs)
    assert wrapped.prediction.info["forward_samples"] == expected.info["forward_samples"]
    wrapped.reset()
    assert same(wrapped.net.state_dict(), Net().state_dict())


def test_the_network_inside_others_adapts(name):
    expected = wrap(Net(), name, preprocess=PLAIN, **options_of(name))
    for net in (nn.DataParallel(Net()), torch.compile(Net(), backend="eager")):
        place = next(net.parameters()).device  # a GPU where there is one
        found = wrap(net, name, preprocess=PLAIN, **options_of(name))
        one, other = (model(INPUTS.to(place)) for model in (found, expected.to(place)))
        assert torch.equal(one, other)
        expected.reset()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(name, dtype):
    """Adam's usual eps is 0 in float16."""
    method = make(name, Net().to(dtype))
    before = values(method.model.net)
    for _ in range(2):
        found = method.step(INPUTS.to(dtype)).probs
        assert found.dtype == dtype
        assert torch.allclose(found.float().sum(1), torch.ones(24), atol=0.02)
    assert all(value.isfinite().all() for value in method.model.net.state_dict().values())
    method.reset()
    assert same(method.model.net.state_dict(), before)


def test_correctors_go_on_top(name):
    found = Corrected(make(name), Prudent()).step(INPUTS)
    alone = make(name).step(INPUTS)
    assert torch.equal(found.source, alone.probs)
    assert found.info["base_forward_samples"] == alone.info["forward_samples"]
    hybrid = wrap(Net(), f"{name}+lame", preprocess=PLAIN, **options_of(name))
    assert torch.equal(hybrid(INPUTS[:8]), hybrid.prediction.probs)
    assert hybrid.prediction.source.shape == (8, 10)


def test_aetta_watches_it(name):
    watched, alone = AETTA(make(name), inferences=3), make(name)
    for i in (0, 8, 16):
        batch = INPUTS[i : i + 8]
        found, expected = watched.step(batch), alone.step(batch)
        assert torch.equal(found.probs, expected.probs)
        assert 0 <= found.info["estimated_accuracy"] <= 1
        if found.info["was_reset"]:
            alone.reset()
    assert same(watched.base.model.net.state_dict(), alone.model.net.state_dict())


# What it must not get


def test_a_network_without_the_layers_that_adapt(name):
    """Of normalizations, or where all layers learn of any parameters."""
    known = methods.find(name).parameters()
    every = "layers" in known and known["layers"].default == "all"
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5))
    net = nn.Sequential(nn.Identity(), nn.Flatten()) if every else net
    before = values(net.eval())
    model = Classifier(net, head=net[-1], preprocess=PLAIN)
    with pytest.raises(LamettaError, match="(to adapt|normalizations for .*), got none"):
        methods.find(name).build(model, {}).step(INPUTS)
    assert same(net.state_dict(), before)


def test_one_sample_where_vectors_are_normalized(name):
    net = nn.Sequential()
    net.body, net.norm, net.fc = Net(), nn.BatchNorm1d(10), nn.Linear(10, 4)
    method = make(name, net.eval())
    before = values(net)
    message = r"x must hold 2 samples or more where a batch normalization sees vectors \[N, d\]"
    # Of memories, and of statistics of the last samples, some answer by running ones.
    if "memory" in methods.find(name).needs or name == "half_bn":
        with suppress(LamettaError):
            assert method.step(INPUTS[:1]).probs.isfinite().all()
    else:
        with pytest.raises(LamettaError, match=message):
            method.step(INPUTS[:1])
    assert not any(module.training for module in net.modules())
    method.reset()
    assert same(net.state_dict(), before)


@pytest.mark.parametrize("name", AUGMENTS)
def test_images_without_colors(name):
    net = nn.Sequential(nn.Conv2d(1, 3, 1), Net()).eval()
    model = Classifier(net, head="1.fc", preprocess=PLAIN)
    before, kinds = values(net), [type(module) for module in net.modules()]
    with pytest.raises(LamettaError, match=r"color images .* to be augmented, got \[24, 1, 8, 8\]"):
        methods.find(name).build(model, {}).step(INPUTS[:, :1])
    assert same(net.state_dict(), before)
    assert [type(module) for module in net.modules()] == kinds


# The house


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_method_is_one_short_file_that_imports_nothing_private(file):
    """But for lametta's checks of arguments, which third parties write as they like."""
    text = file.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 140  # about 120
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and node.module != "lametta._checks":
            names = [*node.module.split("."), *(alias.name for alias in node.names)]
            assert not [part for part in names if part.startswith("_")], ast.unparse(node)
        elif isinstance(node, ast.Import):
            assert not any(part.startswith("_") for x in node.names for part in x.name.split("."))
        elif isinstance(node, ast.Attribute) and node.attr.startswith("_"):
            assert node.attr.startswith("__"), ast.unparse(node)
