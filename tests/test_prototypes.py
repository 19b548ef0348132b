"""Prototypes on their way from a model to the corrector that needs them."""

import copy
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

from lametta import LAME, ClassMap, Corrected, LamettaError, Source, Streams, Windowed
from lametta.correctors import Average, StatefulCorrector
from lametta.correctors.chain import Chain
from lametta.testing import check_corrector
from lametta.torch import TENT, Classifier, wrap
from lametta.types import Output, Prediction, Prototypes, UsesPrototypes

RNG = np.random.default_rng(0)
GIVEN = Prototypes(RNG.normal(size=(4, 6)), RNG.normal(size=4))
FEATURES = RNG.normal(size=(12, 6))
PROBS = RNG.dirichlet(np.ones(4), size=12)


def softmax(logits):
    exp = np.exp(logits - logits.max(axis=1, keepdims=True))
    return exp / exp.sum(axis=1, keepdims=True)


@dataclass
class Centered(StatefulCorrector):
    """The head, on features less their mean so far."""

    needs = frozenset({"prototypes"})

    def init_state(self, d, k):
        return {"sum": np.zeros(d), "count": np.zeros(())}

    def update_one(self, state, x, q):
        state["sum"] += x
        state["count"] += 1
        logits = (x - state["sum"] / state["count"]) @ self.prototypes.weight.T
        return softmax(logits[None] + self.prototypes.bias)[0]


@dataclass
class Head:
    """The head itself, with no memory."""

    prototypes: Prototypes | None = None
    needs = frozenset({"prototypes"})

    def use(self, prototypes):
        self.prototypes = prototypes

    def correct(self, features, probs):
        return Prediction(softmax(features @ self.prototypes.weight.T + self.prototypes.bias))

    def reset(self):
        pass


class Model:
    prototypes = GIVEN

    def __call__(self, x):
        return Output(x, x @ GIVEN.weight.T + GIVEN.bias)


def expected(features=FEATURES):
    one = Centered()
    one.use(GIVEN)
    return one.correct(features, PROBS[: len(features)]).probs


def test_shapes_are_checked():
    for weight in (np.zeros(3), np.zeros((0, 3)), None):
        with pytest.raises(LamettaError, match=r"weight of prototypes must have shape \[K, d\]"):
            Prototypes(weight)
    with pytest.raises(LamettaError, match=r"bias of prototypes must have shape \[4\], got \(3,\)"):
        Prototypes(np.ones((4, 2)), np.ones(3))
    assert copy.deepcopy(GIVEN) is GIVEN  # a thousand streams share them


def test_a_corrector_keeps_the_contract_and_says_what_it_lacks():
    check_corrector(Centered())
    assert isinstance(Centered(), UsesPrototypes)
    with pytest.raises(LamettaError, match=r"Centered needs prototypes, .* got none .* call use"):
        Centered().correct(FEATURES, PROBS)
    with pytest.raises(LamettaError, match="Centered needs prototypes"):
        Centered().load_state_dict({"sizes": np.array([6, 4])})
    with pytest.raises(LamettaError, match="prototypes must not be given to Average"):
        Average().use(GIVEN)
    with pytest.raises(LamettaError, match="prototypes must be a lametta.types.Prototypes, got nd"):
        Centered().use(GIVEN.weight)
    with pytest.raises(LamettaError, match="weight of prototypes must be finite"):
        Centered().use(Prototypes(np.full((4, 6), np.nan)))
    one = Centered()
    one.use(GIVEN)
    with pytest.raises(LamettaError, match=r"d and K of the prototypes, \(6, 4\), got \(5, 4\)"):
        one.correct(FEATURES[:, :5], PROBS)
    one.correct(FEATURES, PROBS)
    one.reset()
    np.testing.assert_array_equal(one.correct(FEATURES, PROBS).probs, expected())
    one.use(GIVEN)  # which forgets
    assert one.state_dict() == {}


@pytest.mark.parametrize("base", [Model(), Source(Model()), Corrected(Model(), LAME())])
def test_the_model_gives_them_under_any_adapter(base):
    adapter = Corrected(base, Centered())
    np.testing.assert_array_equal(adapter.step(FEATURES).probs, expected())
    resumed = pickle.loads(pickle.dumps(adapter.corrector))
    assert resumed.prototypes is not None


def test_those_that_are_given_by_hand_are_kept():
    mine, other = Centered(), Prototypes(2 * GIVEN.weight, GIVEN.bias)
    mine.use(other)
    Corrected(Model(), mine)
    np.testing.assert_array_equal(mine.prototypes.weight, other.weight)
    Corrected(lambda x: Output(x, x), mine)  # needs none


