"""Report: sections of figures and tables for each study."""

import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl

from lametta.bench import figures
from lametta.bench.analysis.paper import join_published
from lametta.bench.analysis.results import Results, read_card, read_json
from lametta.bench.analysis.selection import label_free, select
from lametta.bench.experiment import canonical
from lametta.bench.figures import Figure, ReportContext
from lametta.bench.figures.timeseries import most_divergent
from lametta.bench.running.workspace import Workspace
from lametta.bench.tables import Table, percent
from lametta.bench.tables.accuracy import accuracies, ranking, risk
from lametta.bench.tables.cost import costs, traits
from lametta.bench.tables.experiment import card, datasets, describe, ours_and_papers, selected
from lametta.bench.tables.experiment import label_free as label_free_table
from lametta.bench.views import VIEWS, View
from lametta.data.bank.bank import Bank
from lametta.registry import import_object
from lametta.types import Array, LamettaError

# The names of sections, tables and figures that belong to no study.
_OWN_NAMES = {
    *("validation", "selected", "cross_shift", "paper", "ranking", "streams", "datasets"),
    *("risk", "spread", "methods", "card", "label_free"),
}
_APPROXIMATE = (
    "Of the paper's numbers, the times, those by batch size and the gain over all scenarios are "
    "read off its figures, so they are approximate."
)

_SCHEMA = {
    **dict.fromkeys(("dataset", "used_for", "description"), pl.String()),
    **dict.fromkeys(("classes", "all_classes", "groups", "samples"), pl.Int64()),
}


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
            and len(self.tables[0].header) <= 5
        )


@dataclass(frozen=True, eq=False)
class Report:
    """Report on results: the ranking of methods, and sections of figures and tables.

    Attributes
    ----------
    results : Results
        What was run.
    ranking : Table
        What each method gains over the source, the best first.
    sections : tuple of Section
        What is shown, in order.
    """

    results: Results
    ranking: Table
    sections: tuple[Section, ...]

    @property
    def message(self) -> str:
        """What the numbers say, in a sentence."""
        return headline(self.ranking.data, self.results.source)


def make_report(results: Results, *, paper: bool | None = None) -> Report:
    """Make figures and tables of results.

    Parameters
    ----------
    results : Results
        What was run.
    paper : bool, optional
        Whether to show the paper's numbers beside ours; without it, if the experiment is called
        "paper".
    """
    shown = list(sections(results))
    if results.experiment.name == "paper" if paper is None else paper:
        shown.append(_paper(results, shown))
    return Report(results, ranking(results.headline_rows, results.source), tuple(shown))


def headline(ranking: pl.DataFrame, source: str) -> str:
    """What the numbers say, in a sentence, and no more than their intervals allow.

    Methods lead together where each is above the source by more than the 95 % interval of its gain,
    and behind the best by less than that of the difference. Both are paired by seed, and mean
    nothing with fewer than three.

    Parameters
    ----------
    ranking : DataFrame
        As the table of `lametta.bench.tables.accuracy.ranking` has it.
    source : str
        The baseline.

    Examples
    --------
    >>> rows = {"method": ["LAME", "Source"], "accuracy": [0.56, 0.52], "gain": [0.04, 0.0]}
    >>> rows |= {"gain_ci": [0.01, None], "behind": [0.0, 0.04], "behind_ci": [0.0, 0.01]}
    >>> headline(pl.DataFrame(rows | {"scenarios": 7, "runs": 5}), "Source")
    'LAME is best: right in 56.0 % on average over 7 scenarios, +4.0 ± 1.0 points over Source.'
    """
    others = ranking.filter(pl.col("method") != source)
    if others.is_empty():
        return f"Only {source} was run."
    best = others.row(0, named=True)
    name, n, runs, sure = (best[key] for key in ("method", "scenarios", "runs", "gain_ci"))
    where = f"on average over {n} scenarios" if n > 1 else "in the one scenario"
    gain = f"{percent(best['gain'], sure if runs > 2 else None, signed=True)} points over {source}"
    if best["gain"] <= 0:
        return f"No method is better than {source} {where}; closest is {name}, {gain}."
    right = f"right in {percent(best['accuracy'])} % {where}, {gain}"
    if doubt := _doubt(best):
        return f"{name} {doubt[0]}: {right}, {doubt[1]}."
    near = others[1:].filter(pl.col("behind") <= pl.col("behind_ci"), pl.col("gain") > 0)
    if rivals := near.filter(pl.col("gain") > pl.col("gain_ci"))["method"].to_list():
        between = "difference between them is" if len(rivals) == 1 else "differences are"
        names = _joined([name, *rivals])
        return f"{names} lead: {name} is {right}; the {between} not significant."
    if unsure := near["method"].to_list():
        return f"{name} gains most: {right}; {_joined(unsure)} may gain as much, or nothing."
    return f"{name} is best: {right}."


