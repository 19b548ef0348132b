"""Tensors of the Open Inference Protocol: a request's bytes as NumPy arrays, arrays as a reply.

A body is JSON, or JSON of a stated length (``Inference-Header-Content-Length``) followed by the
raw bytes of those tensors that have a ``binary_data_size``. Whatever a client sends, a request is
either right or a :class:`BadRequest`, and nothing is allocated for a tensor before its shape
agrees with the limits and with the bytes that came.
"""

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from lametta.serve.datatypes import (
    DTYPES,
    BadRequest,
    datatype_of,
    from_binary,
    from_json,
    refuse,
    show,
    to_binary,
    to_json,
)
from lametta.serve.fields import INPUT, OUTPUT, REQUEST, Object, get

__all__ = ["BadRequest", "InferRequest", "Limits", "decode", "encode"]

_MOST_DIMENSIONS = 8


@dataclass(frozen=True)
class Limits:
    """The largest request that is read.

    Attributes
    ----------
    body : int
        Bytes of a request.
    rows : int
        First dimension of a tensor.
    columns : int
        Any other dimension of a tensor: features, classes, an image's height.
    json : int
        Bytes of JSON in a request, which take up to 45 times as much memory while they are read.

    Examples
    --------
    >>> Limits(body=1_000_000, rows=64, columns=10_000, json=100_000)
    Limits(body=1000000, rows=64, columns=10000, json=100000)
    """

    body: int
    rows: int
    columns: int
    json: int = 2**22


class InferRequest(NamedTuple):
    """What a client asks for.

    Attributes
    ----------
    id : str
        The request's own id; empty if it has none.
    inputs : dict
        Arrays by name. Binary ones are read-only, and views of the body where they lie aligned.
    parameters : dict
        Of the request: strings, numbers, True or False.
    outputs : dict or None
        Names that are asked for, and whether in binary; None asks for all that there are.

    Examples
    --------
    >>> InferRequest("7", {}, {"sequence_id": 3}, {"label": True}).outputs
    {'label': True}
    """

    id: str
    inputs: dict[str, NDArray[Any]]
    parameters: dict[str, Any]
    outputs: dict[str, bool] | None


def decode(body: bytes | memoryview, header_length: int | None, limits: Limits) -> InferRequest:
    """Read a request.

    Parameters
    ----------
    body : bytes
        The whole body.
    header_length : int or None
        Bytes of its JSON; None if it is all JSON.
    limits : Limits
        Nothing larger is read.

    Returns
    -------
    InferRequest
        Numbers in JSON are finite and in their datatype's range; those in binary may be anything.

    Raises
    ------
    BadRequest
        If anything about it is wrong.

    Examples
    --------
    >>> limits = Limits(body=1000, rows=64, columns=1000)
    >>> tensor = b'{"name": "probs", "shape": [1, 2], "datatype": "FP32", "data": [0.25, 0.75]}'
    >>> decode(b'{"inputs": [' + tensor + b"]}", None, limits).inputs
    {'probs': array([[0.25, 0.75]], dtype=float32)}
    """
    rest = memoryview(body)
    if len(rest) > limits.body:
        raise BadRequest(f"the body must have at most {limits.body} bytes, got {len(rest)}")
    end = len(rest) if header_length is None else header_length
    if not 0 <= end <= len(rest):
        refuse("Inference-Header-Content-Length", f"from 0 to the body's {len(rest)} bytes", end)
    if end > limits.json:
        raise BadRequest(f"the request must have at most {limits.json} bytes of JSON, got {end}")
    try:
        header = orjson.loads(rest[:end])
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request must be JSON: {error}") from None
    if not isinstance(header, dict):
        refuse("the request", "a JSON object", header)
    REQUEST.check(header, "the request")
    rest = rest[end:]
    inputs: dict[str, NDArray[Any]] = {}
    for index, tensor in enumerate(get(header, "inputs", list, "the request")):
        name = _name(tensor, f"inputs[{index}]", inputs)
        inputs[name], rest = _input(tensor, f"input {show(name)}", rest, limits)
    if not inputs:
        raise BadRequest("inputs of the request must hold at least one tensor, got none")
    if rest:
        raise BadRequest(f"the body must end with its last tensor, got {len(rest)} bytes more")
    parameters = REQUEST.parameters_of(header, "the request")
    binary = get(parameters, "binary_data_output", bool, "the request", False)
    return InferRequest(
        get(header, "id", str, "the request", ""), inputs, parameters, _outputs(header, binary)
    )


