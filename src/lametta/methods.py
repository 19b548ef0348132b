"""Registry of methods, and methods composed by ``+`` (``tent+lame``).

`wrap`, experiments, ``lametta correct``, ``lametta list methods`` and the docs read it. A method is
a `Corrector`, which sees outputs alone, or a callable from a model to an `Adapter`. Its parameters,
their defaults and types are read from its signature; its own constructor checks their values.

A name is one of the table's, one of an installed package's (entry points of the group
``lametta.methods``), or ``python:package.module:Name``: a class, a function, or a corrector that is
made already and has its options. With ``+`` correctors go on top of anything: ``tent+lame``; and
``tent+aetta`` is TENT with its accuracy estimated and its resets, by `lametta.torch.AETTA`, and
``tent+probation`` TENT that answers while evidence is for it, by `lametta.torch.Probation`.
Parameters are flat: those of all components, and beside an option that is itself given by a name,
as an affinity is, the options of what it names. Where two components have one of the same name,
``lame.weight`` tells which is meant.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

from lametta._checks import did_you_mean
from lametta.adapters import Corrected
from lametta.correctors import Streams
from lametta.correctors.base import check_can_correct, clone
from lametta.correctors.chain import Chain
from lametta.registry import (
    GROUPS,
    FactoryRegistry,
    Parameter,
    Registry,
    check_required,
    import_object,
    parameters_of,
    summary_of,
)
from lametta.types import Adapter, Corrector, LamettaError, Model

NEEDS = (
    "gradients", "source data", "augmentations", "teacher", "memory", "prototypes", "batch",
)  # fmt: skip
"""What a method may need: ``memory`` keeps images, ``batch`` goes by batches of several samples."""


class _Clones:
    """Factory of copies of a corrector that is made already, which remember nothing."""

    def __init__(self, corrector: Corrector) -> None:
        self.corrector, self.__doc__ = corrector, type(corrector).__doc__

    def __call__(self) -> Corrector:
        return clone(self.corrector)

    def __getattr__(self, trait: str) -> Any:  # stateful, ordered, causal, correct
        if trait == "corrector":  # a copy without its attributes yet
            raise AttributeError(trait)
        return getattr(self.corrector, trait)


def _load(target: str, argument: str, name: str) -> Callable[..., Any]:
    found: object = import_object(target, argument, name)
    if isinstance(found, Corrector) and not isinstance(found, type):
        return _Clones(found)
    if not callable(found):
        raise LamettaError(
            f"{argument} must be a class, a function or a corrector, got {found!r} for {name!r}"
        )
    return found


METHODS: Registry[Callable[..., Any]] = Registry(
    "method",
    {
        "source": "lametta.adapters:Source",
        "lame": "lametta.correctors:LAME",
        "tent": "lametta.torch:TENT",
        "shot_im": "lametta.torch:SHOTIM",
        "pseudo_label": "lametta.torch:PseudoLabel",
        "adabn": "lametta.torch:AdaBN",
        "eata": "lametta.torch:EATA",
        "eta": "lametta.torch:ETA",
        "rdumb": "lametta.torch:RDumb",
        "sar": "lametta.torch:SAR",
        "deyo": "lametta.torch:DeYO",
        "roid": "lametta.torch:ROID",
        "cmf": "lametta.torch:CMF",
        "cotta": "lametta.torch:CoTTA",
        "memo": "lametta.torch:MEMO",
        "rotta": "lametta.torch:RoTTA",
        "petta": "lametta.torch:PeTTA",
        "note": "lametta.torch:NOTE",
        "sotta": "lametta.torch:SoTTA",
        "alpha_bn": "lametta.torch:AlphaBN",
        "ema_bn": "lametta.torch:EMABN",
        "ttbn": "lametta.torch:TTBN",
        "half_bn": "lametta.torch:HalfBN",
        "prudent_bn": "lametta.torch:PrudentBN",
        "prudent": "lametta.correctors:Prudent",
        "memory": "lametta.correctors:Memory",
        "windowed": "lametta.correctors:Windowed",
        "average": "lametta.correctors:Average",
        "majority": "lametta.correctors:Majority",
        "smoothing": "lametta.correctors:Smoothing",
        "product": "lametta.correctors:Product",
        "track": "lametta.correctors:Track",
        "label_shift": "lametta.correctors:LabelShift",
        "prior_correction": "lametta.correctors:PriorCorrection",
        "cofa": "lametta.correctors:COFA",
        "oatta": "lametta.correctors:OATTA",
        "neo": "lametta.correctors:NEO",
        "t3a": "lametta.correctors:T3A",
        "tda": "lametta.correctors:TDA",
        "oga": "lametta.correctors:OGA",
        "stata": "lametta.correctors:StatA",
        "transclip": "lametta.correctors:TransCLIP",
    },
    group=GROUPS["methods"],
    aliases={  # no methods by themselves: tent+aetta
        "aetta": "python:lametta.torch:AETTA",
        "probation": "python:lametta.torch:Probation",
    },
    also="several with + between them",
    load=_load,
)
"""The single methods by name, imported when they are used."""


def names() -> list[str]:
    """The names of all single methods: lametta's, and those that installed packages add.

    Examples
    --------
    >>> names()[:3]
    ['source', 'lame', 'tent']
    """
    return METHODS.names()


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
    >>> find("lame").needs_network, [one.name for one in find("tent+lame").components]
    (False, ['tent', 'lame'])
    >>> find("tant")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    lametta.types.LamettaError: method must be one of 'source', 'lame', ..., several with + between
    them, or python:package.module:Name, got 'tant'; did you mean 'tent'?
    """
    check_name(name, argument)
    parts = name.split("+")
    return Method(name, tuple(Component(part, METHODS.find(part, argument)) for part in parts))


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
        return find(given, argument).corrector(options or {}, argument)
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
    if not isinstance(name, str):
        METHODS.check(name, argument)
    for part in name.split("+"):
        METHODS.check(part, argument, within=name)


