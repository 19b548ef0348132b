"""The fields and parameters of a request's JSON: which there are, and of which types.

Whatever is not known here is refused: ``sequnce_id`` would make a request stateless, silently.
"""

from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

from lametta._checks import did_you_mean
from lametta.serve.datatypes import BadRequest, refuse, show

T = TypeVar("T")
Object: TypeAlias = dict[str, object]  # of JSON

_WORDS = {str: "a string", list: "a list", dict: "an object", bool: "true or false"}
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
_UNSUPPORTED = {
    "priority": "requests are answered in the order in which they come",
    "classification": "the outputs label and probs say as much",
    **dict.fromkeys(_SHARED, "tensors travel in the body, as JSON or binary"),
}


class Level(NamedTuple):
    """One place in a request: the fields and parameters that it may have.

    Attributes
    ----------
    fields : tuple of str
        Of the Open Inference Protocol.
    parameters : tuple of str
        Of the protocol's extensions: sequences, binary tensors, timeouts.
    unsupported : tuple of str
        Parameters that Triton's clients may send, and that are refused unless they ask for nothing.
    """

    fields: tuple[str, ...]
    parameters: tuple[str, ...]
    unsupported: tuple[str, ...]

    def check(self, entry: Object, where: str) -> None:
        """Raise if an object has a field that does not belong there.

        Examples
        --------
        >>> REQUEST.check({"inputs": [], "sequence_id": 7}, "the request")
        Traceback (most recent call last):
        lametta.serve.datatypes.BadRequest: fields of the request must be among id, parameters,
        inputs, outputs, got 'sequence_id', which belongs in its parameters
        """
        for key in entry:
            if key not in self.fields:
                inside = key in self.parameters or key in self.unsupported
                hint = ", which belongs in its parameters" if inside else ""
                _refuse_unknown(f"fields of {where}", key, self.fields, hint)

    def parameters_of(self, entry: Object, where: str) -> dict[str, Any]:
        """The parameters of an object: strings, numbers, True or False.

        Examples
        --------
        >>> REQUEST.parameters_of({"parameters": {"sequnce_id": 7}}, "the request")
        Traceback (most recent call last):
        lametta.serve.datatypes.BadRequest: parameters of the request must be among sequence_id,
        sequence_start, sequence_end, timeout, binary_data_output, got 'sequnce_id'; did you mean
        'sequence_id'?
        """
        parameters = get(entry, "parameters", dict, where, {})
        for key, value in parameters.items():
            if key in self.unsupported:
                if value:
                    reason = _UNSUPPORTED[key]
                    raise BadRequest(f"parameter {key} of {where} is not supported: {reason}")
            elif key not in self.parameters:
                _refuse_unknown(f"parameters of {where}", key, self.parameters)
            if type(value) not in (str, int, float, bool):
                refuse(f"parameter {key} of {where}", "a string, number or boolean", value)
        return parameters


REQUEST = Level(
    ("id", "parameters", "inputs", "outputs"),
    ("sequence_id", "sequence_start", "sequence_end", "timeout", "binary_data_output"),
    ("priority",),
)
INPUT = Level(("name", "shape", "datatype", "parameters", "data"), ("binary_data_size",), _SHARED)
OUTPUT = Level(("name", "parameters"), ("binary_data",), ("classification", *_SHARED))


def get(entry: Object, key: str, kind: type[T], where: str, default: T | None = None) -> T:
    """A field, which must be of this type; null counts as missing.

    Examples
    --------
    >>> get({"id": 3}, "id", str, "the request", "")
    Traceback (most recent call last):
    lametta.serve.datatypes.BadRequest: id of the request must be a string, got 3
    """
    value = entry.get(key)
    if type(value) is kind:  # as it nearly always is
        return value
    if value is not None or default is None:
        refuse(f"{key} of {where}", _WORDS[kind], value)
    return default


def _refuse_unknown(what: str, key: str, known: Iterable[str], hint: str = "") -> NoReturn:
    hint = hint or did_you_mean(key[:100], known)
    raise BadRequest(f"{what} must be among {', '.join(known)}, got {show(key)}{hint}")
