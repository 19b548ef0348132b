"""The seam for network methods, by those of the registry and the one of CONTRIBUTING.md."""

import gc
import re
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import nn

from lametta import LAME, Corrected, LamettaDeprecationWarning, LamettaError, methods
from lametta.torch import (
    TENT,
    AdaBN,
    Classifier,
    GradientMethod,
    LossMethod,
    NetworkMethod,
    Outputs,
    Preprocess,
    losses,
    own,
    select,
    wrap,
)
from lametta.torch.memory import Item, Memory
from lametta.torch.norm import Norm, moments, replace
from lametta.torch.stored import Stored
from tests import processes
from tests.torch.golden import PLAIN, Net, Vectors, golden, replay

ROOT = Path(__file__).parents[2]
INPUTS = torch.rand(24, 3, 8, 8, generator=torch.Generator().manual_seed(0))
SHIPPED = [
    name
    for name in methods.names()
    if issubclass(methods.find(name).components[0].factory, NetworkMethod)
]
# Filters that let every sample through.
LEARNS = {"margin": 1.0, "redundancy": 1.0, "min_drop": -1.0, "threshold": 0.0}
LEARNS |= {"update_every": 24, "capacity": 240}  # of a memory with room for each class


def shipped(name, model, **options):
    """A method of the registry that learns from every sample, with those options that it has."""
    known = methods.find(name).parameters()
    options = {key: value for key, value in (LEARNS | options).items() if key in known}
    return methods.find(name).build(model, options)


@dataclass(kw_only=True)
class RobustBN(NetworkMethod):
    """Statistics that move slowly, and normalize."""

    bn_momentum: float = 0.05

    def prepare(self, net):
        replace(net, Robust.of)

    def adapt(self, batch, net):
        return net(batch)


class Robust(Norm):
    def statistics(self, x):
        return self.move(*moments(x)) if self.training else super().statistics(x)


def classifier():
    return Classifier(Net(), preprocess=PLAIN)


def structure(net):
    """Everything of a network that `reset` has to give back, but for values."""
    return [
        (
            name, id(module), type(module), module.training, getattr(module, "momentum", None),
            [(n, id(p), p.requires_grad, p.grad) for n, p in module.named_parameters()],
            [(n, id(b)) for n, b in module.named_buffers()],
        )
        for name, module in net.named_modules()
    ]  # fmt: skip


