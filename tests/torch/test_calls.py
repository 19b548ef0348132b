"""Networks as people have them: threads, several inputs and outputs, odd heads, other wrappers."""

import copy
import gc
import pickle
import weakref
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import nn

import lametta
from lametta import LamettaError, Model, Prediction
from lametta.torch import Classifier, tent, wrap
from lametta.torch.network import check_finite

INPUTS = torch.randn(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Pair = namedtuple("Pair", "scores extra")


@dataclass
class Found:
    scores: torch.Tensor
    hidden: torch.Tensor


class Net(nn.Module):
    """A small classifier whose output is given a shape by ``form``."""

    def __init__(self, form=None, classes=4):
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU())
        self.fc, self.form = nn.Linear(6, classes), form
        self.eval()

    def forward(self, x, scale=None):
        logits = self.fc(self.body(x).mean((2, 3)))
        logits = logits if scale is None else logits * scale
        return logits if self.form is None else self.form(logits)


def batches(n):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(6, 3, 8, 8, generator=generator) for _ in range(n)]


@dataclass
class Probe:
    """An adapter that costs little and gives other probabilities for other features."""

    model: Model

    def step(self, x):
        output = self.model(x)
        return Prediction((output.logits + output.features).softmax(1), output.features)

    def reset(self):
        """Do nothing: there is no state."""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "calls"), [(f"python:{__name__}:Probe", 10_000), ("lame", 500)])
def test_threads_do_not_see_each_other(method, calls):
    """8 threads, half of them on one wrap, half on four of the same network: bits as alone."""
    net, given = nn.Sequential(), [x.flatten(1) for x in batches(50)]
    net.body, net.fc = nn.Linear(192, 4), nn.Linear(4, 4)
    models = [wrap(net.eval(), method) for _ in range(5)]
    alone = [models[0](x) for x in given]

    def run(thread):
        model = models[max(thread - 3, 0)]
        return [
            i
            for i in range(thread, calls, 8)
            if not torch.equal(model(given[i % len(given)]), alone[i % len(given)])
        ]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(run, range(8))) == [[]] * 8
    assert len(net.fc._forward_pre_hooks) == 1
    models.clear()
    gc.collect()
    assert not net.fc._forward_pre_hooks


@pytest.mark.slow
def test_updates_of_several_threads_take_turns():
    net, given = Net(), batches(40)
    model = wrap(net, "tent", lr=0.0, bn_momentum=0.0)
    alone = [model(x) for x in given]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(model, given))
    for one, other in zip(found, alone, strict=True):
        assert torch.equal(one, other)


def test_a_call_inside_a_call_keeps_its_own_features():
    net = Net()
    model, inner = Classifier(net), []

    def interrupt(*_):
        if not inner:
            inner.append(None)
            inner[0] = model(INPUTS[:5])

    expected, small = model(INPUTS), model(INPUTS[:5])
    handle = net.body.register_forward_hook(interrupt)
    found = model(INPUTS)
    handle.remove()
    assert torch.equal(found.features, expected.features)
    assert torch.equal(inner[0].features, small.features)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_dropped_wraps_leave_nothing_on_the_network():
    net = Net()
    for _ in range(100):
        wrap(net, "lame")(INPUTS)
    gc.collect()
    assert not any(module._forward_pre_hooks for module in net.modules())
    torch.jit.script(net.fc)
    model = wrap(net, "lame")
    expected = model(INPUTS)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        wrap(copy.deepcopy(net), "lame"),
    ):
        assert torch.equal(twin(INPUTS), expected)
        assert len(twin.net.fc._forward_pre_hooks) == 1
    watched = weakref.ref(model)
    del model
    gc.collect()
    assert watched() is None
    assert not net.fc._forward_pre_hooks
    assert not net.fc._forward_pre_hooks_with_kwargs


FORMS = {
    "tensor": (lambda x: x, None),
    "dict": (lambda x: {"logits": x, "hidden": x[:, :2]}, None),
    "dict of one": (lambda x: {"scores": x, "loss": x.sum()}, None),
    "tuple": (lambda x: (x.sum(), x), None),
    "place": (lambda x: (x[:, :2], x), 1),
    "named tuple": (lambda x: Pair(x, x[:, :2]), "scores"),
    "dataclass": (lambda x: Found(x, x[:, :2]), "scores"),
    "function": (lambda x: {"a": [x, x]}, lambda out: out["a"][0]),
}


