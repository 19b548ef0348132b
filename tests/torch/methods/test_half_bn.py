"""HalfBN and PrudentBN, against the equations in NumPy, and what their state may be."""

import copy
import warnings
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from lametta import Corrected, LamettaError, Prudent, methods
from lametta.testing import check_adapter
from lametta.torch import Classifier, HalfBN, PrudentBN, wrap
from lametta.torch.moments import change, measuring, shift, summary
from lametta.torch.verdict import Pairs, information

RNG = np.random.default_rng(0)
MEANS = 3 * RNG.normal(size=(6, 12))  # of six classes


class Frozen(nn.Module):
    """A normalization with frozen statistics, as detectors have them."""

    def __init__(self, norm):
        super().__init__()
        for name in ("weight", "bias", "running_mean", "running_var"):
            self.register_buffer(name, getattr(norm, name).detach().clone())

    def forward(self, x):
        shape = (-1, *(1,) * (x.ndim - 2))
        mean, var = (b.reshape(shape) for b in (self.running_mean, self.running_var))
        x = (x - mean) / (var + 1e-5).sqrt()
        return x * self.weight.reshape(shape) + self.bias.reshape(shape)


def images(labels, rng, gain=1.0, offset=0.0, noise=1.0):
    """Maps [N, 12, 2, 2] of classes, under a domain's gain and offset."""
    n = len(labels)
    x = MEANS[labels][:, :, None, None] + noise * rng.normal(size=(n, 12, 2, 2))
    return torch.from_numpy(gain * x + offset)


def network(dims=2, seed=0, frozen=False):
    """Five layers of 1 x 1 convolutions with norms that know the clean domain; a fitted head."""
    torch.manual_seed(seed)
    conv, norm = {1: (nn.Conv1d, nn.BatchNorm1d), 2: (nn.Conv2d, nn.BatchNorm2d)}.get(
        dims, (nn.Conv3d, nn.BatchNorm3d)
    )
    net = nn.Sequential()
    net.body = nn.Sequential()
    for i in range(5):
        net.body.append(conv(12, 12, 1)).append(norm(12)).append(nn.LeakyReLU(0.5))
        nn.init.orthogonal_(net.body[3 * i].weight.view(12, 12))
    net.body.append(nn.Flatten(2))
    net.pool = nn.AdaptiveAvgPool1d(1)
    net.flat, net.fc = nn.Flatten(), nn.Linear(12, 6)
    net.double()
    labels = np.arange(600) % 6
    x = shaped(images(labels, np.random.default_rng(1)), dims)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.momentum = None  # of the mean
        net.train()(x)
        features = net.eval().flat(net.pool(net.body(x)))
        targets = 6 * np.eye(6)[labels]
        with_one = torch.cat([features, torch.ones(600, 1, dtype=x.dtype)], 1)
        found = torch.linalg.lstsq(with_one, torch.from_numpy(targets)).solution
        net.fc.weight.copy_(found[:-1].T)
        net.fc.bias.copy_(found[-1])
    if frozen:
        for i in range(5):
            net.body[3 * i + 1] = Frozen(net.body[3 * i + 1])
    return net


def shaped(x, dims):
    """The same positions in a line, a square or a cuboid."""
    return x.reshape(len(x), 12, *{1: (4,), 2: (2, 2), 3: (2, 2, 1)}[dims])


def stream(seed=0):
    """Clean samples, then two domains and clean ones again; their labels."""
    rng, parts, labels = np.random.default_rng(seed), [], []
    for n, domain in ((60, {}), (150, {"gain": 0.3, "offset": 4}), (190, {"offset": -4}), (96, {})):
        y = rng.integers(0, 6, n)
        labels.append(y)
        parts.append(images(y, rng, **domain))
    return torch.cat(parts), np.concatenate(labels)


