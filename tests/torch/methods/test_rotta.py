"""RoTTA, PeTTA and their memory against the published numbers, and what else they do."""

import math

import numpy as np
import pytest
import torch

from lametta import LamettaError
from lametta.torch import Classifier, PeTTA, RoTTA, measure_features
from lametta.torch.memory import CSTU, Item
from tests.torch.golden import PLAIN, TOLERANCE, Net, Vectors, difference, golden, replay
from tests.torch.views import moved

INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SMALL = {"capacity": 24, "update_every": 12}


def recorded(kind, vectors):
    """A method with the draws of the vectors, one for each update."""
    draws = list(vectors["aug"])

    class Recorded(kind):
        def transform(self, pixels, generator):
            return moved(pixels, draws.pop(0))

    return Recorded


def networks(method, vectors):
    """Parameters and statistics of all copies, by the names of their arrays."""
    net = method._network
    copies = {"student": net.model, "teacher": net.teacher().model, "source": net.anchor().model}
    found = {}
    for name in vectors.arrays:
        copy, _, inside = name.partition(".")
        if copy in copies:
            state = copies[copy].net.state_dict()
            found[name] = state[inside.replace(".source_", ".running_")]
    return found


def held(memory, size):
    """A memory's samples class by class, as the vectors have them."""
    order = sorted(memory.items, key=lambda item: item.label)
    fill = [-1] * (size - len(order))
    return {name: [getattr(item, name) for item in order] + fill for name in ("label", "age")}


@golden
@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("rotta_orig", {}),
        ("rotta_bench", {}),
        ("rotta_orig_small", SMALL),
        ("rotta_bench_small", SMALL),
    ],
)
def test_published_numbers_of_rotta(file, options, dtype, device):
    vectors = Vectors(file, dtype, device)
    method = recorded(RoTTA, vectors)(vectors.classifier(), **options)

    def check(row, prediction):
        known = [x for x in vectors["loss"][row] if not math.isnan(x)]
        assert prediction.info["backwards"] == len(known)
        if known:
            assert difference(prediction.info["loss"], known[-1]) < TOLERANCE[dtype]
        last = 16 * row + 15
        found = held(method.memory, method.capacity)
        for name, values in found.items():
            assert values == vectors[f"mem.{name}"][last].tolist()

    gaps = replay(method, vectors, lambda: networks(method, vectors), check=check)
    assert len(gaps) == 1 + 24 + 6  # answers; teacher and student; gradients


@golden
@pytest.mark.parametrize(("file", "symmetric"), [("petta_ce", False), ("petta_sce", True)])
def test_published_numbers_of_petta(file, symmetric, dtype, device):
    vectors = Vectors(file, dtype, device)
    source = list(vectors.tensor(vectors["source_x"]))
    method = recorded(PeTTA, vectors)(
        vectors.classifier(), source=source, symmetric=symmetric, capacity=24
    )

    def check(row, prediction):
        assert difference(prediction.info["gamma"], vectors["gamma"][row]) < TOLERANCE[dtype]

    def state():
        return {"class_means": method.means, **networks(method, vectors)}

    gaps = replay(method, vectors, state, check=check)
    assert len(gaps) == 3 + 24 + 6 + 6  # answers, loss, means; teacher, student; source; gradients
    for name in ("mean", "var"):
        assert difference(method.known[name], vectors[f"source_{name}"]) < TOLERANCE[dtype]


@golden
def test_published_memory(dtype, device):
    """After each of 300 samples, whose uncertainties tie."""
    vectors = Vectors("cstu", dtype, device)
    memory = CSTU(20, classes=6)
    for number, (label, u) in enumerate(zip(vectors["label"], vectors["u"], strict=True)):
        memory.add(Item(vectors.tensor(number), int(label), uncertainty=float(u)))
        order = [int(item.x) for item in sorted(memory.items, key=lambda item: item.label)]
        ages = [item.age for item in sorted(memory.items, key=lambda item: item.label)]
        n = len(order)
        assert order == vectors["mem.index"][number][:n].tolist()
        assert ages == vectors["mem.age"][number][:n].tolist()
        assert (vectors["mem.index"][number][n:] == -1).all()


def rotta(**options):
    return RoTTA(Classifier(Net(), preprocess=PLAIN), **{"update_every": 8, "lr": 0.05, **options})


def petta(**options):
    return PeTTA(Classifier(Net(), preprocess=PLAIN), **{"lr": 0.05, **options})


def test_a_memory_holds_no_batch():
    """Nor what the caller writes into a batch later."""
    method, x = rotta(capacity=4), INPUTS.clone()
    method.step(x)
    kept = method.memory.inputs.clone()
    x.zero_()
    assert torch.equal(method.memory.inputs, kept)
    assert len(method.memory) <= 4
    sizes = {item.x.untyped_storage().nbytes() for item in method.memory.items}
    assert sizes == {3 * 8 * 8 * 4}