@golden
def test_published_numbers_of_the_method_of_contributing(dtype, device):
    """Generalized cross-entropy to the network's own classes, as the benchmark has it."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (body,) = re.findall(r"\+\+\+ b/src/lametta/torch/methods/rpl\.py\n@@.*\n((?:\+.*\n)+)", text)
    module = types.ModuleType("rpl")
    exec(re.sub(r"^\+", "", body, flags=re.MULTILINE), vars(module))
    vectors = Vectors("rpl_bench", dtype, device)
    replay(module.RPL(vectors.classifier(), lr=1e-3), vectors)


def test_robust_statistics_by_their_definition():
    net, expected = Net(), Net()
    method = RobustBN(Classifier(net), bn_momentum=0.25)
    found = method.step(INPUTS).probs
    x = INPUTS
    with torch.no_grad():
        for block in (expected.layer1, expected.layer2, expected.layer3):
            x, norm = block.conv(x), block.bn
            mean = 0.75 * norm.running_mean + 0.25 * x.mean((0, 2, 3))
            var = 0.75 * norm.running_var + 0.25 * x.var((0, 2, 3), correction=0)
            x = nn.functional.batch_norm(x, mean, var, norm.weight, norm.bias).relu()
        probs = expected.fc(x.mean((2, 3))).softmax(1)
    torch.testing.assert_close(found, probs, atol=1e-6, rtol=0)
    torch.testing.assert_close(net.layer3.bn.running_mean, mean)


# The life of a method


@pytest.mark.parametrize("name", SHIPPED)
def test_reset_gives_back_structure_and_values(name):
    model = classifier()
    before = structure(model.net), {k: v.clone() for k, v in model.net.state_dict().items()}
    method = shipped(name, model, views=2)
    first = [method.step(INPUTS[i : i + 8]).probs for i in (0, 8, 16)]
    after = model.net.state_dict()
    changed = any(not torch.equal(v, after[k]) for k, v in before[1].items())
    assert changed == (methods.find(name).stateful and not isinstance(method, Stored))
    method.reset()
    assert structure(model.net) == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in model.net.state_dict().items())
    again = [method.step(INPUTS[i : i + 8]).probs for i in (0, 8, 16)]
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_callers_mode_changes_nothing(name, mode):
    options = {"views": 2, "copies": 4, "update_every": 8}
    method = shipped(name, classifier(), **options)
    with mode():
        x = INPUTS.clone()
        found = [method.step(x[i : i + 8]).probs.clone() for i in (0, 8, 16)]
    method = shipped(name, classifier(), **options)
    for i, probs in zip((0, 8, 16), found, strict=True):
        assert torch.equal(method.step(INPUTS[i : i + 8]).probs, probs)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHIPPED)
def test_steps_leave_nothing_behind(name):
    method = shipped(name, classifier(), views=2, copies=4, update_every=8, capacity=8)

    def left_by(steps):
        """Count the tensors that so many steps leave, with no collector for cycles."""
        gc.collect(0)
        for _ in range(steps):
            method.step(INPUTS[:8])
        return sum(type(thing) is torch.Tensor for thing in gc.get_objects(generation=0))

    gc.disable()
    try:
        left_by(5)
        before = left_by(5)
        assert left_by(40) <= before + 8  # new ones in a memory
    finally:
        gc.enable()


@pytest.mark.parametrize("name", SHIPPED)
def test_passes_are_those_that_the_method_says(name):
    """The table of docs/methods.md shows them: default options, every sample let through."""
    info = shipped(name, classifier()).step(INPUTS).info
    counted = info["forward_samples"] / len(INPUTS), info["backward_samples"] / len(INPUTS)
    expected = methods.find(name).passes
    assert counted == pytest.approx(expected, abs=0.05)  # ROID sees about half of a batch twice


@pytest.mark.parametrize(
    ("method", "options", "forwards", "backwards"),
    [
        (TENT, {}, 2, 1),
        (TENT, {"predict_first": True}, 1, 1),
        (TENT, {"steps": 3}, 4, 3),
        (AdaBN, {}, 2, 0),
    ],
)
def test_passes_of_the_papers_methods(method, options, forwards, backwards):
    info = method(classifier(), **options).step(INPUTS).info
    assert (info["forwards"], info["backwards"]) == (forwards, backwards)


def test_traits_follow_the_options():
    first = TENT(classifier(), predict_first=True, steps=3)
    assert (first.answers, first.passes) == ("before", (3, 3))
    assert (TENT(classifier()).answers, TENT(classifier()).passes) == ("after", (2, 1))


def test_a_loss_of_features_counts_one_backward_pass():
    class Both(LossMethod):
        def loss(self, outputs):
            return outputs.entropy.mean() + outputs.features.pow(2).mean()

    assert Both(classifier()).step(INPUTS).info["backwards"] == 1


def test_an_error_at_the_start_leaves_the_network_alone():
    class Broken(RobustBN):
        def start(self, net):
            net(INPUTS)
            raise RuntimeError("no source")

    model = classifier()
    before = structure(model.net), {k: v.clone() for k, v in model.net.state_dict().items()}
    with pytest.raises(RuntimeError, match="no source"):
        Broken(model).step(INPUTS)
    assert structure(model.net) == before[0]
    assert all(torch.equal(v, before[1][k]) for k, v in model.net.state_dict().items())


def test_methods_of_one_network_go_in_the_reverse_order():
    model = classifier()
    values = [v.clone() for v in model.net.state_dict().values()]
    one, other = TENT(model, lr=0.1), AdaBN(model)
    one.step(INPUTS)
    other.step(INPUTS)
    with pytest.raises(LamettaError, match="reverse order of their first steps, got TENT before"):
        one.reset()
    other.reset()
    one.reset()
    now = model.net.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(now, values, strict=True))


# What a method is given


@dataclass(kw_only=True)
class Tool(GradientMethod):
    """A method whose algorithm is given with it."""

    work: object
    seen: list = own(factory=list)

    def adapt(self, batch, net):
        return self.work(self, batch, net)


def tool(work, **options):
    return Tool(classifier(), work=work, **options)


def test_a_batch_can_be_cut_and_put_together():
    def work(_, batch, net):
        with torch.no_grad():
            whole = net(batch, train=False)
            mask = torch.arange(len(batch)) % 2 == 0
            parts = Outputs.cat([net(batch[part], train=False) for part in (mask, ~mask)])
        torch.testing.assert_close(parts.logits[: mask.sum()], whole.logits[mask])
        return whole

    assert tool(work).step(INPUTS).info["forward_samples"] == 48


def test_what_is_first_read_without_gradients_has_them_later():
    def work(_, batch, net):
        out = batch.outputs
        with torch.no_grad():
            assert out.probs.amax() <= 1
            assert out.entropy.mean() >= 0
        net.step(out.entropy.mean())

    info = tool(work, lr=0.1).step(INPUTS).info
    assert (info["forwards"], info["backwards"]) == (2, 1)
    assert info["drift"] > 0


def test_moved_parameters_return_to_their_bits():
    def work(_, batch, net):
        before = {name: p.detach().clone() for name, p in net.parameters.items()}
        at_home = net(batch).logits.detach()
        with net.moved([torch.full_like(p, 0.3) for p in net.parameters.values()]):
            assert not torch.equal(net(batch).logits, at_home)
        assert all(torch.equal(p, before[name]) for name, p in net.parameters.items())

    tool(work, bn_momentum=0.0).step(INPUTS)


def test_a_snapshot_in_mid_stream():
    def work(self, batch, net):
        teacher = net.teacher()
        if len(self.seen) == 1:
            self.snapshot = net.snapshot()
        if len(self.seen) == 3:
            net.restore(self.snapshot)
        loss = net(batch).entropy.mean()
        net.step(loss)
        teacher.follow(0.5)
        self.seen.append((float(loss.detach()), float(teacher(batch).entropy.mean())))

    method = tool(work, lr=0.05)
    for _ in range(5):
        method.step(INPUTS)
    assert method.seen[3:] == method.seen[1:3]
    assert method.seen[0] != method.seen[1]


def test_a_teacher_made_late_is_the_sources():
    def work(self, batch, net):
        self.seen.append(net(batch, train=False).logits.detach())
        if len(self.seen) == 3:
            torch.testing.assert_close(net.teacher()(batch, train=False).logits, self.seen[0])
            net.teacher().follow(0.0)
            torch.testing.assert_close(
                net.teacher().parameters["layer1.bn.weight"], net.parameters["layer1.bn.weight"]
            )
            frozen = net.teacher().model.net.fc.weight
            assert frozen is net.model.net.fc.weight  # shared: a copy costs what adapts
        net.step(net(batch).entropy.mean())

    method = tool(work, lr=0.1)
    for _ in range(3):
        method.step(INPUTS)
    assert len(method.seen) == 3
    method.reset()
    assert method.seen == []


def test_blending_by_numbers_and_masks():
    def work(_, batch, net):
        net.step(net(batch).entropy.mean())
        moved = {name: p.detach().clone() for name, p in net.parameters.items()}
        net.blend(net.source, 0.25)
        for name, p in net.parameters.items():
            torch.testing.assert_close(p, 0.75 * moved[name] + 0.25 * net.source[name])
        net.blend(net.source, {n: torch.ones_like(p).bool() for n, p in net.parameters.items()})
        assert all(torch.equal(p, net.source[name]) for name, p in net.parameters.items())

    tool(work, lr=0.1).step(INPUTS)


def test_a_step_that_is_not_taken_moves_nothing():
    def work(_, batch, net):
        for when in (False, torch.tensor(False)):
            net.step(net(batch).entropy.mean(), when=when)

    info = tool(work, optimizer="sgd", lr=0.1).step(INPUTS).info
    assert info["drift"] == 0
    assert info["backwards"] == 2


def test_augmentations_act_on_pixels():
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    prepare = Preprocess(resize=None, crop=None, mean=mean, std=std, scale=255, bgr=True)
    pixels = INPUTS[:4]
    x = prepare.standardize((pixels * 255).round().to(torch.uint8).movedim(1, -1))

    def work(self, batch, net):
        torch.testing.assert_close(batch.pixels, (pixels * 255).round() / 255, atol=1e-5, rtol=0)
        same = batch.augment(lambda pixels, generator: pixels)
        torch.testing.assert_close(same.inputs, batch.inputs, atol=1e-4, rtol=0)
        draw = batch.augment(lambda x, g: x + torch.rand((), generator=g)).inputs
        self.seen.append(draw)

    method = Tool(Classifier(Net(), preprocess=prepare), work=work)
    state = torch.random.get_rng_state()
    method.step(x)
    method.step(x)
    first = list(method.seen)
    assert not torch.equal(*first)
    method.reset()
    method.step(x)
    assert torch.equal(method.seen[0], first[0])
    assert torch.equal(torch.random.get_rng_state(), state)


def test_augmentations_need_a_preprocess():
    method = Tool(Classifier(Net()), work=lambda self, batch, net: batch.augment(None))
    with pytest.raises(LamettaError, match="preprocess must be known to augment images"):
        method.step(INPUTS)


def test_info_of_a_method_joins_the_prediction():
    def work(_, batch, net):
        batch.info["kept"] = (batch.outputs.entropy < 1).sum()
        return batch.outputs

    assert "kept" in tool(work).step(INPUTS).info


def test_a_memory_is_bounded_and_chooses_who_leaves():
    class Fair(Memory):
        """Drops of the largest class."""

        def victim(self, item):
            largest = max(self.counts, key=self.counts.get)
            return next(i for i, one in enumerate(self.items) if one.label == largest)

    fair, last = Fair(3), Memory(3)
    for number, label in enumerate([0, 0, 0, 1, 2, 0]):
        for memory in (fair, last):
            memory.add(Item(torch.tensor([float(number)]), label))
    assert fair.inputs.flatten().tolist() == [3, 4, 5]
    assert last.counts == {1: 1, 2: 1, 0: 1}
    with pytest.raises(LamettaError, match="capacity must be an integer >= 1, got 0"):
        Memory(0)


def test_losses_are_one_value_a_sample():
    log_probs = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).log_softmax(1)
    p = log_probs.exp()
    torch.testing.assert_close(losses.entropy(log_probs), -(p * p.log()).sum(1))
    torch.testing.assert_close(losses.cross_entropy(log_probs, log_probs), -(p * p.log()).sum(1))
    torch.testing.assert_close(losses.pseudo_label(log_probs), -p.amax(1).log())
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    losses.mean(values, values.detach() > 9).backward()
    assert values.grad.tolist() == [0, 0]


def test_a_reset_waits_for_the_step_of_another_thread():
    """Or that step would go on learning on a network that was given back."""
    model, inside, let_go = classifier(), threading.Event(), threading.Event()
    before = {k: v.clone() for k, v in model.net.state_dict().items()}

    def work(_, batch, net):
        inside.set()
        assert let_go.wait(10)
        net.step(batch.outputs.entropy.mean())

    method = Tool(model, work=work, lr=0.1)
    with ThreadPoolExecutor(2) as pool:
        step = pool.submit(method.step, INPUTS)
        assert inside.wait(10)
        reset = pool.submit(method.reset)
        with pytest.raises(TimeoutError):
            reset.result(timeout=0.1)
        let_go.set()
        step.result()
        reset.result()
    assert all(torch.equal(v, before[k]) for k, v in model.net.state_dict().items())


CHANNELS_LAST = """
import torch
from lametta.torch import Classifier
from tests.torch.golden import PLAIN, Net
from tests.torch.test_seam import INPUTS, SHIPPED, shipped
for name in SHIPPED:
    for last in ("inputs", "weights"):
        net, x = Net("gn"), INPUTS
        if last == "inputs":
            x = INPUTS.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        else:
            net = net.to(memory_format=torch.channels_last)
        method = shipped(name, Classifier(net, preprocess=PLAIN), copies=2)
        try:
            method.step(x)
        except ValueError as error:
            assert "batch normalization" in str(error), error
            continue
        assert not len(net.layer1.gn._forward_pre_hooks)
        print(name, last, flush=True)