@pytest.mark.parametrize(("form", "output"), FORMS.values(), ids=FORMS)
def test_outputs_of_every_form(form, output):
    expected = wrap(Net())(INPUTS)
    assert torch.equal(wrap(Net(form), output=output)(INPUTS), expected)


def test_several_heads_have_to_be_told_apart():
    net = Net(lambda x: {"first": x, "second": x[:, :2]})
    with pytest.raises(LamettaError, match=r"output must say which .*: first \(24, 4\), second"):
        wrap(net)(INPUTS)
    assert wrap(net, output="second")(INPUTS).shape == (24, 2)
    with pytest.raises(LamettaError, match="output must be one of first, second, got 'third'"):
        wrap(net, output="third")(INPUTS)


def test_arguments_are_passed_on():
    model = wrap(Net(), "source")
    expected = model(INPUTS)
    assert torch.equal(model(x=INPUTS), expected)
    assert not torch.equal(model(INPUTS, scale=2.0), expected)
    assert torch.equal(model(INPUTS, 1.0), expected)
    adapted = wrap(Net(), "tent+lame")
    assert adapted(x=INPUTS, scale=1.0).shape == (24, 4)
    with torch.inference_mode():
        assert adapted(x=INPUTS.clone()).shape == (24, 4)
    with pytest.raises(LamettaError, match="x must hold a tensor"):
        model(scale=1.0)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_wrappers_are_looked_through():
    expected = wrap(Net())(INPUTS)
    parallel = nn.DataParallel(Net())
    place = next(parallel.parameters()).device  # a GPU where there is one
    alone = wrap(Net().to(place))(INPUTS.to(place))
    assert torch.equal(wrap(parallel)(INPUTS.to(place)), alone)
    assert torch.equal(wrap(torch.compile(Net(), backend="eager"))(INPUTS), expected)
    compiled = Net()
    compiled.compile(backend="eager")
    assert torch.equal(wrap(compiled)(INPUTS), expected)
    traced = torch.fx.symbolic_trace(Net(), {"scale": None})  # which calls its layers
    assert torch.equal(wrap(traced)(INPUTS), expected)
    exported = torch.export.export(Net(), (INPUTS,))
    for closed in (torch.jit.trace(Net(), INPUTS), exported, exported.module()):
        with pytest.raises(LamettaError, match="scripted, traced or exported one, whose layers"):
            wrap(closed)
    with pytest.raises(LamettaError, match="wrapped already: take its .net"):
        wrap(wrap(Net()))
    with pytest.raises(LamettaError, match="net must be a torch.nn.Module, got function"):
        wrap(lambda x: x)


def test_the_only_candidate_is_the_head():
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 5)).eval()
    assert Classifier(net).head is net[1]