class Reference:
    """The method from its equations, in NumPy and sample by sample, on a network of `network`."""

    def __init__(self, net):
        values = {name: value.numpy() for name, value in net.state_dict().items()}
        self.w = [values[f"body.{3 * i}.weight"].reshape(12, 12) for i in range(5)]
        self.b = [values[f"body.{3 * i}.bias"] for i in range(5)]
        at = [f"body.{3 * i + 1}" for i in range(5)]
        self.mu = [values[f"{name}.running_mean"] for name in at]
        self.v = [values[f"{name}.running_var"] + 1e-5 for name in at]
        self.scale = [values[f"{name}.weight"] for name in at]
        self.offset = [values[f"{name}.bias"] for name in at]
        self.head = values["fc.weight"], values["fc.bias"]
        self.state, self.wait, self.since, self.changes, self.t = "closed", 0, 0, 0, 0.0
        self.seen, self.rings, self.pairs = [], [[] for _ in range(3)], []

    def run(self, x, move):
        """A pass; z and u of each sample in the first three layers of five."""
        n, found, h = len(x), [], x.numpy().reshape(len(x), 12, -1)
        for i in range(5):
            h = np.einsum("oc,ncp->nop", self.w[i], h) + self.b[i][:, None]
            mean, var = self.mu[i], self.v[i]
            if i < 3:
                m, q = h.mean(2), (h**2).mean(2)
                z = (m - mean) / np.sqrt(var)
                u = (q - 2 * m * mean + mean**2) / var
                found.append(list(zip(z, u, strict=True)))
                if move:
                    self.rings[i] = [*self.rings[i], *found[-1]]
                    zb, lam, _ = self.sums(self.rings[i][-max(64, n) :])
                    mean = mean + np.sqrt(var) * zb / 2
                    var = var * np.exp(np.clip(lam, -3, 3) / 2)
            h = (h - mean[:, None]) / np.sqrt(var)[:, None]
            h = h * self.scale[i][:, None] + self.offset[i][:, None]
            h = np.where(h > 0, h, h / 2)
        features = h.mean(2)
        logits = features @ self.head[0].T + self.head[1]
        probs = np.exp(logits - logits.max(1, keepdims=True))
        return features, probs / probs.sum(1, keepdims=True), list(zip(*found, strict=True))

    @staticmethod
    def sums(pairs):
        z, u = (np.array(one) for one in zip(*pairs, strict=True))
        zb = z.mean(0)
        v = np.maximum(u.mean(0) - zb**2, 1e-4)
        squares = (u - 2 * zb * z + zb**2) / v
        return zb, np.log(v), ((z - zb) ** 2).mean(0) + ((squares - 1) ** 2).mean(0) / 2

    def shift(self, n):
        """Of layers 1 and 2: the first tenth of five layers is the first."""
        if len(self.seen) < n:
            return None
        total = 0.0
        for layer in (1, 2):
            zb, lam, s = self.sums([sample[layer] for sample in self.seen[-n:]])
            total += max(0.0, np.clip(zb**2 + lam**2 / 2 - s / n, -1, 1).mean())
        return total / 2

    def changed(self, samples, w):
        if len(samples) < 64 + w:
            return False
        logs = []
        for layer in (1, 2):
            old, new = (
                self.sums([sample[layer] for sample in part])
                for part in (samples[-64 - w : -w], samples[-w:])
            )
            apart = ((new[0] - old[0]) ** 2 + (new[1] - old[1]) ** 2 / 2).mean()
            usual = (1 / w + 1 / 64 + 1 / 2) * (old[2] + new[2]).mean() / 2
            logs.append(np.log(apart / usual))
        return np.exp(np.mean(logs)) > 2

    def verdict(self):
        pairs, found = self.pairs[-128:], []
        for usual in (None, np.concatenate([q_of(pairs, 0), q_of(pairs, 2)]).mean(0)):
            d = info(pairs, 2, usual) - info(pairs, 0, usual)
            found.append(d.mean() / (d.std(ddof=1) / np.sqrt(len(d))))
        return min(found)

    def probe(self):
        self.state, self.rings, self.pairs = "probation", [[] for _ in range(3)], []

    def step(self, x):
        n, w = len(x), max(16, len(x))
        if self.state == "open":
            self.since += 1
            moved = self.run(x, move=True)
            ring = list(zip(*self.rings, strict=True))
            if self.changed(ring, w):
                self.changes, self.seen = self.changes + 1, []
                self.probe()
            elif self.since % 4:
                return moved[1]
            else:
                source = self.run(x, move=False)
                self.seen += source[2]
                self.pairs += list(zip(*source[:2], *moved[:2], strict=True))
                self.t = self.verdict()
                far = self.shift(w)
                if (far is not None and far < 0.15) or self.t < 0:
                    self.state = "closed"
                    return source[1]
                return moved[1]
        source = self.run(x, move=False)
        self.seen += source[2]
        new = self.changed(self.seen, w)
        near, later = self.shift(w), self.shift(64)
        if new:
            self.changes, self.wait, self.seen = self.changes + 1, 0, self.seen[-w:]
        if self.state == "closed":
            self.wait = max(0, self.wait - n)
            far = (near is not None and near >= 0.25) or (later is not None and later >= 0.15)
            if self.wait or not far:
                return source[1]
            self.probe()
        elif near is not None and near < 0.15:
            self.state = "closed"
            return source[1]
        elif new:
            self.probe()
        moved = self.run(x, move=True)
        if len(self.rings[0]) < 16:
            return source[1]
        self.pairs += list(zip(*source[:2], *moved[:2], strict=True))
        if len(self.pairs) < 32:
            return source[1]
        self.t = self.verdict()
        if self.t > 3:
            self.state, self.since = "open", 0
            return moved[1]
        if len(self.pairs) >= 128:
            self.state, self.wait = "closed", 256
        return source[1]