def _doubt(best: Mapping[str, Any]) -> tuple[str, str] | None:
    """What the best method does, and why its gain may be chance; None if it is not."""
    if best["runs"] < 3:
        few = "one run, which tells nothing", "two runs, which tell little"
        return "is best", f"from {few[best['runs'] - 1]} of chance"
    if best["gain_ci"] is None:
        return "is best", "from runs that are not complete"
    if best["gain"] <= best["gain_ci"]:
        return "gains most", "which may be chance"
    return None


def _joined(names: Sequence[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def sections(results: Results) -> Iterator[Section]:
    """The studies in the order of the experiment file, the risks, and then the validation."""
    context, names = report_context(results), set(_OWN_NAMES)
    for name in results.experiment.studies:
        yield _study(results, name, context, names)
    rows = results.headline_rows
    if rows["method"].n_unique() > 1:
        figure = figures.spread(rows, context)
        yield Section("risk", "Risk", (figure,), (risk(rows, results.source),))
    if "needs" in rows.columns and not rows.is_empty():  # older results do not say
        yield Section("methods", "Methods", tables=(traits(rows),))
    if results.validation.total:
        yield _validation(results, context, names)
    counts = count_datasets(results)
    unknown = ", ".join(counts.filter(pl.col("classes").is_null())["dataset"])
    note = f"Classes and groups are not known for {unknown}, whose banks are not here"
    shown = (datasets(counts),)
    yield Section("datasets", "Data sets", tables=shown, notes=(note,) if unknown else ())
    file = results.folder / "card.json"
    if file.exists():  # results from before there were cards have none
        yield Section("card", "Protocol card", tables=(card(read_card(results.folder)),))


def report_context(results: Results) -> ReportContext:
    """What all figures of these results have in common."""
    return ReportContext(
        results.source,
        figures.series_styles(results.experiment.methods),
        partial(stream_classes, results),
        results.experiment,
    )


def _take(name: str, taken: set[str]) -> str:
    """A name for files and URLs that is not taken; a number tells "a b" and "a/b" apart."""
    stem = re.sub(r"[^\w-]+", "-", name)
    names = itertools.chain([stem], (f"{stem}-{i}" for i in itertools.count(2)))
    free = next(name for name in names if name.casefold() not in taken)
    taken.add(free.casefold())  # some file systems ignore case
    return free


def _study(results: Results, name: str, context: ReportContext, names: set[str]) -> Section:
    study, part = results.experiment.studies[name], results.studies[name]
    view = VIEWS.find(study.figure)
    heading = view.title if study.title == name else study.title
    notes = [part.missing] if part.missing else []
    file = _take(name, names)
    drawn: list[Figure] = []
    shown: list[Table] = []
    if not part.rows.is_empty():
        rows = _with_models_by(view.models, part.rows)
        for function in view.draws:
            with _noted(notes):
                figure = draw(function, rows, context)
                own = _take(f"{file}_{figure.name}", names) if drawn else file
                drawn.append(replace(figure, name=own))
        if view.timed and drawn:
            shown.append(replace(costs(rows, results.source), name=file))
        if view.columns:
            with _noted(notes):
                table = _accuracies(view, view.columns, rows, results.source)
                shown.append(replace(table, name=file))
    return Section(file, heading, tuple(drawn), tuple(shown), tuple(notes))


def _accuracies(view: View, columns: str, rows: pl.DataFrame, source: str) -> Table:
    """The table of a view; scenarios take the place of models where there is one."""
    if columns == "model" and rows["model"].n_unique() == 1:
        columns = "scenario"
    by = view.models if columns == "model" else columns
    table = accuracies(rows, source, columns)
    return replace(table, title=f"Accuracy (%) by {by.replace('_', ' ')}")


def draw(name: str, rows: pl.DataFrame, context: ReportContext) -> Figure:
    """Draw the figure that a `View` names by its function."""
    target = name if name.startswith("python:") else f"lametta.bench.figures.{name}"
    function: Callable[..., object] = import_object(target, "figure")
    figure = function(rows, context)
    if not isinstance(figure, Figure):
        raise LamettaError(f"figure must give a Figure, got {type(figure).__name__} from {name}")
    return figure


def _validation(results: Results, context: ReportContext, names: set[str]) -> Section:
    experiment, part = results.experiment, results.validation
    notes = [part.missing] if part.missing else []
    table: pl.DataFrame | None = None
    drawn: list[Figure] = []
    costs: list[Table] = []
    if not part.rows.is_empty():
        scenarios = list(dict.fromkeys(part.rows["scenario"]))
        with _noted(notes):
            table = select(part.rows, scenarios, context.order, source=context.source).table
            costs += _label_free(results, scenarios, context)
            drawn.append(figures.cross_shift(part.rows, context))
            drawn += _rates(results, part.rows, context, names)
    chosen = results.selected
    params = {name: chosen[name] for name in experiment.methods if name in chosen}
    shown = [selected(params, table)] if params else []
    shown += costs
    return Section("validation", "Chosen configurations", tuple(drawn), tuple(shown), tuple(notes))


def _label_free(
    results: Results, scenarios: Sequence[str], context: ReportContext
) -> Iterator[Table]:
    """What choices without labels cost, unless results are from before that was measured."""
    rows, experiment = results.validation.rows, results.experiment
    if "neighborhood" not in rows.columns or rows["neighborhood"].is_null().all():
        return
    source = [name for name, spec in experiment.datasets.items() if spec.source]
    clean = rows.filter(pl.col("dataset").is_in(source))["scenario"].unique().to_list()
    costs = label_free(rows, scenarios, context.order, source_scenarios=clean)
    if not costs.is_empty():
        yield label_free_table(costs)


def _rates(
    results: Results, rows: pl.DataFrame, context: ReportContext, names: set[str]
) -> Iterator[Figure]:
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
        figure = most_divergent(shown, context, n=1)
        title = f"{method} at several learning rates"
        yield replace(figure, name=_take("rates", names), title=title)


def _paper(results: Results, shown: Sequence[Section]) -> Section:
    """The paper's numbers beside ours."""
    studies, drawn = results.experiment.studies, [f for section in shown for f in section.figures]
    rows = [(study.figure, results.studies[name].rows) for name, study in studies.items()]
    rows += [(figure.name, figure.frame()) for figure in drawn if figure.name == "cross_shift"]
    both = join_published((pair for pair in rows if len(pair[1])), results.source)
    note = _APPROXIMATE if len(both) else "Nothing that was run has a number in the paper."
    return Section("paper", "Beside the paper", tables=(ours_and_papers(both),), notes=(note,))


def _with_models_by(column: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Rows whose models are named by another column, if that tells them apart."""
    if rows["model"].n_unique() != rows[column].n_unique():
        return rows
    return rows.with_columns(model=pl.col(column))


@contextmanager
def _noted(notes: list[str]) -> Iterator[None]:
    """Note on the page what cannot be shown, and go on with the rest."""
    try:
        yield
    except LamettaError as error:
        notes.append(str(error))


def find_bank(results: Results, dataset: str) -> Bank | None:
    """What some network said of a data set, if the run left it in the folder."""
    workspace = Workspace(results.experiment, results.folder)
    for model in results.experiment.models:
        with suppress(LamettaError):
            return workspace.bank(model, dataset)
    return None


def stream_classes(results: Results, fingerprint: str) -> Array | None:
    """The class of each sample of a stream [M]; None without the bank that it was drawn from.

    The stream is made anew; if its fingerprint is another, the data are no longer the same.
    """
    rows = results.frame.filter(fingerprint=fingerprint)
    if rows.is_empty():
        return None
    row = rows.row(0, named=True)
    scenario = results.experiment.scenarios[row["scenario"]]
    bank = find_bank(results, scenario.dataset)
    if bank is None or bank.labels is None:
        return None
    stream = scenario.scenario(row["batch_size"], row["seed"])(
        bank.labels, bank.groups, keys=bank.keys
    )
    return bank.labels[stream.index] if stream.fingerprint == fingerprint else None


def count_datasets(results: Results) -> pl.DataFrame:
    """The data sets that were run, as `lametta.bench.tables.experiment.datasets` takes them.

    Samples are counted in the banks or, without them, read from the manifests of the streams.
    Classes and groups are in the banks alone.
    """
    experiment = results.experiment
    validating = {*experiment.validation.scenarios}
    rows = []
    for name, spec in experiment.datasets.items():
        scenarios = {
            key for key, scenario in experiment.scenarios.items() if scenario.dataset == name
        }
        cells = results.frame.filter(pl.col("scenario").is_in([*scenarios]))
        if cells.is_empty():
            continue
        ran = {*cells["scenario"]}
        used = [("validation", ran & validating), ("test", ran - validating)]
        bank = find_bank(results, name)
        row: dict[str, object] = {
            "dataset": name,
            "used_for": ", ".join(phase for phase, some in used if some),
            "description": describe(spec),
        }
        if bank is None:
            rows.append(row | {"samples": _n_samples(results, cells["fingerprint"][0])})
        else:
            rows.append(row | _count_bank(bank))
    return pl.DataFrame(rows, schema=_SCHEMA)


def _count_bank(bank: Bank) -> dict[str, int]:
    counts = {"samples": len(bank)}
    if bank.labels is not None:
        known = bank.labels[bank.labels < bank.n_classes]
        counts |= {"classes": len(np.unique(known)), "all_classes": bank.n_classes}
    if bank.groups is not None:
        counts["groups"] = len(np.unique(bank.groups))
    return counts


def _n_samples(results: Results, fingerprint: str) -> int | None:
    """The size of the data set that a stream was drawn from, as its manifest says."""
    file = results.folder / "streams" / f"{fingerprint}.json"
    with suppress(LamettaError):
        n = read_json(file).get("n_samples")
        return n if isinstance(n, int) else None
    return None
