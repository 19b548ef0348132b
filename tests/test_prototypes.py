"""Prototypes on their way from a model to the corrector that needs them."""

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from starlette.testclient import TestClient
from torch import nn
from typer.testing import CliRunner

from lametta import LAME, ClassMap, Corrected, LamettaError, Source, Streams, Windowed
from lametta.cli import app
from lametta.correctors import Average, StatefulCorrector
from lametta.correctors.base import give_prototypes
from lametta.correctors.chain import Chain
from lametta.data import load
from lametta.data.bank import Bank, extract
from lametta.data.bank.bank import read_prototypes
from lametta.methods import as_corrector
from lametta.serve.config import ServerConfig
from lametta.testing import check_corrector
from lametta.torch import TENT, Classifier, wrap
from lametta.torch.digits import digits_net
from lametta.types import Output, Prediction, Prototypes, UsesPrototypes
from tests.integrations import graphs

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
    with pytest.raises(
        LamettaError, match=r"(Centered|Head) needs .* from function, .* by its use\(\)"
    ):
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


def digits(tmp_path, **options):
    model = Classifier(digits_net())
    data = load("embedded:digits_val").take(range(24))
    path = tmp_path / "bank.safetensors"
    return model, extract(model, data, None, path, workers=0, **options)


def test_a_bank_keeps_them(tmp_path):
    model, bank = digits(tmp_path)
    assert np.array_equal(bank.prototypes.weight, model.prototypes.weight)
    assert np.array_equal(bank.prototypes.bias, model.prototypes.bias)
    logits = bank.prototypes.logits(np.asarray(bank.features))
    np.testing.assert_allclose(logits, bank.logits, atol=1e-4)
    mapped = bank.mapped(ClassMap({str(i): [i, i + 1] for i in range(0, 10, 2)}))
    np.testing.assert_allclose(mapped.prototypes.weight[0], bank.prototypes.weight[:2].mean(0))
    assert Corrected(bank, Centered()).step(np.arange(4)).probs.shape == (4, 10)
    assert Corrected(mapped, Centered()).step(np.arange(4)).probs.shape == (4, 5)
    assert mapped.mapped(None).prototypes is bank.prototypes


def test_a_bank_without_any_opens_and_says_so(tmp_path):
    np.savez(tmp_path / "old.npz", features=FEATURES, logits=FEATURES[:, :4])
    bank = Bank.open(tmp_path / "old.npz")
    assert bank.prototypes is None
    with pytest.raises(LamettaError, match="Centered needs prototypes, .* from Bank"):
        Corrected(bank, Centered())
    with pytest.raises(LamettaError, match=r"must have shape .* = \[4, 6\] .* \[4, 5\]"):
        Bank(FEATURES, FEATURES[:, :4], prototypes=Prototypes(np.ones((4, 5))))


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_the_command_reads_them_from_the_file(tmp_path, monkeypatch, ending):
    (tmp_path / "mine.py").write_text(Path(__file__).read_text(encoding="utf-8"))
    monkeypatch.syspath_prepend(tmp_path)
    given = {"features": FEATURES, "probs": PROBS}
    held = given | {"prototypes": GIVEN.weight, "bias": GIVEN.bias}
    for name, arrays in (("none", given), ("held", held)):
        if ending == "npz":
            np.savez(tmp_path / f"{name}.npz", **arrays)
        else:
            save_file(arrays, tmp_path / f"{name}.safetensors")
    out = str(tmp_path / "out.npz")
    options = ["-o", out, "--method", "python:mine:Centered", "--batch-size", "5"]
    found = CliRunner().invoke(app, ["correct", str(tmp_path / f"held.{ending}"), *options])
    assert found.exit_code == 0, found.output
    with np.load(out) as written:
        np.testing.assert_allclose(written["probs"], expected(), atol=1e-12)
        np.testing.assert_array_equal(written["prototypes"], GIVEN.weight)
    assert "not used" not in found.output
    again = CliRunner().invoke(app, ["correct", out, *["-o", out + ".npz", *options[2:]]])
    assert again.exit_code == 0, again.output
    found = CliRunner().invoke(app, ["correct", str(tmp_path / f"none.{ending}"), *options])
    assert found.exit_code == 2
    assert "Centered needs prototypes" in found.output
    assert "its arrays prototypes [K, d]" in " ".join(found.output.split())


FIELD = ("neo", "t3a", "tda", "oga", "stata", "transclip")


