"""AETTA's estimate against brute force, and the resets that it triggers."""

import math

import pytest
import torch
from torch import nn

from lametta import LAME, Corrected, LamettaError, Output, Prudent, Source, methods
from lametta.testing import check_adapter
from lametta.torch import AETTA, EATA, SAR, SHOTIM, TENT, AdaBN, Classifier, wrap
from lametta.torch.aetta import dropout, estimated_error

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))


def network(*extra):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential()
        net.body, net.bn, net.act = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh()
        for i, layer in enumerate(extra):
            net.add_module(f"extra{i}", layer)
        net.fc = nn.Linear(8, 4)
    return net.eval()


def brute_force(labels, probs):
    """Disagreement and error by loops, as the paper writes them."""
    m, n, k = len(probs), len(probs[0]), len(probs[0][0])
    differ, mean = 0, [0.0] * k
    for rows in probs:
        for label, row in zip(labels, rows, strict=True):
            differ += max(range(k), key=row.__getitem__) != label
            mean = [old + p / (m * n) for old, p in zip(mean, row, strict=True)]
    entropy = -sum(p * math.log(p) for p in mean if p)
    disagreement = differ / (m * n)
    return disagreement, min(max(disagreement / (entropy / math.log(k)) ** 3, 0), 1 - 1 / k)


@pytest.mark.parametrize("sharpness", [0.1, 1.0, 20.0])
def test_the_estimate_is_the_equation(sharpness):
    rng = torch.Generator().manual_seed(0)
    bias = sharpness * torch.tensor([2.0, 1.0, 0.0, 0.0, 0.0])
    logits = sharpness * torch.randn(7, 9, 5, generator=rng, dtype=torch.float64) + bias
    labels = logits.mean(0).argmax(1)
    found = estimated_error(labels, logits.softmax(2))
    expected = brute_force(labels.tolist(), logits.softmax(2).tolist())
    assert found == pytest.approx(expected, abs=1e-12)
    assert 0 < found[0] < found[1] <= 0.8


def test_its_limits():
    one = torch.zeros(3, 4, 5)
    one[..., 2] = 1.0  # collapsed onto one class
    assert list(map(float, estimated_error(torch.full((4,), 2), one))) == [0, 0]
    assert list(map(float, estimated_error(torch.full((4,), 1), one))) == pytest.approx([1, 0.8])


@pytest.mark.parametrize("extra", [(), (nn.Dropout(0.0),)])
@pytest.mark.parametrize("momentum", [0.1, 0.0])
def test_a_step_compares_passes_under_dropout(extra, momentum):
    model, twin = Classifier(network(*extra)), Classifier(network(*extra))
    adapter = AETTA(TENT(model, bn_momentum=momentum), rate=0.3, inferences=4, seed=5, resets=False)
    method, error, head = TENT(twin, bn_momentum=momentum), None, twin.net.fc
    for number, x in enumerate((X[:16], X[16:]), start=1):
        found, answer = adapter.step(x), method.step(x)
        assert torch.equal(found.probs, answer.probs)
        assert found.info["forwards"] == answer.info["forwards"] + 1 + 4
        assert found.info["forward_samples"] == answer.info["forward_samples"] + 5 * 16
        before = twin.net.bn.running_mean.clone()
        twin.net.bn.training, twin.net.bn.momentum = momentum == 0, 0.0
        with torch.no_grad():
            features = twin.net[:-1](x)
            labels, draws = (
                head(features).argmax(1),
                torch.Generator().manual_seed((5 << 32) + number),
            )
            kept = [torch.empty(16, 8).bernoulli_(0.7, generator=draws) for _ in range(4)]
            probs = torch.stack([head(features * k / 0.7).softmax(1) for k in kept])
        twin.net.bn.training, twin.net.bn.momentum = False, 0.1
        assert torch.equal(twin.net.bn.running_mean, before)
        disagreement, new = brute_force(labels.tolist(), probs.tolist())
        error = 0.6 * (disagreement if error is None else error) + 0.4 * new
        assert found.info["estimated_accuracy"] == pytest.approx(1 - error, abs=1e-5)
        assert error > 0
        assert found.info["was_reset"] is False
    assert model.net.state_dict().keys() == twin.net.state_dict().keys()
    for name in ("weight", "bias", "running_mean", "running_var"):
        assert torch.equal(getattr(model.net.bn, name), getattr(twin.net.bn, name))


