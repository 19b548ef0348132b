"""Open Inference Protocol v2: decode requests, encode replies, HTTP errors.

A body is JSON, or JSON of a stated length (``Inference-Header-Content-Length``) followed by the
raw bytes of those tensors that have a ``binary_data_size``. Whatever a client sends, a request is
either right or a :class:`BadRequest`, and nothing is allocated for a tensor before its shape
agrees with the limits and with the bytes that came. A field or parameter that is not known is
refused: ``sequnce_id`` would make a request stateless, silently.
"""

import math
import reprlib
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any, ClassVar, NamedTuple, NoReturn, TypeAlias, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from lametta._checks import did_you_mean
from lametta.types import LamettaError

T = TypeVar("T")
Object: TypeAlias = dict[str, object]  # of JSON

HEADER_LENGTH = "Inference-Header-Content-Length"

_MOST_DIMENSIONS = 8
_LARGE = 2**18  # bytes of JSON
_SMALL = 2**10  # bytes of JSON that are remembered
_WORDS = {str: "a string", list: "a list", dict: "an object", bool: "true or false"}
_SHARED = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
_UNSUPPORTED = {
    "priority": "requests are answered in the order in which they come",
    "classification": "the outputs label and probs say as much",
    **dict.fromkeys(_SHARED, "tensors travel in the body, as JSON or binary"),
}

