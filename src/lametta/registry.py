"""Registries: names to objects, with plug-ins, ``python:`` names, options and "did you mean".

Each kind of thing that has names has one table: methods, affinities, orders, priors, networks, data
sets, figures and layers. A name is one of the table's own, one that an installed package adds by an
entry point of the table's group, or ``python:package.module:Name``. Nothing is imported before a
name is used, and what a factory may be given is read from its signature.
"""

import importlib
import inspect
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from numbers import Integral, Real
from operator import attrgetter
from typing import Any, Literal, NamedTuple, TypeVar, Union, cast, get_args, get_origin

from lametta._checks import did_you_mean, raise_as
from lametta.types import LamettaError

T = TypeVar("T")

GROUPS = {
    kind: f"lametta.{kind}"
    for kind in (
        *("methods", "affinities", "orders", "priors"),
        *("networks", "datasets", "figures", "layers"),
    )
}
"""The groups of entry points by which a package adds names, one for each table."""


class Registry(Mapping[str, T]):
    """Names of one kind of thing, and what each stands for: a mapping that cannot be changed.

    Parameters
    ----------
    kind : str
        What messages call a name where the caller does not say.
    entries : mapping of str to object
        The names that come with lametta. A value that is text, ``"package.module:Name"``, is
        imported when it is asked for. Capitals after a colon stand for what the caller fills in:
        ``"timm:NAME"`` is also found as ``"timm:resnet50"``.
    group : str, optional
        The entry points by which other packages add names. They cannot take one of the table's.
    aliases : mapping of str to str, optional
        Further names, which are found but not listed.
    load : callable, optional
        ``load(target, argument, name)`` makes what the table holds of where a name leads,
        ``"package.module:Name"``; by default `import_object`.
    also : str, optional
        What else a name may be, for messages.

    Examples
    --------
    >>> corners = {"circle": 0, "square": 4, "polygon:N": 5}
    >>> shapes = Registry("shape", corners, aliases={"box": "square"})
    >>> list(shapes), shapes["box"], shapes.find("polygon:7")
    (['circle', 'square', 'polygon:N'], 4, 5)
    >>> shapes.find("python:math:pi")
    3.141592653589793
    >>> shapes.find("sqare", "--shape")
    Traceback (most recent call last):
    lametta.types.LamettaError: --shape must be one of 'circle', 'square', 'polygon:N', or
    python:package.module:Name, got 'sqare'; did you mean 'square'?
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, T | str],
        *,
        group: str = "",
        aliases: Mapping[str, str] = types.MappingProxyType({}),
        load: Callable[[str, str, str], T] | None = None,
        also: str = "",
    ) -> None:
        self.kind, self.group, self.also = kind, group, also
        self._entries, self._aliases = dict(entries), dict(aliases)
        self._load = import_object if load is None else load

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise KeyError(name)
        return self.find(name)

    def __contains__(self, name: object) -> bool:
        return name in self._entries or name in self._aliases or name in self._added()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())

    def names(self) -> list[str]:
        """All names: the table's own in their order, then those that installed packages add."""
        return [*self._entries, *(name for name in self._added() if name not in self._entries)]

    def check(self, name: object, argument: str = "", *, within: str = "") -> None:
        """Raise unless there is such a name; nothing is imported.

        ``within`` is the text that the name is a part of, which a message then shows.
        """
        if not isinstance(name, str) or self._target(name) is None:
            known = self.names()
            listed = ", ".join([*map(repr, known), *([self.also] if self.also else [])])
            raise LamettaError(
                f"{argument or self.kind} must be one of {listed}, or python:package.module:Name, "
                f"got {within or name!r}{did_you_mean(name, known)}"
            )

    def is_builtin(self, name: str) -> bool:
        """Whether a name comes with lametta, so that to find it runs no other code."""
        return name in self._entries or name in self._aliases or self._family(name) is not None

    def where(self, name: str) -> str:
        """Say where a name leads, ``package.module:Name``, if that is known without an import."""
        target = self._target(name)
        return target if isinstance(target, str) else ""

    def find(self, name: str, argument: str = "") -> T:
        """Give what a name stands for; this imports what was not imported yet."""
        self.check(name, argument)
        target = self._target(name)
        if not isinstance(target, str):
            return cast(T, target)
        return self._load(target, argument or self.kind, name)

    def _added(self) -> dict[str, str]:
        return entry_points(self.group) if self.group else {}

    def _target(self, name: str) -> T | str | None:
        """What a name stands for, or where that is; None where there is no such name."""
        name = self._aliases.get(name, name)
        if name in self._entries:
            return self._entries[name]
        if name.startswith("python:") and name != "python:":
            return name
        family = self._family(name)
        return self._added().get(name) if family is None else self._entries[family]

    def _family(self, name: str) -> str | None:
        """The entry whose capitals the name fills in."""
        start, _, rest = name.partition(":")
        families = (known for known in self._entries if rest and known.startswith(f"{start}:"))
        return next((known for known in families if known.partition(":")[2].isupper()), None)


