"""Validation errors of TOML files: key, expected, got; reading and writing TOML."""

import json
import math
import re
import reprlib
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from lametta._checks import did_you_mean
from lametta._files import PathLike
from lametta.registry import Registry
from lametta.types import LamettaError

if TYPE_CHECKING:
    from pydantic import GetJsonSchemaHandler
    from pydantic_core import CoreSchema, ErrorDetails

T = TypeVar("T")

# Where pydantic speaks of Python, a reader of TOML knows other words.
_WORDS = {
    "missing": "must be given",
    "model_type": "must be a table",
    "dict_type": "must be a table",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
    "too_short": "must not be empty",
    "string_pattern_mismatch": "must be letters, digits, dots, - and _",
}

_DEPTH = 100  # of lists and tables in each other; ours have six


class StrictModel(BaseModel):
    """A table of the file that takes no unknown keys, and no text for numbers."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class ConfigError(NamedTuple):
    """One error in a TOML file: what is wrong, and the keys that lead there."""

    keys: tuple[str, ...]
    message: str

    @property
    def line(self) -> str:
        """The dotted key, as TOML writes it, and what is wrong."""
        key = ".".join(map(to_key, self.keys))
        return f"{key}: {self.message}" if key else self.message


def errors_of(
    error: ValidationError, known: Callable[[tuple[str, ...]], Iterable[str]]
) -> list[ConfigError]:
    """Give what pydantic found; ``known`` lists the keys allowed where an unknown one stands."""
    problems = []
    for found in error.errors():
        if found["type"] == "too_short" and found["input"]:
            continue  # not empty: its items are wrong, which is among the errors too
        # The place in a list is left out: the message shows the item.
        keys = tuple(part for part in found["loc"] if isinstance(part, str) and part != "[key]")
        extra = found["type"] == "extra_forbidden"
        problems.append(
            ConfigError(keys, expected(known(keys), keys[-1]) if extra else _say(found))
        )
    return problems


def config_error(path: PathLike, problems: Iterable[ConfigError]) -> LamettaError:
    """The error that says all that is wrong with a file, a line for each problem."""
    return LamettaError("\n".join(f"{path}: {problem.line}" for problem in problems))


def expected(known: Iterable[str], got: object) -> str:
    """Say which names there are, with a guess at the one that was meant."""
    known = list(known)
    names = ", ".join(known) or "none"
    return f"must be one of {names}, got {got!r}{did_you_mean(got, known)}"


@dataclass(frozen=True)
class OrElse:
    """Another form that the file may have, which a validator before turns into the usual one."""

    form: Callable[[dict[str, Any]], dict[str, Any]]

    def __get_pydantic_json_schema__(
        self, core: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> dict[str, Any]:
        usual = handler(core)
        return {"anyOf": [usual, self.form(usual)]}


@dataclass(frozen=True)
class _Known(AfterValidator):
    """A check of names, which editors are told."""

    word: str = "examples"
    names: tuple[str, ...] = ()

    def __get_pydantic_json_schema__(
        self, core: "CoreSchema", handler: "GetJsonSchemaHandler"
    ) -> dict[str, Any]:
        return {**handler(core), self.word: list(self.names)}


def one_of(known: Iterable[str]) -> AfterValidator:
    """Refuse text that is not among the known words."""
    known = list(known)

    def check(name: str) -> str:
        if name not in known:
            raise LamettaError(expected(known, name))
        return name

    return _Known(check, "enum", tuple(known))


def named(registry: Registry[Any], key: str) -> AfterValidator:
    """Refuse text that is no name of a registry; nothing is imported for it."""

    def check(name: str) -> str:
        registry.check(name, key)
        return name

    return _Known(check, "examples", tuple(registry.names()))


def _check_unique(values: tuple[object, ...]) -> tuple[object, ...]:
    value, n = Counter(values).most_common(1)[0]
    if n > 1:
        raise LamettaError(f"must have each once, got {value!r} twice")
    return values


unique = AfterValidator(_check_unique)


def check_json_value(value: T) -> T:
    """Refuse what TOML has and JSON has not: dates and times; and NaN."""
    for item in _leaves(value):
        if not isinstance(item, str | bool | int | float):
            raise LamettaError(f"must be numbers, text, lists and tables, got {item}")
        if isinstance(item, float) and math.isnan(item):  # which does not even equal itself
            raise LamettaError("must be a number, got nan")
    return value


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _leaves(item)
    else:
        yield value


json_value = AfterValidator(check_json_value)


def _say(found: "ErrorDetails") -> str:
    if "error" in found.get("ctx", {}):  # raised by a check of ours, in our own words
        key = found["loc"][-1] if found["loc"] else ""
        return str(found["ctx"]["error"]).removeprefix(f"{key} ")
    message = _WORDS.get(found["type"]) or found["msg"].replace("Input should be", "must be")
    got = "none" if found["type"] == "missing" else reprlib.repr(found["input"])
    return f"{message}, got {got}"


def read_toml(path: Path) -> dict[str, object]:
    """Read a file, or raise with the reason why it cannot be read."""
    reason: object = "nested too deeply"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if not _is_deep(content):
            return content
    except RecursionError:
        pass
    except FileNotFoundError:
        raise LamettaError(f"no such file: '{path}'") from None
    except OSError as error:
        raise LamettaError(f"cannot read '{path}': {error.strerror}") from None
    except ValueError as error:
        reason = error
    raise LamettaError(f"'{path}' is not valid TOML: {reason}")


def _is_deep(content: dict[str, object]) -> bool:
    """Whether it is nested so deeply that recursive functions would fail on it."""
    level: list[dict[str, object] | list[object]] = [content]
    for _ in range(_DEPTH):
        tables = (x.values() if isinstance(x, dict) else x for x in level)
        level = [x for table in tables for x in table if isinstance(x, dict | list)]
    return bool(level)


def to_toml(value: object) -> str:
    """A value of JSON as one of TOML.

    tomli-w would take the place of these lines, and not of `to_key`, which errors need too. It puts
    tables behind other values, so that options are read, and shown by reports, in another order.

    Examples
    --------
    >>> to_toml({"layers": "norm", "lr": 1e-3, "betas": [0.9, 0.99], "nesterov": True})
    '{ layers = "norm", lr = 0.001, betas = [0.9, 0.99], nesterov = true }'
    """
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return repr(value)
        case str():
            return _quoted(value)
        case list():
            return f"[{', '.join(map(to_toml, value))}]"
        case dict():
            pairs = ", ".join(f"{to_key(name)} = {to_toml(item)}" for name, item in value.items())
            return f"{{ {pairs} }}" if pairs else "{}"
    raise LamettaError(f"value must be one that TOML has, got {value!r}")


def to_key(name: str) -> str:
    """A name as a key of TOML, in quotes where it needs them.

    Examples
    --------
    >>> to_key("LAME"), to_key("TENT + LAME")
    ('LAME', '"TENT + LAME"')
    """
    return name if re.fullmatch("[A-Za-z0-9_-]+", name) else _quoted(name)


def _quoted(text: str) -> str:
    # TOML escapes as JSON does, but for one more control character.
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
