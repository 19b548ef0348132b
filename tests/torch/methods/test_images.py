"""What methods that augment images have in common, and what each does beside published numbers."""

import pytest
import torch
from torch import nn

from lametta import Corrected, LamettaError, Prudent
from lametta.correctors import PriorCorrection
from lametta.torch import CMF, MEMO, ROID, Classifier, CoTTA, PeTTA, Preprocess, RoTTA, wrap
from tests.torch.golden import PLAIN, Net

QUICK = {
    "cotta": {"views": 2, "unsure_below": 1}, "roid": {}, "cmf": {}, "memo": {"copies": 4},
    "rotta": {"update_every": 8}, "petta": {"source": [torch.rand(64, 3, 8, 8)]},
}  # fmt: skip
KINDS = {"cotta": CoTTA, "roid": ROID, "cmf": CMF, "memo": MEMO, "rotta": RoTTA, "petta": PeTTA}
INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def make(name, net=None, **options):
    model = Classifier(net or Net(), preprocess=PLAIN)
    return KINDS[name](model, **{"lr": 0.05, **QUICK[name], **options})


@pytest.fixture(params=KINDS)
def name(request):
    return request.param


def values(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def same(net, before):
    found = net.state_dict()
    return found.keys() == before.keys() and all(torch.equal(found[n], before[n]) for n in before)


def test_it_needs_to_know_pixels_before_it_changes_anything(name):
    net = Net()
    before, kinds = values(net), [type(module) for module in net.modules()]
    with pytest.raises(LamettaError, match="preprocess must be known to augment images, got None"):
        KINDS[name](Classifier(net)).step(INPUTS)
    assert same(net, before)
    assert [type(module) for module in net.modules()] == kinds


def test_what_is_not_finite_changes_nothing(name):
    method = make(name)
    method.step(INPUTS[:8])
    before, bad = values(method.model.net), INPUTS[8:16].clone()
    bad[3, 0, 0, 0] = torch.nan
    with pytest.raises(LamettaError, match="x must be finite, got NaN or infinity in sample 3"):
        method.step(bad)
    assert same(method.model.net, before)


def test_networks_without_batch_normalization_learn(name):
    method = make(name, Net("gn"))
    before = values(method.model.net)
    method.step(INPUTS[:8])
    assert not same(method.model.net, before)
    method.reset()
    assert same(method.model.net, before)


@pytest.mark.parametrize("kind", ["roid", "cmf", "rotta", "petta"])
def test_networks_without_normalizations_are_refused(kind):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 5)).eval()
    with pytest.raises(LamettaError, match="layers must choose layers of net to adapt, got none"):
        make(kind, net).step(INPUTS)


def test_hybrids_and_names(name):
    found = wrap(Net(), f"{name}+lame", preprocess=PLAIN, lr=0.01, **QUICK[name])(INPUTS[:8])
    torch.testing.assert_close(found.sum(1), torch.ones(8))
    prediction = Corrected(make(name), Prudent()).step(INPUTS[:8])
    assert prediction.info["base_forwards"] >= 2


def test_a_batch_of_one_image(name):
    """Or of images that are all alike, which have no diversity to be scaled by."""
    method = make(name)
    for batch in (INPUTS[:1], INPUTS[:1].expand(4, -1, -1, -1), INPUTS[1:9]):
        assert method.step(batch).probs.isfinite().all()
    assert all(p.isfinite().all() for p in method.model.net.parameters())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (CoTTA, {"views": 0}, "views must be an integer >= 1, got 0"),
        (CoTTA, {"restore": 2}, "restore must be a finite number >= 0 and <= 1, got 2"),
        (CoTTA, {"symmetric": 1}, "symmetric must be True or False, got 1"),
        (ROID, {"temperature": 0}, "temperature must be a finite number > 0, got 0"),
        (ROID, {"correction": "all"}, "correction must be one of 'logits', 'probs', 'none'"),
        (ROID, {"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        (CMF, {"noise": -1}, "noise must be a finite number >= 0, got -1"),
        (MEMO, {"copies": 0}, "copies must be an integer >= 1, got 0"),
    ],
)
def test_options_are_checked(kind, options, message):
    with pytest.raises(LamettaError, match=message):
        kind(Classifier(Net()), **options)


