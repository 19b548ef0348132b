"""The contract of `lametta.testing`, over every method of the registry and over hybrids."""

import pytest
import torch
from torch import nn

from lametta import LamettaError, methods
from lametta.testing import check_adapter, check_corrector, yield_checks
from lametta.torch import Classifier, Preprocess

# Filters that let samples through, or there would be nothing to reset; few views, to be quick.
OPTIONS = {
    "margin": 1.0, "redundancy": 1.0, "reset_below": 0.0, "min_drop": -1.0,
    "views": 2, "unsure_below": 1.0, "copies": 4,
    "update_every": 8, "capacity": 16, "threshold": 0.0,
}  # fmt: skip
PLAIN = Preprocess(resize=None, crop=None, mean=(0, 0, 0), std=(1, 1, 1))
# Of a seed with which the last batch shows in the first answer of a replay, unless it is forgotten.
INPUTS = torch.randn(32, 6, generator=torch.Generator().manual_seed(1))
IMAGES = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def inputs_of(name):
    """Images for methods that augment them, and vectors, which are faster, for others."""
    return IMAGES if "augmentations" in methods.find(name).needs else INPUTS


def build(name):
    """A method on a small network with layers to adapt."""
    images = inputs_of(name) is IMAGES
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if images:
            layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        else:
            layers = [nn.Linear(6, 8), nn.BatchNorm1d(8)]
        net = nn.Sequential(*layers, nn.Tanh(), nn.Linear(8, 4))
    model = Classifier(net.eval(), head=str(len(net) - 1), preprocess=PLAIN)
    method = methods.find(name)
    known = method.parameters()
    return method.build(model, {key: x for key, x in OPTIONS.items() if key in known})


def corrector_of(name):
    """The corrector itself, where the method is one; nobody has given it prototypes yet."""
    method = methods.find(name)
    is_corrector = all(part.is_corrector for part in method.components)
    return method.correctors({})[0] if is_corrector else None


NAMES = methods.names()
CORRECTORS = [name for name in NAMES if corrector_of(name) is not None]
NETWORK_METHODS = [name for name in NAMES if methods.find(name).needs_network]
HYBRIDS = [
    *(f"tent+{name}" for name in CORRECTORS),
    *(f"{name}+{top}" for name in NETWORK_METHODS if name != "tent" for top in ("lame", "prudent")),
]


def checks_of(names, method_of, inputs_of=lambda name: ()):
    return [
        pytest.param(
            name,
            check,
            id=f"{name}-{check.__name__}",
            marks=[pytest.mark.slow(0.05)] if name in HYBRIDS else [],
        )
        for name in names
        for check in yield_checks(method_of(name), *inputs_of(name))
    ]


@pytest.mark.slow(0.05)
@pytest.mark.parametrize(("name", "check"), checks_of(CORRECTORS, corrector_of))
def test_correctors(name, check):
    check(corrector_of(name))


@pytest.mark.parametrize(
    ("name", "check"),
    checks_of([*NAMES, *HYBRIDS], build, lambda name: (inputs_of(name),)),
)
def test_methods_and_hybrids_on_a_network(name, check):
    check(build(name))


def test_everything_is_there():
    assert {"source", "lame", "prudent", "tent", "adabn"} <= {*NAMES}
    assert {"lame", "prudent", "average"} <= {*CORRECTORS}
    assert {"tent", "shot_im", "pseudo_label", "adabn"} <= {*NETWORK_METHODS}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if methods.find(name).stateful])
def test_a_method_that_resets_nothing_is_found(name, monkeypatch):
    adapter, corrector = build(name), corrector_of(name)
    monkeypatch.setattr(type(corrector or adapter), "reset", lambda self: None)
    with pytest.raises(AssertionError, match=r"reset\(\)"):
        check_adapter(adapter, inputs_of(name))
    if corrector is not None:
        with pytest.raises(AssertionError, match=r"reset\(\)"):
            check_corrector(corrector)


@pytest.mark.parametrize("name", NAMES)
def test_a_method_without_reset_is_none(name, monkeypatch):
    monkeypatch.setattr(type(corrector_of(name) or build(name)), "reset", None)
    with pytest.raises((LamettaError, TypeError, AssertionError)):
        check_adapter(build(name), inputs_of(name))
