"""The one table of methods: names, parameters, and what they make."""

import copy
import inspect
import re
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import nn

import lametta.torch
from lametta import LAME, Corrected, LamettaError, Output, Source, knn, linear, methods, rbf
from lametta.affinity import AFFINITIES
from lametta.correctors import ROID, Average, Chain, PriorCorrection
from lametta.testing import check_corrector
from lametta.torch import Classifier, select, wrap
from tests.conftest import make_batch

NETWORK = ["tent", "shot_im", "pseudo_label", "adabn"]
LAYERS = ["first_half", "second_half", "norms", "conv_first_half", "conv_second_half", "conv"]


@dataclass
class Sharpen:
    """Raise probabilities to a power."""

    power: float = 2.0
    weight: float = 1.0

    ordered = True

    def correct(self, features, probs, /):
        probs = probs ** (self.power * self.weight)
        return lametta.Prediction(probs / probs.sum(axis=1, keepdims=True), features)

    def reset(self):
        pass


SHARPEN = f"python:{__name__}:Sharpen"


@pytest.fixture
def net():
    net = nn.Sequential()
    net.conv, net.bn = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)
    net.pool, net.flat, net.fc = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
    return net.eval()


def model(x):
    return Output(x, 2 * x[:, :3])


def test_names_and_traits():
    assert methods.names()[:6] == ["source", "lame", *NETWORK]
    traits = {
        name: (found.needs_network, found.stateful, found.ordered)
        for name in [*methods.names()[:6], "tent+lame", SHARPEN, f"adabn+{SHARPEN}"]
        for found in [methods.find(name)]
    }
    assert traits == {
        "source": (False, False, False),
        "lame": (False, False, False),
        **dict.fromkeys(NETWORK, (True, True, False)),
        "tent+lame": (True, True, False),
        SHARPEN: (False, False, True),
        f"adabn+{SHARPEN}": (True, True, True),
    }


@pytest.mark.parametrize("name", ["lame", *NETWORK])
def test_parameters_are_those_of_the_constructor(name):
    make = LAME if name == "lame" else getattr(lametta.torch, name)
    own = {key: p for key, p in inspect.signature(make).parameters.items() if key != "model"}
    found = methods.find(name).parameters()
    assert set(own) <= set(found)
    beside = set(inspect.signature(knn).parameters) if name == "lame" else set()
    assert set(found) - set(own) == beside
    for key, parameter in own.items():
        default = "knn" if key == "affinity" else parameter.default
        assert found[key].default == default
    assert methods.find(name).param_errors({}) == []


def test_the_options_of_an_affinity_stand_beside_it():
    lame = methods.find("lame")
    for name, make in AFFINITIES.items():
        options = set(inspect.signature(make).parameters)
        assert options <= set(lame.parameters({"affinity": name}))
    assert lame.correctors({}) == [LAME()]
    assert lame.correctors({"k": 3}) == [LAME(knn(3))]
    assert lame.correctors({"method": "faiss"}) == [LAME(knn(method="faiss"))]
    assert lame.correctors({"affinity": "rbf", "k": 2, "row_sum": 5}) == [LAME(rbf(2, row_sum=5))]
    assert lame.correctors({"affinity": "linear", "weight": 2}) == [LAME(linear(), weight=2)]
    assert lame.correctors({"affinity": linear(row_sum=3)}) == [LAME(linear(row_sum=3))]
    (own,) = lame.correctors({"affinity": np.abs})
    assert own.affinity is np.abs


