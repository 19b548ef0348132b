"""One cell: one method on one stream. The only module where labels meet predictions."""

import itertools
import multiprocessing
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from joblib.externals import loky

from lametta._arrays import to_numpy
from lametta.bench.columns import CELL, names
from lametta.bench.experiment import Cell
from lametta.bench.experiment.schema import source_data
from lametta.bench.running.scores import StreamingMetrics, soft_neighborhood_density
from lametta.bench.running.workspace import Workspace
from lametta.correctors.base import has_use_for_prototypes
from lametta.data.bank.extraction import copy_to_host_async
from lametta.methods import find
from lametta.stream import Scenario, Stream
from lametta.types import Adapter, Array, Model, Output, Prototypes

if TYPE_CHECKING:
    import torch

    from lametta.torch import Classifier

_Step: TypeAlias = dict[str, float | None]
"""The numbers of one batch."""
_Wait: TypeAlias = Callable[[], tuple[Array, dict[str, float]]]
"""Waits for the probabilities of a batch and its other numbers."""

_PASSES = names("passes")
_READ = names("signal", "stage", "time", "memory")
_AHEAD = 1  # steps that may be queued on a GPU behind the one that it works on

_BATCHES = 2  # with the second, what a method keeps from batch to batch is there too


def run_cell(workspace: Workspace, cell: Cell) -> tuple[dict[str, object], Stream]:
    """Run a cell, and give its row of the results and the stream that it saw.

    Every method sees the identical stream, and begins anew for each id in it. Methods that need
    only outputs replay a bank, unless the cell is *live*; the others run on the network.
    """
    experiment, method = workspace.experiment, find(cell.kind)
    stream, metrics, steps, answers = _run(workspace, cell)
    if cell.consistency:
        *_, others = _run(replace(workspace, mirrored=True), cell)
        for step, one, other in zip(steps, answers, others, strict=True):
            step["consistency"] = float(np.mean(one == other))
    row = {
        "experiment": experiment.name,
        **{name: getattr(cell, name) for name in CELL},
        "dataset": experiment.scenarios[cell.scenario].dataset,
        "fingerprint": stream.fingerprint,
        **metrics.compute(),
        "causal": method.trait("causal", cell.params),
        "needs": ", ".join(method.needs),
        "answers": method.answers(cell.params),
        **_summary(steps),
    }
    return row, stream


def _run(
    workspace: Workspace, cell: Cell
) -> tuple[Stream, StreamingMetrics, list[_Step], list[Array]]:
    """The stream, its metrics, the numbers of each batch, and the classes that were answered."""
    method, answers = find(cell.kind), list[Array]()
    shared = method.needs_network or not method.trait("stateful", cell.params)
    with set_up(workspace, cell) as setup:
        unknown = bool((setup.labels == setup.n_classes).any())
        stream, metrics = setup.stream, StreamingMetrics(setup.n_classes, unknown=unknown)
        with closing(adapter_per_stream(setup.make, stream.ids, shared=shared)) as own:
            steps = list(_steps(own, setup, metrics, answers))
    return stream, metrics, steps, answers


@dataclass(frozen=True)
class Setup:
    """Setup of a cell: the model, the stream, and the labels of all samples.

    ``batches`` gives the model's inputs for each batch of the stream; where a bank is replayed,
    these are its outputs. ``make`` builds the method's adapter, which sees the model and these
    inputs, and nothing else.
    """

    model: Model
    stream: Stream
    labels: Array
    n_classes: int
    batches: Callable[[], Iterable[Any]]
    make: Callable[[], Adapter]
    prefetch_device: str | None = (
        None  # the GPU that works on a batch while the next is made and queued
    )


@contextmanager
def set_up(workspace: Workspace, cell: Cell) -> Iterator[Setup]:
    """Make what a cell runs on; its adapter is built on the model."""
    method, params = find(cell.kind), cell.params
    scenario = workspace.experiment.scenarios[cell.scenario]
    arriving = scenario.scenario(cell.batch_size, cell.seed)
    outputs_only = not method.needs_network
    if outputs_only and not cell.live:
        bank = workspace.bank(cell.model, scenario.dataset)
        stream = arriving(bank.labels, bank.groups, keys=bank.keys)
        # Not the bank, which holds labels, nor positions in it, which are often sorted by class.
        replay = _Replay(_copied(bank.prototypes) if _uses_prototypes(cell.kind) else None)
        build, batches = partial(method.build, replay, params), partial(map, bank, stream)
        yield Setup(replay, stream, bank.labels, bank.n_classes, batches, build)
        return
    data, on_gpu = workspace.samples(cell.model, scenario.dataset), workspace.device[:4] == "cuda"
    stream = arriving(data.labels, data.groups, keys=data.keys)
    with workspace.classifier(cell.model, data.class_map) as network:
        model = _Timed(network) if outputs_only else network

        def make() -> Adapter:
            sources = source_data(params).items()
            given = {option: _unlabeled(workspace, cell, name) for option, name in sources}
            return method.build(model, params | given)

        yield Setup(
            model,
            stream,
            np.asarray(data.labels),
            data.n_known,
            partial(workspace.inputs, cell.model, data, stream),
            make,
            prefetch_device=workspace.device if on_gpu and not cell.live else None,
        )