DTYPES = {
    "BOOL": np.dtype(bool),
    **{f"INT{8 * size}": np.dtype(f"<i{size}") for size in (1, 2, 4, 8)},
    **{f"UINT{8 * size}": np.dtype(f"<u{size}") for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": np.dtype(f"<f{size}") for size in (2, 4, 8)},
    "BYTES": np.dtype(object),
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# What JSON may hold for a dtype's kind: NumPy would take a string or null for a number as well.
_IN_JSON: dict[str, tuple[set[type], str]] = {
    "b": ({bool}, "true or false"),
    "i": ({int}, "integers"),
    "u": ({int}, "integers"),
    "f": ({int, float}, "numbers"),
    "O": ({str}, "strings"),
}
_TEXT = "OSU"  # kinds of NumPy arrays that go out as BYTES

_shortened = reprlib.Repr()
_shortened.maxlevel, _shortened.maxlist, _shortened.maxstring = 2, 8, 60


class BadRequest(LamettaError):  # noqa: N818
    """A request that cannot be answered; the message is for the client.

    Examples
    --------
    >>> raise BadRequest("shape of input 'probs' must have at most 64 rows, got 65")
    Traceback (most recent call last):
    lametta.serve.protocol.BadRequest: shape of input 'probs' must have at most 64 rows, got 65
    """


class HTTPError(LamettaError):
    """Error reply: an HTTP status, and a message for the client."""

    status: ClassVar[int] = 400
    retry_after: ClassVar[int | None] = None  # seconds, where trying again may help


class UnauthorizedError(HTTPError):
    """The token is missing or wrong."""

    status = 401


class ForbiddenError(HTTPError):
    """A page of another origin asks, through its reader's browser."""

    status = 403


class NotFoundError(HTTPError):
    """There is no such model."""

    status = 404


class RequestTimeoutError(HTTPError):
    """The client took too long to send its request."""

    status = 408


class TooLargeError(HTTPError):
    """The body is larger than the server takes."""

    status = 413


class UnsupportedError(HTTPError):
    """The body is encoded in a way that the server does not read."""

    status = 415


class TooManyRequestsError(HTTPError):
    """The server takes no more requests for now."""

    status = 429
    retry_after = 1


class TooManyStreamsError(TooManyRequestsError):
    """The server keeps as many streams as it may."""

    retry_after = 60


class BrokenAnswerError(HTTPError):
    """The corrector gave no probabilities; the stream was not changed."""

    status = 500


class StoreError(HTTPError):
    """The store of the streams' states cannot be reached."""

    status = 503
    retry_after = 1


class DeadlineError(HTTPError):
    """The answer would come too late; the stream was not changed."""

    status = 504


class Deadline:
    """The time after which a request is not answered, and does not change its stream.

    A request is either given up or committed, never both: who gets 504 may send it again.

    Parameters
    ----------
    seconds : float
        How long the answer may take.
    begun : float, optional
        When the request came, as `time.monotonic` has it; by default now.

    Attributes
    ----------
    at : float
        When it ends.

    Examples
    --------
    >>> deadline = Deadline(0.0)
    >>> deadline.expire()
    True
    >>> deadline.commit()
    Traceback (most recent call last):
    lametta.serve.protocol.DeadlineError: the answer would come after the deadline
    """

    def __init__(self, seconds: float = math.inf, begun: float | None = None) -> None:
        self._begun = time.monotonic() if begun is None else begun
        self.at = self._begun + seconds
        self._lock = threading.Lock()
        self._is_expired = False
        self._n_commits = 0  # made, or being made

    def shorten(self, seconds: float) -> None:
        """Let the answer take no longer than this, from the beginning on."""
        self.at = min(self.at, self._begun + seconds)

    def left(self) -> float:
        """Seconds that are left, not less than 0."""
        return max(self.at - time.monotonic(), 0.0)

    def check(self, message: str = "the answer would come after the deadline") -> None:
        """Raise `DeadlineError` if it is over."""
        if self._is_expired or time.monotonic() >= self.at:
            raise DeadlineError(message)

    def commit(self) -> None:
        """Say that the stream changes now, so that the answer comes; raise if it is too late."""
        with self._lock:
            self.check()
            self._n_commits += 1

    def reopen(self) -> None:
        """Say that the stream was not changed after all."""
        with self._lock:
            self._n_commits -= 1

    def expire(self) -> bool:
        """Give the request up, unless a stream of it has changed; say whether that was done."""
        with self._lock:
            self._is_expired = not self._n_commits
            return self._is_expired


@dataclass(frozen=True, eq=False)  # remembered with what was read within them
class RequestLimits:
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
    pixels : int
        Of all images in a request, as they are decoded or, if that is more, resized.

    Examples
    --------
    >>> RequestLimits(body=1_000_000, rows=64, columns=10_000, json=100_000)
    RequestLimits(body=1000000, rows=64, columns=10000, json=100000, pixels=89478485)
    """

    body: int
    rows: int
    columns: int
    json: int = 2**22
    pixels: int = 89_478_485  # of one image, as Pillow bounds it


class InferRequest(NamedTuple):
    """Decoded inference request: input tensors, parameters, requested outputs.

    Attributes
    ----------
    id : str
        The request's own id; empty if it has none.
    inputs : dict
        Arrays by name. Binary ones are read-only, and views of the body where they lie aligned.
    parameters : mapping
        Of the request: strings, numbers, True or False.
    outputs : mapping or None
        Names that are asked for, and whether in binary; None asks for all that there are.

    Examples
    --------
    >>> InferRequest("7", {}, {"sequence_id": 3}, {"label": True}).outputs
    {'label': True}
    """

    id: str
    inputs: dict[str, NDArray[Any]]
    parameters: Mapping[str, Any]
    outputs: Mapping[str, bool] | None


class InferReply(NamedTuple):
    """Inference reply before encoding: output tensors and parameters.

    Attributes
    ----------
    model, version : str
        Who answers.
    outputs : mapping
        All outputs that there are, by name; those of strings or bytes become BYTES.
    parameters : mapping
        Of the reply.
    """

    model: str
    version: str
    outputs: Mapping[str, NDArray[np.generic]]
    parameters: Mapping[str, object]


class Codec:
    """Bytes of requests and replies, around handlers that see arrays alone.

    Parameters
    ----------
    limits : RequestLimits
        Nothing larger is read.

    Examples
    --------
    >>> codec = Codec(RequestLimits(body=1000, rows=64, columns=1000))
    >>> body = b'{"inputs": [{"name": "x", "shape": [2], "datatype": "INT8", "data": [3, 4]}]}'
    >>> def echo(request):
    ...     return InferReply("echo", "1", request.inputs, {})
    >>> reply, _ = codec.respond(body, None, echo)
    >>> orjson.loads(reply)["outputs"]
    [{'name': 'x', 'datatype': 'INT8', 'shape': [2], 'data': [3, 4]}]
    """

    def __init__(self, limits: RequestLimits) -> None:
        self.limits = limits
        self._reading = threading.Lock()  # large JSON takes many times its length of memory

    def respond(
        self,
        body: bytes,
        header_length: int | None,
        handler: Callable[[InferRequest], InferReply],
    ) -> tuple[bytes, int | None]:
        """Decode a request, let the handler answer it, and encode its reply."""
        return self.answer(self.decode(body, header_length), handler)

    def decode(self, body: bytes, header_length: int | None) -> InferRequest:
        """Decode a request; of those with much JSON one at a time."""
        if (len(body) if header_length is None else header_length) < _LARGE:
            return decode(body, header_length, self.limits)
        with self._reading:
            return decode(body, header_length, self.limits)

    def answer(
        self, request: InferRequest, handler: Callable[[InferRequest], InferReply]
    ) -> tuple[bytes, int | None]:
        """Let the handler answer a request, and encode its reply."""
        model, version, outputs, parameters = handler(request)
        binary = request.parameters.get("binary_data_output", False)
        return encode(model, version, request.id, outputs, request.outputs, binary, parameters)


def decode(
    body: bytes | memoryview, header_length: int | None, limits: RequestLimits
) -> InferRequest:
    """Read a request.

    Parameters
    ----------
    body : bytes
        The whole body.
    header_length : int or None
        Bytes of its JSON; None if it is all JSON.
    limits : RequestLimits
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
    >>> limits = RequestLimits(body=1000, rows=64, columns=1000)
    >>> tensor = b'{"name": "probs", "shape": [1, 2], "datatype": "FP32", "data": [0.25, 0.75]}'
    >>> decode(b'{"inputs": [' + tensor + b"]}", None, limits).inputs
    {'probs': array([[0.25, 0.75]], dtype=float32)}
    """
    rest = memoryview(body)
    if len(rest) > limits.body:
        raise BadRequest(f"the body must have at most {limits.body} bytes, got {len(rest)}")
    end = len(rest) if header_length is None else header_length
    if not 0 <= end <= len(rest):
        refuse(HEADER_LENGTH, f"from 0 to the body's {len(rest)} bytes", end)
    if end > limits.json:
        raise BadRequest(f"the request must have at most {limits.json} bytes of JSON, got {end}")
    text, rest = rest[:end], rest[end:]
    header = _known_header(bytes(text), limits) if end <= _SMALL else _read_header(text, limits)
    inputs: dict[str, NDArray[Any]] = {}
    for name, where, datatype, shape, size, data in header.inputs:
        if size is None:
            inputs[name] = from_json(data, datatype, shape, where)
        else:
            inputs[name], rest = from_binary(rest, size, datatype, shape, where)
    if rest:
        raise BadRequest(f"the body must end with its last tensor, got {len(rest)} bytes more")
    return InferRequest(header.id, inputs, header.parameters, header.outputs)


class _Tensor(NamedTuple):
    """What the JSON of a request says of an input."""

    name: str
    where: str  # for messages
    datatype: str
    shape: list[int]
    size: object  # bytes behind the JSON; None: the values are in it
    data: list[Any]


class _Header(NamedTuple):
    """What the JSON of a request says."""

    id: str
    inputs: list[_Tensor]
    parameters: dict[str, Any]
    outputs: dict[str, bool] | None


def _read_header(text: bytes | memoryview, limits: RequestLimits) -> _Header:
    try:
        header = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the request must be JSON: {error}") from None
    if not isinstance(header, dict):
        refuse("the request", "a JSON object", header)
    REQUEST.check(header, "the request")
    inputs: dict[str, _Tensor] = {}
    for index, tensor in enumerate(get(header, "inputs", list, "the request")):
        name = _name(tensor, f"inputs[{index}]", inputs)
        inputs[name] = _input(tensor, name, limits)
    if not inputs:
        raise BadRequest("inputs of the request must hold at least one tensor, got none")
    parameters = REQUEST.parameters_of(header, "the request")
    binary = get(parameters, "binary_data_output", bool, "the request", False)
    name = get(header, "id", str, "the request", "")
    return _Header(name, list(inputs.values()), parameters, _outputs(header, binary))


# Frames of a camera come with the same JSON, if they have no ids.
_known_header = lru_cache(maxsize=1024)(_read_header)


def _input(tensor: Object, name: str, limits: RequestLimits) -> _Tensor:
    where = f"input {show(name)}"
    INPUT.check(tensor, where)
    datatype = get(tensor, "datatype", str, where)
    if datatype not in DTYPES:
        refuse(f"datatype of {where}", f"one of {', '.join(DTYPES)}", datatype)
    shape = _shape(tensor, where, limits)
    size = INPUT.parameters_of(tensor, where).get("binary_data_size")
    if size is not None and tensor.get("data") is not None:
        raise BadRequest(f"{where} must have either data or binary_data_size, got both")
    data = get(tensor, "data", list, where) if size is None else []
    return _Tensor(name, where, datatype, shape, size, data)


def _shape(tensor: Object, where: str, limits: RequestLimits) -> list[int]:
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
        datatype = _NAMES.get(array.dtype) or datatype_of(array)
        entry: Object = {"name": name, "datatype": datatype, "shape": array.shape}
        if raw:
            tail.append(to_binary(array) if datatype == "BYTES" else array.tobytes())
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
        lametta.serve.protocol.BadRequest: fields of the request must be among id, parameters,
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
        lametta.serve.protocol.BadRequest: parameters of the request must be among sequence_id,
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
    lametta.serve.protocol.BadRequest: id of the request must be a string, got 3
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


def show(value: object) -> str:
    """A client's value, however large, in a few words.

    Examples
    --------
    >>> show("x" * 1_000_000)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxx...xxxxxxxxxxxxxxxxxxxxxxxxxxxx'"
    """
    if type(value) is str and len(value) < 50:  # every request's names, which reprlib is slow for
        return repr(value)
    text = "nothing" if value is None else _shortened.repr(value)
    return text if len(text) <= 100 else f"{text[:100]}..."


def refuse(field: str, expected: str, value: object) -> NoReturn:
    """Raise for a field of a request that is not as expected.

    Examples
    --------
    >>> refuse("id of the request", "a string", 3)
    Traceback (most recent call last):
    lametta.serve.protocol.BadRequest: id of the request must be a string, got 3
    """
    raise BadRequest(f"{field} must be {expected}, got {show(value)}")


def datatype_of(array: NDArray[np.generic]) -> str:
    """The protocol's name of an array's dtype; strings of any kind are BYTES.

    Examples
    --------
    >>> datatype_of(np.zeros(3, np.float32)), datatype_of(np.array(["cat"]))
    ('FP32', 'BYTES')
    """
    if array.dtype.kind in _TEXT:
        return "BYTES"
    if array.dtype not in _NAMES:
        raise LamettaError(f"an output must be one of {', '.join(DTYPES)}, got {array.dtype}")
    return _NAMES[array.dtype]


def from_json(data: list[Any], datatype: str, shape: Sequence[int], where: str) -> NDArray[Any]:
    """Values in row-major order, flat or nested as the shape, as an array.

    Examples
    --------
    >>> from_json([[1, 2], [3, 4]], "FP32", [2, 2], "input 'probs'")
    array([[1., 2.], [3., 4.]], dtype=float32)
    >>> from_json([1, 999], "INT8", [2], "input 'x'")
    Traceback (most recent call last):
    lametta.serve.protocol.BadRequest: data of input 'x' must be in the range of INT8, got 1 to 999
    """
    dtype, field = DTYPES[datatype], f"data of {where}"
    values = _flat(data, shape, field)
    types, words = _IN_JSON[dtype.kind]
    if not types.issuperset(map(type, values)):
        wrong = next(value for value in values if type(value) not in types)
        refuse(field, f"{words} for {datatype}", wrong)
    if datatype == "BYTES":
        return np.array([value.encode() for value in values], dtype).reshape(shape)
    try:
        with np.errstate(over="raise"):
            array = np.array(values, dtype)
    except (FloatingPointError, OverflowError):
        got = f"{show(min(values))} to {show(max(values))}"
        raise BadRequest(f"{field} must be in the range of {datatype}, got {got}") from None
    return array.reshape(shape)


def _flat(data: list[Any], shape: Sequence[int], field: str) -> list[Any]:
    values, count, fits = data, math.prod(shape), True
    for size in shape[1:] if data and type(data[0]) is list else ():
        fits = fits and all(type(row) is list and len(row) == size for row in values)
        values = list(chain.from_iterable(values)) if fits else []
    if not fits or len(values) != count:
        got = len(values) if fits else "other lists"
        raise BadRequest(f"{field} must be {count} values, flat or nested as {shape}, got {got}")
    return values


def from_binary(
    rest: memoryview, size: object, datatype: str, shape: Sequence[int], where: str
) -> tuple[NDArray[Any], memoryview]:
    """The first ``size`` bytes as a read-only array, and the bytes behind them.

    Examples
    --------
    >>> array, rest = from_binary(memoryview(bytes(7)), 4, "UINT8", [1, 4], "input 'image'")
    >>> array, len(rest)
    (array([[0, 0, 0, 0]], dtype=uint8), 3)
    """
    dtype, count, is_text = DTYPES[datatype], math.prod(shape), datatype == "BYTES"
    least = count * (4 if is_text else dtype.itemsize)
    if type(size) is not int or size < least or (size > least and not is_text):
        expected = f"{least} {'or more ' * is_text}for {datatype} of shape {shape}"
        refuse(f"binary_data_size of {where}", expected, size)
    if size > len(rest):
        raise BadRequest(
            f"the body must hold {size} bytes of {where} behind its JSON, got {len(rest)}"
        )
    raw, rest = rest[:size], rest[size:]
    array = np.array(_split(raw, count, where), dtype) if is_text else np.frombuffer(raw, dtype)
    if datatype == "BOOL" and array.view(np.uint8).max() > 1:
        refuse(where, "bytes of 0 and 1 for BOOL", int(array.view(np.uint8).max()))
    if not array.flags.aligned:
        # JSON ends anywhere, and NumPy sums unaligned numbers in another order: an answer would
        # differ in its last bits from one computed offline.
        array = array.copy()
    array.flags.writeable = False
    return array.reshape(shape), rest


def _split(raw: memoryview, count: int, where: str) -> list[bytes]:
    """Elements of BYTES: each has its length before it, in four bytes."""
    items, stop = [], 0
    for _ in range(count):
        start = stop + 4
        stop = start + int.from_bytes(raw[stop:start], "little")
        items.append(bytes(raw[start:stop]))
    if stop != len(raw):  # beyond its end, slices are empty
        expected = f"be {count} elements, each behind its length in 4 bytes"
        raise BadRequest(f"{where} must {expected}, got lengths that do not add up")
    return items


def to_binary(array: NDArray[np.generic]) -> bytes:
    r"""An array's values in row-major order.

    Examples
    --------
    >>> to_binary(np.array([1, 2], np.uint8)), to_binary(np.array(["cat"]))
    (b'\x01\x02', b'\x03\x00\x00\x00cat')
    """
    if array.dtype.kind not in _TEXT:
        return array.tobytes()
    parts = ((len(item).to_bytes(4, "little"), item) for item in _items(array))
    return b"".join(chain.from_iterable(parts))


def to_json(array: NDArray[np.generic], where: str) -> NDArray[np.generic] | list[str]:
    """An array's values in row-major order, as orjson takes them.

    Examples
    --------
    >>> to_json(np.array([[1, 2]]), "output 'label'"), to_json(np.array(["cat"]), "output 'name'")
    (array([1, 2]), ['cat'])
    """
    if array.dtype.kind not in _TEXT:
        return array.ravel()
    try:
        return [item.decode() for item in _items(array)]
    except UnicodeDecodeError:
        raise BadRequest(f"{where} is not text: it must be asked for in binary") from None


def _items(array: NDArray[np.generic]) -> list[bytes]:
    return [x if isinstance(x, bytes) else str(x).encode() for x in array.ravel().tolist()]
