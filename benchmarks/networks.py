"""What a step costs with the paper's five networks, as its Figure 6: three stages and memory.

Networks have random weights, since the time does not depend on them. Side by side in one run: the
plain forward pass, LAME on top of it, TENT, and a plain implementation of TENT's computation.
``python benchmarks/networks.py --device cuda`` needs timm for EfficientNet-B4 and ViT-B/16 and
leaves them out without it; ``--csv`` stores the table of docs/torch.md, ``--quick`` is for the
tests.
"""

import argparse
import importlib
import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import lametta
import store
from lametta.torch import Classifier, tent
from lametta.torch.norm import is_batch_norm
from lametta.torch.profiling import StepTimer
from lametta.torch.resnet import ResNet


def timm_model(name: str) -> nn.Module:
    timm: Any = importlib.import_module("timm")  # not a dependency

    net: nn.Module = timm.create_model(name)
    return net


# Name: how to build it, side of the image, batch size as in the paper.
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int]] = {
    "ResNet-18": (partial(ResNet, 18), 224, 64),
    "ResNet-50": (partial(ResNet, 50), 224, 64),
    "ResNet-101": (partial(ResNet, 101), 224, 64),
    "EfficientNet-B4": (partial(timm_model, "tf_efficientnet_b4"), 380, 16),
    "ViT-B/16": (partial(timm_model, "vit_base_patch16_384"), 384, 16),
}
NEEDS_TIMM = ("EfficientNet-B4", "ViT-B/16")
STAGES = ("forward_time", "optimization_time", "inference_time")
TITLES = (
    "network", "method", "forward", "optimize", "predict", "step", "memory, MiB", "beside",
)  # fmt: skip


class PlainTent:
    """TENT as one would write it in a script: no diagnostics, no clock, no way back."""

    def __init__(self, net: nn.Module, lr: float = 1e-3, bn_momentum: float = 0.1) -> None:
        self.net = net
        self.norms: list[Any] = [m for m in net.modules() if is_batch_norm(m)]
        chosen = self.norms or [m for m in net.modules() if isinstance(m, nn.LayerNorm)]
        net.requires_grad_(False)
        for norm in chosen:
            norm.requires_grad_(True)
            norm.momentum = bn_momentum
        self.optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=lr)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for norm in self.norms:
            norm.train()
        log_p = self.net(x).log_softmax(1)
        loss = -(log_p.exp() * log_p).sum(1).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for norm in self.norms:
            norm.eval()
        with torch.no_grad():
            probs: torch.Tensor = self.net(x).softmax(1)
        return probs


class Bench:
    """One network, and what can be measured of it."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        dtype: torch.dtype,
        n: int | None,
        side: int | None = None,
    ) -> None:
        build, usual, batch_size = NETWORKS[name]
        side = side or usual
        torch.manual_seed(0)
        self.make: Callable[[], Any] = build
        self.dtype = dtype
        self.device = device
        self.x = torch.randn(n or batch_size, 3, side, side, device=device, dtype=dtype)

    def build(self) -> nn.Module:
        net: nn.Module = self.make().eval().to(self.device, self.dtype)
        return net

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def seconds(self, call: Callable[[], Any], calls: int) -> float:
        """Of one of several calls in a row: the host may run ahead, as it does in production."""
        self.wait()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        self.wait()
        return (time.perf_counter() - start) / calls

    def side_by_side(self, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
        """Median seconds of each, in turns."""
        times: dict[str, list[float]] = {name: [] for name in calls}
        each = 10 if self.device.type == "cuda" else 1
        for call in calls.values():
            self.seconds(call, 2)
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(self.seconds(call, each))
        return {name: statistics.median(values) for name, values in times.items()}

    def lame(self, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
        net = self.build()
        model = Classifier(net)
        adapter = lametta.Corrected(model, lametta.LAME())
        with torch.no_grad():
            # The plain pass twice, to see how much two runs of the same thing differ.
            calls = {"forward": lambda: net(self.x), "step": lambda: adapter.step(self.x)}
            times = self.side_by_side(calls | {"again": calls["forward"]}, rounds)
            stages = self.median_info(partial(self.lame_stages, model), rounds)
        return times, stages

    def lame_stages(self, model: Classifier) -> dict[str, float]:
        clock = StepTimer(self.device)
        with clock.stage("forward_time"):
            prediction = lametta.Source(model).step(self.x)
        with clock.stage("optimization_time"):
            lametta.LAME().correct(prediction.features, prediction.probs)
        return clock.info()

    def tent(self, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
        adapter = tent(Classifier(self.build()))
        step, plain = partial(adapter.step, self.x), partial(PlainTent(self.build()), self.x)
        times = self.side_by_side({"plain": plain, "step": step}, rounds)
        del plain  # its weights, gradients and optimizer would count as memory
        return times, self.median_info(lambda: dict(adapter.step(self.x).info), rounds)

    def median_info(self, call: Callable[[], dict[str, float]], rounds: int) -> dict[str, float]:
        infos = [call() for _ in range(rounds)]
        names = (*STAGES, "peak_memory")
        return {
            name: statistics.median(float(info[name]) for info in infos)
            for name in names
            if name in infos[0]
        }


def row(
    name: str, method: str, stages: dict[str, float], step: float, beside: str, noise: str = ""
) -> dict[str, str]:
    """A line of the table, printed: stages and step in ms."""
    memory = stages.get("peak_memory")
    shown = [f"{1e3 * stages.get(stage, 0.0):.2f}" for stage in STAGES]
    shown += [f"{1e3 * step:.2f}", "-" if memory is None else f"{memory / 2**20:.0f}"]
    cells = "".join(f"{cell:>9}" for cell in shown)
    print(f"{name:<17}{method:<7}{cells}   {beside}{noise}", flush=True)
    return dict(zip(TITLES, (name, method, *shown, beside), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--batch-size", type=int, help="the paper's if not given: 64 or 16")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="ResNet-18 on two small images, once")
    store.add_option(parser)
    options = parser.parse_args()
    device, dtype = torch.device(options.device), getattr(torch, options.dtype)
    names, n, rounds, side = options.networks, options.batch_size, options.rounds, None
    if options.quick:
        names, n, rounds, side = ["ResNet-18"], 2, 1, 32
    if importlib.util.find_spec("timm") is None:
        names = [name for name in names if name not in NEEDS_TIMM]
    where = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    print(f"{where}, {options.dtype}; stages and step in ms, memory in MiB")
    header = "".join(f"{title.partition(',')[0]:>9}" for title in TITLES[2:-1])
    print(f"{'':<24}{header}")
    rows = []
    for name in names:
        bench = Bench(name, device, dtype, n, side)
        times, stages = bench.lame(rounds)
        ratio, noise = times["step"] / times["forward"], times["again"] / times["forward"]
        beside, itself = f"{ratio:.3f} x the plain forward pass", f" ({noise:.3f} x itself)"
        rows.append(row(name, "LAME", stages, times["step"], beside, itself))
        times, stages = bench.tent(rounds)
        beside = f"{times['step'] / times['plain']:.3f} x a plain TENT"
        rows.append(row(name, "TENT", stages, times["step"], beside))
    store.write(options.csv, rows)


if __name__ == "__main__":
    main()