def test_layers_may_be_named_and_hooks_go():
    model = Classifier(network())
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.net.modules()]
    with torch.no_grad(), dropout(model, 0.5, ("act",), 3):
        seen = model(X).features
    assert 0.4 < (seen == 0).float().mean() < 0.6
    assert hooks == [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.net.modules()]
    assert not (model(X).features == 0).any()
    with pytest.raises(LamettaError, match="layers must be one of .*, got 'atc'; did you mean"):
        AETTA(TENT(model), layers=("atc",)).step(X)
    model.net.unused = nn.Dropout()
    model.net.forward = lambda x: model.net.fc(model.net.act(model.net.body(x)))
    with pytest.raises(LamettaError, match="layers must be called in a pass"):
        AETTA(Source(model)).step(X)


class Estimates(AETTA):
    """With estimates that are given."""

    given: list

    def _estimate(self, x):
        return self.given.pop(0)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([0.9, 0.5, 0.19, 0.9], [2]),
        ([0.2, 0.3], []),
        ([0.9] * 5 + [0.87] * 5 + [0.87], [9]),
        ([0.9] * 5 + [0.89] * 20, []),
        ([0.9] * 4 + [0.5] * 5, []),  # not five before them
        ([0.1] * 3, [0, 1, 2]),
    ],
)
def test_a_method_that_has_failed_is_reset(given, expected):
    model = Classifier(network())
    source = {name: value.clone() for name, value in model.net.state_dict().items()}
    adapter = Estimates(TENT(model, lr=0.1))
    adapter.given = [*given]
    resets = []
    for number in range(len(given)):
        if adapter.step(X[:16]).info["was_reset"]:
            resets.append(number)
        same = all(torch.equal(value, source[n]) for n, value in model.net.state_dict().items())
        assert same == (number in resets)
    assert resets == expected


@pytest.mark.parametrize("kind", [TENT, SHOTIM, AdaBN, EATA, SAR, Source])
@pytest.mark.parametrize("passes", [1, 3])
def test_it_keeps_the_contract_on_every_method(kind, passes):
    check_adapter(AETTA(kind(Classifier(network())), inferences=passes), X)


def test_it_composes():
    hybrid = Corrected(AETTA(TENT(Classifier(network()))), Prudent())
    check_adapter(hybrid, X)
    assert 0 <= hybrid.step(X).info["base_estimated_accuracy"] <= 1
    wrapped, named = (
        wrap(network(), method, **options)
        for method, options in (
            (lambda model: AETTA(TENT(model, lr=0.1), rate=0.3), {}),
            ("tent+aetta", {"lr": 0.1, "rate": 0.3}),
        )
    )
    assert torch.equal(wrapped(X), named(X))
    accuracy = wrapped.prediction.info["estimated_accuracy"]
    assert accuracy == named.prediction.info["estimated_accuracy"] < 1
    state = torch.get_rng_state()
    wrapped(X)
    assert torch.equal(torch.get_rng_state(), state)  # its draws are its own


def test_by_name_it_follows_what_it_watches():
    found = methods.find("cotta+aetta+lame")
    assert (found.needs_network, found.passes, found.answers()) == (True, (14, 1), "before")
    assert (found.ordered, found.stateful, found.causal) == (True, True, False)
    frozen = methods.find("source+aetta")
    assert (frozen.needs_network, frozen.passes, frozen.causal) == (True, (12, 0), True)
    for name in ("aetta", "lame+aetta", "tent+lame+aetta"):
        with pytest.raises(LamettaError, match="method must have 'aetta' after a network method"):
            methods.find(name)
    with pytest.raises(LamettaError, match=r"seed is ambiguous: use deyo.seed or aetta.seed"):
        wrap(network(), "deyo+aetta", seed=1)


def test_what_is_refused():
    model = Classifier(network())
    with pytest.raises(LamettaError, match="base must be a network method .* got Corrected"):
        AETTA(Corrected(model, LAME()))
    with pytest.raises(LamettaError, match="model must be a lametta.torch.Classifier, got func"):
        AETTA(Source(lambda x: Output(x, x))).step(X)
    for option, value in {"rate": 1.0, "inferences": 0, "resets": "no", "seed": -1}.items():
        with pytest.raises(LamettaError, match=f"{option} must be"):
            AETTA(TENT(model), **{option: value})
    adapter = AETTA(TENT(model))
    with pytest.raises(LamettaError, match="x must be finite"):
        adapter.step(X * torch.nan)
    assert "estimated_accuracy" not in adapter.step(X[:0]).info