def is_builtin(name: str) -> bool:
    """Whether all of a name comes with lametta, so that to find it runs no other code."""
    return all(METHODS.is_builtin(part) for part in name.split("+"))


@dataclass(frozen=True)
class Component:
    """A single method of a name such as ``tent+lame``, and the class or function that makes it."""

    name: str
    factory: Callable[..., Any]

    @property
    def is_corrector(self) -> bool:
        """Whether it makes a corrector, and not an adapter on a model."""
        return callable(getattr(self.factory, "correct", None))

    @property
    def watches(self) -> bool:
        """Whether it is no method, but goes on top of one and needs its network."""
        return getattr(self.factory, "watches", False) is True

    @cached_property
    def own(self) -> dict[str, Parameter]:
        """The parameters of the constructor, without the model of an adapter."""
        found = list(parameters_of(self.factory).items())
        return dict(found if self.is_corrector else found[1:])

    @cached_property
    def registries(self) -> dict[str, FactoryRegistry[Any]]:
        """The parameters that may be given by a name, with the options of that beside them."""
        found = {name: parameter.registry for name, parameter in self.own.items()}
        return {name: registry for name, registry in found.items() if registry is not None}

    def options(self, params: Mapping[str, object]) -> dict[str, Parameter]:
        """All that may be given, with the options of what ``params`` choose by name."""
        known = dict(self.own)
        for name, registry in self.registries.items():
            default, kind = self.own[name].default, cast(Any, self.own[name].kind)
            chosen = params.get(f"{self.name}.{name}", params.get(name, default))
            # The name says as much as the object.
            known[name] = Parameter(name, registry.name_of(default) or default, kind | str)
            if (named := registry.name_of(chosen)) is not None:
                known |= registry.options(named, name)
        return known

    def arguments(self, given: Mapping[str, object]) -> dict[str, object]:
        """What the constructor is called with: objects instead of their names and options."""
        own = {name: value for name, value in given.items() if name in self.own}
        for name, registry in self.registries.items():
            chosen = own.get(name, self.own[name].default)
            if (named := registry.name_of(chosen)) is None:
                continue
            known = registry.options(named, name)
            beside = {key: x for key, x in given.items() if key in known and key not in self.own}
            if isinstance(chosen, str | Mapping):
                own[name] = registry.build(chosen, name, **beside)
            elif beside:
                own[name] = registry.build(named, name, **beside)
        check_required(self.name, self.own, own)
        return own

    def make(self, given: Mapping[str, object], model: Any = None) -> Any:
        """Make the corrector, or the adapter on a model."""
        return self.factory(*([] if self.is_corrector else [model]), **self.arguments(given))

    def trait(self, name: str, default: bool, given: Mapping[str, object]) -> bool:
        """What an object with these options says; where none can be made, what the class says.

        An adapter is made only where its class leaves it open: by a property, or by an option.
        """
        found = getattr(self.factory, name, default)
        is_open = hasattr(found, "__get__")  # a property itself is always true
        if is_open or self.is_corrector or name in self.own:
            try:
                found = getattr(self.make(given), name, default)
            except Exception as error:  # any, of a stranger's code
                if is_open:
                    raise LamettaError(
                        f"{name} must be True or False on the class of {self.name}, got a property "
                        f"of objects that cannot be made without more: {error}"
                    ) from error
        if found not in (True, False):
            got = type(found).__name__
            raise LamettaError(f"{name} of {self.name} must be True or False, got a {got}")
        return bool(found)