def q_of(pairs, first):
    q = np.array([pair[first + 1] for pair in pairs]) ** 0.25
    return q / q.sum(1, keepdims=True)


def info(pairs, first, usual=None):
    """The information of neighbors in each answer; features and probabilities at two places."""
    n, out = len(pairs), []
    x = np.array([pair[first] for pair in pairs])
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    q = q_of(pairs, first)
    for i in range(n):
        order = [j for j in np.argsort(-(x @ x[i]), kind="stable") if j != i][:5]
        m = (q.sum(0) - q[i] + q[order].mean(0)) / n if usual is None else usual
        out.append((q[i] * np.log((q[order].sum(0) + m) / (6 * m))).sum())
    return np.array(out)


@pytest.mark.parametrize("batch", [16, 7, 64])
def test_it_follows_its_equations(batch):
    net, (x, labels) = network(), stream()
    method, reference = HalfBN(Classifier(net)), Reference(net)
    states, right = [], np.zeros(2)
    parts = np.split(labels, range(batch, len(x), batch))
    for x_part, y in zip(x.split(batch), parts, strict=True):
        found, expected = method.step(x_part), reference.step(x_part)
        np.testing.assert_allclose(found.probs, expected, atol=1e-9)
        state = {"closed": 0, "probation": 0.5, "open": 1}[reference.state]
        assert found.info["state"] == state
        assert found.info["t"] == pytest.approx(reference.t, abs=1e-6)
        assert found.info["domain_changes"] == reference.changes
        if state != 1:  # where it is open, three batches of four are not the source's
            near = reference.shift(max(16, len(x_part))) or 0
            assert found.info["shift"] == pytest.approx(near, abs=1e-8)
        states.append(state)
        with torch.no_grad():
            source = net(x_part).argmax(1).numpy()
        right += (found.probs.argmax(1).numpy() == y).sum(), (source == y).sum()
    assert {0, 0.5, 1} <= set(states)
    assert right[0] > right[1] + 80  # of 496
    if batch == 16:
        assert reference.changes >= 2