@pytest.mark.parametrize(
    "corrector",
    [Centered(), Chain((Average(), Centered())), Streams(Centered()), Windowed(Head()), Head()],
)
def test_a_model_without_any_is_refused_at_once(corrector):
    with pytest.raises(LamettaError, match=r"needs .* from function, .* by its use\(\)"):
        Corrected(lambda x: Output(x, x), corrector)


def test_what_holds_correctors_passes_them_on():
    chain = Chain((Average(), Centered()))
    assert chain.needs == {"prototypes"}
    assert chain.prototypes is None
    np.testing.assert_array_equal(Corrected(Model(), chain).step(FEATURES).probs, expected())
    assert chain.prototypes is not None
    assert Chain((Average(),)).needs == frozenset()

    found = Corrected(Model(), Centered()).step(FEATURES, stream=[0, 1] * 6).probs
    np.testing.assert_array_equal(found[::2], expected(FEATURES[::2]))
    streams = Streams(Centered())
    found = Corrected(Model(), streams).step(FEATURES, stream="a").probs
    np.testing.assert_array_equal(found, expected())
    assert copy.deepcopy(streams.corrector).prototypes is streams.corrector.prototypes

    windowed = Windowed(Head(), size=4)
    found = Corrected(Model(), windowed).step(FEATURES).probs
    np.testing.assert_allclose(found, softmax(Model()(FEATURES).logits))
    assert windowed.set_params(size=5).prototypes is not None
    assert Windowed().needs == frozenset()


def test_a_class_map_pools_them():
    classes = ClassMap({"b": [3], "a": [0, 2]})
    pooled = classes.pool_prototypes(GIVEN)
    np.testing.assert_allclose(pooled.weight, [GIVEN.weight[3], GIVEN.weight[[0, 2]].mean(0)])
    np.testing.assert_allclose(pooled.bias, [GIVEN.bias[3], GIVEN.bias[[0, 2]].mean()])
    assert classes.pool_prototypes(Prototypes(GIVEN.weight)).bias is None
    with pytest.raises(LamettaError, match="weight of prototypes must have K = at least 4"):
        classes.pool_prototypes(Prototypes(np.ones((2, 3))))


def net(head):
    torch.manual_seed(0)
    made = nn.Sequential()
    made.body, made.fc = nn.Linear(3, 6), head
    return made.eval()


@pytest.mark.parametrize(
    "head",
    [
        nn.Linear(6, 4),
        nn.Linear(6, 1),
        nn.Linear(6, 4, bias=False),
        nn.Sequential(nn.Dropout(), nn.Linear(6, 4)),
    ],
)
def test_a_linear_head_gives_its_weights(head):
    model, x = Classifier(net(head)), torch.randn(5, 3)
    found, output = model.prototypes, model(x)
    bias = 0 if found.bias is None else found.bias
    assert torch.allclose(output.features @ found.weight.T + bias, output.logits, atol=1e-6)
    pooled = Classifier(model.net, classes=ClassMap([[1], [0]])).prototypes.weight
    assert torch.equal(pooled, found.weight[[1, 0]])
    found.weight.zero_()  # a copy
    assert not torch.equal(model.prototypes.weight, found.weight)


def test_a_convolution_may_be_the_head():
    class Conv(nn.Module):
        def __init__(self):
            super().__init__()
            self.classifier = nn.Conv2d(6, 4, 1)

        def forward(self, x):
            return self.classifier(x).mean((2, 3))

    model = Classifier(Conv().eval())
    output, found = model(torch.randn(5, 6, 2, 2)), model.prototypes
    assert torch.allclose(output.features @ found.weight.T + found.bias, output.logits, atol=1e-6)


def test_wrap_gives_them_or_says_that_the_head_is_none():
    x = torch.randn(12, 3)
    model = Classifier(net(nn.Linear(6, 4)))
    one = Centered()
    one.use(model.prototypes)
    output = model(x)
    expected = one.correct(output.features, output.logits.softmax(1)).probs
    assert torch.equal(wrap(model.net, Centered)(x), expected)
    assert torch.equal(wrap(model.net, Centered())(x, stream="a"), expected)
    hybrid = Corrected(TENT(model), Centered())  # of the network as it was
    assert np.array_equal(hybrid.corrector.prototypes.weight, model.prototypes.weight)
    deep = net(nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 4)))
    assert Classifier(deep).prototypes is None
    with pytest.raises(LamettaError, match=r"Centered needs prototypes, .* from Classifier"):
        wrap(deep, Centered)