"""


@pytest.mark.slow(2)
def test_channels_last_inputs_and_weights_end_no_process():
    """PyTorch's backward pass through a group normalization crashes on them on a CPU."""
    found = processes.run("-c", CHANNELS_LAST, cwd=ROOT)
    assert found.returncode == 0, found.stderr
    learned = {*found.stdout.splitlines()}
    assert {
        f"{name} {last}" for name in ("tent", "sar", "rotta") for last in ("inputs", "weights")
    } <= learned


# Mistakes of a stranger


def test_a_norm_under_two_names_is_replaced_once():
    net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3))
    net.append(net[0])
    replace(net, Norm.of)
    assert type(net[0]) is Norm
    assert net[0] is net[2]


def test_norms_with_a_forward_of_their_own_are_refused():
    class Act(nn.BatchNorm2d):
        def forward(self, x):
            return super().forward(x).relu()

    net = Net()
    net.layer2.bn = Act(16)
    with pytest.raises(LamettaError, match="batch normalizations of PyTorch's own .* got Act"):
        RobustBN(Classifier(net.eval())).step(INPUTS)
    assert type(net.layer1.bn) is nn.BatchNorm2d


def test_state_has_to_be_declared_in_a_dataclass():
    class Forgot(LossMethod):
        seen: int = own(0)

    with pytest.raises(LamettaError, match="Forgot must be a dataclass, got seen in a plain class"):
        Forgot(classifier())
    with pytest.raises(LamettaError, match="Shadow must define start as a method, got a field"):

        class Shadow(LossMethod):
            start: int = own(0)


