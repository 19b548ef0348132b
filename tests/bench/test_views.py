"""The table of what a report can show of a study."""

import inspect
from pkgutil import resolve_name

import pytest
from pydantic import ValidationError

from lametta import LamettaError
from lametta.bench.experiment.schema import Study
from lametta.bench.figures.figure import Figure
from lametta.bench.report import _draw
from lametta.bench.views import VIEWS


@pytest.mark.parametrize("name", VIEWS)
def test_every_view_names_functions_that_take_rows(name):
    for draw in VIEWS[name].draws:
        first, *others = inspect.signature(
            resolve_name(f"lametta.bench.figures.{draw}")
        ).parameters.values()
        assert first.name == "frame"
        for parameter in others:  # all but these have defaults
            assert parameter.name in ("source", "style") or parameter.default != parameter.empty


def dots(frame, source):
    data = frame.select("method", "accuracy", panel="scenario")
    return Figure(
        "dots", "Runs", f"A dot is a run; {source} is one.", data, lambda axes, rows: None
    )


def nothing(frame):
    return "no figure"


def test_figures_of_other_packages_have_names(plug_in, main):
    plug_in("lametta.figures", acme=f"{__name__}:dots", absent="no_such_package:dots")
    for name in ("acme", f"python:{__name__}:dots"):
        study = Study(models=["a"], scenarios=["b"], methods=["c"], seeds=[0], figure=name)
        assert not study.live
        (function,) = VIEWS.find(name).draws
        assert _draw(function, main, source="Source", style=None).caption.endswith("Source is one.")
    assert VIEWS.find("absent").draws == ("python:no_such_package:dots",)  # nothing is imported
    with pytest.raises(LamettaError, match="figure must name something that can be imported"):
        _draw("python:no_such_package:dots", main)
    with pytest.raises(LamettaError, match="figure must give a Figure, got str from python:"):
        _draw(f"python:{__name__}:nothing", main)
    with pytest.raises(ValidationError, match="figure must be one of 'boxes', .* mean 'curves'"):
        Study(models=["a"], scenarios=["b"], methods=["c"], seeds=[0], figure="curve")


def test_figures_of_times_are_timed():
    assert [name for name, view in VIEWS.items() if view.timed] == ["runtime"]
