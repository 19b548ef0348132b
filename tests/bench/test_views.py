"""The table of what a report can show of a study."""

import inspect
from pkgutil import resolve_name

import pytest

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


def test_figures_of_times_are_timed():
    assert [name for name, view in VIEWS.items() if view.timed] == ["runtime"]