def test_what_a_method_must_define():
    with pytest.raises(LamettaError, match="LossMethod must define loss"):
        LossMethod(classifier()).step(INPUTS)
    with pytest.raises(LamettaError, match="NetworkMethod must define adapt"):
        NetworkMethod(classifier()).step(INPUTS)


def test_learning_without_an_optimizer():
    class Careless(NetworkMethod):
        def adapt(self, batch, net):
            net.apply([None] * len(net.parameters))

    with pytest.raises(LamettaError, match="make_optimizer must give an optimizer"):
        Careless(classifier()).step(INPUTS)


def test_the_former_base_still_works():
    from lametta.torch import GradientAdapter

    with pytest.warns(
        LamettaDeprecationWarning, match="derive Former from lametta.torch.LossMethod"
    ):

        class Former(GradientAdapter):
            def loss(self, log_probs):
                return -(log_probs.exp() * log_probs).sum(1).mean()

    expected = TENT(classifier(), lr=0.01).step(INPUTS).probs
    torch.testing.assert_close(Former(classifier(), lr=0.01).step(INPUTS).probs, expected)


def test_hybrids_of_any_method():
    for name in SHIPPED:
        prediction = Corrected(shipped(name, classifier(), views=2), LAME()).step(INPUTS)
        assert prediction.info["base_forwards"] >= 1
    options = {"layers": select.norm, "predict_first": True}
    assert wrap(Net(), "tent+lame", **options)(INPUTS).shape == (24, 10)
