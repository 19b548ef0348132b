"""Classifier and wrap, on small networks of the shapes that are out there."""

import gc
import weakref
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import lametta
from lametta import LAME, ClassMap, Corrected, LamettaError, Source
from lametta.testing import check_adapter
from lametta.torch import Classifier, wrap

INPUTS = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def body(width=6):
    return nn.Sequential(nn.Conv2d(3, width, 3, stride=2), nn.BatchNorm2d(width), nn.ReLU())


class Resnet(nn.Module):
    """Like torchvision's: pooled, flattened, `fc`."""

    def __init__(self, name="fc", head=None):
        super().__init__()
        self.body, self.name = body(), name
        setattr(self, name, head or nn.Linear(6, 4))

    def forward(self, x):
        return getattr(self, self.name)(self.body(x).mean((2, 3)))


class Unpooled(Resnet):
    """Like Hugging Face's ResNet: the head flattens, the output has `logits`."""

    def __init__(self):
        super().__init__("classifier", nn.Sequential(nn.Flatten(), nn.Linear(6, 4)))

    def forward(self, x):
        features = self.body(x).mean((2, 3), keepdim=True)
        return SimpleNamespace(logits=self.classifier(features))


class Timm(nn.Module):
    """Like timm's: the head is inside another module, `get_classifier` knows where."""

    def __init__(self):
        super().__init__()
        self.body = body()
        self.head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4))

    def get_classifier(self):
        return self.head[2]

    def forward(self, x):
        return self.head(self.body(x))


NETS = {
    **{name: (lambda name=name: Resnet(name)) for name in ("fc", "classifier", "head", "_fc")},
    "heads": lambda: Resnet("heads", nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 4))),
    "linear": lambda: Resnet("linear"),
    "unpooled": Unpooled,
    "timm": Timm,
}


@pytest.fixture(params=NETS.values(), ids=NETS)
def net(request):
    torch.manual_seed(0)
    return request.param().eval()


def state(net):
    return {name: value.clone() for name, value in net.state_dict().items()}


def test_features_and_logits_in_one_pass(net):
    passes = []
    handle = net.body.register_forward_hook(lambda *_: passes.append(1))
    with Classifier(net) as model:
        output = model(INPUTS)
    assert len(passes) == 1
    handle.remove()
    with torch.no_grad():
        expected = net(INPUTS)
        features = net.body(INPUTS).mean((2, 3))
    assert torch.equal(output.logits, getattr(expected, "logits", expected))
    assert output.features.shape == (24, 6)
    assert torch.allclose(output.features, features, atol=1e-6)
    assert not output.logits.requires_grad


def test_the_network_is_left_as_it_was(net):
    before, modules = state(net), [len(m._forward_pre_hooks) for m in net.modules()]
    model = Classifier(net)
    Corrected(model, LAME()).step(INPUTS)
    model.close()
    assert [len(m._forward_pre_hooks) for m in net.modules()] == modules
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())


@pytest.mark.slow
def test_adapters_keep_the_contract(net):
    model = Classifier(net)
    for adapter in (Source(model), Corrected(model, LAME())):
        check_adapter(adapter, INPUTS)


@pytest.mark.parametrize("head", ["head", "module"])
def test_explicit_head(head):
    net = Timm().eval()
    chosen = "head.2" if head == "head" else net.head[2]
    assert Classifier(net, chosen).head is net.head[2]
    assert Classifier(net, "head")(INPUTS).features.shape == (24, 6)


def test_class_map_pools_the_logits():
    net, classes = Resnet().eval(), ClassMap([[0, 1], [2]], n_source=4)
    output = Classifier(net, classes=classes)(INPUTS)
    assert torch.allclose(output.logits, classes(net(INPUTS).detach()))


def test_forward_records_gradients():
    net = Resnet().eval()
    Classifier(net).forward(INPUTS).logits.sum().backward()
    assert net.fc.weight.grad is not None


def test_features_are_not_kept_in_memory():
    net = Resnet().eval()
    model, other = Classifier(net), Classifier(net)
    for _ in range(3):
        model(INPUTS)
        net(INPUTS)
    features = weakref.ref(model(INPUTS).features)
    gc.collect()
    assert features() is None
    assert torch.equal(model(INPUTS).features, other(INPUTS).features)


