"""Registry of figures that a study may ask for."""

from dataclasses import dataclass

from lametta.registry import GROUPS, Registry


@dataclass(frozen=True)
class View:
    """View of a study: a title, figures and a table.

    Parameters
    ----------
    title : str
        The heading of a study that has none of its own.
    draws : tuple of str
        The functions that draw, as ``"module:function"`` in `lametta.bench.figures`, or as
        ``"python:package.module:function"``: by name, so that checking a file imports none of
        them. Each takes the rows of the study and the ``ReportContext``, and gives a ``Figure``.
    models : str
        The column that models are named by.
    columns : str or None
        What the columns of the table of accuracies are; None for no table.
    timed : bool
        Whether it shows times, so that the networks have to run.

    Examples
    --------
    >>> VIEWS["runtime"].timed, VIEWS["runtime"].draws
    (True, ('cost:runtime',))
    """

    title: str
    draws: tuple[str, ...]
    models: str = "model"
    columns: str | None = "scenario"
    timed: bool = False

    @property
    def summary(self) -> str:
        """What it shows, in a few words."""
        return self.title


_VIEWS = {
    "boxes": View("Results", ("accuracy:boxes", "timeseries:most_divergent")),
    "radar_architectures": View("Architectures", ("radars:radar",), "architecture", "model"),
    "radar_trainings": View("Trainings", ("radars:radar",), "training", "model"),
    "batch_size": View("Batch size", ("accuracy:batch_size",), columns="batch_size"),
    "runtime": View("Time and memory", ("cost:runtime",), columns=None, timed=True),
    "kernels": View("Kernels", ("radars:kernels",), "architecture", "model"),
    "curves": View("Along the stream", ("timeseries:curves",)),
}


def _describe(target: str, argument: str, name: str) -> View:
    """A figure of another package, whose code runs when it is drawn."""
    return View("Results", (f"python:{target.removeprefix('python:')}",))


VIEWS: Registry[View] = Registry("figure", _VIEWS, group=GROUPS["figures"], load=_describe)
"""What ``figure`` of a study may say. Another figure is a function in `lametta.bench.figures` and a
line here."""
