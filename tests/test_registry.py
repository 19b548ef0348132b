"""Registries: names of their own, of plug-ins and of Python objects, and options of factories."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Literal, Protocol

import pytest

from lametta import LamettaError, registry
from lametta.affinity import AFFINITIES
from lametta.registry import FactoryRegistry, Registry, parameters_of, summary_of
from lametta.stream.order import ORDERS
from lametta.stream.prior import PRIORS
from tests.conftest import run_python


class Shape(Protocol):
    def area(self) -> float: ...


@dataclass(frozen=True)
class Square:
    """A square.

    With a second paragraph.
    """

    side: float = 1.0

    def area(self):
        return self.side**2


@dataclass(frozen=True)
class Frame:
    """A shape around another."""

    inside: Shape = field(default_factory=Square)
    widths: tuple[float, ...] = ()

    def area(self):
        return self.inside.area()


class Blob:
    """A shape whose author annotates nothing."""

    def __init__(self, size, power=2.0):
        self.size, self.power = size, power

    def area(self):
        return self.size**self.power


def fail():
    raise TypeError("no shape today")


@pytest.fixture
def module(monkeypatch):
    module = ModuleType("acme_shapes")
    module.Blob, module.number, module.fail = Blob, 3, fail
    monkeypatch.setitem(sys.modules, "acme_shapes", module)


@pytest.fixture
def installed(module, plug_in):
    plug_in(
        "acme.shapes",
        frame="acme_shapes:Blob",  # a name that is taken
        blob="acme_shapes:Blob",
        absent="no_such_package:Blob",
        a_number="acme_shapes:number",
    )


@pytest.fixture
def shapes(monkeypatch):
    monkeypatch.setattr(registry, "_MADE_BY", {})
    return FactoryRegistry(
        "shape",
        {"square": Square, "frame": f"{__name__}:Frame", "file:PATH": Square},
        group="acme.shapes",
        aliases={"box": "square"},
        makes=Shape,
    )


def test_a_registry_is_a_mapping_that_cannot_be_changed(shapes):
    assert list(shapes) == shapes.names() == ["square", "frame", "file:PATH"]
    assert len(shapes) == 3
    assert shapes["frame"] is Frame
    assert dict(shapes.items())["square"] is shapes["box"] is Square
    assert "box" in shapes
    for unknown in ("circle", "file:x.svg", "python:os:system", 3):
        assert unknown not in shapes
    assert shapes.get("circle") is None
    with pytest.raises(KeyError, match="circle"):
        shapes["circle"]
    with pytest.raises(TypeError):
        shapes["circle"] = Square


def test_names_of_every_sort_are_found(shapes, installed):
    assert shapes.names() == ["square", "frame", "file:PATH", "a_number", "absent", "blob"]
    found = {
        "square": Square,
        "box": Square,
        "frame": Frame,
        "file:x.svg": Square,
        "blob": Blob,
        "python:acme_shapes:Blob": Blob,
        "python:lametta:LAME.correct": None,
    }
    for name, expected in found.items():
        shapes.check(name)
        assert expected is None or shapes.find(name) is expected
    ours = [name for name in found if shapes.is_builtin(name)]
    assert ours == ["square", "box", "frame", "file:x.svg"]
    assert [name for name in found if registry.is_third_party(name)] == [*found][-2:]


def test_names_of_installed_packages_are_third_party(installed, monkeypatch):
    monkeypatch.setitem(registry.GROUPS, "shapes", "acme.shapes")
    assert registry.is_third_party("blob")
    assert not registry.is_third_party("square")
    assert not registry.is_third_party(3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sqare", "got 'sqare'; did you mean 'square'?"),
        ("bolb", "got 'bolb'; did you mean 'blob'?"),
        ("file:", "got 'file:'"),
        ("python:", "got 'python:'"),
        ("", "got ''"),
        (None, "got None"),
        (["square"], "got ['square']"),
    ],
)
def test_there_is_one_message_for_names_that_are_none(shapes, installed, name, message):
    listed = "'square', 'frame', 'file:PATH', 'a_number', 'absent', 'blob'"
    start = f"--shape must be one of {listed}, or python:package.module:Name, "
    for look in (shapes.check, shapes.find):
        with pytest.raises(LamettaError) as error:
            look(name, "--shape")
        assert str(error.value).startswith(start + message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "^shape 'absent' must name something .*, got 'no_such_package:Blob': No module"),
        ("a_number", "^shape must name a class or a function, got 3 for 'a_number'"),
        (
            "python:acme_shapes:Cube",
            "^shape must name something that .* no attribute 'Cube'",
        ),
        ("python:no_such:Blob", "got 'python:no_such:Blob': No module named 'no_such'"),
        ("python:acme_shapes", "must name something that can be imported"),
    ],
)
def test_what_cannot_be_imported_is_named(shapes, installed, name, message):
    shapes.check(name)  # which imports nothing
    with pytest.raises(LamettaError, match=message):
        shapes.find(name)


def test_things_are_built_from_names_tables_and_themselves(shapes, module):
    own = Square(3.0)
    assert shapes.build("square") == shapes.build({"kind": "box"}) == Square()
    assert shapes.build("square", side=2.0) == shapes.build({"kind": "square", "side": 2.0})
    assert shapes.build(own) is own
    blob = shapes.build("python:acme_shapes:Blob", size=3)
    assert blob.area() == 9.0
    assert [shapes.name_of(x) for x in ("box", {"kind": "box"}, own)] == ["box", "box", "square"]
    assert [shapes.name_of(x) for x in (blob, {}, None)] == [None] * 3


def test_an_option_whose_type_has_names_takes_a_name(shapes):
    for inside in ("square", {"kind": "square"}, Square()):
        assert shapes.build("frame", inside=inside, widths=[1, 2]) == Frame(Square(), (1, 2))
    twice = {"kind": "frame", "inside": {"kind": "frame", "inside": {"kind": "box", "side": 2}}}
    assert shapes.build(twice) == Frame(Frame(Square(2)))
    with pytest.raises(LamettaError, match="^inside must be one of 'square', .*, got 'squre'"):
        shapes.build("frame", inside="squre")


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ({"side": 1}, {}, "^x must be one of 'square', .*, got None$"),
        ("square", {"sid": 1}, "^sid is no option of square, which has side; did you mean 'side'"),
        ("python:acme_shapes:fail", {"a": 1}, "^a is no option of .*fail, which has none$"),
        ("python:acme_shapes:fail", {}, "must take its options, got {}: no shape today"),
        ("python:acme_shapes:Blob", {}, "^x 'python:acme_shapes:Blob' must be given size, got non"),
        (Square(), {"side": 1}, "^options must be those of a shape given by its name, got side"),
    ],
)
def test_what_is_wrong_with_options_is_said(shapes, module, given, options, message):
    with pytest.raises(LamettaError, match=message):
        shapes.build(given, "x", **options)


def test_parameters_without_a_type_take_anything():
    known = parameters_of(Blob)
    assert [parameter.text for parameter in known.values()] == ["size", "power=2.0"]
    assert [parameter.required for parameter in known.values()] == [True, False]
    for value in (3, "three", None, [1, 2]):
        known["power"].check("power", value)
    assert parameters_of(Frame)["inside"].text == "inside=Square(side=1.0)"


def test_signatures_that_cannot_be_read_or_hashed():
    @dataclass
    class Scaled:
        by: float = 1.0

        def __call__(self, x: float = 1.0) -> float:
            return self.by * x

    assert list(parameters_of(Scaled())) == ["x"]
    assert list(parameters_of(partial(fail))) == []
    assert parameters_of(type) == {}

    def later(x: "NotImported" = 1):  # noqa: F821
        return x

    parameters_of(later)["x"].check("x", "anything")


def apply(call: Callable[[int], int] | None = None, *, mode: Literal["a", "b"] = "a"): ...


def test_types_are_said_in_words():
    known = parameters_of(apply)
    with pytest.raises(LamettaError, match="call must be a callable or none, got 3"):
        known["call"].check("call", 3)
    with pytest.raises(LamettaError, match="mode must be one of 'a', 'b', got 'c'"):
        known["mode"].check("mode", "c")


def test_a_summary_is_a_line():
    assert summary_of(Square) == "A square."
    assert summary_of(partial) != ""

    class Recorded:
        """Not this."""

        summary = "this"

    assert summary_of(Recorded()) == "this"


@pytest.mark.parametrize("table", [AFFINITIES, ORDERS, PRIORS], ids=lambda table: table.kind)
def test_every_name_has_a_summary_and_readable_options(table):
    for name, make in table.items():
        assert summary_of(make).endswith("."), name
        for parameter in table.options(name).values():
            assert parameter.kind is not None


def test_to_find_a_name_of_ours_looks_at_no_installed_package():
    code = "import sys; from lametta.affinity import AFFINITIES; AFFINITIES.find('knn'); "
    done = run_python(code + "print('importlib.metadata' in sys.modules)")
    assert done.stdout.strip() == "False", done.stderr


@pytest.mark.parametrize("table", [AFFINITIES, ORDERS, PRIORS], ids=lambda table: table.kind)
def test_packages_add_to_every_table(table, module, plug_in):
    plug_in(table.group, acme="acme_shapes:Blob")
    assert table.names()[-1] == "acme"
    assert table.find("acme") is Blob
    assert not table.is_builtin("acme")
    assert registry.is_third_party("acme")


def test_a_registry_of_other_things_than_factories():
    corners = Registry("shape", {"square": 4}, also="a number")
    with pytest.raises(LamettaError, match="^x must be one of 'square', a number, or python:"):
        corners.check("cube", "x")
    with pytest.raises(LamettaError, match=r"got 'square\+cube'$"):
        corners.check("cube", within="square+cube")


def test_where_a_name_leads_is_known_without_an_import():
    registry = Registry("shape", {"box": "package.that:is_absent", "four": 4})
    assert registry.where("box") == "package.that:is_absent"
    assert registry.where("python:math:pi") == "python:math:pi"
    assert registry.where("four") == registry.where("nothing") == ""