@pytest.mark.slow
def test_whatever_is_joined_runs(net):
    x = torch.randn(8, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    for name in ["source", "lame", SHARPEN]:
        assert wrap(net, name)(x).shape == (8, 4)
    for base in ["source", *NETWORK]:
        for top in ["lame", SHARPEN, f"lame+{SHARPEN}"]:
            wrapped = wrap(net, f"{base}+{top}")
            assert torch.allclose(wrapped(x).sum(1), torch.ones(8))
            assert isinstance(wrapped.adapter, Corrected)
            wrapped.reset()
            wrapped.close()
    check_corrector(Sharpen())


def test_parameters_find_their_owner():
    both = methods.find(f"lame+{SHARPEN}")
    lame, sharpen = both.correctors({"k": 2, "power": 3, "lame.weight": 0.5})
    assert lame == LAME(knn(2), weight=0.5)
    assert sharpen == Sharpen(3)
    _, sharpen = both.correctors({f"{SHARPEN}.weight": 0.5})
    assert sharpen == Sharpen(weight=0.5)
    ((name, message),) = both.param_errors({"weight": 1})
    assert name == "weight"
    assert "is ambiguous: use lame.weight or" in message
    hybrid = methods.find("adabn+lame").build(object(), {"momentum": 0.3, "k": 2})
    assert hybrid.base.momentum == 0.3
    assert hybrid.corrector == LAME(knn(2))


def test_layers_are_those_of_select():
    others = ["all", "released_first_half", "released_second_half", "lower_norms"]
    assert sorted(select.LAYERS) == sorted([*LAYERS, *others])
    assert select.LAYERS["everything"] is select.LAYERS["norms"] is select.norm


def bank(features, probs):
    return lambda index: Output(features[index], np.log(probs[index]))


@pytest.mark.parametrize(
    ("params", "corrector"),
    [
        ({}, LAME()),
        ({"k": 2, "weight": 0.5}, LAME(knn(2), weight=0.5)),
        ({"direction": "reverse", "k": 2}, LAME(knn(2, direction="reverse"))),
        ({"affinity": "rbf", "k": 3, "row_sum": 4.0}, LAME(rbf(3, row_sum=4.0))),
        ({"affinity": "linear", "symmetric": True}, LAME(linear(symmetric=True))),
        ({"affinity": "knn", "max_iter": 3, "tol": 0}, LAME(knn(5), max_iter=3, tol=0)),
    ],
    ids=str,
)
def test_build_lame(params, corrector):
    model = bank(*make_batch(40, 5))
    adapter = methods.find("lame").build(model, params)
    assert adapter == Corrected(model, corrector)
    step = adapter.step(np.arange(20))
    np.testing.assert_array_equal(step.probs, Corrected(model, corrector).step(np.arange(20)).probs)


def make_net():
    """Eight blocks, so that halves are four layers each."""
    net = nn.Sequential()
    for i in range(8):
        net.append(nn.Conv2d(3 if i == 0 else 4, 4, 3, padding=1))
        net.append(nn.BatchNorm2d(4))
    net.append(nn.AdaptiveAvgPool2d(1))
    net.append(nn.Flatten())
    net.fc = nn.Linear(4, 3)
    return net.eval()


def moved(net, kind, params):
    """Places among the modules of the network whose parameters a step changes."""
    before = copy.deepcopy(net.state_dict())
    with Classifier(net) as model:
        adapter = methods.find(kind).build(model, params)
        adapter.step(torch.randn(8, 3, 6, 6))
        found = [
            i for i, module in enumerate(net)
            if any(not torch.equal(p, before[f"{i}.{n}"])
                   for n, p in module.named_parameters() if f"{i}.{n}" in before)
        ]  # fmt: skip
        adapter.reset()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("layers", LAYERS)
def test_layers_by_name(layers):
    kind = nn.Conv2d if layers.startswith("conv") else nn.BatchNorm2d
    net = make_net()
    blocks = range(16)
    if "half" in layers:
        # A convolution comes right before its normalization: the ninth is in the second half.
        blocks = range(8) if "first" in layers else range(8, 16)
    expected = [i for i in blocks if isinstance(net[i], kind)]
    assert moved(net, "shot_im", {"layers": layers, "lr": 0.1}) == expected


@pytest.mark.slow
def test_normalization_layers_are_the_default():
    net = make_net()
    assert (
        moved(net, "tent", {}) == moved(net, "tent", {"layers": "everything"}) == [*range(1, 16, 2)]
    )


@pytest.mark.parametrize("kind", NETWORK)
def test_lame_on_top_of_a_network_method(kind):
    net, x = make_net(), torch.randn(16, 3, 6, 6)
    with Classifier(net) as model:
        base = getattr(lametta.torch, kind)(model, momentum=0.3)
        expected = Corrected(base, LAME(knn(2))).step(x)
        base.reset()
        adapter = methods.find(f"{kind}+lame").build(model, {"momentum": 0.3, "k": 2})
        torch.testing.assert_close(adapter.step(x).probs, expected.probs, rtol=0, atol=0)
        adapter.reset()


@pytest.mark.parametrize(
    ("name", "params", "problems"),
    [
        ("lame", {"k": 0}, [("k", "must be an integer >= 1, got 0")]),
        ("lame", {"k": 2.5}, [("k", "must be an integer, got 2.5")]),
        ("lame", {"k": True}, [("k", "must be an integer, got True")]),
        ("lame", {"weight": "a"}, [("weight", "must be a number, got 'a'")]),
        ("lame", {"weight": -1}, [("weight", "must be a finite number >= 0 and <= 1e+06, got -1")]),
        ("lame", {"symmetric": 1}, [("symmetric", "must be true or false, got 1")]),
        ("lame", {"method": "annoy"}, [("method", "must be one of 'exact', 'faiss', got 'annoy'")]),
        ("source", {"lr": 1}, [("lr", "is no option of source, which has none")]),
    ],
)
def test_it_is_said_what_is_wrong(name, params, problems):
    assert methods.find(name).param_errors(params) == problems


WRONG = {"lr": -1, "bn_momentum": 2, "momentum": 1, "predict_first": "no"}


@pytest.mark.parametrize(
    ("name", "params", "wrong"),
    [
        ("tent", {"optimizer": "lion", "steps": 0}, ["optimizer", "steps"]),
        ("tent", WRONG, [*WRONG]),
        ("tent", {"layers": "conv", "bn_momentum": 0.3}, [""]),  # the two do not go together
        ("pseudo_label", {"threshold": 1}, ["threshold"]),
        ("lame", {"affinity": "cosine", "k": 1}, ["affinity"]),
        ("lame", {"affinity": "linear", "k": 1}, ["k"]),
        ("lame", {"affinity": "linear", "row_sum": 0}, ["row_sum"]),
        ("lame", {"k": 0, "affinity": "cosine", "wait": 1}, ["k", "affinity", "wait"]),
    ],
)
def test_all_that_is_wrong_is_found(name, params, wrong):
    assert [key for key, _ in methods.find(name).param_errors(params)] == wrong


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: methods.find("tant"), "got 'tant'; did you mean 'tent'?"),
        (lambda: methods.find("tent+lamee"), "got 'tent+lamee'; did you mean 'lame'?"),
        (lambda: methods.find("lame+tent"), "method must have correctors after +, got 'tent'"),
        (lambda: methods.find("lame+lame"), "method must name each part once, got 'lame+lame'"),
        (lambda: methods.find(3), "method must be one of"),
        (
            lambda: methods.find("lame").correctors({"affinity": "python:os:system"}),
            "affinity 'python:os:system' must be given command, got none",
        ),
        (
            lambda: methods.find("python:math:tau"),
            "must be a class, a function or a corrector, got 6.28",
        ),
        (lambda: methods.find("python:math:nothing"), "can be imported, got 'python:math:nothing'"),
        (lambda: methods.find("python:no.such:Thing"), "No module named 'no'"),
        (lambda: methods.find("tent").correctors({}), "method must see outputs alone, got 'tent'"),
        (lambda: methods.find("python:math:sqrt").build(4.0, {}), "an adapter with step and reset"),
        (lambda: methods.find("tent").build(model, {}).step(torch.zeros(2, 3)), "Classifier, got"),
    ],
)
def test_bad_names_and_uses(call, message):
    with pytest.raises(LamettaError, match=re.escape(message)):
        call()


