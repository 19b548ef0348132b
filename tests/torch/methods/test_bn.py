"""Batch normalization by other statistics, against the published numbers and by definition."""

import pytest
import torch
from torch import nn

from lametta import LamettaError
from lametta.torch import EMABN, TTBN, AdaBN, AlphaBN, Classifier
from lametta.torch.methods.ttbn import StreamNorm
from tests.torch.golden import TOLERANCE, Net, Vectors, difference, golden, replay

INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@golden
@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("bn_alpha_0.1", AlphaBN, {}),
        ("bn_alpha_0.5", AlphaBN, {"alpha": 0.5}),
        ("bn_test", AlphaBN, {"alpha": 1.0}),
        ("bn_ema_bench", AdaBN, {}),
        ("bn_ema_bethge", EMABN, {}),
    ],
)
def test_published_numbers(name, kind, options, dtype, device):
    vectors = Vectors("bn_alpha_ema", dtype, device)
    vectors.arrays["out"] = vectors[name]
    method = kind(vectors.classifier(), **options)

    def buffers():
        state, prefix = method.model.net.state_dict(), "bn_ema_buffer."
        names = [one for one in vectors.arrays if one.startswith(prefix)]
        return {one: state[one.removeprefix(prefix)] for one in names} if kind is AdaBN else {}

    replay(method, vectors, buffers)
    if f"{name}_single" in vectors.arrays:
        for row, image in enumerate(vectors.tensor(vectors.problem["x"][0])):
            expected = torch.tensor(vectors[f"{name}_single"][row]).softmax(0)
            found = method.step(image[None]).probs[0]
            assert difference(found, expected) < TOLERANCE[dtype]


@golden
@pytest.mark.parametrize(("file", "momentum"), [("tema_ttbn_m0.1", 0.1), ("tema_ttbn_m1.0", 1.0)])
def test_published_numbers_of_ttbn(file, momentum, dtype, device):
    vectors = Vectors(file, dtype, device)
    method = TTBN(vectors.classifier(), momentum=momentum)

    def state():
        layers = [m for m in method.model.net.modules() if isinstance(m, StreamNorm)]
        found = {"prior_ema": method.average}
        found["prior_used"] = torch.stack([layer.share for layer in layers])
        values, prefix = method.model.net.state_dict(), "test_stat."
        names = [name for name in vectors.arrays if name.startswith(prefix)]
        return found | {n: values[n.removeprefix(prefix).replace(".norm.", ".")] for n in names}

    def check(row, prediction):
        layers = [m for m in method.model.net.modules() if isinstance(m, StreamNorm)]
        far = torch.stack([layer.divergence() for layer in layers])
        assert difference(far, vectors["divergence_second_pass"][row]) < 1e-3

    assert len(replay(method, vectors, state, check=check)) == 3 + 6


def test_mixed_statistics_remember_nothing():
    method = AlphaBN(Classifier(Net()), alpha=0.3)
    first = method.step(INPUTS[:8]).probs
    method.step(INPUTS[8:])
    assert torch.equal(method.step(INPUTS[:8]).probs, first)
    source = AlphaBN(Classifier(Net()), alpha=0).step(INPUTS).probs
    torch.testing.assert_close(source, Net()(INPUTS).softmax(1))


def test_running_averages_start_from_the_source_or_from_nothing():
    model = Classifier(Net())
    with torch.no_grad():
        maps = [model.net.layer1.conv(x) for x in (INPUTS[:8], INPUTS[8:])]
    means = [x.mean((0, 2, 3)) for x in maps]
    for momentum, expected in (
        (None, (means[0] + means[1]) / 2),
        (0.25, 0.75 * (0.25 * means[0]) + 0.25 * means[1]),
    ):
        method = EMABN(model, momentum=momentum)
        method.step(INPUTS[:8])
        method.step(INPUTS[8:])
        torch.testing.assert_close(model.net.layer1.bn.running_mean, expected)
        method.reset()


@pytest.mark.parametrize("kind", [AlphaBN, EMABN, TTBN])
def test_networks_and_single_images(kind):
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 5))
    with pytest.raises(LamettaError, match="layers must choose batch normalization layers of net"):
        kind(Classifier(net.eval())).step(INPUTS)
    assert type(net[1]) is nn.GroupNorm
    # A layer that sees one position of one image has no statistics, and keeps to the source's.
    small = [nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1)]
    small += [nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 5)]
    method = kind(Classifier(nn.Sequential(*small).eval()))
    for n in (1, 8, 1):
        assert method.step(INPUTS[:n]).probs.isfinite().all()
    vectors = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    with pytest.raises(LamettaError, match=r"2 samples or more where .* sees vectors \[N, d\]"):
        kind(Classifier(vectors, head="2")).step(torch.rand(1, 6))


def test_a_network_with_one_layer():
    """Whose divergence has no spread: the source has half of the share that it may have."""
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5))
    method = TTBN(Classifier(net.eval()), most=0.8)
    method.step(INPUTS)
    assert float(net[1].share) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (AlphaBN, {"alpha": 2}, "alpha must be a finite number >= 0 and <= 1, got 2"),
        (EMABN, {"momentum": 2}, "momentum must be a finite number >= 0 and <= 1, got 2"),
        (TTBN, {"momentum": 2}, "momentum must be a finite number >= 0 and <= 1, got 2"),
        (TTBN, {"most": -1}, "most must be a finite number >= 0 and <= 1, got -1"),
    ],
)
def test_options_are_checked(kind, options, message):
    with pytest.raises(LamettaError, match=message):
        kind(Classifier(Net()), **options)
