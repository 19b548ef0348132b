"""What a method needs of a computer's memory, measured in a process that does nothing else."""

import itertools
from functools import partial

from joblib.externals.loky import ProcessPoolExecutor

from lametta.bench.cell import set_up
from lametta.bench.experiment import Cell
from lametta.bench.workspace import Workspace
from lametta.methods import find

_BATCHES = 2  # what a method keeps from one batch to the next is there with the second


def measure_peak(workspace: Workspace, cell: Cell) -> int | None:
    """The most bytes that the first steps of a cell need on a CPU, above the loaded network.

    In a process of its own: one that ran other cells has memory left from them, in which the need
    of this one would not show. None where the system does not tell.
    """
    with ProcessPoolExecutor(1) as fresh:
        found: int | None = fresh.submit(_measure, workspace, cell).result()
    return found


def _measure(workspace: Workspace, cell: Cell) -> int | None:
    import torch

    from lametta.torch.clock import peak_above

    torch.set_num_threads(1)
    with set_up(workspace, cell) as setup:
        batches = list(itertools.islice(setup.batches(), _BATCHES))
        make = partial(find(cell.kind).build, setup.model, cell.params)
        few = make()
        few.step(batches[0][:2])  # which loads what a first step loads, and keeps little
        few.reset()
        adapter = make()
        return peak_above(lambda: [adapter.step(x) for x in batches])