def _unlabeled(workspace: Workspace, cell: Cell, dataset: str) -> "Iterator[torch.Tensor]":
    """Source data for a method, once: inputs of the network in shuffled batches, without labels."""
    data = workspace.dataset(dataset)
    stream = Scenario(batch_size=cell.batch_size)(data.labels, keys=data.keys)
    yield from workspace.inputs(cell.model, data, stream)


@dataclass(frozen=True)
class _Replay:
    """Stand in for the network where its outputs are the input: all that methods see of a bank."""

    prototypes: Prototypes | None

    def __call__(self, output: Output, /) -> Output:
        return output


def _uses_prototypes(kind: str) -> bool:
    return any(has_use_for_prototypes(part.factory) for part in find(kind).components)


def _copied(prototypes: Prototypes | None) -> Prototypes | None:
    """Arrays of their own: those of a bank lead to its file, and so to the labels."""
    if prototypes is None:
        return None
    bias = None if prototypes.bias is None else np.array(prototypes.bias)
    return Prototypes(np.array(prototypes.weight), bias)


class _Timed:
    """A model with a clock that starts when it is called, and times the call."""

    def __init__(self, model: "Classifier") -> None:
        self.model = model

    @property
    def prototypes(self) -> Prototypes | None:
        return self.model.prototypes

    def __call__(self, x: Array, /) -> Output:
        from lametta.torch.profiling import StepTimer

        self.clock = StepTimer(x.device)
        with self.clock.stage("forward_time"):
            return self.model(x)


def _steps(
    own: Iterator[Adapter], setup: Setup, metrics: StreamingMetrics, answers: list[Array]
) -> Iterator[_Step]:
    """One row of numbers a batch, whose answers join those before."""
    under_way = deque[tuple[Array, _Wait]]()
    begin, most = (_timed, 0) if setup.prefetch_device is None else (_queued, _AHEAD)

    def settled() -> _Step:
        y, wait = under_way.popleft()
        probs, info = wait()
        answers.append(probs.argmax(1))
        found = {name: info.get(name) for name in (*_READ, *_PASSES)}
        found["neighborhood"] = soft_neighborhood_density(probs)
        known = int((y < setup.n_classes).sum())
        return found | {"n": known, "hits": metrics.update(probs, y)}

    for adapter, (index, x) in zip(own, _arriving(setup), strict=True):
        under_way.append((setup.labels[index], begin(adapter, x, setup)))
        if len(under_way) > most:
            yield settled()
    while under_way:
        yield settled()


def _timed(adapter: Adapter, x: Any, setup: Setup) -> _Wait:
    """Take a step, wait for it, and time it."""
    start = time.perf_counter()
    prediction = adapter.step(x)
    probs = to_numpy(prediction.probs)  # waits for the device
    info = {"step_time": time.perf_counter() - start}
    info |= {name: float(prediction.info[name]) for name in _READ if name in prediction.info}
    info |= passes_of(prediction.info)
    if isinstance(setup.model, _Timed):
        info |= {name: float(value) for name, value in setup.model.clock.info().items()}
        info["optimization_time"] = info["step_time"] - info["forward_time"]
        info |= {"forwards": 1, "forward_samples": len(x), "backwards": 0, "backward_samples": 0}
    return lambda: (probs, info)


def _queued(adapter: Adapter, x: Any, setup: Setup) -> _Wait:
    """Queue a step on the GPU, and give a function that waits for its numbers."""
    import torch

    from lametta.torch.adapt import skip_finite_check
    from lametta.torch.profiling import StepTimer

    clock, looked = StepTimer(x.device), skip_finite_check.set(True)
    try:
        with clock.stage("step_time"):
            prediction = adapter.step(x)
    finally:
        skip_finite_check.reset(looked)
    probs = copy_to_host_async(prediction.probs)
    info = clock.seconds | {n: prediction.info[n] for n in _READ if n in prediction.info}
    info |= passes_of(prediction.info)
    tensors = {
        name: copy_to_host_async(x) for name, x in info.items() if isinstance(x, torch.Tensor)
    }

    def wait() -> tuple[Array, dict[str, float]]:
        found = info | {name: copy() for name, copy in tensors.items()}
        return probs(), {name: float(x) for name, x in found.items()}

    return wait


