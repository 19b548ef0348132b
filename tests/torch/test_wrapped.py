"""What a wrapped network keeps, takes and refuses."""

import copy
import io
import json
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from lametta import LAME, LamettaError, Prudent, Streams, knn
from lametta.torch import TENT, Classifier, GradientMethod, Preprocess, wrap
from lametta.torch.digits import digits_net
from tests.torch.test_calls import Found, Net

INPUTS = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
IDS = ["a", "b", "c"] * 4


def test_a_method_is_a_name_an_object_or_what_makes_it():
    expected = wrap(digits_net(), "lame", k=3)(INPUTS)
    for method in (LAME(knn(3)), Streams(LAME(knn(3)))):
        model = wrap(digits_net(), method)
        assert torch.equal(model(INPUTS), expected)
    assert torch.equal(wrap(digits_net(), LAME, k=3)(INPUTS), expected)
    adapted = wrap(digits_net(), TENT, lr=0.01)
    assert torch.equal(adapted(INPUTS), wrap(digits_net(), "tent", lr=0.01)(INPUTS))
    assert isinstance(wrap(digits_net()).adapter.corrector, Prudent)  # as in hf and ray


@dataclass
class Darker(GradientMethod):
    """Answers for darker images."""

    def adapt(self, batch, net):
        return net(batch.augment(lambda pixels, generator: pixels / 2), train=False)


def test_methods_that_augment_are_given_the_preprocessing():
    net, preprocess = Net().eval(), Preprocess(mean=(0.2, 0.3, 0.4), std=(0.5, 0.6, 0.7))
    pixels = torch.rand(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    x, dark = preprocess.from_pixels(pixels), preprocess.from_pixels(pixels / 2)
    found = wrap(net, Darker, preprocess=preprocess)(x)
    assert torch.allclose(found, Classifier(net)(dark).logits.softmax(1), atol=1e-6)
    with pytest.raises(LamettaError, match="preprocess must be known .* the same of wrap"):
        wrap(net, Darker)(x)
    with pytest.raises(LamettaError, match="preprocess must be .*.Preprocess, got Compose"):
        wrap(net, Darker, preprocess=Compose())


class Compose:
    """As torchvision has it."""


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (LAME(), {"k": 3}, "options must be those of a method given by its name, got k beside"),
        (3, {}, "method must have correct and reset, got int"),
        (TENT(Classifier(digits_net())), {}, "method must have correct and reset, got TENT"),
        (LAME, {"kk": 3}, "kk is no option of LAME"),
    ],
)
def test_what_is_no_method_is_named(method, options, message):
    with pytest.raises(LamettaError, match=message):
        wrap(digits_net(), method, **options)


@pytest.mark.parametrize("method", ["prudent", "lame", "average+lame", "source"])
def test_streams_are_each_as_alone(method):
    model = wrap(digits_net(), method)
    model(INPUTS)  # of no stream
    found = model(INPUTS, stream=IDS)
    for i in range(3):
        alone = wrap(digits_net(), method)(INPUTS[i::3])
        assert torch.allclose(found[i::3], alone, atol=1e-6)


def test_streams_of_a_network_that_adapts_are_refused():
    for method in ("tent", "tent+prudent"):
        with pytest.raises(LamettaError, match="stream must be left out"):
            wrap(digits_net(), method)(INPUTS, stream=IDS)


def test_nan_costs_its_own_stream_alone():
    model, broken = wrap(digits_net(), "prudent"), INPUTS.clone()
    expected = wrap(digits_net(), "prudent")(INPUTS, stream=IDS)
    broken[1, 0, 2, 2] = np.nan
    with pytest.warns(UserWarning, match="stream 'b' is left out"):
        found = model(broken, stream=IDS)
    for i in (0, 2):
        assert torch.allclose(found[i::3], expected[i::3], atol=1e-6)
    assert found[1::3].isnan().all()


def test_the_network_s_own_answer_is_kept():
    model = wrap(Net(lambda x: Found(x, x[:, :2])), "lame", output="scores")
    x = torch.randn(24, 3, 8, 8)
    found = model(x)
    assert torch.equal(model.prediction.probs, found)
    own = wrap(Net(), "source")(x)
    assert torch.allclose(model.prediction.source, own, atol=1e-6)
    assert model.prediction.returned.hidden.shape == (24, 2)
    assert model.prediction.returned.scores.shape == (24, 4)
    json.dumps(dict(model.prediction.info))


def _through_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize(
    "stored", [_through_torch, lambda x: safetensors.torch.load(safetensors.torch.save(x))]
)
@pytest.mark.parametrize("method", ["prudent", "average+lame", "lame", "source"])
def test_the_state_dict_holds_the_memory(method, stored):
    model, other = wrap(digits_net(), method), wrap(digits_net(), method)
    model(INPUTS)
    model(INPUTS, stream=IDS)
    other.load_state_dict(stored(model.state_dict()))
    assert torch.allclose(other(INPUTS), model(INPUTS), atol=1e-6)
    assert torch.equal(other(INPUTS, stream=IDS), model(INPUTS, stream=IDS))
    twin = copy.deepcopy(model)
    assert torch.allclose(twin(INPUTS), model(INPUTS), atol=1e-6)


def test_the_memory_of_another_method_is_refused():
    model = wrap(digits_net(), "prudent")
    model(INPUTS)
    for method in ("average", "lame", "source"):
        with pytest.raises(LamettaError, match="state must"):
            wrap(digits_net(), method).load_state_dict(model.state_dict())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler, whatever it says
@pytest.mark.parametrize("method", ["prudent", "lame", "tent"])
def test_the_network_is_compiled_and_the_corrector_is_not(method):
    calls = []

    def backend(graph, _):
        calls.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    torch._dynamo.reset()
    model = torch.compile(wrap(digits_net(), method), backend=backend)
    alone = wrap(digits_net(), method)
    for _ in range(3):
        assert torch.allclose(model(INPUTS), alone(INPUTS), atol=1e-6)
    assert any("conv2d" in call for call in calls) == (method != "tent")
    assert not [call for call in calls if "softmax" in call or "entr" in call or "topk" in call]


def _sigmoid(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Sigmoid()).eval()


def test_heads_that_choose_no_class_are_refused():
    with pytest.raises(LamettaError, match="choose one class of several.* ends in a sigmoid"):
        wrap(_sigmoid(4))(INPUTS)
    with pytest.raises(LamettaError, match="must return a logit, got a prob.*probabilities=True"):
        wrap(_sigmoid(1))(INPUTS)
    assert wrap(_sigmoid(1), probabilities=True)(INPUTS).shape == (12, 2)
    for config, message in (
        ({"problem_type": "multi_label_classification", "num_labels": 4}, "yes or no to each"),
        ({"problem_type": "regression", "num_labels": 4}, "for regression"),
        ({"problem_type": None, "num_labels": 1}, "for regression"),
    ):
        net = digits_net()
        net.config = SimpleNamespace(**config)
        with pytest.raises(LamettaError, match=f"net must choose one class of several.*{message}"):
            wrap(net)


def test_a_network_without_weights_is_refused():
    with pytest.raises(LamettaError, match="net must have weights, got .* on the meta device"):
        wrap(digits_net().to("meta"))