class FactoryRegistry(Registry[Callable[..., T]]):
    """A registry of classes or functions that make things of one type.

    Parameters
    ----------
    kind, entries, **options
        As for `Registry`.
    makes : type, optional
        What they make. A factory's option of this type may then be given by a name, or by a table
        with the name as its ``kind``.

    Examples
    --------
    >>> affinities = FactoryRegistry("affinity", {"knn": "lametta:knn", "rbf": "lametta:rbf"})
    >>> affinities.build("knn", k=3) == affinities.build({"kind": "knn", "k": 3})
    True
    >>> affinities.build("rbf", row_sums=5)
    Traceback (most recent call last):
    lametta.types.LamettaError: row_sums is no option of rbf, which has k, row_sum, symmetric; did
    you mean 'row_sum'?
    """

    def __init__(
        self,
        kind: str,
        entries: Mapping[str, Callable[..., T] | str],
        *,
        makes: type[Any] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(kind, entries, **{"load": _import_factory} | options)
        if makes is not None:
            _MADE_BY[makes] = self

    def options(self, name: str, argument: str = "") -> "dict[str, Parameter]":
        """What a factory may be given, by name."""
        return parameters_of(self.find(name, argument))

    def name_of(self, given: object) -> str | None:
        """The name of what `build` would make, or of what is made already; None if unknown."""
        if isinstance(given, str | Mapping):
            name = given.get("kind") if isinstance(given, Mapping) else given
            return name if isinstance(name, str) else None
        return next((name for name, make in self._entries.items() if make is type(given)), None)

    def build(
        self, given: T | str | Mapping[str, object], argument: str = "", /, **options: object
    ) -> T:
        """Make what a name and its options say; what is made already is given back.

        Parameters
        ----------
        given : str, mapping or object
            A name; a mapping with the name as ``kind`` beside its options; or the thing itself.
        argument : str
            What a message calls it.
        **options
            Further ones, of a name or a mapping. Lists become tuples.
        """
        argument = argument or self.kind
        if not isinstance(given, str | Mapping):
            if options:
                raise LamettaError(
                    f"options must be those of a {self.kind} given by its name, got "
                    f"{', '.join(options)} beside {type(given).__name__}, which has its own already"
                )
            return given
        options = {**({"kind": given} if isinstance(given, str) else given), **options}
        name = cast(str, options.pop("kind", None))
        make = self.find(name, argument)
        known = parameters_of(make)
        for option in options:
            if option not in known:
                listed, guess = ", ".join(known) or "none", did_you_mean(option, known)
                raise LamettaError(f"{option} is no option of {name}, which has {listed}{guess}")
        check_required(f"{argument} {name!r}", known, options)
        made = {option: known[option].made(value) for option, value in options.items()}
        with raise_as(f"{argument} {name!r} must take its options", options, TypeError):
            return make(**made)


_MADE_BY: dict[type, FactoryRegistry[Any]] = {}  # by what they make


def _import_factory(target: str, argument: str, name: str) -> Callable[..., Any]:
    found: object = import_object(target, argument, name)
    if not callable(found):
        raise LamettaError(
            f"{argument} must name a class or a function, got {found!r} for {name!r}"
        )
    return found


# Other packages


def import_object(target: str, argument: str, name: str = "") -> Any:
    """Import ``package.module:Name``, perhaps after ``python:``. This runs that package's code.

    ``argument`` is what a message calls it, and ``name`` what the caller asked for, if not this.
    """
    module, _, path = target.removeprefix("python:").partition(":")
    what = argument if name in ("", target) else f"{argument} {name!r}"
    with raise_as(f"{what} must name something that can be imported", target):
        return attrgetter(path)(importlib.import_module(module))


@cache  # to look through all installed packages takes tens of milliseconds
def entry_points(group: str) -> dict[str, str]:
    """Names that installed packages add to a group of entry points, and where each is."""
    from importlib import metadata  # as slow to load as all of lametta

    found = {point.name: point.value for point in metadata.entry_points(group=group)}
    return dict(sorted(found.items()))


def is_third_party(value: object) -> bool:
    """Whether a value names code of others in any table, so that to find it would run that code."""
    if not isinstance(value, str):
        return False
    return value.startswith("python:") or any(value in entry_points(g) for g in GROUPS.values())


# Signatures

_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "an integer",
    float: "a number",
    str: "text",
    types.NoneType: "none",
}
_ABSTRACT: dict[object, object] = {int: Integral, float: Real, None: types.NoneType}