def follow(method, x, batch=16):
    return [method.step(part) for part in x.split(batch)]


# With `test_a_stream_without_a_shift_costs_one_pass`, the passes of docs/hybrid.md.
@pytest.mark.parametrize(("dims", "frozen"), [(1, False), (3, False), (2, True)])
def test_any_batch_normalization(dims, frozen):
    x, _ = stream()
    x, n = x[:210], 16
    expected = follow(HalfBN(Classifier(network())), x, n)
    assert [one.info["state"] for one in expected[4:]] == [0.5] + [1] * 9
    assert sum(one.info["forwards"] for one in expected[6:]) == 8 * 1.25
    found = follow(HalfBN(Classifier(network(dims, frozen=frozen))), shaped(x, dims), n)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.probs, other.probs)
        assert one.info["state"] == other.info["state"]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of PyTorch's compiler, whatever it says
def test_a_compiled_network_is_compiled_once():
    x, net = stream()[0][:210], network()
    net.compile(backend="eager")
    counters = torch._dynamo.utils.counters
    counters.clear()
    found, expected = (follow(HalfBN(Classifier(one)), x) for one in (net, network()))
    assert counters["frames"]["total"] < 10  # and not one for each pass
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.probs, other.probs)
        assert one.info["state"] == other.info["state"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype):
    """Squares of images as bright as these are infinite in half precision."""
    x, labels = stream()
    x = x[60:210].to(dtype)
    found = follow(HalfBN(Classifier(network().to(dtype))), x)
    assert found[-1].info["state"] == 1
    assert all(one.probs.dtype == dtype and one.probs.isfinite().all() for one in found)
    last = torch.cat([one.probs.argmax(1) for one in found[3:]]).numpy()
    assert (last == labels[60 + 48 : 210]).mean() > 0.8
    net = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(4, 2)).eval().half()
    with measuring([net[0]], 4) as meter:
        net[0](torch.full((4, 1, 2, 2), 300.0, dtype=torch.half))
    assert meter.moments([net[0]])[:, 1].allclose(torch.tensor(300.0**2), rtol=1e-3)


def test_the_network_is_the_source_between_steps():
    net, (x, _) = network(), stream()
    before = copy.deepcopy(net.state_dict())
    method = HalfBN(Classifier(net))
    for part in x.split(32):
        found = method.step(part)
        assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
        assert not any(module.training for module in net.modules())
    assert found.info["domain_changes"]
    hooks = sum(len(module._forward_pre_hooks) for module in net.modules())
    assert hooks == 1  # the classifier's


def test_a_pass_that_fails_leaves_the_source():
    net, (x, _) = network(), stream()
    method = HalfBN(Classifier(net))
    follow(method, x[60:210])
    before = copy.deepcopy(net.state_dict())

    def fail(*_):
        raise RuntimeError("broken")

    hook = net.pool.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="broken"):
        method.step(x[210:226])
    hook.remove()
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_a_stream_without_a_shift_costs_one_pass():
    method = HalfBN(Classifier(network()))
    x = images(np.random.default_rng(3).integers(0, 6, 200), np.random.default_rng(3))
    for part, found in zip(x.split(8), follow(method, x, 8), strict=True):
        assert (found.info["forwards"], found.info["state"]) == (1, 0)
        assert torch.equal(found.probs, method.model(part).logits.softmax(1))


def test_a_shift_that_moving_does_not_help_is_vetoed():
    """Two of six classes look like a shift; 128 pairs end the probation for 256 samples."""
    rng = np.random.default_rng(4)
    found = follow(HalfBN(Classifier(network())), images(rng.integers(0, 2, 800), rng))
    states = [one.info["state"] for one in found]
    assert states == ([0.5] * 7 + [0] * 16) * 2 + [0.5] * 4
    assert sum(one.info["forwards"] for one in found) == 50 + 2 * 8 + 4


