"""Probation: when a method may answer, and what resets it."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from lametta import LamettaError, Source
from lametta.testing import check_adapter
from lametta.torch import TENT, AdaBN, Classifier, LossMethod, Outputs, Probation, RoTTA, wrap
from lametta.torch.probation import Probe
from lametta.torch.verdict import Pairs, softened
from tests.torch.golden import PLAIN
from tests.torch.methods.test_half_bn import images, info, network, stream


class Drifting(LossMethod):
    """Learns to say class 0 of everything."""

    def loss(self, outputs):
        return -outputs.log_probs[:, 0].mean()


def tent(net, **options):
    return TENT(Classifier(net), bn_momentum=0, predict_first=True, **options)


def follow(method, x, batch=16):
    return [method.step(part) for part in x.split(batch)]


def accuracy(found, labels):
    return float((torch.cat([one.probs.argmax(1) for one in found]).numpy() == labels).mean())


def test_once_it_has_won_the_method_answers_as_if_alone():
    """As it began with its probation: samples that are asked again teach it nothing."""
    x, labels = stream()
    x, labels, net = x[:210], labels[:210], network()
    guarded, alone = Probation(tent(copy.deepcopy(net))), tent(copy.deepcopy(net))
    states = []
    for part in x.split(16):
        found = guarded.step(part)
        states.append(found.info["state"])
        expected = alone.step(part).probs if states[-1] else net(part).softmax(1)
        source = net(part).softmax(1)
        assert torch.equal(found.probs, expected if states[-1] == 1 else source)
        passes = {0: 1, 0.5: 3, 1: found.info["forward_samples"] / len(part)}[states[-1]]
        assert (found.info["forward_samples"], passes) == (passes * len(part), passes)
        assert found.info["backward_samples"] == (len(part) if states[-1] else 0)
    assert states[:3] == [0, 0, 0]
    assert states[-5:] == [1] * 5
    assert found.info["forwards"] in (1, 3)
    with torch.no_grad():
        before = float((net(x).argmax(1).numpy() == labels).mean())
    assert accuracy(follow(Probation(tent(net)), x), labels) > before + 0.15


def test_where_nothing_has_shifted_the_method_never_runs():
    rng = np.random.default_rng(3)
    net, x = network(), images(rng.integers(0, 6, 160), rng)
    expected = net(x[-16:]).softmax(1)
    found = follow(Probation(tent(net, lr=0.1)), x)
    assert {(one.info["forwards"], one.info["backwards"]) for one in found} == {(1, 0)}
    assert torch.equal(found[-1].probs, expected)


@pytest.mark.parametrize("exam", [None, False])
def test_a_network_that_drifts_is_reset_by_the_exam(exam):
    rng = np.random.default_rng(5)
    labels = rng.integers(0, 6, 480)
    x, net = images(labels, rng, gain=0.3, offset=4), network()

    def drifting():
        model = Classifier(copy.deepcopy(net))
        return Drifting(model, lr=0.02, bn_momentum=0, predict_first=True)

    alone, guarded = (follow(one, x) for one in (drifting(), Probation(drifting(), exam=exam)))
    assert accuracy(alone, labels) < 0.55
    resets = guarded[-1].info["resets"]
    lowest = min(one.info["exam"] for one in guarded)
    if exam is None:
        assert resets >= 1
        assert lowest < 0.6
        assert accuracy(guarded, labels) > accuracy(alone, labels) + 0.1
    else:
        assert lowest == 1


def test_company_sees_batches_of_one_class():
    """By their statistics a class is split, and the same images in other company are others."""
    rng = np.random.default_rng(6)
    labels = np.repeat(np.arange(6), 96)
    x, net = images(labels, rng, gain=0.8, offset=0.7), network()
    alone = follow(tent(copy.deepcopy(net)), x)
    guarded = follow(Probation(tent(copy.deepcopy(net))), x)
    with torch.no_grad():
        source = float((net(x).argmax(1).numpy() == labels).mean())
    assert min(one.info["company"] for one in guarded) < 0.6
    assert accuracy(alone, labels) < source - 0.7
    assert accuracy(guarded, labels) > source - 0.1


def test_statistics_and_teachers_take_no_exam():
    x, _ = stream()
    x = x[60:210]
    for method in (AdaBN(Classifier(network()), momentum=0.2), tent(network())):
        guarded = Probation(method)
        follow(guarded, x)
        assert guarded._probe.exams == (not isinstance(method, AdaBN))
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    guarded = Probation(RoTTA(Classifier(net.eval(), preprocess=PLAIN), update_every=8))
    images_ = 5 * torch.rand(48, 3, 8, 8)
    found = follow(guarded, images_)
    assert found[-1].info["state"] > 0
    assert found[-1].info["exam"] == 1


def test_networks_without_batch_normalization_have_no_gate():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 5))
    guarded = Probation(TENT(Classifier(net.eval()), lr=1e-4))
    found = follow(guarded, torch.rand(300, 3, 8, 8), 12)
    states = [one.info["state"] for one in found]
    assert states[0] == 0.5
    assert found[0].info["shift"] == 0
    if 1 not in states:  # 128 samples, and 256 closed
        assert states[:11] == [0.5] * 10 + [0]


def test_probes_by_their_definition():
    probe = Probe(exams=True)
    x = torch.arange(400.0)[:, None]
    for part in x.split(50):
        probe.add(part, part[:, 0].long() % 7)
    assert probe.seen == 400
    held = torch.cat([torch.arange(64.0), torch.arange(272.0, 400)])
    assert torch.equal(probe.x[:, 0], held)
    again, known = probe.draw(10, torch.Generator().manual_seed(0))
    assert torch.equal(again[:, 0].long() % 7, known)
    assert (again[:5] < 64).all()
    assert (again[5:] >= 272).all()
    probe.mark(torch.cat([known[:5], known[5:] + 1]), known)
    assert (probe.exam, probe.company) == (1, 0)
    assert probe.allows(1) == (False, True)
    probe.asked = [True, False] * 32
    assert probe.allows(1) == (False, True)  # 0.5 and an error of 0.06
    probe.asked = [True] * 36 + [False] * 28
    assert (probe.allows(1)[0], probe.allows(-1)[0]) == (True, False)
    for _ in range(100):
        probe.mark(*[probe.draw(10, torch.Generator().manual_seed(0))[1]] * 2)
    assert (len(probe.asked), len(probe.examined)) == (64, 24)


def test_a_pass_to_ask_again_teaches_nothing():
    x, _ = stream()
    method = tent(network())
    follow(method, x[:64])
    before = copy.deepcopy(method.model.net.state_dict())
    found = method.predict(x[64:80])
    after = method.model.net.state_dict()
    kept = [name for name in before if not name.endswith("num_batches_tracked")]
    assert all(torch.equal(before[name], after[name]) for name in kept)
    assert torch.equal(found.logits.softmax(1), method.step(x[64:80]).probs)


def test_both_verdicts_by_their_equations():
    rng = np.random.default_rng(7)
    pairs = Pairs(
        *(torch.from_numpy(x) for x in (rng.normal(size=(40, 5)), rng.dirichlet(np.ones(4), 40))),
        *(torch.from_numpy(x) for x in (rng.normal(size=(40, 5)), rng.dirichlet(np.ones(4), 40))),
    )
    rows = [
        (pairs.features.numpy(), pairs.probs.numpy() ** 0.25),
        (pairs.other_features.numpy(), pairs.other_probs.numpy() ** 0.25),
    ]
    rows = [(x, q / q.sum(1, keepdims=True)) for x, q in rows]
    usual, found = np.concatenate([q for _, q in rows]).mean(0), []
    for x, q in rows:
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        for i in range(40):
            near = [j for j in np.argsort(-(unit @ unit[i])) if j != i][:5]
            found.append((q[i] * np.log((q[near].sum(0) + usual) / (6 * usual))).sum())
    gain = np.array(found[40:]) - np.array(found[:40])
    own = info(list(zip(pairs.other_features, pairs.other_probs, strict=True)), 0)
    own = own - info(list(zip(pairs.features, pairs.probs, strict=True)), 0)
    expected = [d.mean() / (d.std(ddof=1) / 40**0.5) for d in (own, gain)]
    np.testing.assert_allclose([float(t) for t in pairs.both_t()], expected)


def test_answers_on_another_scale_are_sharpened():
    rng = np.random.default_rng(8)
    sure = torch.from_numpy(rng.dirichlet(0.05 * np.ones(10), 50)) + 1e-9
    flat = softened(sure, 0.02)
    x = torch.from_numpy(rng.normal(size=(50, 5)))
    pairs = Pairs(x, sure, x, flat).on_one_scale()
    torch.testing.assert_close(softened(pairs.other_probs), softened(sure), atol=1e-3, rtol=0)
    same = Pairs(x, sure, x, sure).on_one_scale()
    torch.testing.assert_close(same.other_probs, sure / sure.sum(1, keepdim=True))


def test_by_name_with_correctors_on_top():
    x, _ = stream()
    net = network()
    model = wrap(net, "tent+probation+prudent", bn_momentum=0.0, predict_first=True)
    for part in x[:160].split(16):
        model(part)
    assert model.prediction.info["base_state"] == 1
    model.reset()
    assert not any(torch.is_tensor(x) for x in vars(model.adapter.base).values())


def test_the_contract():
    x, _ = stream()
    check_adapter(Probation(tent(network())), x[40:168], batch_size=16)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Probation(Source(Classifier(network()))), "base must be a network method, got S"),
        (lambda: Probation(tent(network()), exam=1), "exam must be True or False, got 1"),
        (lambda: Probation(tent(network()), seed=-1), "seed must be an integer >= 0, got -1"),
        (lambda: Probation(tent(network())).step([1]), "x must be a tensor .*, got list"),
        (lambda: Probation(tent(network())).step(images([0], np.random) * np.nan), "x must be fin"),
    ],
)
def test_what_it_must_not_get(make, message):
    with pytest.raises(LamettaError, match=message):
        make()


def test_no_sample():
    guarded = Probation(tent(network()))
    assert guarded.step(torch.empty(0, 12, 2, 2, dtype=torch.double)).probs.shape == (0, 6)
    assert isinstance(guarded.base.predict(images([0, 1], np.random)), Outputs)
