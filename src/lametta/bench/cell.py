"""A cell: one method on one stream. Nowhere else are labels near a method."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import is_torch_array

from lametta.bench.experiment import Cell
from lametta.bench.methods import build, is_output_only
from lametta.bench.metrics import Tally
from lametta.bench.workspace import Workspace
from lametta.stream import Scenario, Stream
from lametta.types import Adapter, Array, Model, Output

_TIMES = ("forward_time", "optimization_time", "inference_time", "step_time")


def run_cell(workspace: Workspace, cell: Cell) -> tuple[dict[str, Any], Stream]:
    """Run a cell: its row, as the results have it, and the stream that it saw.

    Every method sees the identical stream. Those that need outputs alone replay a bank, unless the
    cell is *live*; the others run on the network.
    """
    experiment = workspace.experiment
    scenario = experiment.scenarios[cell.scenario]
    with _source(workspace, cell, scenario.dataset) as source:
        stream = Scenario(
            scenario.order, scenario.prior, cell.batch_size, cell.seed, scenario.limit
        )(source.labels, source.groups, keys=source.keys)
        adapter = build(cell.kind, cell.params, source.model)
        tally = Tally(source.n_classes)
        try:
            steps = list(_steps(adapter, stream, source, tally))
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
class _Source:
    """What a cell works on."""

    model: Model
    inputs: Callable[[Array], Any]
    labels: Array
    groups: Array
    keys: tuple[str, ...]
    n_classes: int


@contextmanager
def _source(workspace: Workspace, cell: Cell, dataset: str) -> Iterator[_Source]:
    if is_output_only(cell.kind) and not cell.live:
        bank = workspace.bank(cell.model, dataset)
        yield _Source(
            bank, lambda index: index, bank.labels, bank.groups, bank.keys, bank.n_classes
        )
        return
    data = workspace.samples(cell.model, dataset)
    with workspace.classifier(cell.model, data.class_map) as network:
        yield _Source(
            _Timed(network) if is_output_only(cell.kind) else network,
            workspace.inputs(cell.model, data),
            np.asarray(data.labels),
            data.groups,
            data.keys,
            len(data.classes),
        )


class _Timed:
    """A model with a clock that starts when it is called, and times the call."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def __call__(self, x: Any, /) -> Output:
        from lametta.torch.clock import Clock

        self.clock = Clock(x.device)
        with self.clock.stage("forward_time"):
            output: Output = self.model(x)
        return output


def _steps(
    adapter: Adapter, stream: Stream, source: _Source, tally: Tally
) -> Iterator[dict[str, Any]]:
    """One plain row a batch."""
    for index in stream:
        x, y = source.inputs(index), source.labels[index]
        start = time.perf_counter()
        prediction = adapter.step(x)
        probs = _on_host(prediction.probs)  # waits for the device
        seconds = time.perf_counter() - start
        info = {name: float(value) for name, value in prediction.info.items()}
        row: dict[str, Any] = {
            "n": len(y),
            "hits": tally.add(probs, y),
            "step_time": seconds,
            **{name: info.get(name) for name in _SIGNALS},
            **{name: info.get(name) for name in (*_TIMES[:3], "peak_memory")},
        }
        if isinstance(source.model, _Timed):
            row |= source.model.clock.info()
            row["forward_time"] = float(row["forward_time"])
            row["optimization_time"] = seconds - row["forward_time"]
        yield row


_SIGNALS = ("entropy", "diversity", "changed")


def _summary(steps: list[dict[str, Any]]) -> dict[str, Any]:
    timed = steps[1:] or steps  # the first batch warms up
    return {
        **{name: _mean(steps, name) for name in _SIGNALS},
        **{name: _mean(timed, name) for name in _TIMES},
        "peak_memory": _mean(timed, "peak_memory"),
        "step_n": [step["n"] for step in steps],
        "step_hits": [step["hits"] for step in steps],
        "step_entropy": [step["entropy"] for step in steps],
        "step_diversity": [step["diversity"] for step in steps],
    }


def _mean(steps: list[dict[str, Any]], name: str) -> float | None:
    values = [step[name] for step in steps if step[name] is not None]
    return float(np.mean(values)) if values else None


def _on_host(x: Array) -> Array:
    return x.detach().float().cpu().numpy() if is_torch_array(x) else np.asarray(x)
