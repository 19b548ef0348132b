"""What a step of each network method costs against a plain loop with the same passes.

Side by side in one run, on random weights: ``method.step(x)`` of lametta, with its checks, clock
and diagnostics, and the loop as one would write it in a script (`PLAIN`), which has none. Both
sides share augmentations, replaced layers and memories, and are checked to make the same passes;
filters let every sample through. ``python benchmarks/methods.py --device cuda --network resnet50
--batch-size 64`` also shows peak memory, of tensors on the device. On a CPU, seconds are those of
the processor, which other programs change less; set OMP_NUM_THREADS=1, since threads that wait
count, and MALLOC_TRIM_THRESHOLD_ and MALLOC_MMAP_THRESHOLD_ to 1000000000, or memory that glibc
gives back between steps makes either side look slower. HalfBN and PrudentBN see no shift
here, and are compared with a pass of the source. ``--csv FILE`` stores the table; ``--quick`` is
for the tests.
"""

import argparse
import copy
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam

import store
from lametta import methods
from lametta.preprocess import Preprocess
from lametta.torch import Classifier, cifar
from lametta.torch.augment import AugMix, Views
from lametta.torch.memory import CSTU, HUS, PBRS, Item, Memory
from lametta.torch.methods.bn import MeanNorm
from lametta.torch.methods.ttbn import StreamNorm
from lametta.torch.norm import InstanceAwareNorm, MixedNorm, RobustNorm, is_batch_norm, replace
from lametta.torch.resnet import ResNet

Step = Callable[[Tensor], Tensor]
COPIES = 16  # of an image, in MEMO
OPTIONS = {
    "margin": 1.0, "redundancy": 1.0, "min_drop": -1.0, "threshold": 0.0, "reset_below": 0.0,
    "unsure_below": 0.0, "copies": COPIES,
}  # fmt: skip
IMAGES = {"memo": 2}  # of a batch, where each costs many passes


# A plain loop, its parts first


def norms(net: nn.Module) -> list[Any]:
    return [module for module in net.modules() if is_batch_norm(module)]


def train(net: nn.Module, on: bool = True, momentum: float = 0.0) -> None:
    for norm in norms(net):
        norm.training, norm.momentum = on, momentum


def learn(net: nn.Module, what: str = "norms") -> list[Any]:
    net.requires_grad_(False)
    for name, module in net.named_modules():
        if what == "all" or (is_batch_norm(module) and not (what == "lower" and "layer4" in name)):
            for parameter in module.parameters(recurse=False):
                parameter.requires_grad_(True)
    return [parameter for parameter in net.parameters() if parameter.requires_grad]


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def entropy(z: Tensor) -> Tensor:
    log_p = z.log_softmax(1)
    return -(log_p.exp() * log_p).sum(1)


def cross(target: Tensor, z: Tensor) -> Tensor:
    return -(target.softmax(1) * z.log_softmax(1)).sum(1)


def follow(teacher: nn.Module, net: nn.Module, decay: float) -> None:
    with torch.no_grad():
        for own, other in zip(teacher.parameters(), net.parameters(), strict=True):
            if other.requires_grad:
                own.mul_(decay).add_(other, alpha=1 - decay)


def items(x: Tensor, z: Tensor) -> list[Item]:
    p = z.softmax(1)
    rows = torch.stack([z.argmax(1).to(p), entropy(z), p.amax(1)], 1).tolist()
    return [Item(one, int(row[0]), row[1], row[2]) for one, row in zip(x, rows, strict=True)]


class Script:
    """A script that adapts a network: what all loops have in common."""

    def __init__(self, net: nn.Module, prepare: Preprocess) -> None:
        self.net, self.prepare, self.draws = net, prepare, torch.Generator().manual_seed(0)

    def augment(self, transform: Any, x: Tensor) -> Tensor:
        return self.prepare.from_pixels(transform(self.prepare.to_pixels(x), self.draws))


def by_loss(loss: Callable[[Tensor], Tensor]) -> Callable[[Script], Step]:
    """TENT and its kind: an update by the batch, then a pass by running statistics."""

    def make(script: Script) -> Step:
        net, optimizer = script.net, Adam(learn(script.net), lr=1e-3)

        def step(x: Tensor) -> Tensor:
            train(net, momentum=0.1)
            descend(optimizer, loss(net(x)))
            train(net, on=False)
            with torch.no_grad():
                return net(x)  # type: ignore[no-any-return]

        return step

    return make


