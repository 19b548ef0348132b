"""Labels are out of reach: a method sees the outputs of its batch, and no way to more."""

from dataclasses import fields, is_dataclass, replace
from types import BuiltinMethodType, FunctionType, MethodType, ModuleType

import numpy as np
import pytest

from lametta import Output
from lametta.adapters import Source
from lametta.bench.running import cell as cells
from lametta.bench.running.workspace import Workspace
from tests.bench.tiny import selected

seen = []


class Curious(Source):
    """Answers as the model does, and keeps whatever it was handed."""

    def step(self, x, /):
        seen.append((self.model, x))
        return super().step(x)


@pytest.fixture
def handed(experiment, tmp_path):
    """What a method that asks for outputs alone is handed on a stream, and that stream's labels."""
    workspace = Workspace(experiment, tmp_path)
    workspace.prepare("net", "digits", images=False)
    every = experiment.test_cells(selected(experiment))
    source = next(c for c in every if (c.kind, c.scenario) == ("source", "sorted"))
    seen.clear()
    row, stream = cells.run_cell(workspace, replace(source, kind=f"python:{__name__}:Curious"))
    assert row["accuracy"] > 0.5  # it did run
    labels = workspace.bank("net", "digits").labels
    return list(seen), [labels[index] for index in stream]


def reached(thing):
    """All that can be reached from a thing by attributes, items, closures and bound methods."""
    left, found, known = [thing], [], set()
    while left:
        thing = left.pop()
        if id(thing) in known or isinstance(thing, ModuleType | type | str | bytes | int | float):
            continue
        known.add(id(thing))
        found.append(thing)
        if isinstance(thing, dict):
            left += [*thing.keys(), *thing.values()]
        elif isinstance(thing, list | tuple | set | frozenset):
            left += thing
        if isinstance(thing, np.ndarray):
            left.append(thing.base)
            continue
        if isinstance(thing, FunctionType):
            left += [cell.cell_contents for cell in thing.__closure__ or ()]
            left += [thing.__defaults__, thing.__kwdefaults__, thing.__dict__]
        for name in ("__self__", "__func__", "__wrapped__", "func", "args", "keywords"):
            left.append(getattr(thing, name, None))
        if is_dataclass(thing):
            left += [getattr(thing, field.name) for field in fields(thing)]
        left += vars(thing).values() if hasattr(thing, "__dict__") else ()
        if not isinstance(thing, FunctionType | MethodType | BuiltinMethodType):
            public = [name for name in dir(thing) if not name.startswith("__")]
            left += [getattr(thing, name, None) for name in public]
    return found


def test_a_method_is_handed_the_outputs_of_its_batch_alone(handed):
    batches, labels = handed
    assert len(batches) == len(labels) > 2
    for (model, x), y in zip(batches, labels, strict=True):
        assert isinstance(x, Output)
        assert model(x) is x
        assert len(x.features) == len(x.logits) == len(y)


def test_labels_cannot_be_reached(handed):
    batches, labels = handed
    sizes = {len(y) for y in labels}
    for model, x in batches:
        assert model.prototypes is None  # nobody asked for them
        for thing in reached([model, x]):
            for name in ("labels", "groups", "keys", "stream", "samples"):
                assert not hasattr(thing, name) or callable(getattr(thing, name)), thing
            if isinstance(thing, np.ndarray):
                assert thing.ndim == 2, "one number a sample"
                assert len(thing) in sizes, "more than this batch"


class Prototypical(Curious):
    needs = frozenset({"prototypes"})


def test_prototypes_lead_to_nothing_else(experiment, tmp_path):
    """Methods that ask for them are handed the head's weights, in arrays of their own."""
    workspace = Workspace(experiment, tmp_path)
    workspace.prepare("net", "digits", images=False)
    source = next(c for c in experiment.test_cells(selected(experiment)) if c.kind == "source")
    seen.clear()
    cells.run_cell(workspace, replace(source, kind=f"python:{__name__}:Prototypical"))
    given, stored = seen[0][0].prototypes, workspace.bank("net", "digits").prototypes
    assert np.array_equal(given.weight, stored.weight)
    assert np.array_equal(given.bias, stored.bias)
    assert given.weight.base is None
    assert given.bias.base is None
