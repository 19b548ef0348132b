"""What a report shows: a section for each study, and one for the choice of configurations."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import polars as pl

from lametta.bench import figures, paper, tables
from lametta.bench.experiment import canonical
from lametta.bench.figures import Figure
from lametta.bench.figures.style import Marks
from lametta.bench.metrics import gains, summary
from lametta.bench.results import Results
from lametta.bench.select import Selection, select
from lametta.bench.tables import Table
from lametta.types import LamettaError

Draw = Callable[[pl.DataFrame, str, Marks], Figure]


@dataclass(frozen=True, eq=False)
class Section:
    """A part of the page: figures, tables, and what there is to know of them."""

    name: str
    title: str
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def compact(self) -> bool:
        """Whether there is room for the one table beside the one figure."""
        return (
            len(self.figures) == len(self.tables) == 1
            and self.figures[0].frame()["panel"].n_unique() == 1
            and len(self.tables[0].header) <= 6
        )


@dataclass(frozen=True)
class _Kind:
    """How a kind of study is shown: its figures, what models are named by, and its table."""

    title: str
    draws: tuple[Draw, ...]
    models: str = "model"
    columns: str | None = "scenario"


def _widest(rows: pl.DataFrame, source: str, style: Marks, n: int = 3) -> Figure:
    """Courses in the scenarios where methods are furthest apart."""
    means = summary(gains(rows, source), ["scenario", "method"])
    spread = means.group_by("scenario", maintain_order=True).agg(
        pl.col("accuracy").max() - pl.col("accuracy").min()
    )
    chosen = spread.top_k(n, by="accuracy")["scenario"]
    figure = figures.curves(rows.filter(pl.col("scenario").is_in(chosen.implode())), style)
    if len(chosen) == len(spread):
        return figure
    these = "is the scenario" if n == 1 else f"are the {n} scenarios"
    more = f" Shown {these} where the lines end furthest apart."
    return replace(figure, caption=figure.caption + more)


def _radar(rows: pl.DataFrame, source: str, style: Marks) -> Figure:
    return figures.radar(rows, "model", source, style, title="Gain over the source")


def _curves(rows: pl.DataFrame, _: str, style: Marks) -> Figure:
    return figures.curves(rows, style)


def _runtime(rows: pl.DataFrame, _: str, __: Marks) -> Figure:
    return figures.runtime(rows)


_KINDS = {
    "boxes": _Kind("Results", (figures.boxes, _widest)),
    "radar_architectures": _Kind("Architectures", (_radar,), "architecture", "model"),
    "radar_trainings": _Kind("Trainings", (_radar,), "training", "model"),
    "batch_size": _Kind("Batch size", (figures.batch_size,), columns="batch_size"),
    "runtime": _Kind("Time and memory", (_runtime,), columns=None),
    "kernels": _Kind("Kernels", (figures.kernels,)),
    "curves": _Kind("Along the stream", (_curves,)),
}


def sections(results: Results) -> Iterator[Section]:
    """The studies in the order of the experiment file, and then the validation."""
    style = figures.marks(results.experiment.methods)
    for name in results.experiment.studies:
        yield _study(results, name, style)
    if results.validation.total:
        yield _validation(results, style)


def paper_section(results: Results, shown: Sequence[Section]) -> Section:
    """The paper's numbers beside ours."""
    studies, drawn = results.experiment.studies, [f for section in shown for f in section.figures]
    rows = [(study.figure, results.studies[name].rows) for name, study in studies.items()]
    rows += [(figure.name, figure.frame()) for figure in drawn if figure.name == "cross_shift"]
    both = paper.beside((pair for pair in rows if len(pair[1])), results.source)
    note = () if len(both) else ("Nothing that was run has a number in the paper.",)
    return Section("paper", "Beside the paper", tables=(tables.beside(both),), notes=note)


def headline_rows(results: Results) -> pl.DataFrame:
    """The rows that the headline is about: of the first study of accuracies that has any.

    Without one, those of the validation with the chosen configurations.
    """
    studies = results.experiment.studies
    for name in sorted(studies, key=lambda name: studies[name].figure != "boxes"):
        if not (rows := results.studies[name].rows).is_empty():
            return rows
    rows = results.validation.rows
    single = pl.col("config").n_unique().over("method") == 1
    chosen = {name: canonical(params) for name, params in results.selected.items()}
    return rows.filter(single | (pl.col("config") == pl.col("method").replace(chosen)))


def _study(results: Results, name: str, style: Marks) -> Section:
    study, part = results.experiment.studies[name], results.studies[name]
    kind = _KINDS[study.figure]
    heading = kind.title if study.title == name else study.title
    notes = [part.lack] if part.lack else []
    file = re.sub(r"[^\w-]+", "-", name)  # a name that files and addresses may have
    drawn: list[Figure] = []
    shown: list[Table] = []
    if not part.rows.is_empty():
        rows = _with_models_by(kind.models, part.rows)
        for draw in kind.draws:
            with _noted(notes):
                figure = draw(rows, results.source, style)
                drawn.append(replace(figure, name=f"{file}_{figure.name}" if drawn else file))
        if kind.columns:
            by = kind.models if kind.columns == "model" else kind.columns
            with _noted(notes):
                table = tables.results(rows, results.source, kind.columns)
                title = f"Accuracy (%) by {by.replace('_', ' ')}"
                shown.append(replace(table, name=file, title=title))
    return Section(file, heading, tuple(drawn), tuple(shown), tuple(notes))


def _validation(results: Results, style: Marks) -> Section:
    part, source = results.validation, results.source
    notes = [part.lack] if part.lack else []
    selection: Selection | None = None
    drawn: list[Figure] = []
    if not part.rows.is_empty():
        scenarios = list(dict.fromkeys(part.rows["scenario"]))
        order = {name: results.experiment.configs(name) for name in results.experiment.methods}
        with _noted(notes):
            selection = select(part.rows, scenarios, order, source=source)
            drawn.append(figures.cross_shift(part.rows, scenarios, source, order=order))
            drawn += _rates(results, part.rows, style)
    params = {
        name: results.selected[name]
        for name in results.experiment.methods
        if name in results.selected
    }
    chosen = tables.selected(params, selection.table if selection else None)
    shown = (chosen,) if params else ()
    return Section("validation", "Chosen configurations", tuple(drawn), shown, tuple(notes))


def _rates(results: Results, rows: pl.DataFrame, style: Marks) -> Iterator[Figure]:
    """The paper's first figure: the same method at several learning rates."""
    has_own = any(study.figure == "curves" for study in results.experiment.studies.values())
    method = next((name for name, params in results.selected.items() if "lr" in params), None)
    if has_own or method is None:
        return
    chosen = results.selected[method]
    configs = [
        canonical(params)
        for params in results.experiment.configurations(method)
        if params | {"lr": chosen["lr"]} == chosen
    ]
    if len(configs) > 1:
        own = (pl.col("method") == method) & pl.col("config").is_in(configs)
        shown = rows.filter(own | (pl.col("method") == results.source))
        figure = _widest(shown, results.source, style, n=1)
        yield replace(figure, name="rates", title=f"{method} at several learning rates")


def _with_models_by(column: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose models are named by another column, if that tells them apart."""
    if rows["model"].n_unique() != rows[column].n_unique():
        return rows
    return rows.with_columns(model=pl.col(column))


@contextmanager
def _noted(notes: list[str]) -> Iterator[None]:
    """What cannot be shown is a note on the page, and no reason to show nothing."""
    try:
        yield
    except LamettaError as error:
        notes.append(str(error))