def test_counted_passes_are_those_of_the_class():
    info = MEMO(Classifier(Net(), preprocess=PLAIN)).step(INPUTS[:2]).info
    assert (info["forward_samples"] / 2, info["backward_samples"] / 2) == MEMO.passes
    info = CoTTA(Classifier(Net(), preprocess=PLAIN)).step(INPUTS).info
    assert (info["forward_samples"] / 24, info["backward_samples"] / 24) == CoTTA.passes
    info = ROID(Classifier(Net(), preprocess=PLAIN)).step(INPUTS).info
    assert info["forward_samples"] == info["backward_samples"] == 24 + info["learned_from"]
    assert abs(info["forward_samples"] / 24 - ROID.passes[0]) < 0.25


# CoTTA


def test_weights_return_as_often_as_asked():
    method = make("cotta", restore=0.25)
    method.step(INPUTS)
    source, now = Net().state_dict(), method.model.net.state_dict()
    names = [n for n, _ in Net().named_parameters()]
    back = torch.cat([(source[n] == now[n]).flatten() for n in names])
    assert 0.2 < back.float().mean() < 0.3


# ROID


def test_corrections_of_roid():
    logits = Net()(INPUTS).detach()
    found = {}
    for kind in ("none", "probs", "logits"):
        net = Net().train()  # whose running statistics are not the batch's, which normalize
        logits = net(INPUTS).detach()
        found[kind] = make("roid", net.eval(), correction=kind).step(INPUTS).probs
    probs = logits.softmax(1)
    torch.testing.assert_close(found["none"], probs)
    # The last of the batch has seen all of it.
    prior = PriorCorrection(24).correct(INPUTS.flatten(1), probs).probs[-1]
    torch.testing.assert_close(found["probs"][-1], prior)
    assert (found["logits"] - found["none"]).abs().max() > 1e-3


def test_a_filter_of_many_parameters_stays_a_filter():
    """With noise for so many of them, it moves as far as it may: by 0.11 of the way."""
    method = make("cmf", noise=1e4)
    method.step(INPUTS)
    assert method.variance == pytest.approx(0.89 * 1e4 * 80 / 38400)
    source, now = dict(Net().named_parameters()), dict(method.model.net.named_parameters())
    for name, hidden in method.hidden.items():
        adapted = (now[name] - 0.01 * hidden) / 0.99
        torch.testing.assert_close(hidden, 0.89 * source[name] + 0.11 * adapted)


# MEMO


def test_each_image_is_answered_from_the_source_however_a_stream_is_cut():
    whole, single = make("memo"), make("memo")
    expected = whole.step(INPUTS[:6]).probs
    found = torch.cat([single.step(image[None]).probs for image in INPUTS[:6]])
    torch.testing.assert_close(found, expected)
    again = make("memo").step(INPUTS[:1]).probs  # the others leave no trace in the first
    torch.testing.assert_close(again, expected[:1])
    assert (expected - Net()(INPUTS[:6]).softmax(1)).abs().max() > 1e-4


def test_standardized_images_are_augmented_as_pixels():
    seen = []

    class Watchful(MEMO):
        def transform(self, pixels, generator):
            seen.append(pixels)
            return pixels

    prepare = Preprocess(resize=None, crop=None, mean=(0.4,) * 3, std=(0.2,) * 3)
    Watchful(Classifier(Net(), preprocess=prepare), copies=3).step((INPUTS[:1] - 0.4) / 0.2)
    torch.testing.assert_close(seen[0], INPUTS[:1].expand(3, -1, -1, -1))
