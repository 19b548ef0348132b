"""Reading TOML files, and writing TOML, which the standard library only reads."""

import json
import re
import tomllib
from pathlib import Path

from lametta.types import LamettaError

_DEPTH = 100  # of lists and tables in each other; ours have six


def read_toml(path: Path) -> dict[str, object]:
    """Read a file, or raise with the reason why it cannot be read."""
    reason: object = "nested too deeply"
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        if not _is_deep(content):
            return content
    except RecursionError:
        pass
    except OSError as error:
        reason = error.strerror
    except ValueError as error:
        reason = error
    raise LamettaError(f"path must be a TOML file, got {path}: {reason}")


def _is_deep(content: dict[str, object]) -> bool:
    """Whether it is nested so deeply that recursive functions would fail on it."""
    level: list[dict[str, object] | list[object]] = [content]
    for _ in range(_DEPTH):
        tables = (x.values() if isinstance(x, dict) else x for x in level)
        level = [x for table in tables for x in table if isinstance(x, dict | list)]
    return bool(level)


def to_toml(value: object) -> str:
    """A value of JSON as one of TOML.

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
