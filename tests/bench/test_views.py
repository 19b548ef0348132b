"""The table of what a report can show of a study."""

import inspect
from pkgutil import resolve_name

import pytest
from pydantic import ValidationError

from lametta import LamettaError
from lametta.bench.experiment.schema import Study
from lametta.bench.figures.figure import Figure, ReportContext
from lametta.bench.report import draw
from lametta.bench.views import VIEWS


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_names_functions_of_rows_and_context(name):
    for function in VIEWS[name].draws:
        parameters = inspect.signature(
            resolve_name(f"lametta.bench.figures.{function}")
        ).parameters.values()
        first, second, *_ = (parameter.name for parameter in parameters)
        assert (first, second) == ("frame", "context")
        assert all(parameter.default != parameter.empty for parameter in [*parameters][1:])


def dots(frame, context):
    data = frame.select("method", "accuracy", panel="scenario")
    return Figure(
        "dots", "Runs", f"A dot is a run; {context.source} is one.", data, lambda axes, rows: None
    )


def nothing(frame, context):
    return "no figure"


def test_figures_of_other_packages_have_names(plug_in, main):
    context = ReportContext("Base")
    plug_in("lametta.figures", acme=f"{__name__}:dots", absent="no_such_package:dots")
    for name in ("acme", f"python:{__name__}:dots"):
        study = Study(models=["a"], scenarios=["b"], methods=["c"], seeds=[0], figure=name)
        assert not study.live
        (function,) = VIEWS.find(name).draws
        assert draw(function, main, context).caption.endswith("Base is one.")
    assert VIEWS.find("absent").draws == ("python:no_such_package:dots",)  # nothing is imported
    with pytest.raises(LamettaError, match="figure must name something that can be imported"):
        draw("python:no_such_package:dots", main, context)
    with pytest.raises(LamettaError, match="figure must give a Figure, got str from python:"):
        draw(f"python:{__name__}:nothing", main, context)
    with pytest.raises(ValidationError, match="figure must be one of 'boxes', .* mean 'curves'"):
        Study(models=["a"], scenarios=["b"], methods=["c"], seeds=[0], figure="curve")


def test_figures_of_times_are_timed():
    assert [name for name, view in VIEWS.items() if view.timed] == ["runtime"]