def test_a_head_of_convolutions_has_pooled_features():
    """Like SqueezeNet's: 1 x 1 convolution, then the mean over places."""
    net = nn.Sequential()
    net.body = nn.Conv2d(3, 16, 3)
    net.classifier = nn.Sequential(nn.Conv2d(16, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    output = Classifier(net.eval())(INPUTS)
    assert torch.allclose(output.features, net.body(INPUTS).mean((2, 3)).detach(), atol=1e-6)
    assert output.logits.shape == (24, 5)


@pytest.mark.parametrize("squeezed", [False, True])
def test_one_logit_is_two_classes(squeezed):
    net = Net((lambda x: x[:, 0]) if squeezed else (lambda x: x), classes=1)
    expected = net(INPUTS).reshape(-1).sigmoid().detach()
    probs = wrap(net, "source")(INPUTS)
    assert torch.allclose(probs, torch.stack([1 - expected, expected], 1), atol=1e-6)
    chances = Net(lambda x: x.sigmoid(), classes=1)
    assert torch.allclose(wrap(chances, "source", probabilities=True)(INPUTS), probs, atol=1e-6)


def test_a_softmax_is_not_taken_twice():
    net = Net(lambda x: x.softmax(1))
    with pytest.raises(LamettaError, match="rows that sum to 1.*say probabilities=True"):
        wrap(net)(INPUTS)
    found = wrap(net, "source", probabilities=True)(INPUTS)
    assert torch.allclose(found, Net()(INPUTS).softmax(1), atol=1e-6)
    assert wrap(Net(lambda x: x.log_softmax(1)))(INPUTS).shape == (24, 4)  # which are logits


def test_probabilities_have_to_be_such():
    with pytest.raises(LamettaError, match="as probabilities=True says, got others: leave"):
        wrap(Net(), probabilities=True)(INPUTS)


@pytest.mark.parametrize("method", ["tent", "shot_im", "pseudo_label"])
def test_probabilities_of_exactly_0_poison_nothing(method):
    """Their logarithm has no gradient."""
    model = wrap(Net(lambda x: (1e4 * x).softmax(1)), method, probabilities=True)
    for _ in range(3):
        assert torch.isfinite(model(INPUTS)).all()
    assert all(value.isfinite().all() for value in model.state_dict().values())


@pytest.mark.parametrize("method", ["tent", "shot_im", "pseudo_label", "adabn"])
def test_nan_is_refused_before_anything_changes(method):
    model = wrap(Net(), method)
    model(INPUTS)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for poison in (np.nan, np.inf):
        broken = INPUTS.clone()
        broken[7, 1, 2, 3] = poison
        with pytest.raises(LamettaError, match="x must be finite, got NaN or inf.* in sample 7"):
            model(broken)
        for name, value in model.state_dict().items():
            assert torch.equal(value, before[name])
    assert torch.isfinite(model(INPUTS)).all()


def test_numbers_whose_sum_is_too_large_are_finite():
    x = torch.full((3, 2), 3e38)
    check_finite(x)
    x[1, 0] = -np.inf
    with pytest.raises(LamettaError, match="in sample 1"):
        check_finite(x)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Dynamo detected")
def test_tol_0_compiles_exports_and_maps():
    """What runs a fixed number of updates has no control flow that depends on data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 12, 5, generator=generator)
    q = torch.randn(3, 12, 4, generator=generator).softmax(2)

    def fixed(x, q):
        return lametta.lame(x, q, tol=0, max_iter=3).probs

    expected = torch.stack([fixed(*pair) for pair in zip(x, q, strict=True)])
    compiled = torch.compile(fixed, fullgraph=True, backend="eager")
    assert torch.allclose(compiled(x[0], q[0]), expected[0], atol=1e-6)

    class Fixed(nn.Module):
        def forward(self, x, q):
            return fixed(x, q)

    batch = torch.export.Dim("batch", min=8, max=2048)
    exported = torch.export.export(
        Fixed(), (x[0], q[0]), dynamic_shapes={"x": {0: batch}, "q": {0: batch}}
    )
    assert torch.allclose(exported.module()(x[1], q[1]), expected[1], atol=1e-6)
    longer = torch.cat([x[0], x[1]]), torch.cat([q[0], q[1]])
    assert torch.allclose(exported.module()(*longer), fixed(*longer), atol=1e-6)
    assert torch.allclose(torch.vmap(fixed)(x, q), expected, atol=1e-6)


def test_gradients_are_finite_at_probabilities_of_0():
    q = torch.eye(4)[torch.arange(8) % 4].requires_grad_()
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).requires_grad_()
    lametta.lame(x, q, affinity=lametta.rbf(2), tol=0, max_iter=5).probs.pow(2).sum().backward()
    assert torch.isfinite(q.grad).all()
    assert torch.isfinite(x.grad).all()


def test_tent_says_what_it_needs():
    with pytest.raises(LamettaError, match="model must be a lametta.torch.Classifier, got Net"):
        tent(Net()).step(INPUTS)


@pytest.mark.slow
def test_the_network_inside_distributed_data_parallel_is_taken(tmp_path):
    store = f"file://{tmp_path / 'store'}"
    torch.distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    try:
        net = Net()
        assert torch.equal(
            wrap(nn.parallel.DistributedDataParallel(net))(INPUTS), wrap(net)(INPUTS)
        )
    finally:
        torch.distributed.destroy_process_group()