@pytest.mark.parametrize(
    ("both", "state"), [((3.0, 9.0), 0.5), ((3.1, 9.0), 1), ((9.0, 3.0), 0.5), ((9.0, 3.1), 1)]
)
def test_it_opens_where_both_verdicts_are_above_3(both, state, monkeypatch):
    monkeypatch.setattr(Pairs, "both_t", lambda pairs: torch.tensor(both))
    x, _ = stream()
    assert follow(HalfBN(Classifier(network())), x[60:140])[-1].info["state"] == state


# What it remembers


@pytest.mark.parametrize("cut", [5, 12, 17])
def test_its_state_is_arrays_that_go_on_bit_for_bit(cut):
    x, _ = stream()
    parts, net = x.split(16), network()
    method, twin = (HalfBN(Classifier(copy.deepcopy(net))) for _ in range(2))
    assert method.state_dict() == {}
    for part in parts[:cut]:
        method.step(part)
    state = method.state_dict()
    stored = {
        name: np.frombuffer(a.tobytes(), a.dtype).reshape(a.shape) for name, a in state.items()
    }
    expected = [method.step(part) for part in parts[cut:]]
    twin.load_state_dict(stored)
    for part, one in zip(parts[cut:], expected, strict=True):
        found = twin.step(part)
        assert torch.equal(found.probs, one.probs)
        assert found.info["state"] == one.info["state"]
    ours, theirs = method.state_dict(), twin.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    twin.reset()
    assert twin.state_dict() == {}
    twin.load_state_dict({})


def test_its_state_is_bounded():
    x, _ = stream()
    method, sizes = HalfBN(Classifier(network())), []
    for _ in range(3):
        follow(method, x)
        sizes.append(sum(array.nbytes for array in method.state_dict().values()))
    assert sizes[1] >= sizes[2] > 0


def test_wrapped_its_state_is_saved_with_the_correctors():
    x, _ = stream()
    net = network()
    model, twin = (wrap(copy.deepcopy(net), "prudent_bn") for _ in range(2))
    for part in x[:200].split(16):
        model(part)
    assert model.prediction.info["base_state"] == 1
    twin.load_state_dict(model.state_dict())
    for part in x[200:].split(16):
        assert torch.equal(model(part), twin(part))


@pytest.mark.parametrize("method", ["half_bn", "prudent_bn", "prudent_bn+lame"])
def test_streams_are_each_as_alone_on_one_network(method):
    """One domain for one stream, and another for the other, in each batch."""
    x, _ = stream()
    of_a, of_b, net = x[60:210], x[210:360], network()
    model, alone = (wrap(copy.deepcopy(net), method) for _ in range(2))
    parts = list(zip(of_a.split(16), of_b.split(16), strict=True))
    found = []
    for i, (a, b) in enumerate(parts):
        n = len(a)
        both = model(torch.stack([a, b], 1).flatten(0, 1), stream=["a", "b"] * n)
        found.append(both.reshape(n, 2, -1))
        if i == 5:  # saved and restored amid both
            state = {name: x.clone() for name, x in model.state_dict().items()}
            model = wrap(copy.deepcopy(net), method)
            model.load_state_dict(state)
    for k, own in enumerate((of_a, of_b)):
        alone.reset()
        for one, part in zip(found, own.split(16), strict=True):
            torch.testing.assert_close(one[:, k], alone(part))
    info = model.prediction.info
    assert info["streams" if method == "half_bn" else "base_streams"] == 2
    if method == "half_bn":
        assert info["state"] == 1
        assert info["forward_samples"] >= 2 * n
    model.reset()
    assert model.state_dict()["_extra_state"].numel() == 0


