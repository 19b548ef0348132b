"""Writing TOML, which the standard library only reads."""

import json
import re

from lametta.types import LamettaError


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