def test_the_source_is_itself_and_nothing_is_imported_for_a_name():
    assert methods.find("source").build(model, {}) == Source(model)
    methods.check_name("tent+python:no.such.module:Name")
    features, probs = make_batch(10, 3)
    (corrector,) = methods.find("lame").correctors({"tol": 0, "max_iter": 3})
    assert corrector.correct(features, probs).info["n_iter"] == 3


def test_a_corrector_is_a_name_or_an_object():
    features, probs = make_batch(12, 4)
    assert methods.as_corrector("lame", {"affinity": "rbf", "k": 3}).affinity == rbf(3)
    own = lametta.Prudent()
    assert methods.as_corrector(own) is own
    chain = methods.as_corrector("average+lame", {"weight": 0.5})
    alone = Average().correct(features, probs).probs
    expected = LAME(weight=0.5).correct(features, alone).probs
    assert np.array_equal(chain.correct(features, probs).probs, expected)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ("lmae", {}, "--corrector must be one of .* did you mean 'lame'"),
        ("lame", {"k": 0}, "k must be an integer >= 1, got 0"),
        ("lame", {"kk": 1}, "kk is no option of lame"),
        ("tent", {}, "--corrector must see outputs alone, got 'tent', which needs a model"),
        (LAME(), {"k": 3}, "options must be those of a method given by its name, got k beside"),
        (LAME, {}, r"--corrector must have correct and reset, got the class LAME: write LAME\(\)"),
        (3, {}, "--corrector must have correct and reset, got int"),
        (lametta.Streams(LAME()), {}, "--corrector must be for one stream, got Streams"),
    ],
)
def test_what_is_no_corrector_is_named(given, options, message):
    with pytest.raises(LamettaError, match=message):
        methods.as_corrector(given, options, argument="--corrector")


