"""Bars on the error stream, for functions that take ``progress=True``."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from lametta._checks import extra, import_optional


@contextmanager
def bars() -> Iterator[Callable[[int, int, str], None]]:
    """Show how far each phase is: call it with what is done, all there is, and the phase.

    Examples
    --------
    >>> with bars() as show:
    ...     show(1, 2, "reading")
    """
    rich = import_optional("rich.progress", extra("cli"), "progress=True")
    console = import_optional("rich.console", extra("cli"), "progress=True").Console(stderr=True)
    columns = ("{task.description}", rich.BarColumn(), rich.MofNCompleteColumn())
    with rich.Progress(*columns, rich.TimeRemainingColumn(), console=console) as progress:
        tasks: dict[str, Any] = {}

        def show(done: int, total: int, phase: str) -> None:
            if phase not in tasks:
                tasks[phase] = progress.add_task(phase)
            progress.update(tasks[phase], completed=done, total=total)

        yield show


@contextmanager
def told(
    progress: Callable[[int, int], object] | bool | None, phase: str
) -> Iterator[Callable[[int, int], object]]:
    """What to tell how much is done of how much: the given function, a bar for True, or nobody."""
    if progress is True:
        with bars() as show:
            yield lambda done, total: show(done, total, phase)
    else:
        yield progress or (lambda done, total: None)
