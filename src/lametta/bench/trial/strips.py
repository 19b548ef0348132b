"""Strips of a stream: one cell a sample, one color a class, and lines along time, as SVG."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from lametta._arrays import Floats
from lametta.bench.figures.style import PALETTE
from lametta.bench.trial.runs import Index, Outputs, Run

_CELLS = 360  # that a strip has at most
_HEIGHT, _LINE = 20, 40  # of a strip and of a line, in units of a cell's width in the middle
OTHER = "var(--grid)"


@dataclass(frozen=True)
class Strip:
    """A row of cells: its title, what is said beside it, and the SVG."""

    title: str
    note: str
    svg: str


def colors(*answers: Index) -> dict[int, str]:
    """The commonest classes of these answers, each with a color; others have none.

    Examples
    --------
    >>> list(colors(np.array([3, 3, 1]), np.array([3, 1, 2])))
    [3, 1, 2]
    """
    found, counts = np.unique(np.concatenate(answers), return_counts=True)
    commonest = found[np.argsort(-counts, kind="stable")]
    return dict(zip(commonest.tolist(), PALETTE, strict=False))


def closest_look(outputs: Outputs, run: Run, most: int = _CELLS) -> slice:
    """The stretch of the stream, so long at most, in which most would change.

    Examples
    --------
    >>> outputs = Outputs(np.eye(4), np.eye(2)[[0, 0, 0, 0]])
    >>> run = Run(None, np.array([0, 0, 1, 1]), np.ones(4), np.zeros(4), 0.0)
    >>> closest_look(outputs, run, most=2)
    slice(2, 4, None)
    """
    n = len(outputs)
    if n <= most:
        return slice(0, n)
    changed = np.concatenate([[0], np.cumsum(run.after != outputs.before)])
    begin = int(np.argmax(changed[most:] - changed[:-most]))
    return slice(begin, begin + most)


def strips(
    answers: Mapping[str, Index], notes: Sequence[str], shown: slice, palette: Mapping[int, str]
) -> list[Strip]:
    """A strip for each of these answers [N], over the same stretch."""
    return [
        Strip(title, note, _strip(found[shown], palette))
        for (title, found), note in zip(answers.items(), notes, strict=True)
    ]


def _strip(found: Index, palette: Mapping[int, str]) -> str:
    cells, x = [], 0
    for color, run in groupby(palette.get(int(one), OTHER) for one in found):
        width = len(list(run))
        cells.append(f'<rect x="{x}" width="{width}" height="{_HEIGHT}" style="fill:{color}"/>')
        x += width
    return _svg(x, _HEIGHT, "".join(cells))


def line(values: Floats, low: float, high: float) -> str:
    """A line of values along time, as the strips are wide.

    Examples
    --------
    >>> 'points="0.0,40.0 1.0,0.0"' in line(np.array([0.0, 1.0]), 0, 1)
    True
    """
    height = _LINE * (1 - (np.clip(values, low, high) - low) / max(high - low, 1e-9))
    points = " ".join(f"{x:.1f},{y:.1f}" for x, y in enumerate(height.tolist()))
    drawn = f'<polyline points="{points}" vector-effect="non-scaling-stroke"/>'
    return _svg(max(1, len(values) - 1), _LINE, drawn)


def ticks(n: int, begins: Sequence[int], shown: slice) -> str:
    """Marks where something begins in a stretch of n samples; empty where nothing does.

    Examples
    --------
    >>> ticks(9, [0, 4], slice(2, 8)).count("<rect")
    1
    """
    start, stop, _ = shown.indices(n)
    found = [at - start for at in begins if start < at < stop]
    marks = "".join(f'<rect x="{x - 0.5}" width="1" height="8"/>' for x in found)
    return _svg(stop - start, 8, marks) if found else ""


def groups_begin(outputs: Outputs) -> list[int]:
    """Where another group begins in the order of the file."""
    if outputs.groups is None:
        return []
    groups: list[int] = (np.flatnonzero(outputs.groups[1:] != outputs.groups[:-1]) + 1).tolist()
    return groups


def along(run: Run, name: str, outputs: Outputs) -> Floats:
    """What ``info`` said at each sample [N], in the order of the file."""
    found = np.zeros(len(outputs), np.float32)
    step, at = max(1, run.candidate.batch_size), 0
    for rows in outputs.streams:
        n = -(-len(rows) // step)
        found[rows] = np.repeat(run.series[name][at : at + n], step)[: len(rows)]
        at += n
    return found


def _svg(width: int, height: int, inside: str) -> str:
    box = f'viewBox="0 0 {width} {height}" preserveAspectRatio="none"'
    return f'<svg {box} aria-hidden="true">{inside}</svg>'
