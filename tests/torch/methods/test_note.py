"""NOTE, SoTTA and their memories against the published numbers, and what else they do."""

import math

import pytest
import torch
from torch import nn

from lametta import LamettaError, methods
from lametta.testing import check_adapter
from lametta.torch import NOTE, Classifier, SoTTA
from lametta.torch.memory import HUS, PBRS, Item
from lametta.torch.norm import InstanceAwareNorm, batch_statistics, replace
from tests.torch.golden import TOLERANCE, Net, Vectors, difference, golden, replay

INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def vectors_of(file, dtype, device):
    vectors = Vectors(file, dtype, device)
    vectors.config["net"] = "bn"  # with other layers in place of its batch normalizations
    return vectors


class Draws:
    """The recorded draws of a memory, and which of them it asked for."""

    def __init__(self, vectors):
        self.vectors, self.row, self.used = vectors, 0, set()

    def _draw(self, name):
        self.used.add(name)
        return self.vectors[f"draw.{name}"][self.row]

    def choice(self, largest):
        label = int(self._draw("choice"))
        assert label in largest
        return label

    def randrange(self, n):
        place = int(self._draw("index"))
        assert 0 <= place < n
        return place

    def random(self):
        return float(self._draw("u"))


def recorded(kind):
    """A memory that takes each sample of the vectors with its draws, and with no others."""

    class Recorded(kind):
        def add(self, item):
            draws, none = self.draws, {"choice": -1, "index": -1, "u": math.nan}
            draws.used.clear()
            super().add(item)
            known = {name: draws.vectors[f"draw.{name}"][draws.row] for name in none}
            assert draws.used == {n for n, x in known.items() if x != -1 and not math.isnan(x)}
            draws.row += 1

    return Recorded


def order(memory):
    return [int(item.x) for item in sorted(memory.items, key=lambda item: item.label)]


@golden
@pytest.mark.parametrize(
    ("file", "make"),
    [
        ("pbrs", PBRS),
        ("sotta_hus", HUS),
        ("sotta_hus_nothreshold", HUS),
    ],
)
def test_published_memories(file, make, dtype, device):
    vectors = Vectors(file, dtype, device)
    options = {"threshold": vectors.config["threshold"] or 0.0} if make is HUS else {}
    memory = recorded(make)(20, draws=Draws(vectors), **options)
    for number, label in enumerate(vectors["label"]):
        confidence = float(vectors["confidence"][number])
        memory.add(Item(vectors.tensor(number), int(label), confidence=confidence))
        expected = vectors["mem.index"][number]
        assert order(memory) == expected[expected >= 0].tolist()


@golden
@pytest.mark.parametrize(
    ("file", "options"), [("note", {}), ("note_small", {"capacity": 20, "update_every": 16})]
)
def test_published_numbers_of_note(file, options, dtype, device):
    vectors = vectors_of(file, dtype, device)

    class Drawn(NOTE):
        def make_memory(self):
            return recorded(PBRS)(self.capacity, draws=Draws(vectors))

    method = Drawn(vectors.classifier(), lr=1e-3, released=True, **options)
    updates = vectors["update_after_sample"].tolist()
    names = [name for name in vectors.arrays if name.startswith(("param.", "buffer."))]
    for row, batch in vectors:
        prediction = method.step(batch)
        seen = 16 * (row + 1)
        expected = torch.tensor(vectors["out"][seen - 16 : seen]).softmax(1)
        assert difference(prediction.probs, expected) < TOLERANCE[dtype]
        if seen in updates:
            number, state = updates.index(seen), method.model.net.state_dict()
            assert difference(prediction.info["loss"], vectors["loss"][number]) < TOLERANCE[dtype]
            for name in names:
                found = state[name.partition(".")[2].replace("._bn.", ".")]
                assert difference(found, vectors[name][number]) < TOLERANCE[dtype], (name, row)
    assert method.seen == 128


@golden
def test_published_numbers_of_notes_variant_for_mixed_classes(dtype, device):
    """NOTE*: the memory holds the last samples, and each batch is normalized by itself."""
    vectors = vectors_of("note_star", dtype, device)
    options = {"balanced": False, "bn_momentum": 0, "capacity": 16, "update_every": 16}
    method = NOTE(vectors.classifier(), lr=1e-3, released=True, **options)
    vectors.arrays["out"] = vectors["out"].reshape(8, 16, 10)
    for name in [*vectors.arrays]:
        vectors.arrays[name.replace("._bn.", ".")] = vectors.arrays.pop(name)
    stream = torch.cat([batch for _, batch in vectors])

    def check(row, prediction):
        places = vectors["mem.index"][16 * row + 15]
        assert torch.equal(method.memory.inputs, stream[places])

    gaps = replay(method, vectors, check=check)
    assert {"loss", "grad.layer1.bn.weight", "param.layer1.bn.weight"} <= {*gaps}


@golden
def test_published_normalization(dtype, device):
    vectors = vectors_of("note", dtype, device)
    x = vectors.tensor(vectors.problem["x"][0])
    net = vectors.net()
    replace(net, InstanceAwareNorm.of)
    limit = 10 * TOLERANCE[dtype]  # of logits
    with torch.no_grad():
        assert difference(net(x), vectors["source_logits_eval"]) < limit
        with batch_statistics(net.modules(), 0.1):
            assert difference(net(x), vectors["source_logits_train"]) < limit
    for name in vectors.arrays:
        kind, _, inside = name.partition(".")
        if kind == "buffer_after_train_forward":
            found = net.state_dict()[inside.replace("._bn.", ".")]
            assert difference(found, vectors[name]) < limit


