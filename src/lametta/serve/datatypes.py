"""Values of one tensor: JSON or raw bytes to an array, and back, for each datatype.

The datatypes are the Open Inference Protocol's. FP16 may come in JSON too.
"""

import math
import reprlib
from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from lametta.types import LamettaError

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
    lametta.serve.datatypes.BadRequest: shape of input 'probs' must have at most 64 rows, got 65
    """


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
    lametta.serve.datatypes.BadRequest: id of the request must be a string, got 3
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
    lametta.serve.datatypes.BadRequest: data of input 'x' must be in the range of INT8, got 1 to 999
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
