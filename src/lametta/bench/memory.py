"""What a method needs of a computer's memory, measured in a process that does nothing else."""

import itertools
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial

from joblib.externals import loky

from lametta.bench.cell import set_up
from lametta.bench.experiment import Cell
from lametta.bench.workspace import Workspace
from lametta.methods import find

_BATCHES = 2  # with the second, what a method keeps from batch to batch is there too


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
        make = partial(find(cell.kind).build, setup.model, cell.params)
        few = make()
        few.step(batches[0][:2])  # loads what any first step loads, and needs little
        few.reset()
        adapter = make()
        return peak_memory_of(lambda: [adapter.step(x) for x in batches])
