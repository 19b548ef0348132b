"""EATA, ETA and RDumb against the published numbers, and the sources of the Fisher weights."""

import pytest
import torch

from lametta import LamettaError
from lametta.torch import EATA, ETA, Classifier, RDumb, measure_fisher
from tests.torch.golden import Net, Vectors, difference, golden, replay

AUTHORS = {"lr": 0.005, "redundancy": 0.4}
BENCH = {"lr": 0.001, "optimizer": "adam", "redundancy": 0.4, "fisher_weight": 1}
INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@golden
@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("eta_orig", AUTHORS),
        ("eta_orig_d005", AUTHORS | {"redundancy": 0.05}),
        ("eta_orig_ambiguous_first", AUTHORS),
        ("eta_orig_confident_first", AUTHORS),
    ],
)
def test_published_numbers_of_eta(file, options, dtype, device):
    vectors = Vectors(file, dtype, device)
    method = ETA(vectors.classifier(), **options)

    def check(row, prediction):
        assert prediction.info["backwards"] == int(vectors["stepped"][row])

    gaps = replay(method, vectors, lambda: {"m": method.mean}, check=check)
    assert {"loss", "grad.layer1.bn.weight"} <= {*gaps}


@golden
@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("eata_orig", AUTHORS),
        ("eata_orig_reset", AUTHORS | {"keep_mean": True}),
        ("eata_bench", BENCH),
        ("eata_bench_reset", BENCH),
    ],
)
def test_published_numbers_of_eata(file, options, dtype, device):
    vectors = Vectors(file, dtype, device)
    method = EATA(vectors.classifier(), fisher=vectors.source(), **options)
    gaps = replay(method, vectors, lambda: {"m": method.mean})
    assert {"loss", "grad.layer1.bn.weight"} <= {*gaps}
    for name, found in method.importance.items():
        assert difference(found, vectors[f"fisher.{name}"]) < 1e-6


@golden
def test_published_numbers_of_rdumb(dtype, device):
    vectors = Vectors("rdumb_orig", dtype, device)
    method = RDumb(vectors.classifier(), **AUTHORS)
    method.count = 997
    gaps = replay(method, vectors, lambda: {"m": method.mean})
    assert {"loss", "grad.layer1.bn.weight"} <= {*gaps}
    assert method.count == 5


@golden
def test_published_numbers_of_the_benchmarks_rdumb(dtype, device):
    """It goes back after a batch, and ours before the next one, so that two rows differ."""
    vectors = Vectors("rdumb_bench", dtype, device)
    method = RDumb(vectors.classifier(), lr=0.001, optimizer="adam", redundancy=0.4, every=3)

    def skip(name, row):
        return name != "out" and row % 3 == 2

    gaps = replay(method, vectors, lambda: {"m": method.mean}, skip=skip)
    assert {"loss", "grad.layer1.bn.weight"} <= {*gaps}


def probs_of(**options):
    method = EATA(Classifier(Net()), lr=0.05, margin=1.0, redundancy=1.0, **options)
    return torch.stack([method.step(INPUTS).probs for _ in range(3)])


def test_the_weights_come_from_a_loader_a_mapping_or_a_file(tmp_path):
    source = [INPUTS[:12], INPUTS[12:]]
    found = measure_fisher(Classifier(Net()), source, tmp_path / "fisher.safetensors")
    expected = probs_of(fisher=source)
    assert torch.equal(probs_of(fisher=found), expected)
    assert torch.equal(probs_of(fisher=tmp_path / "fisher.safetensors"), expected)
    assert torch.equal(probs_of(fisher=[(x, torch.zeros(12)) for x in source]), expected)
    assert not torch.equal(probs_of(), expected)
    assert torch.equal(probs_of(), probs_of(fisher=source, fisher_weight=0))


def test_measuring_leaves_the_network_alone_and_needs_no_list():
    model = Classifier(Net())
    before = {name: value.clone() for name, value in model.net.state_dict().items()}
    found = measure_fisher(model, iter([INPUTS, INPUTS]), layers="second_half")
    assert {*found} == {"layer3.bn.weight", "layer3.bn.bias"}
    assert all(torch.equal(value, before[name]) for name, value in model.net.state_dict().items())
    assert not any(p.grad is not None for p in model.net.parameters())


def test_a_reset_measures_nothing_again():
    """Or a loader that can be gone through once would be empty then."""
    method = EATA(Classifier(Net()), fisher=iter([INPUTS]), margin=1.0, redundancy=1.0, lr=0.05)
    first = [method.step(INPUTS).probs for _ in range(2)]
    method.reset()
    again = [method.step(INPUTS).probs for _ in range(2)]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize(
    ("fisher", "message"),
    [
        ([], "fisher must give a batch or more, got none"),
        ([INPUTS * torch.nan], "x must be finite"),
        ({}, r"fisher must have the parameters that adapt, layer1.bn.weight \[8\], got none"),
        ({"layer1.bn.weight": torch.ones(3)}, r"layer1.bn.weight \[8\], got \[3\]"),
        ("absent.safetensors", "cannot read 'absent.safetensors' as a .safetensors file"),
    ],
)
def test_weights_that_do_not_fit_are_refused(fisher, message):
    net = Net()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    with pytest.raises(LamettaError, match=message):
        EATA(Classifier(net), fisher=fisher).step(INPUTS)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_options_are_checked():
    with pytest.raises(LamettaError, match="fisher must be a loader, a mapping or a path, got int"):
        EATA(Classifier(Net()), fisher=3)
    with pytest.raises(LamettaError, match="inputs must give a batch or more"):
        measure_fisher(Classifier(Net()), [])
    with pytest.raises(LamettaError, match="every must be an integer >= 1, got 0"):
        RDumb(Classifier(Net()), every=0)
