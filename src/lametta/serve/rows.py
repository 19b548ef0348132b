"""Several streams in one request: which rows are whose, and the answers put together again.

Whose a row is says a tensor ``sequence_id`` [N] of integers or BYTES beside the others, since
parameters of the protocol are single values; ``sequence_start`` and ``sequence_end`` [N] may come
beside it. The rows of one stream are its next samples, in their order. Streams are answered one
after another as they first appear, each as by a request of its own: what is wrong with one, or
comes too late for one, is said of its rows alone.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lametta.serve.protocol import BadRequest, InferRequest

Stream = str | int | None

SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
_SEQUENCE = frozenset(SEQUENCE)
ROW_OUTPUTS = ("status", "error")  # of each row, where a request has several streams
_LONGEST_ID = 256


class Part(NamedTuple):
    """The rows of one stream in a request.

    Attributes
    ----------
    stream : str, int or None
        Its id; None for rows that stand alone.
    rows : array [n]
        Which they are.
    start, end : bool
        Whether the stream begins anew with the first of them, and ends with the last.
    """

    stream: Stream
    rows: NDArray[np.intp]
    start: bool
    end: bool


def split(request: InferRequest) -> list[Part] | None:
    """The parts of a request of several streams; None for one without a tensor of ids.

    Examples
    --------
    >>> inputs = {"probs": np.eye(3), "sequence_id": np.array([7, 8, 7])}
    >>> for part in split(InferRequest("", inputs, {}, None)):
    ...     print(part.stream, part.rows)
    7 [0 2]
    8 [1]
    """
    if _SEQUENCE.isdisjoint(request.inputs):
        return None
    tensors = {name: request.inputs[name] for name in SEQUENCE if name in request.inputs}
    if "sequence_id" not in tensors:
        raise BadRequest(f"{' and '.join(tensors)} must come with a tensor sequence_id")
    if "sequence_id" in request.parameters:
        raise BadRequest("sequence_id must be a parameter or a tensor, got both")
    n = max(len(array) for array in request.inputs.values())
    columns = {name: _column(name, array, n) for name, array in tensors.items()}
    found: dict[Stream, list[int]] = {}
    for row, stream in enumerate(_ids(columns["sequence_id"])):
        found.setdefault(stream, []).append(row)
    flags = []
    for name in SEQUENCE[1:]:
        given = columns.get(name, np.zeros(n, bool))
        if name in request.parameters:
            raise BadRequest(f"{name} must be a tensor where sequence_id is one")
        if given.dtype != bool:
            raise BadRequest(f"{name} must be BOOL, got {given.dtype}")
        flags.append(given)
    return [_part(stream, np.array(rows), *flags) for stream, rows in found.items()]


def _part(
    stream: Stream, rows: NDArray[np.intp], starts: NDArray[np.bool_], ends: NDArray[np.bool_]
) -> Part:
    if starts[rows[1:]].any() or ends[rows[:-1]].any():
        raise BadRequest(
            f"sequence_start must be of the first row of stream {stream!r:.50} in a request, and "
            "sequence_end of the last"
        )
    start, end = bool(starts[rows[0]]), bool(ends[rows[-1]])
    if stream is None and (start or end):
        raise BadRequest("sequence_start and sequence_end must come with a sequence_id")
    return Part(stream, rows, start, end)


def _column(name: str, array: NDArray[Any], n: int) -> NDArray[Any]:
    """A tensor of one value a row, [N] or [N, 1] as clients of servers that batch have it."""
    if array.shape not in ((n,), (n, 1)):
        raise BadRequest(f"{name} must have a value for each of the {n} rows, got {array.shape}")
    return array.reshape(n)


def _ids(column: NDArray[Any]) -> list[Stream]:
    if column.dtype.kind not in "iuO":
        raise BadRequest(f"sequence_id must be integers or BYTES, got {column.dtype}")
    return [check_id(_text(one) if isinstance(one, bytes) else one) for one in column.tolist()]


def _text(given: bytes) -> str:
    try:
        return given.decode()
    except UnicodeDecodeError:
        raise BadRequest(f"sequence_id must be text in UTF-8, got {given!r:.50}") from None


def check_id(stream: object) -> Stream:
    """A stream's id as a request gives it; 0 and an empty text are none, as Triton has it."""
    if stream in (None, 0, "") and not isinstance(stream, bool):
        return None
    if isinstance(stream, bool) or not isinstance(stream, int | str):
        raise BadRequest(f"sequence_id must be an integer or a text, got {stream!r:.50}")
    if isinstance(stream, str) and len(stream) > _LONGEST_ID:
        raise BadRequest(f"sequence_id must have at most {_LONGEST_ID} characters")
    return stream


class Answer(NamedTuple):
    """What came of a part: outputs with a row for each of its rows, or why there are none."""

    status: int
    outputs: Mapping[str, NDArray[Any]]
    error: str = ""


def join(parts: Sequence[Part], answers: Sequence[Answer]) -> dict[str, NDArray[Any]]:
    """The outputs of all rows; where there are none, NaN, -1 and an empty text.

    Examples
    --------
    >>> parts = [Part(7, np.array([0, 2]), False, False), Part(8, np.array([1]), False, False)]
    >>> answers = [Answer(200, {"label": np.array([4, 5])}), Answer(504, {}, "too late")]
    >>> for name, values in join(parts, answers).items():
    ...     print(name, values)
    status [200 504 200]
    error ['' 'too late' '']
    label [ 4 -1  5]
    """
    n = sum(len(part.rows) for part in parts)
    joined: dict[str, NDArray[Any]] = {
        "status": np.empty(n, np.int64),
        "error": np.empty(n, object),
    }
    for part, answer in zip(parts, answers, strict=True):
        joined["status"][part.rows] = answer.status
        joined["error"][part.rows] = answer.error
        for name, values in answer.outputs.items():
            if name not in joined:
                missing = {"f": np.nan, "i": -1}.get(values.dtype.kind, "")
                joined[name] = np.full((n, *values.shape[1:]), missing, values.dtype)
            joined[name][part.rows] = values
    return joined