MADE = Average()


def test_a_corrector_that_is_made_already_has_a_name_too():
    features, probs = make_batch(6, 5, 7)
    MADE.correct(features, probs)
    method = methods.find(f"python:{__name__}:MADE")
    assert (method.stateful, method.ordered, method.needs_network) == (True, True, False)
    assert method.summary == methods.find("average").summary
    assert method.param_errors({"k": 3})[0][1].startswith("is no option of")
    first, second = (method.correctors({})[0] for _ in range(2))
    expected = Average().correct(features, probs).probs  # without what it remembers
    for own in (first, second):
        np.testing.assert_array_equal(own.correct(features, probs).probs, expected)
    assert len(copy.deepcopy(method).correctors({})) == 1


def test_roid_is_the_method_and_not_its_prior_correction():
    assert methods.find("roid").needs_network
    assert methods.find("prior_correction").correctors({"size": 3}) == [PriorCorrection(3)]
    assert ROID is PriorCorrection  # of lametta.correctors, where the old name stays
    with pytest.raises(LamettaError, match="corrector must see outputs alone, got 'roid'"):
        methods.as_corrector("roid")


class Plain:
    """A corrector whose author annotates nothing, and asks for one thing."""

    def __init__(self, offset, power=2.0):
        self.offset, self.power = offset, power

    def correct(self, features, probs, /):
        probs = (probs + self.offset) ** self.power
        return lametta.Prediction(probs / probs.sum(axis=1, keepdims=True), features)

    def reset(self):
        pass


PLAIN = f"python:{__name__}:Plain"


def test_options_without_a_type_take_what_is_given():
    features, probs = make_batch(6, 3)
    method = methods.find(PLAIN)
    assert [option.text for option in method.parameters().values()] == ["offset", "power=2.0"]
    assert method.param_errors({"offset": 0, "power": 3}) == []
    (corrector,) = method.correctors({"offset": 0, "power": 3})
    expected = probs**3 / (probs**3).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(corrector.correct(features, probs).probs, expected)


def test_required_options_are_asked_for(net):
    message = "Plain must be given offset, got none"
    method = methods.find(PLAIN)
    for params in ({}, {"power": 3}):
        ((name, found),) = method.param_errors(params)
        assert (name, found.endswith(message)) == ("", True)
        with pytest.raises(LamettaError, match=message):
            method.correctors(params)
    assert [name for name, _ in method.param_errors({"powr": 3})] == ["powr"]
    with pytest.raises(LamettaError, match=message):
        wrap(net, PLAIN)
    with pytest.raises(LamettaError, match=message):
        methods.as_corrector(f"lame+{PLAIN}", {"k": 3})