class Parameter(NamedTuple):
    """A parameter: its name, its default (`inspect.Parameter.empty` if none), its type."""

    name: str
    default: object
    kind: object  # Any where the signature does not say

    @property
    def required(self) -> bool:
        """Whether it has to be given."""
        return self.default is inspect.Parameter.empty

    @property
    def text(self) -> str:
        """As one would write it: ``k=5``, or the name alone where it has no default."""
        return self.name if self.required else f"{self.name}={self.default!r}"

    @property
    def registry(self) -> FactoryRegistry[Any] | None:
        """The table whose names it takes, if its type has one."""
        is_union = get_origin(self.kind) in (Union, types.UnionType)
        kinds = get_args(self.kind) if is_union else (self.kind,)
        made = (kind for kind in kinds if isinstance(kind, type) and kind in _MADE_BY)
        return next((_MADE_BY[kind] for kind in made), None)

    def check(self, name: str, value: object) -> None:
        """Raise unless the value is of the parameter's type; a constructor checks the rest."""
        if not _fits(value, self.kind):
            raise LamettaError(f"{name} must be {_words(self.kind)}, got {value!r}")

    def made(self, value: object) -> object:
        """Make what a name or a table stands for, where the type has a table; lists are tuples."""
        if isinstance(value, str | Mapping) and (registry := self.registry) is not None:
            return registry.build(value, self.name)
        return tuple(value) if isinstance(value, list) else value


def parameters_of(make: Callable[..., object]) -> dict[str, Parameter]:
    """Read the parameters of a class or a function that can be given by name.

    Examples
    --------
    >>> def sharpen(probs, power=2.0): ...
    >>> [parameter.text for parameter in parameters_of(sharpen).values()]
    ['probs', 'power=2.0']
    """
    # Instances may not be hashable; they are rare.
    return dict(_read_once(make) if isinstance(make, type | types.FunctionType) else _read(make))


def check_required(owner: str, known: Mapping[str, Parameter], given: Mapping[str, object]) -> None:
    """Raise unless all parameters that have no default are given."""
    for name, parameter in known.items():
        if parameter.required and name not in given:
            raise LamettaError(f"{owner} must be given {name}, got none")


def summary_of(thing: object) -> str:
    """What a thing is: its ``summary`` if it has one, else the first line of its docstring."""
    own = getattr(thing, "summary", None)
    return own if isinstance(own, str) else (inspect.getdoc(thing) or "").partition("\n")[0]


def _read(make: Callable[..., object]) -> dict[str, Parameter]:
    try:
        signature = inspect.signature(make, eval_str=True)
    except NameError:  # a type that is imported only for type checkers
        signature = inspect.signature(make)
    except ValueError:  # compiled, without a signature
        return {}
    made = {
        field.name: field.default_factory()
        for field in (fields(make) if is_dataclass(make) else ())
        if field.default_factory is not MISSING
    }
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {
        name: Parameter(name, made.get(name, parameter.default), _kind(parameter))
        for name, parameter in signature.parameters.items()
        if parameter.kind not in variadic
    }


_read_once = cache(_read)


def _kind(parameter: inspect.Parameter) -> object:
    return Any if parameter.annotation is parameter.empty else parameter.annotation


def _fits(value: object, kind: object) -> bool:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in get_args(kind))
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in get_args(kind))
    if isinstance(value, bool) and kind in (int, float):
        return False
    abstract: Any = _ABSTRACT.get(kind, origin or kind)
    try:
        return isinstance(value, abstract)
    except TypeError:  # no type that a value could be checked against, such as Any
        return True


def _words(kind: object) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_words(one) for one in get_args(kind))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(map(repr, get_args(kind)))}"
    if get_origin(kind) is Callable:
        return "a callable"
    return _WORDS.get(kind) or str(getattr(kind, "__name__", kind))