@pytest.mark.parametrize("name", FIELD)
def test_methods_of_the_field_run_everywhere(tmp_path, name):
    model, bank = digits(tmp_path)
    given = np.asarray(bank.features, float), softmax(np.asarray(bank.logits, float))
    one = as_corrector(name)
    give_prototypes(one, bank.prototypes, "the test")
    wanted = one.correct(*given).probs
    assert not np.allclose(wanted, given[1], atol=1e-3)

    stepped = Corrected(bank, as_corrector(name)).step(np.arange(24)).probs
    np.testing.assert_allclose(stepped, wanted, atol=1e-4)
    data = load("embedded:digits_val").take(range(24))
    images = torch.stack([torch.as_tensor(data[i][0]) for i in range(24)])
    found = wrap(model.net, name)(images)
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    hybrid = Corrected(TENT(model, lr=0.0, bn_momentum=0.0), as_corrector(name))
    np.testing.assert_allclose(hybrid.step(images).probs, wanted, atol=1e-4)
    hybrid.reset()

    out = str(tmp_path / "out.npz")
    path = str(tmp_path / "bank.safetensors")
    done = CliRunner().invoke(app, ["correct", path, "-o", out, "--method", name])
    assert done.exit_code == 0, done.output
    with np.load(out) as written:
        np.testing.assert_allclose(written["probs"], wanted, atol=1e-4)

    prototypes = None if name == "tda" else read_prototypes(Path(path))[0]
    config = ServerConfig({"mine": name}, prototypes=prototypes)
    inputs = tensor("features", given[0]), tensor("probs", given[1])
    np.testing.assert_allclose(answer(config.app(), *inputs), wanted, atol=1e-4)


def tensor(name, x, datatype="FP64"):
    return {"name": name, "shape": x.shape, "datatype": datatype, "data": x.ravel().tolist()}


def answer(app, *inputs):
    request = {"inputs": inputs, "parameters": {"sequence_id": "a"}}
    found = TestClient(app).post("/v2/models/mine/infer", json=request).json()["outputs"]
    return np.reshape(
        next(x["data"] for x in found if x["name"] == "probs"), (inputs[0]["shape"][0], -1)
    )


def test_the_server_is_given_them(tmp_path):
    np.savez(tmp_path / "bank.npz", prototypes=GIVEN.weight, bias=GIVEN.bias)
    found, _ = read_prototypes(tmp_path / "bank.npz")
    config = ServerConfig({"mine": Centered()}, prototypes=found)
    inputs = tensor("features", FEATURES), tensor("probs", PROBS)
    np.testing.assert_allclose(answer(config.app(), *inputs), expected(), atol=1e-12)


def test_a_server_finds_them_in_its_model(tmp_path):
    method = f"python:{__name__}:Centered"
    weight, bias = GIVEN.weight.astype(np.float32), GIVEN.bias.astype(np.float32)
    nodes = [graphs.node("Gemm", ["x", "w", "b"], ["y"], transB=1)]
    path = graphs.save(tmp_path / "net.onnx", nodes, {"w": weight, "b": bias})
    app = ServerConfig({"mine": method}, model=path).app()
    found = answer(app, tensor("x", FEATURES.astype(np.float32), "FP32"))
    np.testing.assert_allclose(found, expected(), atol=1e-6)
    assert np.abs(found - softmax(FEATURES @ weight.T + bias)).max() > 0.1
    nodes = [graphs.node("Exp", ["x"], ["f"]), graphs.node("Relu", ["f"], ["y"])]
    curved = graphs.save(tmp_path / "curved.onnx", nodes, {})
    with pytest.raises(LamettaError, match="Centered needs prototypes, .* from the server"):
        ServerConfig({"mine": method}, model=curved, features="f").app()


def test_a_server_without_any_does_not_start(tmp_path):
    with pytest.raises(LamettaError, match="Centered needs prototypes, .* from the server"):
        ServerConfig({"mine": Centered()}).app()
    with pytest.raises(LamettaError, match="prototypes must be for a corrector that needs them"):
        ServerConfig({"mine": Average()}, prototypes=GIVEN).app()
    np.savez(tmp_path / "other.npz", features=FEATURES)
    for path, message in (
        (tmp_path / "other.npz", "--prototypes must hold prototypes, got features"),
        (tmp_path / "absent.npz", "no such file"),
    ):
        found = CliRunner().invoke(app, ["serve", "--store", "memory", "--prototypes", str(path)])
        assert found.exit_code == 2
        assert message in " ".join(found.output.split())
