"""The orders and priors by name, for files and for ``lametta list``."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from numbers import Integral, Real
from typing import TypeVar

from lametta._checks import did_you_mean
from lametta.stream.apart import alone, few_classes, tracks
from lametta.stream.chain import markov
from lametta.stream.domains import gradual, mixed, recurring
from lametta.stream.order import Order, by_class, by_group, dirichlet, iid, recorded
from lametta.stream.parallel import interleaved
from lametta.stream.prior import Prior, as_is, effective_classes, long_tail, ratios, zipf
from lametta.stream.shift import label_shift
from lametta.types import LamettaError

T = TypeVar("T")

_ORDERS: Mapping[str, type[Order]] = {
    order.__name__: order
    for order in (
        *(iid, recorded, by_class, by_group, dirichlet),
        *(markov, label_shift),
        *(interleaved, alone, tracks, few_classes),
        *(mixed, gradual, recurring),
    )
}
_PRIORS: Mapping[str, type[Prior]] = {
    prior.__name__: prior for prior in (as_is, zipf, ratios, long_tail, effective_classes)
}


def orders() -> dict[str, str]:
    """The names of the orders, and what each is.

    Examples
    --------
    >>> orders()["iid"]
    'All samples shuffled.'
    """
    return _summaries(_ORDERS)


def priors() -> dict[str, str]:
    """The names of the priors, and what each is.

    Examples
    --------
    >>> priors()["as_is"]
    'All samples, once.'
    """
    return _summaries(_PRIORS)


def options(name: str) -> tuple[str, ...]:
    """The options of an order or a prior with their defaults, as one would write them.

    Examples
    --------
    >>> options("zipf")
    ('a=2', "variant='validation'")
    """
    known = _fields({**_ORDERS, **_PRIORS}[name])
    return tuple(
        option if field.default is MISSING else f"{option}={field.default!r}"
        for option, field in known.items()
    )


def as_order(value: Order | str | Mapping[str, object]) -> Order:
    """The order that a name, a mapping or the order itself stands for."""
    return _parse("order", value, _ORDERS)


def as_prior(value: Prior | str | Mapping[str, object]) -> Prior:
    """The prior that a name, a mapping or the prior itself stands for."""
    return _parse("prior", value, _PRIORS)


def plain(value: object) -> object:
    """Turn a parameter into plain values for JSON, which `as_order` and `as_prior` read back."""
    if is_dataclass(value):
        options = {field.name: plain(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, **options}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        # 1 and 1.0 are the same parameter: they must not make two fingerprints.
        return int(float(value)) if float(value).is_integer() else float(value)
    raise LamettaError(f"parameters must be numbers, text, tuples or dataclasses, got {value!r}")


def _summaries(table: Mapping[str, type]) -> dict[str, str]:
    return {name: (part.__doc__ or "").splitlines()[0] for name, part in table.items()}


def _fields(part: type) -> dict[str, Field[object]]:
    return {field.name: field for field in fields(part)}


def _parse(argument: str, value: T | str | Mapping[str, object], table: Mapping[str, type[T]]) -> T:
    if isinstance(value, str):
        value = {"kind": value}
    if isinstance(value, Mapping):
        return _build(argument, dict(value), table)
    if not callable(value) or not is_dataclass(value) or isinstance(value, type):
        raise LamettaError(
            f"{argument} must be a name, a mapping with a kind or a callable dataclass, "
            f"got {value!r}"
        )
    return value


def _build(argument: str, options: dict[str, object], table: Mapping[str, type[T]]) -> T:
    kind = options.pop("kind", None)
    if not isinstance(kind, str) or kind not in table:
        near = did_you_mean(kind, table)
        raise LamettaError(f"{argument} must be of a kind in {[*table]}, got {kind!r}{near}")
    known = _fields(table[kind])
    for name in options:
        if name not in known:
            raise LamettaError(f"{argument} {kind!r} must have options in {[*known]}, got {name!r}")
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in options:
            raise LamettaError(f"{argument} {kind!r} must be given {name}, got none")
    return table[kind](**{name: _option(argument, v, table) for name, v in options.items()})


def _option(argument: str, value: object, table: Mapping[str, type]) -> object:
    if isinstance(value, Mapping) and "kind" in value:  # an order inside an order
        return _parse(argument, value, table)
    return tuple(value) if isinstance(value, list) else value