class TwiceCalled(Resnet):
    def forward(self, x):
        return super().forward(x) + super().forward(x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Classifier(body().eval()), "head must be given for Sequential, .* be it: none"),
        (
            lambda: Classifier(
                Resnet("top", nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))).eval()
            ),
            r"head must be given for Resnet, .* be it: top.0 \(Linear to 5\), top.1",
        ),
        (lambda: Classifier(Resnet().eval(), "top"), "head must name a module of net, got 'top'"),
        (
            lambda: Classifier(Resnet().eval(), nn.Linear(6, 4)),
            "must be a module of net, got Linear",
        ),
        (lambda: Classifier(Resnet().eval(), 3), "head must be a module or its name, got int"),
        (lambda: Classifier(Resnet(head=nn.Identity()).eval()), "head must be given"),
        (lambda: Classifier(Resnet())(INPUTS), r"eval mode, got training mode: call net.eval\(\)"),
        (lambda: Classifier(TwiceCalled().eval())(INPUTS), "must be called once .* got 2 calls"),
        (
            lambda: Classifier(Resnet(head=nn.Flatten(0)).eval())(INPUTS),
            r"net must return logits \[N, K\], or say which with output=, got \(144,\)",
        ),
    ],
)
def test_bad_networks_are_named(make, message):
    with pytest.raises(LamettaError, match=message):
        make()


# wrap


def test_wrap_is_source_and_corrector(net):
    expected = Corrected(Classifier(net), LAME(lametta.knn(3), weight=0.5)).step(INPUTS)
    model = wrap(net, method="lame", affinity=lametta.knn(3), weight=0.5)
    assert torch.equal(model(INPUTS), expected.probs)
    assert model.prediction.info["n_iter"] == expected.info["n_iter"]
    logits = Classifier(net)(INPUTS).logits
    assert torch.allclose(wrap(net, "source")(INPUTS), logits.softmax(1))
    model.reset()
    assert model.prediction is None
    model.close()
    assert not model.model.head._forward_pre_hooks


def test_wrapped_is_an_ordinary_module(net):
    model = wrap(net, "lame")
    assert state(model).keys() == {"_extra_state", *(f"net.{name}" for name in state(net))}
    assert model.train().training
    assert not net.training
    model.eval().to(torch.float64)
    assert model(INPUTS.double()).dtype == torch.float64
    model.load_state_dict(model.state_dict())


def test_wrapped_in_every_mode(net):
    model, expected = wrap(net, "lame"), wrap(net, "lame")(INPUTS)
    with torch.inference_mode():
        assert torch.allclose(model(INPUTS), expected, atol=1e-6)
    assert torch.allclose(model(INPUTS.to(memory_format=torch.channels_last)), expected, atol=1e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        probs = model(INPUTS)
    assert torch.allclose(probs.float(), expected, atol=0.1)


def test_lazy_attribute():
    assert lametta.torch.wrap is wrap
    with pytest.raises(AttributeError, match="no attribute 'tensorflow'"):
        lametta.tensorflow  # noqa: B018


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: wrap(Resnet()), r"net must be in eval mode, .* call net.eval\(\)"),
        (lambda: wrap(lambda x: x), "net must be a torch.nn.Module, got function"),
        (lambda: wrap(Resnet().eval(), "best"), "method must be one of .* got 'best'"),
        (lambda: wrap(Resnet().eval(), head=3), "head must be a module or its name, got int"),
        (
            lambda: wrap(Resnet().eval(), "lame", wieght=3),
            "no option of lame, .*; did you mean 'weight'?",
        ),
        (lambda: wrap(Resnet().eval(), "source", tol=1), "tol is no option of source, .* none"),
        (
            lambda: wrap(Resnet().eval(), "lame", affinity="knn", k=0),
            "k must be an integer >= 1, got 0",
        ),
        (
            lambda: wrap(Resnet().eval(), "lame", affinity="cos"),
            "affinity must be one of 'knn', 'scenes', 'rbf', 'l",
        ),
        (lambda: wrap(Resnet().eval(), "lame", weight="a"), "weight must be a number, got 'a'"),
        (lambda: wrap(Resnet().eval(), "lame+tent"), r"method must have correctors after \+, got"),
    ],
)
def test_bad_arguments_of_wrap_are_named(make, message):
    with pytest.raises(LamettaError, match=message):
        make()