def test_streams_are_bounded_and_copied(monkeypatch):
    x, _ = stream()
    x, method = x[60:220], HalfBN(Classifier(network()))
    monkeypatch.setattr(HalfBN, "most", 2)
    for i, part in enumerate(x.split(16)):
        method.step(part, stream=np.int64(i % 3))
    assert {name.split("/")[1] for name in method.state_dict() if "/" in name} == {"0", "2"}
    twin = copy.copy(method)
    assert twin.state_dict().keys() == method.state_dict().keys()
    assert not any(name in method.state_dict() for name in ("t", "halfway.source"))
    before = method.state_dict()
    bad = torch.cat([x[:2], x[:1] * torch.nan])
    with pytest.raises(LamettaError, match="x must be finite"):
        method.step(bad, stream=[0, 2, 2])
    assert all(np.array_equal(one, before[name]) for name, one in method.state_dict().items())
    with pytest.raises(LamettaError, match="stream must have an id for each of 3 rows, got 2"):
        method.step(x[:3], stream=["a", "b"])
    with pytest.raises(LamettaError, match="state must have names streams/id/name"):
        method.load_state_dict({"streams/no json/t": np.zeros(1)})


def test_threads_may_bring_streams():
    x, _ = stream()
    parts, method = x[60:188].split(16), HalfBN(Classifier(network()))
    expected = follow(HalfBN(Classifier(network())), x[60:188])

    def bring(one):
        return [method.step(part, stream=one).probs for part in parts]

    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(bring, range(4)):
            for one, other in zip(found, expected, strict=True):
                torch.testing.assert_close(one, other.probs)
    assert len(method.state_dict()) == 4 * len({n.split("/")[-1] for n in method.state_dict()})


def test_states_that_are_none():
    x, _ = stream()
    method = HalfBN(Classifier(network()))
    follow(method, x[:210])
    state = method.state_dict()
    bad = {
        "entry 'more'": state | {"more": np.zeros(1)},
        "state\\['t'\\] must be one finite float": state | {"t": np.array(np.nan)},
        "state\\['wait'\\] must be one finite int": {k: v for k, v in state.items() if k != "wait"},
        "state must be 0, 1 or 2": state | {"state": np.array(3)},
        "pairs must have": {k: v for k, v in state.items() if k != "pairs.probs"},
        "must be finite floats": state | {"halfway.moved": state["halfway.moved"] * np.nan},
        "halfway.source must be .* moments": state | {"halfway.source": np.zeros((3, 2))},
        "pairs must have as many rows": state | {"pairs.probs": state["pairs.probs"][1:]},
    }
    twin = HalfBN(Classifier(network()))
    for message, one in bad.items():
        with pytest.raises(LamettaError, match=message):
            twin.load_state_dict(one)
        assert twin.state_dict() == {}
    other = state | {"halfway.source": state["halfway.source"][:, :, :5]}
    other |= {"halfway.moved": state["halfway.moved"][:, :, :5]}
    twin.load_state_dict(other)
    with pytest.raises(LamettaError, match="state must be of a network with 36 channels .* got 5"):
        twin.step(x[:16])


# What it is on


def test_networks_without_batch_normalization_get_prudent():
    net = nn.Sequential(nn.Linear(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)).eval()
    with pytest.raises(LamettaError, match="net must have batch normalizations for .*, got none"):
        HalfBN(Classifier(net, head="2")).step(torch.rand(8, 5))
    with pytest.warns(UserWarning, match="net has no batch normalizations, so that prudent_bn is"):
        model = wrap(net, "prudent_bn", head="2")
    prudent = wrap(net, "prudent", head="2")
    for part in torch.rand(40, 5).split(8):
        assert torch.equal(model(part), prudent(part))
        assert "base_state" not in model.prediction.info