@dataclass(frozen=True)
class Method:
    """A method by name; `find` gives it.

    Attributes
    ----------
    name : str
        As it was asked for.
    components : tuple of Component
        The single methods that it joins, the lowest first.

    Examples
    --------
    >>> method = find("lame")
    >>> method.ordered, method.param_errors({"k": 0, "wieght": 1})
    (False, [('k', 'must be an integer >= 1, got 0'), ('wieght', "is no option of lame, which
    has affinity, weight, max_iter, tol, k, direction, symmetric, method; did you mean 'weight'?")])
    """

    name: str
    components: tuple[Component, ...]

    def __post_init__(self) -> None:
        for place, part in enumerate(self.components):
            if part.watches and (place != 1 or self.components[0].is_corrector):
                raise LamettaError(
                    f"method must have {part.name!r} after a network method or source, as in "
                    f"tent+{part.name}, got {self.name!r}"
                )
            if place and not part.is_corrector and not part.watches:
                raise LamettaError(
                    f"method must have correctors after +, got {part.name!r} in {self.name!r}"
                )
            if part.name in [other.name for other in self.components[:place]]:
                raise LamettaError(f"method must name each part once, got {self.name!r}")

    @property
    def needs_network(self) -> bool:
        """Whether it needs the network itself, and not its outputs alone."""
        first, *others = self.components
        watched = any(part.watches for part in others)
        return watched or (not first.is_corrector and first.trait("needs_network", True, {}))

    @property
    def ordered(self) -> bool:
        """Whether the order of samples inside a batch matters to it."""
        return self.trait("ordered")

    @property
    def stateful(self) -> bool:
        """Whether a batch changes how it predicts the next."""
        return self.trait("stateful")

    @property
    def causal(self) -> bool:
        """Whether a sample's answer depends on it and on the past alone, not on later ones."""
        return self.trait("causal")

    def trait(self, name: str, params: Mapping[str, object] | None = None) -> bool:
        """Whether it is ``ordered``, ``stateful`` or ``causal`` with these parameters.

        A corrector is asked as it is made with them, since it may be a property, as of what holds
        other correctors, or an attribute of the object.
        """
        parts = self.split_params(params or {})
        join = all if name == "causal" else any
        return join(
            part.trait(name, name == "stateful" and not part.is_corrector, given)
            for part, given in parts
        )

    @property
    def needs(self) -> list[str]:
        """What it needs beside a sample's outputs or the network, out of `NEEDS`."""
        named = {need for part in self.components for need in getattr(part.factory, "needs", ())}
        return [need for need in NEEDS if need in named]

    @property
    def augments_pixels(self) -> bool:
        """Whether it augments images in color, so that the model has to know its preprocessing."""
        return getattr(self.components[0].factory, "transform", None) is not None

    @property
    def passes(self) -> tuple[float, float] | None:
        """Forward and backward passes a sample with default options; None where it does not say.

        A method of outputs alone makes none of its own.
        """
        first, *others = self.components
        own = getattr(first.factory, "passes", (0, 0) if first.is_corrector else None)
        if own is None:
            return None
        every = [own, *(part.factory.passes for part in others if part.watches)]  # type: ignore[attr-defined]
        return sum(forward for forward, _ in every), sum(backward for _, backward in every)

    @property
    def passes_text(self) -> str:
        """The passes as a table shows them: forward + backward, empty where it does not say."""
        return "" if self.passes is None else "{:g} + {:g}".format(*self.passes)

    @property
    def summary(self) -> str:
        """What it is, in a line."""
        return " Then: ".join(summary_of(part.factory) for part in self.components)

    def parameters(self, params: Mapping[str, object] | None = None) -> dict[str, Parameter]:
        """What may be given, by name, beside these parameters."""
        return {
            name: parameter
            for part in self.components
            for name, parameter in part.options(params or {}).items()
        }

    def answers(self, params: Mapping[str, object] | None = None) -> str:
        """Whether a network method answers from ``before`` or ``after`` its update; else empty."""
        part, given = self.split_params(params or {})[0]
        if not self.needs_network:
            return ""
        # An option may say so: the class where there is none, and else what is made.
        made = part.factory(None, **part.arguments(given)) if given else part.factory
        return str(getattr(made, "answers", ""))

    def param_errors(self, params: Mapping[str, object]) -> list[tuple[str, str]]:
        """Find what is wrong with parameters: pairs of a name, empty for several, and a message."""
        by_name = {name for part in self.components for name in part.registries}
        # Without what is chosen by its name, the options of that mean nothing.
        chosen = {name: x for name, x in params.items() if name.rpartition(".")[2] in by_name}
        found = []
        for name, value in params.items():
            beside = {} if name in chosen or _error(self, chosen) else chosen
            if message := _error(self, beside | {name: value}):
                found.append((name, message.removeprefix(f"{name} ")))
        if not found and (message := _error(self, params, whole=True)):
            found.append(("", message))
        return found

    def correctors(self, params: Mapping[str, object], argument: str = "method") -> list[Corrector]:
        """Make the correctors, to be called one after another; for methods of outputs alone."""
        if not all(part.is_corrector for part in self.components):
            raise LamettaError(
                f"{argument} must see outputs alone, got {self.name!r}, which needs a model"
            )
        return [part.make(given) for part, given in self.split_params(params)]

    def corrector(self, params: Mapping[str, object], argument: str = "method") -> Corrector:
        """Make one corrector of all; for methods of outputs alone."""
        made = self.correctors(params, argument)
        return made[0] if len(made) == 1 else Chain(tuple(made))

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
        for part, given in self.split_params(params):
            made = part.make(given, adapter)
            adapter = Corrected(adapter, made) if part.is_corrector else made
        if not isinstance(adapter, Adapter):
            raise LamettaError(
                f"method must make an adapter with step and reset, got {type(adapter).__name__} "
                f"from {self.name!r}"
            )
        return adapter

    def split_params(self, params: Mapping[str, object]) -> list[tuple[Component, dict[str, Any]]]:
        """Give each component its parameters, whose names and types are checked."""
        shares = [(part, part.options(params), dict[str, Any]()) for part in self.components]
        for name, value in params.items():
            qualifier, _, option = name.rpartition(".")
            asked = [share for share in shares if qualifier in ("", share[0].name)]
            owners = [share for share in asked if option in share[1]]
            if len(owners) != 1:
                raise self._owner_error(name, [part.name for part, _, _ in owners], params)
            ((_, known, given),) = owners
            known[option].check(name, value)
            given[option] = value
        return [(part, given) for part, _, given in shares]

    def _owner_error(
        self, name: str, owners: list[str], params: Mapping[str, object]
    ) -> LamettaError:
        """What is wrong with an option that none of the components has, or several."""
        if owners:
            choices = " or ".join(f"{owner}.{name}" for owner in owners)
            return LamettaError(f"{name} is ambiguous: use {choices}")
        every = self.parameters(params)
        listed, guess = ", ".join(every) or "none", did_you_mean(name, every)
        return LamettaError(f"{name} is no option of {self.name}, which has {listed}{guess}")


def _error(method: Method, params: Mapping[str, object], *, whole: bool = False) -> str:
    """The error that these parameters raise, in constructors too; empty if none.

    Where they are not the whole, a component that needs more is not made.
    """
    try:
        for part, given in method.split_params(params):
            needs_more = any(p.required and name not in given for name, p in part.own.items())
            if whole or not needs_more:
                part.make(given)
    except LamettaError as error:
        return str(error)
    return ""
