"""A method begins anew for each stream of a cell."""

from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from lametta import Output
from lametta.bench.experiment import Cell
from lametta.bench.running import cell as cells
from lametta.bench.running.cell import adapter_per_stream
from lametta.methods import find
from lametta.stream import Scenario, alone, by_group, interleaved
from lametta.types import Prediction


class Recording:
    """An adapter that writes down what becomes of it."""

    def __init__(self, log):
        self.log, self.name = log, f"{sum(word[:4] == 'made' for word in log)}"
        log.append(f"made {self.name}")

    def step(self, x, /):
        self.log.append(f"{self.name}: {x}")

    def reset(self):
        self.log.append(f"reset {self.name}")


def drive(ids, stop=99, **options):
    log = []
    with closing(adapter_per_stream(lambda: Recording(log), ids, **options)) as own:
        for i, (adapter, name) in enumerate(zip(own, ids, strict=True)):
            if i == stop:
                break
            adapter.step(name)
    return log


@pytest.mark.parametrize("shared", [False, True])
def test_streams_one_after_another_never_meet(shared):
    assert drive(["a", "a", "b"], shared=shared) == [
        *("made 0", "0: a", "0: a", "reset 0"),
        *("made 1", "1: b", "reset 1"),
    ]


def test_streams_side_by_side_are_kept_apart_or_share_one_network():
    assert drive(["a", "b", "a", "b"]) == [
        *("made 0", "0: a", "made 1", "1: b", "0: a", "reset 0", "1: b", "reset 1")
    ]
    assert drive(["a", "b", "a", "b", "c"], shared=True) == [
        *("made 0", "0: a", "0: b", "0: a", "0: b", "reset 0", "made 1", "1: c", "reset 1")
    ]


def test_what_is_broken_off_is_reset():
    log = drive(["a", "b", "a", "b"], stop=2)
    assert log == ["made 0", "0: a", "made 1", "1: b", "reset 0", "reset 1"]


@dataclass
class Sticky:
    """Answers every sample with the class that its first one had, as the model says."""

    stateful = True
    ordered = True

    def correct(self, features, probs, /):
        self.first = getattr(self, "first", probs[:1])
        return Prediction(np.repeat(self.first, len(probs), axis=0), features, {})

    def reset(self):
        vars(self).clear()


@pytest.mark.parametrize(
    ("order", "accuracy"),
    [(alone(), 1.0), (interleaved(), 1.0), (by_group(sequence="given"), 0.5)],
)
def test_state_belongs_to_one_stream(monkeypatch, order, accuracy):
    labels = np.repeat([0, 1], 6)
    stream = Scenario(order, batch_size=2)(labels, np.array(["x", "y"])[labels])
    outputs, kind = np.eye(2)[labels], f"python:{__name__}:Sticky"

    @contextmanager
    def set_up(*_):
        model = lambda index: Output(outputs[index], 9 * outputs[index])  # noqa: E731
        yield cells.Setup(
            model, stream, labels, 2, lambda: stream, partial(find(kind).build, model, {})
        )

    monkeypatch.setattr(cells, "set_up", set_up)
    scenarios = {"s": SimpleNamespace(dataset="d")}
    workspace = SimpleNamespace(experiment=SimpleNamespace(name="x", scenarios=scenarios))
    cell = Cell("sticky", kind, "{}", "net", "s", 0, 2, False, "id")
    row, _ = cells.run_cell(workspace, cell)
    assert row["accuracy"] == accuracy
