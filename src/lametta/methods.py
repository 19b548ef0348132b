"""The one table of methods: names, what they make, what they need.

`wrap`, experiments, ``lametta correct``, ``lametta list methods`` and the docs read it. A method is
a `Corrector`, which sees outputs alone, or a callable from a model to an `Adapter`. Its parameters,
their defaults and types are read from its signature; its own constructor checks their values.

A name is one of the table's, one of an installed package's (entry points of the group
``lametta.methods``), or ``python:package.module:Name``: a class, a function, or a corrector that is
made already and has its options. With ``+`` correctors go on top of anything: ``tent+lame``.
Parameters are flat: those of all parts, and those of the affinity beside it. Where two parts have
one of the same name, ``lame.weight`` tells which is meant.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lametta._checks import did_you_mean
from lametta._parts import Part
from lametta.adapters import Corrected
from lametta.affinity import Affinity
from lametta.correctors import Streams
from lametta.correctors.base import check_can_correct, clone
from lametta.correctors.chain import Chain
from lametta.registry import Parameter, entry_points, import_object
from lametta.types import Adapter, Corrector, LamettaError, Model

GROUP = "lametta.methods"
"""The entry points that a package declares its methods by."""

METHODS = {
    "source": "lametta.adapters:Source",
    "lame": "lametta.correctors:LAME",
    "tent": "lametta.torch:TENT",
    "shot_im": "lametta.torch:SHOTIM",
    "pseudo_label": "lametta.torch:PseudoLabel",
    "adabn": "lametta.torch:AdaBN",
    "prudent": "lametta.correctors:Prudent",
    "memory": "lametta.correctors:Memory",
    "windowed": "lametta.correctors:Windowed",
    "average": "lametta.correctors:Average",
    "majority": "lametta.correctors:Majority",
    "smoothing": "lametta.correctors:Smoothing",
    "product": "lametta.correctors:Product",
    "track": "lametta.correctors:Track",
    "label_shift": "lametta.correctors:LabelShift",
    "roid": "lametta.correctors:ROID",
    "cofa": "lametta.correctors:COFA",
    "oatta": "lametta.correctors:OATTA",
}
"""The methods that come with lametta, and where they are; imported when they are used."""


def names() -> list[str]:
    """The names of all single methods: lametta's, and those that installed packages add.

    Examples
    --------
    >>> names()[:3]
    ['source', 'lame', 'tent']
    """
    return [*METHODS, *(name for name in entry_points(GROUP) if name not in METHODS)]


def find(name: str, argument: str = "method") -> "Method":
    """Find a method by its name.

    Parameters
    ----------
    name : str
        As the module's docstring says.
    argument : str
        What a message calls the name.

    Examples
    --------
    >>> find("lame").needs_network, [part.name for part in find("tent+lame").parts]
    (False, ['tent', 'lame'])
    >>> find("tant")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lametta.types.LamettaError: method must be one of 'source', 'lame', ..., several with + between
    them, or python:package.module:Name, got 'tant'; did you mean 'tent'?
    """
    check_name(name, argument)
    return Method(name, tuple(Part(part, _load(part)) for part in name.split("+")))


def as_corrector(
    given: str | Corrector,
    options: Mapping[str, object] | None = None,
    /,
    *,
    argument: str = "corrector",
) -> Corrector:
    """Make a corrector of a name and its options; one that is made already is given back.

    Whatever takes a corrector takes a name as well, by this function.

    Parameters
    ----------
    given : str or Corrector
        A name, as the module's docstring says, of a method that sees outputs alone: several with +
        between them become one corrector. Or the corrector itself, which is not copied.
    options : mapping of str to object
        Those of the named method, flat; an object has its own already.
    argument : str
        What a message calls the name or the object.

    Examples
    --------
    >>> as_corrector("windowed", {"size": 8}).size
    8
    >>> as_corrector("tent")
    Traceback (most recent call last):
    lametta.types.LamettaError: corrector must see outputs alone, got 'tent', which needs a model
    """
    if isinstance(given, str):
        made = find(given, argument).correctors(options or {}, argument)
        return made[0] if len(made) == 1 else Chain(tuple(made))
    check_can_correct(given, argument)
    if isinstance(given, Streams):
        raise LamettaError(
            f"{argument} must be for one stream, got Streams, which is for several: give its "
            "corrector"
        )
    if options:
        raise LamettaError(
            f"options must be those of a method given by its name, got {', '.join(options)} beside "
            f"{type(given).__name__}, which has its own already"
        )
    return given


def check_name(name: str, argument: str = "method") -> None:
    """Raise unless a method may have this name; nothing is imported."""
    known = names()
    for part in name.split("+") if isinstance(name, str) else [None]:
        if part is None or (part not in known and not part.startswith("python:")):
            listed = ", ".join(map(repr, known))
            raise LamettaError(
                f"{argument} must be one of {listed}, several with + between them, or "
                f"python:package.module:Name, got {name!r}{did_you_mean(part, known)}"
            )


def is_ours(name: str) -> bool:
    """Whether all parts of a name come with lametta, so that finding it runs no other code."""
    return all(part in METHODS for part in name.split("+"))


@dataclass(frozen=True)
class Method:
    """A method by name; `find` gives it.

    Attributes
    ----------
    name : str
        As it was asked for.
    parts : tuple
        The single methods that it joins, the lowest first.

    Examples
    --------
    >>> method = find("lame")
    >>> method.ordered, method.problems({"k": 0, "wieght": 1})
    (False, [('k', 'must be an integer >= 1, got 0'), ('wieght', "is no option of lame, which
    has affinity, weight, max_iter, tol, k, direction, symmetric, method; did you mean 'weight'?")])
    """

    name: str
    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        for place, part in enumerate(self.parts):
            if place and not part.is_corrector:
                raise LamettaError(
                    f"method must have correctors after +, got {part.name!r} in {self.name!r}"
                )
            if part.name in [other.name for other in self.parts[:place]]:
                raise LamettaError(f"method must name each part once, got {self.name!r}")

    @property
    def needs_network(self) -> bool:
        """Whether it needs the network itself, and not its outputs alone."""
        first = self.parts[0]
        return not first.is_corrector and bool(getattr(first.make, "needs_network", True))

    @property
    def ordered(self) -> bool:
        """Whether the order of samples inside a batch matters to it."""
        return any(getattr(part.make, "ordered", False) for part in self.parts)

    @property
    def stateful(self) -> bool:
        """Whether a batch changes how it predicts the next."""
        return any(getattr(part.make, "stateful", not part.is_corrector) for part in self.parts)

    @property
    def causal(self) -> bool:
        """Whether a sample's answer depends on it and on the past alone, not on later ones."""
        return all(getattr(part.make, "causal", False) for part in self.parts)

    @property
    def line(self) -> str:
        """What it is, in a line."""
        lines = [(inspect.getdoc(part.make) or "").partition("\n")[0] for part in self.parts]
        return " Then: ".join(lines)

    def parameters(self, params: Mapping[str, object] | None = None) -> dict[str, Parameter]:
        """What may be given, by name, beside these parameters."""
        return {
            name: parameter
            for part in self.parts
            for name, parameter in part.options(params or {}).items()
        }

    def problems(self, params: Mapping[str, object]) -> list[tuple[str, str]]:
        """Find what is wrong with parameters: pairs of a name, empty for several, and a message."""
        kinds = {name: parameter.kind for name, parameter in self.parameters().items()}
        # Without the affinity that is chosen, its options mean nothing.
        chosen = {name: x for name, x in params.items() if kinds.get(name) == Affinity | str}
        found = []
        for name, value in params.items():
            beside = {} if name in chosen or _refuses(self, chosen) else chosen
            if message := _refuses(self, beside | {name: value}):
                found.append((name, message.removeprefix(f"{name} ")))
        if not found and (message := _refuses(self, params)):
            found.append(("", message))
        return found

    def correctors(self, params: Mapping[str, object], argument: str = "method") -> list[Corrector]:
        """Make the correctors, to be called one after another; for methods of outputs alone."""
        if not all(part.is_corrector for part in self.parts):
            raise LamettaError(
                f"{argument} must see outputs alone, got {self.name!r}, which needs a model"
            )
        return [part.make(**part.arguments(given)) for part, given in self.shares(params)]

    def build(self, model: Model | Adapter, params: Mapping[str, object]) -> Adapter:
        """Make the adapter on a model.

        Examples
        --------
        >>> import numpy as np
        >>> from lametta import Output
        >>> model = lambda x: Output(x, x @ np.eye(2))
        >>> find("lame").build(model, {"affinity": "rbf", "k": 3}).corrector.affinity
        rbf(k=3, row_sum=None, symmetric=False)
        """
        adapter: Any = model
        for part, given in self.shares(params):
            if part.is_corrector:
                adapter = Corrected(adapter, part.make(**part.arguments(given)))
            else:
                adapter = part.make(adapter, **part.arguments(given))
        if not isinstance(adapter, Adapter):
            raise LamettaError(
                f"method must make an adapter with step and reset, got {type(adapter).__name__} "
                f"from {self.name!r}"
            )
        return adapter

    def shares(self, params: Mapping[str, object]) -> list[tuple[Part, dict[str, Any]]]:
        """Give each part its parameters, whose names and types are checked."""
        shares = [(part, part.options(params), dict[str, Any]()) for part in self.parts]
        for name, value in params.items():
            qualifier, _, option = name.rpartition(".")
            asked = [share for share in shares if qualifier in ("", share[0].name)]
            owners = [share for share in asked if option in share[1]]
            if not owners:
                every = self.parameters(params)
                listed, guess = ", ".join(every) or "none", did_you_mean(name, every)
                raise LamettaError(f"{name} is no option of {self.name}, which has {listed}{guess}")
            if len(owners) > 1:
                choices = " or ".join(f"{part.name}.{option}" for part, _, _ in owners)
                raise LamettaError(f"{name} must say whose it is, {choices}, got {name!r}")
            ((_, known, given),) = owners
            known[option].check(name, value)
            given[option] = value
        return [(part, given) for part, _, given in shares]


def _refuses(method: Method, params: Mapping[str, object]) -> str:
    """The error that these parameters raise, in constructors too; empty if none."""
    try:
        for part, given in method.shares(params):
            part.make(*([] if part.is_corrector else [None]), **part.arguments(given))
    except LamettaError as error:
        return str(error)
    return ""


class _Copies:
    """What makes a method of a corrector that is made already: a copy, which remembers nothing."""

    def __init__(self, corrector: Corrector) -> None:
        self.corrector, self.__doc__ = corrector, type(corrector).__doc__

    def __call__(self) -> Corrector:
        return clone(self.corrector)

    def __getattr__(self, trait: str) -> Any:  # stateful, ordered, causal, correct
        if trait == "corrector":  # a copy without its attributes yet
            raise AttributeError(trait)
        return getattr(self.corrector, trait)


def _load(name: str) -> Callable[..., Any]:
    make: object = import_object(
        METHODS.get(name) or entry_points(GROUP).get(name) or name, "method"
    )
    if isinstance(make, Corrector) and not isinstance(make, type):
        return _Copies(make)
    if not callable(make):
        raise LamettaError(
            f"method must be a class, a function or a corrector, got {make!r} for {name!r}"
        )
    return make