class Pair(Chain):
    """A stranger's chain: its traits are properties, and depend on what it holds."""

    def __init__(self, memory: bool = True):
        super().__init__((Average() if memory else Plain(0), Plain(0)))


class Demanding(Pair):
    def __init__(self, memory: bool):
        super().__init__(memory)


class Wordy(Plain):
    def __init__(self):
        super().__init__(0)

    def causal(self):
        return True


def traits(method, params=None):
    return tuple(method.trait(name, params) for name in ("ordered", "stateful", "causal"))


def test_a_trait_that_is_a_property_is_asked_of_an_object():
    pair = methods.find(f"python:{__name__}:Pair")
    assert (pair.ordered, pair.stateful, pair.causal) == traits(pair) == (True, True, False)
    assert traits(pair, {"memory": False}) == (False, False, False)
    assert traits(methods.find(f"average+python:{__name__}:Pair")) == (True, True, False)
    demanding = methods.find(f"python:{__name__}:Demanding")
    assert traits(demanding, {"memory": False}) == (False, False, False)
    with pytest.raises(LamettaError, match="ordered must be True or False on the class .* memory"):
        _ = demanding.ordered
    with pytest.raises(LamettaError, match="causal of .*Wordy must be True or False, got a method"):
        _ = methods.find(f"python:{__name__}:Wordy").causal
    made = methods.find(f"python:{__name__}:PAIR")
    assert (made.ordered, made.stateful, made.causal) == (False, False, False)


PAIR = Pair(memory=False)


class Told(Plain):
    """A stranger's corrector: its traits are set by an option, or when an object is made."""

    ordered = False

    def __init__(self, ordered=True):
        super().__init__(0)
        self.ordered, self.causal = ordered, True


@dataclass
class Options(Corrected):
    """A stranger's adapter, one of whose options is a trait."""

    base: object
    corrector: object = field(default_factory=Average)
    stateful: bool = False


def test_a_trait_that_is_an_attribute_of_objects_is_asked_of_one():
    told = methods.find(f"python:{__name__}:Told")
    assert traits(told) == (True, False, True)
    assert traits(told, {"ordered": False}) == (False, False, True)
    adapter = methods.find(f"python:{__name__}:Options")
    assert [adapter.trait("stateful", given) for given in ({}, {"stateful": True})] == [False, True]


def test_an_affinity_is_a_name_a_table_or_one_of_another_package(plug_in):
    plug_in("lametta.affinities", acme="lametta.affinity:linear")
    lame = methods.find("lame")
    assert lame.correctors({"affinity": "acme", "row_sum": 5}) == [LAME(linear(row_sum=5))]
    assert lame.correctors({"affinity": {"kind": "rbf", "k": 3}}) == [LAME(rbf(3))]
    assert lame.param_errors({"affinity": "acme", "k": 5})[0][0] == "k"
    assert lame.param_errors({"affinity": {"kind": "rbff"}})[0][0] == "affinity"


# Traits


def test_traits_are_those_of_the_parts():
    tent, hybrid, lame = methods.find("tent"), methods.find("tent+lame"), methods.find("lame")
    assert (tent.needs, tent.passes, tent.answers()) == (["gradients"], (2, 1), "after")
    assert (hybrid.needs, hybrid.passes) == (["gradients", "batch"], (2, 1))
    assert (lame.needs, lame.passes, lame.answers()) == (["batch"], (0, 0), "")
    assert methods.find("source").passes == (1, 0)
    assert hybrid.answers({"predict_first": True}) == "before"
    assert [one.passes_text for one in (tent, lame)] == ["2 + 1", "0 + 0"]


@pytest.mark.parametrize("name", methods.names())
def test_every_method_says_what_it_needs(name):
    found = methods.find(name)
    (part,) = found.components
    assert {*getattr(part.factory, "needs", ())} <= {*methods.NEEDS}
    assert found.passes is not None
    assert found.answers() in (("before", "after") if found.needs_network else ("",))