def _input(
    tensor: Object, where: str, rest: memoryview, limits: Limits
) -> tuple[NDArray[Any], memoryview]:
    """A tensor, and the bytes behind it."""
    INPUT.check(tensor, where)
    datatype = get(tensor, "datatype", str, where)
    if datatype not in DTYPES:
        refuse(f"datatype of {where}", f"one of {', '.join(DTYPES)}", datatype)
    shape = _shape(tensor, where, limits)
    size = INPUT.parameters_of(tensor, where).get("binary_data_size")
    if size is None:
        return from_json(get(tensor, "data", list, where), datatype, shape, where), rest
    if tensor.get("data") is not None:
        raise BadRequest(f"{where} must have either data or binary_data_size, got both")
    return from_binary(rest, size, datatype, shape, where)


def _shape(tensor: Object, where: str, limits: Limits) -> list[int]:
    shape = get(tensor, "shape", list, where)
    fits = 1 <= len(shape) <= _MOST_DIMENSIONS and {*map(type, shape)} == {int}
    if not fits or min(shape) < 1:
        refuse(f"shape of {where}", f"1 to {_MOST_DIMENSIONS} integers >= 1", shape)
    counts = shape[0], max(shape[1:], default=1), math.prod(shape)
    most = limits.rows, limits.columns, limits.body  # an element takes a byte or more
    for count, limit, word in zip(counts, most, ("rows", "columns", "elements"), strict=True):
        if count > limit:
            raise BadRequest(f"shape of {where} must have at most {limit} {word}, got {count}")
    return shape


def _outputs(header: Object, binary: bool) -> dict[str, bool] | None:
    outputs: dict[str, bool] = {}
    for index, output in enumerate(get(header, "outputs", list, "the request", [])):
        name = _name(output, f"outputs[{index}]", outputs)
        where = f"output {show(name)}"
        OUTPUT.check(output, where)
        parameters = OUTPUT.parameters_of(output, where)
        outputs[name] = get(parameters, "binary_data", bool, where, binary)
    return outputs or None


def _name(entry: object, where: str, taken: Container[str]) -> str:
    """The name of an input or output, which no other may have."""
    if not isinstance(entry, dict):
        refuse(where, "an object", entry)
    name = get(entry, "name", str, where)
    if not name or name in taken:
        refuse(f"name of {where}", "a name of its own", name)
    return name


def encode(
    model: str,
    version: str,
    request_id: str,
    outputs: Mapping[str, NDArray[np.generic]],
    wanted: Mapping[str, bool] | None,
    binary: bool,
    parameters: Mapping[str, object],
) -> tuple[bytes, int | None]:
    """Write a reply.

    Parameters
    ----------
    model, version, request_id : str
        Named in the reply; an empty id is left out.
    outputs : mapping
        Arrays by name; those of strings or bytes become BYTES.
    wanted : mapping or None
        Names of these to reply with, and whether in binary; None: all, as ``binary`` says.
    binary : bool
        Whether all go in binary where ``wanted`` is None.
    parameters : mapping
        Of the reply; left out if empty.

    Returns
    -------
    tuple
        The bytes, and the length of their JSON if any output is binary, else None. In JSON,
        numbers that are not finite become null.

    Raises
    ------
    BadRequest
        If bytes that are not text are wanted in JSON.

    Examples
    --------
    >>> outputs = {"label": np.array([3]), "probs": np.array([[0.25, 0.75]])}
    >>> reply, _ = encode("lame", "1", "", outputs, {"label": False}, False, {})
    >>> orjson.loads(reply)["outputs"]
    [{'name': 'label', 'datatype': 'INT64', 'shape': [1], 'data': [3]}]
    >>> reply, length = encode("lame", "1", "", outputs, None, True, {})
    >>> np.frombuffer(reply[length:], np.float64, offset=8)
    array([0.25, 0.75])
    """
    entries, tail = [], []
    for name, raw in (dict.fromkeys(outputs, binary) if wanted is None else wanted).items():
        array = outputs[name]
        entry: Object = {"name": name, "datatype": datatype_of(array), "shape": array.shape}
        if raw:
            tail.append(to_binary(array))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = to_json(array, f"output {name}")
        entries.append(entry)
    reply: Object = {"model_name": model, "model_version": version}
    if request_id:
        reply["id"] = request_id
    if parameters:
        reply["parameters"] = parameters
    header = orjson.dumps(reply | {"outputs": entries}, option=orjson.OPT_SERIALIZE_NUMPY)
    return (b"".join((header, *tail)), len(header)) if tail else (header, None)