def test_updates_go_by_samples_of_the_stream():
    method = rotta()
    counts = [method.step(INPUTS[a:b]).info["backwards"] for a, b in ((0, 5), (5, 8), (8, 24))]
    assert counts == [0, 1, 2]


def test_the_teacher_answers_before_the_update():
    """By the source's running statistics at first, whatever else is in the batch."""
    expected = Net()(INPUTS).softmax(1)
    torch.testing.assert_close(rotta().step(INPUTS).probs, expected)
    torch.testing.assert_close(petta().step(INPUTS).probs, expected)


def test_inputs_of_another_size_are_refused():
    method = rotta()
    method.step(INPUTS)
    with pytest.raises(LamettaError, match=r"x must be of one shape for a memory, \[3, 8, 8\]"):
        method.step(torch.rand(4, 3, 16, 16))


# PeTTA


def test_statistics_of_the_source_by_numpy():
    model = Classifier(Net())
    batches = [torch.rand(n, 3, 8, 8) for n in (40, 1, 23)]
    found = measure_features(model, [(x, None) for x in batches])
    out = model(torch.cat(batches))
    features, labels = out.features.detach().numpy(), out.logits.argmax(1).numpy()
    for label in range(10):
        own = features[labels == label]
        if len(own) < 2:
            assert found["mean"][label].isnan().all()
            continue
        np.testing.assert_allclose(found["mean"][label], own.mean(0), atol=1e-5)
        np.testing.assert_allclose(found["var"][label], own.var(0, ddof=1), atol=1e-5)


def test_statistics_come_from_a_loader_a_mapping_or_a_file(tmp_path):
    source = [torch.rand(32, 3, 8, 8) * 0.5, torch.rand(32, 3, 8, 8)]
    found = measure_features(Classifier(Net()), source, tmp_path / "source.safetensors")

    def answers(given):
        method = petta(source=given)
        return torch.stack([method.step(INPUTS).probs for _ in range(3)])

    expected = answers(source)
    assert torch.equal(answers(found), expected)
    assert torch.equal(answers(tmp_path / "source.safetensors"), expected)
    assert not torch.equal(answers(None), expected)


def test_gamma_grows_as_features_leave_the_source():
    method = petta(source=[INPUTS], feature_decay=0.5)
    found = [float(method.step(INPUTS * 0.2).info["gamma"]) for _ in range(4)]
    assert found[0] == 0
    assert found == sorted(found)
    assert 0 < found[-1] <= 1
    assert petta().step(INPUTS).info["gamma"] == 0


def test_a_reset_measures_nothing_again():
    method = petta(source=iter([INPUTS]))
    first = [method.step(INPUTS).probs for _ in range(3)]
    method.reset()
    again = [method.step(INPUTS).probs for _ in range(3)]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([], "source must give a batch or more, got none"),
        ([INPUTS * torch.nan], "x must be finite"),
        ({}, r"source must have mean and var \[K, d\] of one shape, got \{\}"),
        ({"mean": torch.ones(3, 2)}, r"of one shape, got \{'mean': \[3, 2\]\}"),
        ({"mean": torch.ones(3, 2), "var": torch.ones(3, 2)}, r"shape \[10, 16\], got \[3, 2\]"),
        ("absent.safetensors", "cannot read 'absent.safetensors' as a .safetensors file"),
    ],
)
def test_statistics_that_do_not_fit_are_refused(source, message):
    method = petta(source=source)
    before = {name: value.clone() for name, value in method.model.net.state_dict().items()}
    with pytest.raises(LamettaError, match=message):
        method.step(INPUTS)
    method.reset()
    after = method.model.net.state_dict()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        (RoTTA, {"capacity": 0}, "capacity must be an integer >= 1, got 0"),
        (RoTTA, {"update_every": 0}, "update_every must be an integer >= 1, got 0"),
        (RoTTA, {"decay": 2}, "decay must be a finite number >= 0 and <= 1, got 2"),
        (RoTTA, {"timeliness": -1}, "timeliness must be a finite number >= 0, got -1"),
        (PeTTA, {"symmetric": 1}, "symmetric must be True or False, got 1"),
        (PeTTA, {"source": 3}, "source must be a loader, a mapping or a path, got int"),
        (PeTTA, {"anchor": -1}, "anchor must be a finite number >= 0, got -1"),
    ],
)
def test_options_are_checked(kind, options, message):
    with pytest.raises(LamettaError, match=message):
        kind(Classifier(Net()), **options)