def note(net=None, **options):
    return NOTE(Classifier(net or Net()), **{"update_every": 8, "lr": 0.05, **options})


def sotta(net=None, **options):
    options = {"update_every": 8, "lr": 0.05, "threshold": 0.0, **options}
    return SoTTA(Classifier(net or Net()), **options)


@pytest.mark.parametrize("make", [note, sotta])
def test_answers_do_not_depend_on_how_a_stream_is_cut(make):
    expected = make().step(INPUTS).probs
    for size in (1, 5, 8):
        method = make()
        found = [method.step(INPUTS[i : i + size]).probs for i in range(0, 24, size)]
        torch.testing.assert_close(torch.cat(found), expected, atol=1e-5, rtol=0)
    assert (expected[8:] - Net()(INPUTS[8:]).softmax(1)).abs().max() > 1e-3


def test_the_variant_for_mixed_classes_keeps_the_contract():
    """And looks ahead, as NOTE does not."""
    method = note(balanced=False, bn_momentum=0, capacity=8)
    check_adapter(method, INPUTS)
    found = methods.find("note")
    assert (method.causal, found.trait("causal", {"bn_momentum": 0})) == (False, False)
    assert (note().causal, found.causal, methods.find("sotta").causal) == (True, True, True)


def test_the_papers_loss_and_the_released_one():
    """Which is the mean over classes, too."""
    method, released = note(), note(released=True)
    losses = [float(one.step(INPUTS[:8]).info["loss"]) for one in (method, released)]
    assert losses[0] == pytest.approx(10 * losses[1], rel=1e-4)


def test_without_instances_layers_stay_as_they_are():
    method = note(k=None)
    method.step(INPUTS)
    assert type(method.model.net.layer1.bn) is nn.BatchNorm2d
    wide = note(k=1e9)  # no sample is that far away
    torch.testing.assert_close(wide.step(INPUTS[:8]).probs, Net()(INPUTS[:8]).softmax(1))


def test_a_sample_far_away_is_normalized_by_itself():
    norm = InstanceAwareNorm.of(nn.BatchNorm2d(2, affine=False, eps=0)).eval()
    x = 50 + 3 * torch.randn(1, 2, 16, 16, generator=torch.Generator().manual_seed(0))
    mean, var, size = x.mean((2, 3)), x.var((2, 3)), 256
    mean = mean - 4 * (1 / size) ** 0.5
    var = var - 4 * (2 / (size - 1)) ** 0.5
    expected = (x - mean[..., None, None]) / var[..., None, None].sqrt()
    torch.testing.assert_close(norm(x), expected)


@pytest.mark.parametrize("make", [note, sotta])
def test_what_is_not_finite_changes_nothing(make):
    method = make()
    method.step(INPUTS[:7])
    before = {name: value.clone() for name, value in method.model.net.state_dict().items()}
    bad = INPUTS[7:10].clone()
    bad[1, 0, 0, 0] = torch.nan
    with pytest.raises(LamettaError, match="x must be finite, got NaN or infinity in sample 1"):
        method.step(bad)
    assert (method.seen, len(method.memory)) == (7, 7)
    after = method.model.net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_networks_without_batch_normalization():
    with pytest.raises(LamettaError, match="net must have batch normalizations for NOTE, got none"):
        note(Net("gn")).step(INPUTS)
    method = sotta(Net("gn"))
    assert method.step(INPUTS).info["drift"] > 0


def test_no_confident_sample_no_update():
    method = sotta(threshold=1.0)
    info = method.step(INPUTS).info
    assert (info["backwards"], len(method.memory), method.seen) == (0, 0, 24)


def test_a_step_of_sotta_by_hand():
    """From the gradient at the climbed parameters; both passes move the statistics."""
    method, net = sotta(update_every=24, capacity=240, optimizer=torch.optim.SGD), Net()
    method.step(INPUTS)
    x = method.memory.inputs
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    parameters = [p for norm in norms for p in norm.parameters()]

    def gradients():
        with batch_statistics(norms, 0.2):
            log_p = net(x).log_softmax(1)
        return torch.autograd.grad(-(log_p.exp() * log_p).sum(1).mean(), parameters)

    start = [p.detach().clone() for p in parameters]
    climb = gradients()
    norm = torch.cat([g.flatten() for g in climb]).norm()
    with torch.no_grad():
        for p, g in zip(parameters, climb, strict=True):
            p += 0.05 * g / norm
    final = gradients()
    with torch.no_grad():
        for p, value, g in zip(parameters, start, final, strict=True):
            p.copy_(value - 0.05 * g)
    found = method.model.net.state_dict()
    for name, value in net.state_dict().items():
        if "num_batches" not in name:
            torch.testing.assert_close(found[name], value, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (NOTE, {"k": -1}, "k must be a finite number >= 0, got -1"),
        (NOTE, {"capacity": 0}, "capacity must be an integer >= 1, got 0"),
        (NOTE, {"released": 1}, "released must be True or False, got 1"),
        (NOTE, {"balanced": 1}, "balanced must be True or False, got 1"),
        (SoTTA, {"threshold": 2}, "threshold must be a finite number >= 0 and <= 1, got 2"),
        (SoTTA, {"rho": -1}, "rho must be a finite number >= 0, got -1"),
    ],
)
def test_options_are_checked(kind, options, message):
    with pytest.raises(LamettaError, match=message):
        kind(Classifier(Net()), **options)
