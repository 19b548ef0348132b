"""A cell: one method on one stream. Nowhere else are labels near a method."""

import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from lametta._arrays import to_numpy
from lametta.bench.columns import names
from lametta.bench.experiment import Cell
from lametta.bench.tally import Tally
from lametta.bench.workspace import Workspace
from lametta.methods import find
from lametta.stream import Stream
from lametta.types import Adapter, Array, Model, Output

if TYPE_CHECKING:
    from lametta.torch import Classifier

_Step: TypeAlias = dict[str, float | None]
"""The numbers of one batch."""


def run_cell(workspace: Workspace, cell: Cell) -> tuple[dict[str, object], Stream]:
    """Run a cell, and give its row, as the results have it, and the stream that it saw.

    Every method sees the identical stream. Those that need outputs alone replay a bank, unless the
    cell is *live*; the others run on the network.
    """
    experiment = workspace.experiment
    scenario = experiment.scenarios[cell.scenario]
    method = find(cell.kind)
    outputs_only = not method.needs_network
    with _set_up(workspace, cell, scenario.dataset, outputs_only) as setup:
        arriving = scenario.scenario(cell.batch_size, cell.seed)
        stream = arriving(setup.labels, setup.groups, keys=setup.keys)
        adapter = method.build(setup.model, cell.params)
        tally = Tally(setup.n_classes)
        try:
            steps = list(_steps(adapter, stream, setup, tally))
        finally:
            adapter.reset()
    row = {
        "experiment": experiment.name,
        "method": cell.method,
        "config": cell.config,
        "model": cell.model,
        "scenario": cell.scenario,
        "dataset": scenario.dataset,
        "seed": cell.seed,
        "batch_size": cell.batch_size,
        "fingerprint": stream.fingerprint,
        **tally.values(),
        **_summary(steps),
    }
    return row, stream


@dataclass(frozen=True)
class _Setup:
    """What a cell runs on: the model, a function from a stream to its inputs, and the labels."""

    model: Model
    inputs: Callable[[Stream], Iterable[Array]]
    labels: Array
    groups: Array
    keys: tuple[str, ...]
    n_classes: int
    ahead: bool = False  # make the inputs of a batch while the step before it runs


@contextmanager
def _set_up(workspace: Workspace, cell: Cell, dataset: str, outputs_only: bool) -> Iterator[_Setup]:
    if outputs_only and not cell.live:
        bank = workspace.bank(cell.model, dataset)
        yield _Setup(
            bank, lambda stream: stream, bank.labels, bank.groups, bank.keys, bank.n_classes
        )
        return
    data = workspace.samples(cell.model, dataset)
    with workspace.classifier(cell.model, data.class_map) as network:
        yield _Setup(
            _Timed(network) if outputs_only else network,
            partial(workspace.inputs, cell.model, data),
            np.asarray(data.labels),
            data.groups,
            data.keys,
            len(data.classes),
            ahead=workspace.device != "cpu" and not cell.live,
        )


class _Timed:
    """A model with a clock that starts when it is called, and times the call."""

    def __init__(self, model: "Classifier") -> None:
        self.model = model

    def __call__(self, x: Array, /) -> Output:
        from lametta.torch.clock import Clock

        self.clock = Clock(x.device)
        with self.clock.stage("forward_time"):
            return self.model(x)


def _steps(adapter: Adapter, stream: Stream, setup: _Setup, tally: Tally) -> Iterator[_Step]:
    """One plain row a batch."""
    for index, x in _arriving(stream, setup):
        y = setup.labels[index]
        start = time.perf_counter()
        prediction = adapter.step(x)
        probs = to_numpy(prediction.probs)  # waits for the device
        seconds = time.perf_counter() - start
        info = {name: float(value) for name, value in prediction.info.items()}
        if isinstance(setup.model, _Timed):
            info |= {name: float(value) for name, value in setup.model.clock.info().items()}
            info["optimization_time"] = seconds - info["forward_time"]
        yield {
            **{name: info.get(name) for name in names("signal", "stage", "memory")},
            "step_time": seconds,
            "n": len(y),
            "hits": tally.add(probs, y),
        }


def _arriving(stream: Stream, setup: _Setup) -> Iterator[tuple[Array, Array]]:
    """The positions of each batch, and its inputs."""
    if not setup.ahead:
        yield from zip(stream, setup.inputs(stream), strict=True)
        return
    batches = iter(setup.inputs(stream))
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, batches, None)
        for index in stream:
            x = coming.result()
            coming = reader.submit(next, batches, None)
            yield index, x


def _summary(steps: list[_Step]) -> dict[str, object]:
    timed = steps[1:] or steps  # the first batch warms up
    return {
        **{name: _mean(steps, name) for name in names("signal")},
        **{name: _mean(timed, name) for name in names("stage", "time", "memory")},
        **{name: [step[name.removeprefix("step_")] for step in steps] for name in names("course")},
    }


def _mean(steps: list[_Step], name: str) -> float | None:
    values = [value for step in steps if (value := step[name]) is not None]
    return float(np.mean(values)) if values else None