def test_prudent_is_on_top():
    x, _ = stream()
    net = network()
    expected = Corrected(HalfBN(Classifier(copy.deepcopy(net))), Prudent())
    model, lame = (wrap(copy.deepcopy(net), name) for name in ("prudent_bn", "half_bn+lame"))
    for part in x[:160].split(16):
        probs, other = model(part), expected.step(part)
        assert torch.equal(probs, other.probs)
        assert model.prediction.info.keys() >= {"trust", "base_state", "base_shift", "base_t"}
        assert torch.equal(lame(part), lame.prediction.probs)
        torch.testing.assert_close(lame.prediction.source, other.source)
    assert wrap(net, "prudent_bn+lame")(x[:16]).shape == (16, 6)
    found = methods.find("prudent_bn")
    assert found.needs_network
    assert (found.ordered, found.stateful, found.causal) == (True, True, False)


def test_layers_that_a_pass_calls_twice_stay():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.shared = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
            self.last, self.fc = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x):
            return self.fc(self.last(self.shared(self.shared(self.norm(x)))))

    net = Twice().eval()
    method = HalfBN(Classifier(net))
    follow(method, torch.rand(64, 4) + 3)
    assert method.halfway.norms == [net.norm]
    net.forward = lambda x: net.fc(net.shared(net.shared(x)))
    with pytest.raises(LamettaError, match="got none that a pass calls once"):
        HalfBN(Classifier(net)).step(torch.rand(8, 4))


@pytest.mark.parametrize("kind", [HalfBN, PrudentBN])
def test_the_contract(kind):
    x, _ = stream()
    check_adapter(kind(Classifier(network())), x[40:168], batch_size=16)


# Its parts


def test_the_shift_of_the_source_is_nothing():
    rng = np.random.default_rng(0)
    z = torch.from_numpy(rng.normal(size=(4000, 30)))
    moments, sizes = torch.stack([z, z**2], 1), torch.tensor([10, 20])
    assert float(shift(moments, sizes)) < 0.01
    assert float(shift(torch.stack([z + 1, (z + 1) ** 2], 1), sizes)) > 0.9
    apart = [float(change(moments[:n], moments[n : 2 * n], sizes)) for n in (16, 64, 1000)]
    assert max(apart) < 1.5
    assert all(one >= other for one, other in pairwise(apart))
    other = torch.stack([z + 2, (z + 2) ** 2], 1)
    assert float(change(moments[:64], other[64:80], sizes)) > 2


def test_moving_all_the_way_normalizes_what_is_seen():
    rng = np.random.default_rng(1)
    x = torch.from_numpy(3 + 2 * rng.normal(size=(50, 4, 3, 3)))
    norm = nn.BatchNorm2d(4, affine=False).double().eval()
    with measuring([norm], 50, share=1.0) as meter:
        found = norm(x)
    torch.testing.assert_close(found.mean((0, 2, 3)), torch.zeros(4).double(), atol=1e-4, rtol=0)
    mean, log_var, _ = summary(meter.moments([norm]))
    torch.testing.assert_close(mean, x.mean((0, 2, 3)), atol=1e-4, rtol=0)
    torch.testing.assert_close(log_var.exp(), x.var((0, 2, 3), correction=0), atol=1e-4, rtol=1e-4)


def test_information_rewards_neither_confidence_nor_unshared_errors():
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 6
    features = torch.from_numpy(MEANS[labels] + rng.normal(size=(90, 12)))
    right = torch.from_numpy(0.999 * np.eye(6)[labels] + 0.001 / 6)
    unshared = right[torch.from_numpy(rng.permutation(90))]
    collapsed = right[:1].expand(90, 6)
    gains = [float(information(features, p).mean()) for p in (right, unshared, collapsed)]
    assert gains[0] > 0.3 > gains[1] + 0.2
    assert abs(gains[2]) < 1e-9
    np.testing.assert_allclose(
        information(features, right),
        info(list(zip(features.numpy(), right.numpy(), strict=True)), 0),
    )
    assert float(Pairs(features, unshared, features, right).t()) > 10
    assert float(Pairs(features, right, features, unshared).t()) < -10


def test_nothing_is_said_of_networks_with_batch_normalization():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wrap(network(), "prudent_bn")
