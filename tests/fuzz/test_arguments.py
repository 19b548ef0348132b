"""Arguments of any kind: a valid result, or an error of ours."""

import inspect
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lametta import LAME, ClassMap, knn, lame, lame_streams, linear, methods, rbf
from lametta.data.bank import Bank
from lametta.stream import Scenario
from lametta.stream.order import ORDERS
from lametta.stream.prior import PRIORS
from lametta.torch import Classifier, wrap
from tests.fuzz.hostile import arrays, values
from tests.fuzz.outcomes import attempt, check_probs

FEATURES = np.random.default_rng(0).normal(size=(4, 3))
PROBS = np.random.default_rng(1).dirichlet(np.ones(3), 4)
OPTIONS = ["affinity", "weight", "max_iter", "tol"]
MORE = settings(max_examples=400)


@cache
def options(*names):
    """Some of these options with values of any kind."""
    return st.dictionaries(st.sampled_from(names), values, max_size=2)


def endless(chosen):
    """Whether this asks for more updates than anyone waits for."""
    return (
        isinstance(chosen.get("max_iter"), int) and chosen["max_iter"] > 10**4 and "tol" in chosen
    )


@pytest.fixture(autouse=True, scope="session")
def _warm():
    """Before memory is scarce: what is loaded and started once."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 2)).eval()
    wrap(net)(torch.ones(4, 3))


matrices = arrays([(4, 3)] * 6 + [(1, 3), (0, 3), (4, 0), (4,), (), (3, 4, 3)])


def try_lame(features, probs, chosen):
    if endless(chosen):
        return
    result = attempt(lame, features, probs, **chosen)
    if result is not None and "tol" not in chosen:
        check_probs(result.probs, probs.shape)


@given(matrices, matrices, options(*OPTIONS))
def test_lame(features, probs, chosen):
    try_lame(features, probs, chosen)


@pytest.mark.slow
@MORE
@given(matrices | values, matrices | values, options(*OPTIONS, "wieght"))
def test_lame_more(features, probs, chosen):
    if "wieght" not in chosen:
        try_lame(features, probs, chosen)


@given(matrices, matrices, options("affinity", "weight", "max_iter"))
def test_the_corrector(features, probs, chosen):
    corrector = attempt(LAME, **chosen)
    prediction = corrector and attempt(corrector.correct, features, probs)
    if prediction is not None:
        check_probs(prediction.probs, probs.shape)


cubes = arrays([(2, 4, 3)] * 6 + [(2, 0, 3), (0, 4, 3), (4, 3), (2, 4, 0), (1, 4, 3)])
lengths = st.none() | values | st.lists(st.integers(-1, 5), max_size=3) | arrays([(2,), (1,), ()])


@pytest.mark.filterwarnings("ignore:stream . is left out of this batch")
@given(cubes, cubes, lengths, options("weight", "affinity"))
def test_streams(features, probs, given, chosen):
    result = attempt(lame_streams, features, probs, given, **chosen)
    if result is not None and given is None:
        assert result.probs.shape == probs.shape
        for rows in result.probs:
            if (rows == rows).any():  # NaN all over is a stream that was refused
                check_probs(rows, probs.shape[1:])


@pytest.mark.parametrize("affinity", [knn, rbf, linear])
@given(data=st.data())
def test_affinities(affinity, data):
    chosen = data.draw(options(*inspect.signature(affinity).parameters))
    made = attempt(affinity, **chosen)
    x = data.draw(matrices)
    w = made and attempt(made, x)
    if w is not None:
        assert w.shape == (len(x), len(x))


groups = st.lists(st.lists(st.integers(-1, 4), max_size=3) | values, max_size=3)
mappings = (
    values
    | arrays([(4,), (0,), (), (4, 3)])
    | groups
    | st.dictionaries(st.text(max_size=2), st.lists(st.integers(-1, 9), max_size=3) | values)
    | st.dictionaries(st.integers(-1, 4), values, max_size=3)
)


@given(mappings, options("n_source", "pooling"), matrices)
def test_class_maps(mapping, chosen, x):
    made = attempt(ClassMap, mapping, **chosen)
    if made is not None:
        assert ClassMap.from_dict(made.to_dict()) == ClassMap.from_dict(made.to_dict())
        pooled = attempt(made.pool_probs, x)
        assert pooled is None or pooled.shape == (len(x), len(made))
        attempt(made, x)


@given(
    st.dictionaries(st.sampled_from(["names", "groups", "n_source", "pooling"]), values | groups)
)
def test_packed_class_maps(content):
    attempt(ClassMap.from_dict, content)


parts = st.sampled_from(["source", "lame", "tent", "adabn", "knn", "", "python:os:path", "lame "])
names = values | st.lists(parts, max_size=3).map("+".join) | st.text(max_size=6)
keys = ["affinity", "weight", "max_iter", "k", "method", "lr", "layers", "momentum", "lame.k", ".k"]


@given(names, options(*keys))
def test_methods(name, chosen):
    method = attempt(methods.find, name)
    if method is not None:
        problems = attempt(method.param_errors, chosen)
        assert all(message for _, message in problems)
        if not problems and not method.needs_network and not endless(chosen):
            for corrector in attempt(method.correctors, chosen) or ():
                assert attempt(corrector.correct, FEATURES, PROBS) is not None


KINDS = [*ORDERS.items(), *PRIORS.items()]
LABELS = np.arange(20) % 4


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "make"), KINDS, ids=[kind for kind, _ in KINDS])
@given(data=st.data())
def test_orders_and_priors(kind, make, data):
    chosen = data.draw(options(*(inspect.signature(make).parameters or ["none"])))
    field = "order" if kind in ORDERS else "prior"
    scenario = attempt(Scenario, **{field: {"kind": kind, **chosen}})
    if scenario is not None:
        stream = attempt(scenario, LABELS, LABELS // 2)
        if stream is not None:
            assert stream.index.min() >= 0
            assert stream.index.max() < len(LABELS)
            assert sum(map(len, stream)) == len(stream.index)


@given(options("order", "prior", "batch_size", "seed", "limit", "split_groups"))
def test_scenarios(chosen):
    scenario = attempt(Scenario, **chosen)
    stream = scenario and attempt(scenario, LABELS, LABELS)
    if stream is not None:
        assert len(stream.fingerprint) == 64


columns = values | arrays([(4,), (3,), (0,), (4, 3), ()])


@given(columns, columns, columns)
def test_labels_groups_and_keys(labels, groups, keys):
    attempt(Scenario("by_group"), labels, groups, keys=keys)


@given(matrices | values, matrices | values, columns, columns, columns, values | st.just({}))
def test_banks(features, logits, labels, groups, keys, index):
    bank = attempt(Bank, features, logits, labels, groups, keys)
    output = bank and attempt(bank, index)
    if output is not None:
        assert len(output.features) == len(output.logits)
        attempt(bank.mapped, ClassMap([0, 0, 1]))


def network():
    net = torch.nn.Sequential()
    net.body, net.fc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 3)
    return net.eval()


NET = network()


@given(
    st.just(NET) | values,
    st.sampled_from(["lame", "lame", "source", "tent", "adabn+lame"]) | values,
    options("head", "classes", "output", "probabilities", "weight", "max_iter", "k", "lr"),
    st.just(torch.ones(4, 3)) | values | matrices,
)
def test_wrapped_networks(net, method, chosen, x):
    before = {name: value.clone() for name, value in NET.state_dict().items()}
    wrapped = attempt(wrap, net, method, **chosen)
    if wrapped is not None and not endless(chosen):
        try:
            probs = attempt(wrapped, x)
        except (TypeError, RuntimeError, AttributeError, IndexError, ValueError) as error:
            if not from_network(error):
                raise
        else:
            if probs is not None:
                check_probs(probs, (len(x), 3))
        wrapped.reset()
    assert all(torch.equal(value, before[name]) for name, value in NET.state_dict().items())


def from_network(error):
    """Whether the network itself, of the user, did not take its input."""
    at = error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_name == "call" or "torch/nn" in at.tb_frame.f_code.co_filename:
            return at.tb_next is None or "torch" in at.tb_next.tb_frame.f_code.co_filename
        at = at.tb_next
    return False


@given(st.just(NET) | values, options("head", "classes", "output", "probabilities"))
def test_classifiers(net, chosen):
    model = attempt(Classifier, net, **chosen)
    output = model and attempt(model, torch.ones(4, 3))
    assert output is None or len(output.logits) == 4
