"""Published numbers: the networks, batches and rows of the vectors, and how to compare with them.

A test of a method replays a file and compares after each batch::

    @golden
    def test_published_numbers(dtype, device):
        vectors = Vectors("tent_orig", dtype, device)
        replay(TENT(vectors.classifier(), bn_momentum=0, predict_first=True), vectors)
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from lametta.torch import Classifier, NetworkMethod, Preprocess
from lametta.types import Prediction
from tests.conftest import SHARED

FIELD = SHARED / "golden" / "field"
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
DEVICES = ["cpu", *["cuda"] * torch.cuda.is_available()]  # no skipped test for each where none is
PLAIN = Preprocess(resize=None, crop=None, mean=(0, 0, 0), std=(1, 1, 1))
SGD = partial(torch.optim.SGD, momentum=0.9)  # without Nesterov, as the authors of most methods


def golden(test: Any) -> Any:
    """Mark a test that compares with the vectors, in both precisions, on a CPU and a GPU.

    Its arguments are ``dtype`` and ``device``.
    """
    absent = pytest.mark.skipif(not FIELD.is_dir(), reason=f"needs the published vectors: {FIELD}")
    dtypes = [pytest.param(dtype, id=str(dtype).partition(".")[2]) for dtype in TOLERANCE]
    test = pytest.mark.parametrize("device", DEVICES)(test)
    return absent(pytest.mark.parametrize("dtype", dtypes)(test))


class Block(nn.Module):
    def __init__(self, width: int, out: int, stride: int, norm: str) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, out, 3, stride, 1, bias=False)
        self.name = norm
        self.add_module(norm, nn.BatchNorm2d(out) if norm == "bn" else nn.GroupNorm(4, out))

    def forward(self, x: Tensor) -> Tensor:
        return self.get_submodule(self.name)(self.conv(x)).relu()


class Net(nn.Module):
    """The network of the vectors: of kind ``bn`` or ``gn``, its last block under either name."""

    def __init__(self, kind: str = "bn", last: str = "layer3") -> None:
        super().__init__()
        self.blocks = ["layer1", "layer2", last]
        shapes = (3, 8, 1), (8, 16, 2), (16, 16, 2)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            for name, shape in zip(self.blocks, shapes, strict=True):
                self.add_module(name, Block(*shape, kind))
            self.fc = nn.Linear(16, 10)
        self.norm = nn.LayerNorm(16) if kind == "gn" else nn.Identity()
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        for name in self.blocks:
            x = self.get_submodule(name)(x)
        logits: Tensor = self.fc(self.norm(x.mean((2, 3))))
        return logits


@dataclass
class Vectors:
    """A file of vectors: ``config`` has its settings, ``[name]`` its arrays, iteration its rows."""

    file: str
    dtype: torch.dtype
    device: str = "cpu"
    arrays: dict[str, Any] = field(init=False, repr=False)
    config: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.arrays = _load(self.file)
        self.config = json.loads(str(self.arrays["config"]))

    def __getitem__(self, name: str) -> Any:
        return self.arrays[name]

    @cached_property
    def problem(self) -> dict[str, Any]:
        """The batches, the clean batches of the source and the weights."""
        return _load(f"problem_{self.config.get('net', 'bn')}")

    def net(self) -> Net:
        """The network with the published weights."""
        last = self.config.get("last_block", "layer3")
        net = Net(self.config.get("net", "bn"), last).to(self.dtype)  # or weights would be rounded
        state = {k[3:]: torch.tensor(v) for k, v in self.problem.items() if k.startswith("sd.")}
        net.load_state_dict({k.replace("layer3", last): v for k, v in state.items()})
        return net.to(self.device)

    def tensor(self, array: Any) -> Tensor:
        """Inputs, in the precision and on the device of the network."""
        return torch.tensor(array, dtype=self.dtype, device=self.device)

    def classifier(self) -> Classifier:
        """The same as a model whose inputs are pixels."""
        return Classifier(self.net(), preprocess=PLAIN)

    def source(self) -> list[Tensor]:
        """The clean batches of the source."""
        return list(self.tensor(self.problem["source_x"]))

    def __iter__(self) -> Iterator[tuple[int, Tensor | None]]:
        """Each row with its batch, of fewer samples where the order says so; None is a reset."""
        own = list(self.arrays["x"]) if "x" in self.arrays else []
        named = dict(zip(self.problem["batch_names"], self.problem["x"], strict=True))
        row = 0
        for entry in self.arrays["order"]:
            name, _, first = str(entry).partition(":")
            if name == "RESET":
                yield row, None
                continue
            batch = self.tensor(own[row] if own else named[name])
            yield row, batch[: int(first)] if first else batch
            row += 1


def replay(
    method: NetworkMethod,
    vectors: Vectors,
    state: Callable[[], Mapping[str, Any]] = dict,
    *,
    skip: Callable[[str, int], bool] = lambda name, row: False,
    answer: Callable[[Tensor], Tensor] = lambda out: out.softmax(1),
    check: Callable[[int, Prediction], None] = lambda row, prediction: None,
) -> dict[str, float]:
    """Feed the batches, and compare answers, losses, gradients, parameters and state after each.

    Parameters
    ----------
    method : NetworkMethod
        On a model that `Vectors.classifier` gave.
    vectors : Vectors
        Whose ``out``, ``grad.<name>``, ``param.<name>`` and, where the method tells it, ``loss``
        are compared.
    state : callable
        Gives further values by the names of their arrays, as they are now; None where an array has
        NaN throughout.
    skip : callable
        Says of which name and row nothing is compared.
    answer : callable
        From a row of ``out`` to probabilities.
    check : callable
        Called after each batch, for what has no array.

    Returns
    -------
    dict of str to float
        The largest gap under each name.
    """
    gaps: dict[str, float] = {}
    limit = TOLERANCE[vectors.dtype]
    parameters = dict(method.model.net.named_parameters())
    for row, batch in vectors:
        if batch is None:
            method.reset()
            continue
        with gradients_of(parameters) as stepped:
            prediction = method.step(batch)
        out = torch.tensor(vectors["out"][row])[: len(batch)]
        found: dict[str, Any] = {"out": prediction.probs}
        for name, array in vectors.arrays.items():
            kind, _, parameter = name.partition(".")
            if kind == "param":
                found[name] = parameters[parameter]
            elif kind in ("grad", "grad2", "grad_last"):  # SAR has two, RoTTA several updates
                found[name] = stepped.get(parameter, torch.zeros(array.shape[1:]))
            elif kind in ("loss", "loss2") and array.ndim == 1 and "loss" in prediction.info:
                found[name] = prediction.info["loss"]
        for name, value in {**found, **state()}.items():
            if skip(name, row):
                continue
            expected = answer(out) if name == "out" else torch.as_tensor(vectors[name][row])
            gap = difference(value, expected)
            gaps[name] = max(gap, gaps.get(name, 0.0))
            assert gap <= limit, f"{name} after batch {row}: {gap:.1e} apart, more than {limit}"
        check(row, prediction)
    return gaps


@contextmanager
def gradients_of(parameters: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """The gradients of named parameters that the last step of an optimizer in this block saw."""
    names = {id(parameter): name for name, parameter in parameters.items()}
    seen: dict[str, Tensor] = {}

    def see(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            seen[names[id(parameter)]] = parameter.grad.clone()

    hook = register_optimizer_step_pre_hook(see)
    try:
        yield seen
    finally:
        hook.remove()


def difference(found: Any, expected: Any) -> float:
    """The largest difference of two arrays, in which NaN equals NaN, and None."""
    expected = torch.as_tensor(expected, dtype=torch.float64)
    if found is None:
        found = torch.full_like(expected, torch.nan)
    found = torch.as_tensor(found, dtype=torch.float64).detach().cpu()
    assert found.shape == expected.shape, f"shape {found.shape} against {expected.shape}"
    assert torch.equal(found.isnan(), expected.isnan()), f"{found} against {expected}"
    gaps = (found - expected).abs().nan_to_num(0)
    return float(gaps.max()) if gaps.numel() else 0.0


def _load(file: str) -> dict[str, Any]:
    with np.load(FIELD / f"{file}.npz") as archive:
        return {name: archive[name] for name in archive.files}