def information(z: Tensor) -> Tensor:
    mean = z.softmax(1).mean(0)
    return entropy(z).mean() + (mean * mean.log()).sum()


def confident(z: Tensor) -> Tensor:
    values = -z.log_softmax(1).amax(1)
    return values[(values.exp() > 0).nonzero()[:, 0]].mean()


def adabn(script: Script) -> Step:
    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        train(script.net, momentum=0.1)
        script.net(x)
        train(script.net, on=False)
        return script.net(x)  # type: ignore[no-any-return]

    return step


def frozen(script: Script) -> Step:
    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        return script.net(x)  # type: ignore[no-any-return]

    return step


def eta(script: Script) -> Step:
    net, optimizer = script.net, SGD(learn(script.net), lr=2.5e-4, momentum=0.9)
    mean: Tensor | None = None
    train(net)

    def step(x: Tensor) -> Tensor:
        nonlocal mean
        z: Tensor = net(x)
        h, p, limit = entropy(z), z.detach().softmax(1), math.log(z.shape[1])
        keep = h.detach() <= limit + 1
        if mean is not None:
            keep &= torch.cosine_similarity(mean[None], p) <= 1.1
        kept = keep.nonzero()[:, 0]
        if len(kept):
            mean = p[kept].mean(0) if mean is None else 0.9 * mean + 0.1 * p[kept].mean(0)
            descend(optimizer, ((limit - h[kept].detach()).exp() * h[kept]).mean())
        return z

    return step


def climb(loss: Callable[[], Tensor], parameters: list[Any], optimizer: Any) -> None:
    """SAM's step."""
    gradients = list(torch.autograd.grad(loss(), parameters))
    scale = 0.05 / torch.stack(torch._foreach_norm(gradients)).norm()
    before = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        torch._foreach_add_(parameters, torch._foreach_mul(gradients, scale))
    optimizer.zero_grad()
    loss().backward()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        torch._foreach_copy_(parameters, before)
    optimizer.step()


def sar(script: Script) -> Step:
    parameters = learn(script.net, "lower")
    optimizer = SGD(parameters, lr=2.5e-4, momentum=0.9)
    train(script.net)

    def step(x: Tensor) -> Tensor:
        seen: list[Tensor] = []

        def loss() -> Tensor:
            seen.append(script.net(x))
            return entropy(seen[-1]).mean()

        climb(loss, parameters, optimizer)
        float(entropy(seen[-1].detach()).mean())  # for the moving average
        return seen[0]

    return step