def passes_of(info: Mapping[str, Any]) -> dict[str, float]:
    """The passes that a network method counted in a step, also below correctors on top of it.

    Examples
    --------
    >>> passes_of({"changed": 0.5, "base_forwards": 2, "base_backwards": 1})
    {'forwards': 2.0, 'backwards': 1.0}
    """
    counted = {name.replace("base_", ""): value for name, value in info.items()}
    return {name: float(counted[name]) for name in _PASSES if name in counted}


def _arriving(setup: Setup) -> Iterator[tuple[Array, Any]]:
    """The positions of each batch, and its inputs."""
    if setup.prefetch_device is None:
        yield from zip(setup.stream, setup.batches(), strict=True)
        return
    import torch

    from lametta.torch.network import check_finite

    batches, side = iter(setup.batches()), _copy_stream(setup.prefetch_device)
    for index in setup.stream:
        with torch.cuda.stream(side):
            x = next(batches)
            check_finite(x)
        steps = torch.cuda.current_stream(setup.prefetch_device)
        steps.wait_stream(side)
        x.record_stream(steps)
        yield index, x


@lru_cache
def _copy_stream(device: str) -> "torch.cuda.Stream":
    """The CUDA stream of the inputs: in that of the steps, a copy would wait for their last one.

    One for all cells, since each CUDA stream has memory of its own.
    """
    import torch

    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _summary(steps: list[_Step]) -> dict[str, object]:
    timed = steps[1:] or steps  # the first batch warms up
    return {
        **{name: _mean(steps, name) for name in names("signal", "passes")},
        **{name: _mean(timed, name) for name in names("stage", "time", "memory")},
        **{name: [step[name.removeprefix("step_")] for step in steps] for name in names("series")},
    }


def _mean(steps: list[_Step], name: str) -> float | None:
    values = [value for step in steps if (value := step[name]) is not None]
    return float(np.mean(values)) if values else None


def adapter_per_stream(
    make: Callable[[], Adapter], ids: Sequence[str], *, shared: bool = False
) -> Generator[Adapter, None, None]:
    """The adapter of each batch: one for each stream, from its first batch to its last.

    Parameters
    ----------
    make : callable
        Makes an adapter.
    ids : sequence of str
        The stream of each batch.
    shared : bool
        Whether streams that run side by side share one: there is one network to adapt, and
        a method without state has nothing to keep apart. Streams that follow each other never do.

    Examples
    --------
    >>> from types import SimpleNamespace as Own
    >>> made = iter("abc")
    >>> make = lambda: Own(name=next(made), reset=lambda: None)
    >>> [adapter.name for adapter in adapter_per_stream(make, ["left", "right", "left", "later"])]
    ['a', 'b', 'a', 'c']
    """
    last = {name: i for i, name in enumerate(ids)}
    kept: dict[str, Adapter] = {}
    try:
        for i, name in enumerate(ids):
            if name not in kept:
                kept[name] = next(iter(kept.values())) if shared and kept else make()
            yield kept[name]
            if last[name] == i:
                adapter = kept.pop(name)
                if not (shared and kept):
                    adapter.reset()
    finally:
        for adapter in kept.values():
            adapter.reset()


def measure_peak(workspace: Workspace, cell: Cell) -> int | None:
    """The most bytes that the first steps of a cell need on a CPU, above the loaded network.

    In a process of its own: one that ran other cells has memory left over, which would hide what
    this one needs. None where the system does not tell.
    """
    if sys.platform != "linux":
        return None
    found: int | None = _loaded().submit(_in_a_fork, workspace, cell).result()
    return found


@cache
def _loaded() -> loky.ProcessPoolExecutor:
    """A process that loads PyTorch, which takes seconds, and runs nothing but forks of itself."""
    return loky.ProcessPoolExecutor(1, initializer=_load)


def _load() -> None:
    import torch
    import torch._dynamo  # an optimizer's first step loads it: here once, and not in each fork

    torch.set_num_threads(1)


def _in_a_fork(workspace: Workspace, cell: Cell) -> int | None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as fork:
        return fork.submit(_measure, workspace, cell).result()


def _measure(workspace: Workspace, cell: Cell) -> int | None:
    from lametta.torch.profiling import peak_memory_of

    with set_up(workspace, cell) as setup:
        batches = list(itertools.islice(setup.batches(), _BATCHES))
        few = setup.make()
        few.step(batches[0][:2])  # loads what any first step loads, and needs little
        few.reset()
        adapter = setup.make()
        return peak_memory_of(lambda: [adapter.step(x) for x in batches])