def deyo(script: Script) -> Step:
    net, optimizer = script.net, SGD(learn(script.net, "lower"), lr=2.5e-4, momentum=0.9)
    train(net)

    def step(x: Tensor) -> Tensor:
        z: Tensor = net(x)
        h, label, n, (height, width) = entropy(z), z.argmax(1)[:, None], len(x), x.shape[2:]
        kept = (h.detach() < 1e9).nonzero()[:, 0]
        tiles = x[kept].reshape(n, 3, 4, height // 4, 4, width // 4).permute(0, 2, 4, 1, 3, 5)
        order = torch.rand(n, 16, generator=script.draws).argsort(1).to(x.device)
        tiles = tiles.flatten(1, 2)[torch.arange(n, device=x.device)[:, None], order]
        tiles = tiles.reshape(n, 4, 4, 3, height // 4, width // 4).permute(0, 3, 1, 4, 2, 5)
        with torch.no_grad():
            other = net(tiles.reshape(x.shape)).softmax(1).gather(1, label)
        lost = (z.detach().softmax(1).gather(1, label) - other)[:, 0]
        if (lost > -2).any():
            weight = (0.4 * math.log(z.shape[1]) - h.detach()).exp() + lost.exp()
            descend(optimizer, (weight * h).mean())
        return z

    return step


def roid(script: Script, filtered: bool = False) -> Step:
    net, parameters = script.net, learn(script.net)
    optimizer = SGD(parameters, lr=2.5e-4, momentum=0.9, nesterov=True)
    source = [p.detach().clone() for p in parameters]
    hidden = [p.clone() for p in source] if filtered else source
    view = Views(padding="reflect", blur=False, noise=0)
    mean: Tensor | None = None
    train(net)

    def unit(v: Tensor) -> Tensor:
        return (v - v.min()) / (v.max() - v.min()).clamp(min=1e-30)

    def step(x: Tensor) -> Tensor:
        nonlocal mean
        z: Tensor = net(x)
        p = z.detach().softmax(1)
        mean = torch.full_like(p[0], 1 / p.shape[1]) if mean is None else mean
        diverse = unit(1 - torch.cosine_similarity(mean[None], p))
        weight = (diverse * unit(-entropy(z.detach())) * 3).exp()
        mean = 0.9 * mean + 0.1 * p.mean(0)
        kept = (diverse >= diverse.mean()).nonzero()[:, 0]
        plain, other = z[kept], net(script.augment(view, x[kept]))
        q = plain.softmax(1).clamp(max=0.99)
        values = -(q * (q / (1 - q) + 1e-5).log()).sum(1)
        values = values + 0.5 * (cross(plain, other) + cross(other, plain))
        descend(optimizer, (weight[kept] * values).sum() / len(x))
        with torch.no_grad():
            if filtered:  # as CMF, whose momentum is a number of the host
                torch._foreach_lerp_(hidden, source, 0.01)
                torch._foreach_lerp_(hidden, parameters, 0.1)
            torch._foreach_lerp_(parameters, hidden, 0.01)
        prior = p.mean(0)
        smooth = max(1 / len(x), 1 / p.shape[1]) / prior.max()
        return z.detach() * (prior + smooth) / (1 + smooth * p.shape[1])

    return step


def cotta(script: Script) -> Step:
    net, parameters = script.net, learn(script.net, "all")
    teacher, anchor = copy.deepcopy(net), copy.deepcopy(net)
    source = [p.detach().clone() for p in parameters]
    optimizer = SGD(parameters, lr=0.01, momentum=0.9, nesterov=True)
    for one in (net, teacher, anchor):
        train(one)

    def step(x: Tensor) -> Tensor:
        z = net(x)
        with torch.no_grad():
            assert float(anchor(x).softmax(1).amax(1).mean()) >= 0  # or it would take views
            target: Tensor = teacher(x)
        descend(optimizer, cross(target, z).mean())
        follow(teacher, net, 0.999)
        with torch.no_grad():
            for p, home in zip(parameters, source, strict=True):
                p.copy_(torch.where(torch.rand_like(p) < 0.001, home, p))
        return target

    return step


def memo(script: Script) -> Step:
    net = script.net
    replace(net, MixedNorm.of)
    parameters, optimizer = learn(net, "all"), SGD(learn(net, "all"), lr=2.5e-4)
    source = [p.detach().clone() for p in parameters]
    train(net, momentum=1 / 17)

    def step(x: Tensor) -> Tensor:
        answers = []
        for image in x:
            with torch.no_grad():
                torch._foreach_copy_(parameters, source)
            copies = image.expand(COPIES, -1, -1, -1)
            log_p = net(script.augment(AugMix(), copies)).log_softmax(1)
            mean = log_p.logsumexp(0) - math.log(len(log_p))
            descend(optimizer, -(mean.exp() * mean).sum())
            with torch.no_grad():
                answers.append(net(image[None]))
        return torch.cat(answers)

    return step


def rotta(script: Script) -> Step:
    net = script.net
    replace(net, RobustNorm.of)
    teacher, optimizer, seen = copy.deepcopy(net), Adam(learn(net), lr=1e-3), 0
    memory: CSTU | None = None

    def step(x: Tensor) -> Tensor:
        nonlocal memory, seen
        with torch.no_grad():
            z: Tensor = teacher(x)
        memory = memory or CSTU(64, classes=z.shape[1])
        for item in items(x, z):
            memory.add(item)
            seen += 1
            if seen % 64 == 0:
                held, ages = memory.inputs, [-item.age / 64 for item in memory.items]
                for one in (net, teacher):
                    train(one, momentum=0.05)
                with torch.no_grad():
                    target = teacher(held)
                weight = torch.tensor(ages).to(x.device).sigmoid()
                descend(
                    optimizer, (weight * cross(target, net(script.augment(Views(), held)))).mean()
                )
                train(teacher, on=False)
                follow(teacher, net, 0.999)
        return z

    return step


def petta(script: Script) -> Step:
    net = script.net
    replace(net, RobustNorm.of)
    teacher, anchor, parameters = copy.deepcopy(net), copy.deepcopy(net), learn(net)
    source, optimizer = [p.detach().clone() for p in parameters], Adam(parameters, lr=1e-3)
    memory: CSTU | None = None

    def step(x: Tensor) -> Tensor:
        nonlocal memory
        with torch.no_grad():
            z: Tensor = teacher(x)
        memory = memory or CSTU(64, classes=z.shape[1])
        for item in items(x, z):
            memory.add(item)
        held = memory.inputs
        for one in (net, teacher, anchor):
            train(one, momentum=0.05)
        with torch.no_grad():
            target, home = teacher(held), anchor(held)
            net(held)
        found = net(script.augment(Views(), held))
        pairs = zip(parameters, source, strict=True)
        cosine = torch.stack([torch.cosine_similarity(p, q, dim=0) for p, q in pairs]).mean()
        descend(optimizer, (cross(target, found) + cross(home, found)).mean() - 0 * cosine)
        train(teacher, on=False)
        follow(teacher, net, 0.999)
        return z

    return step


def streaming(kind: str) -> Callable[[Script], Step]:
    """NOTE and SoTTA: samples answered by running statistics, and a memory."""

    def make(script: Script) -> Step:
        net, seen = script.net, 0
        if kind == "note":
            replace(net, InstanceAwareNorm.of)
        memory: Memory = (PBRS if kind == "note" else HUS)(64, draws=Random(0))
        parameters = learn(net)
        optimizer = Adam(parameters, lr=1e-3)

        def step(x: Tensor) -> Tensor:
            nonlocal seen
            answers = []
            for part in parts(x, seen):
                with torch.no_grad():
                    answers.append(net(part))
                for item in items(part, answers[-1]):
                    memory.add(item)
                seen += len(part)
                if seen % 64 == 0:
                    update(memory.inputs)
            return torch.cat(answers)

        def update(held: Tensor) -> None:
            train(net, momentum=0.01 if kind == "note" else 0.2)
            if kind == "note":
                descend(optimizer, entropy(net(held)).mean())
            else:
                climb(lambda: entropy(net(held)).mean(), parameters, optimizer)
            train(net, on=False)

        return step

    return make


def parts(x: Tensor, seen: int) -> Iterator[Tensor]:
    while len(x):
        size = 64 - seen % 64
        yield x[:size]
        seen, x = seen + len(x[:size]), x[size:]


def normalized(layer: Any, momentum: float, passes: int) -> Callable[[Script], Step]:
    """Layers by other statistics, and no gradients."""

    def make(script: Script) -> Step:
        net = script.net
        replace(net, layer.of)

        @torch.no_grad()
        def step(x: Tensor) -> Tensor:
            train(net, momentum=momentum)
            z: Tensor = net(x)
            if passes == 1:
                return z
            torch.stack([norm.divergence() for norm in norms(net)])
            train(net, on=False)
            return net(x)  # type: ignore[no-any-return]

        return step

    return make


PLAIN: dict[str, Callable[[Script], Step]] = {
    "tent": by_loss(lambda z: entropy(z).mean()),
    "shot_im": by_loss(information),
    "pseudo_label": by_loss(confident),
    "adabn": adabn,
    "eata": eta,  # without source data
    "eta": eta,
    "rdumb": eta,
    "sar": sar,
    "deyo": deyo,
    "roid": roid,
    "cmf": partial(roid, filtered=True),
    "cotta": cotta,
    "memo": memo,
    "rotta": rotta,
    "petta": petta,
    "note": streaming("note"),
    "sotta": streaming("sotta"),
    "alpha_bn": normalized(MixedNorm, 0.1, 1),
    "ema_bn": normalized(MeanNorm, 0.1, 1),
    "ttbn": normalized(StreamNorm, 0.1, 2),
    "half_bn": frozen,
    "prudent_bn": frozen,
}


# The comparison


def build(network: str, x: Tensor) -> nn.Module:
    """A network of random weights that predicts many classes."""
    torch.manual_seed(0)
    net = ResNet(50) if network == "resnet50" else cifar.resnet20()[0]
    net = net.to(x.device)
    with torch.no_grad():
        train(net, momentum=1.0)
        net(x[:16])
        train(net.eval(), on=False, momentum=0.1)
        head: Any = [module for module in net.modules() if isinstance(module, nn.Linear)][-1]
        head.bias -= net(x[:16]).mean(0)
        z = net(x[:16])
        head.weight *= 3 / z.std()
        head.bias *= 3 / z.std()
    return net


def samples(net: nn.Module, call: Callable[[], Any]) -> int:
    """How many samples go through a network, and through its copies, in a call."""
    count = 0

    def add(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        nonlocal count
        count += len(args[0]) if type(module) is type(net) else 0

    handle = nn.modules.module.register_module_forward_hook(add)
    call()
    handle.remove()
    return count


def compare(name: str, network: str, x: Tensor, prepare: Preprocess, rounds: int) -> dict[str, str]:
    """A row of the table."""
    x, known = x[: IMAGES.get(name, len(x))], methods.find(name).parameters()
    options = {key: value for key, value in OPTIONS.items() if key in known}
    net = build(network, x)
    method = methods.find(name).build(Classifier(net, preprocess=prepare), options)
    step = PLAIN[name](Script(build(network, x), prepare))
    # An update of a memory, every 64 samples, is in each call.
    each = 1 if name in IMAGES else max(1, 64 // len(x))
    each *= 10 if x.is_cuda else 1  # the host may run ahead, as it does in production
    calls: dict[str, Callable[[], Any]] = {
        "plain": lambda: [step(x) for _ in range(each)],
        "lametta": lambda: [method.step(x) for _ in range(each)],
    }
    for call in calls.values():
        call()
    plain, ours = (samples(net, call) for call in calls.values())
    if abs(plain - ours) > 0.05 * plain:  # which samples are kept follows the weights
        raise SystemExit(f"{name}: passes must be alike, got {plain} samples and {ours}")
    times: dict[str, list[float]] = {side: [] for side in calls}
    peak = dict.fromkeys(calls, 0.0)
    clock = time.perf_counter if x.is_cuda else time.process_time
    for _ in range(rounds):
        for side, call in calls.items():
            if x.is_cuda:
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
            start = clock()
            call()
            if x.is_cuda:
                torch.cuda.synchronize()
                peak[side] = torch.cuda.max_memory_allocated() / 2**20
            times[side].append((clock() - start) * 1e3 / each)
    pairs = zip(times["lametta"], times["plain"], strict=True)
    ratio = statistics.median(one / other for one, other in pairs)
    row = {"": f"`{name}`"}
    row |= {side: f"{statistics.median(values):.2f} ms" for side, values in times.items()}
    row["times plain"] = f"{ratio:.2f}"
    if x.is_cuda:
        row |= {f"{side}, memory": f"{value:.0f} MiB" for side, value in peak.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--network", choices=("resnet20", "resnet50"), default="resnet20")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--methods", nargs="+", choices=[*PLAIN], default=[*PLAIN])
    store.add_option(parser)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    side = 224 if args.network == "resnet50" else 32
    if args.quick:
        args.batch_size, args.rounds, args.network, side = 64, 1, "resnet20", 8
    prepare = Preprocess()
    torch.manual_seed(0)
    x = torch.randn(args.batch_size, 3, side, side, device=args.device)
    print(f"{args.network}, batches of {args.batch_size}, {args.device}, {args.rounds} rounds")
    rows: list[dict[str, str]] = []
    for name in args.methods:
        rows.append(compare(name, args.network, x, prepare, args.rounds))
        if not rows[1:]:
            print(f"| {' | '.join(rows[0])} |\n|---{'|---:' * (len(rows[0]) - 1)}|")
        print(f"| {' | '.join(rows[-1].values())} |", flush=True)
        store.write(args.csv, rows)  # after each method: a run that is cut short has told something


if __name__ == "__main__":
    main()
