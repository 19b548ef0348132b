"""Ray Data: correct the streams of a distributed data set."""

import warnings
from collections.abc import Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from lametta._arrays import probabilities, to_numpy
from lametta._checks import check_integer, did_you_mean
from lametta.correctors import LAME
from lametta.correctors.base import checked_prediction, clone
from lametta.methods import as_corrector
from lametta.types import Corrector, LamettaError

if TYPE_CHECKING:
    from ray.data import Dataset

_Columns = Mapping[str, NDArray[Any]]


def correct(
    dataset: "Dataset",
    *,
    stream: str = "camera",
    order: str = "time",
    corrector: str | Corrector = "prudent",
    features: str = "features",
    probs: str = "probs",
    logits: str | None = None,
    batch_size: int = 1,
) -> "Dataset":
    """Correct the predictions of a dataset, each stream by its own copy of a corrector.

    Nothing is computed before the result is asked for. The rows of a stream come back in the order
    of time, one stream after the other. A stream has to fit into the memory of one task about four
    times over; the number of streams does not matter.

    Parameters
    ----------
    dataset : ray.data.Dataset
        A sample in each row.
    stream, order : str
        The columns that say which stream a sample belongs to, and when it came. No two samples of a
        stream may have come at the same time.
    corrector : str or Corrector
        What each stream gets a copy of, without its memory: a method by its name, or a corrector.
    features, probs : str
        The columns with vectors [d] and the source's probabilities [K], floating-point numbers.
    logits : str, optional
        The column with the source's logits [K], in place of ``probs``.
    batch_size : int
        How many samples of a stream are corrected together; the last batch may be smaller.

    Returns
    -------
    ray.data.Dataset
        All columns, with ``probs``, ``label`` and ``source_label`` added or replaced: the corrected
        probabilities, their class, and the class of the source's probabilities.

    Examples
    --------
    >>> import lametta.ray, ray.data  # doctest: +SKIP
    >>> frames = ray.data.read_parquet("frames.parquet")  # doctest: +SKIP
    >>> corrected = lametta.ray.correct(frames, stream="camera")  # doctest: +SKIP
    >>> corrected.write_parquet("corrected")  # doctest: +SKIP
    """
    if not hasattr(dataset, "groupby") or not hasattr(dataset, "schema"):
        raise LamettaError(f"dataset must be a ray.data.Dataset, got {type(dataset).__name__}")
    check_integer("batch_size", batch_size, 1)
    corrector = as_corrector(corrector)
    if batch_size == 1 and isinstance(corrector, LAME):
        warnings.warn(
            "LAME gets one sample at a time, and corrects nothing: give it a batch_size, or take a "
            "corrector with memory, such as prudent",
            stacklevel=2,
        )
    predicted = {"probs": probs} if logits is None else {"logits": logits}
    columns = {"stream": stream, "order": order, "features": features, **predicted}
    known = dataset.schema(fetch_if_missing=False)  # fetching it may take as long as the rest
    if known is not None:
        _check_columns(columns, known.names)
    step = partial(_correct_stream, columns, corrector, batch_size)
    return dataset.groupby(stream).map_groups(step, batch_format="numpy")


def _correct_stream(
    columns: Mapping[str, str], corrector: Corrector, batch_size: int, rows: _Columns
) -> dict[str, NDArray[Any]]:
    """Add the corrected predictions of one stream to its rows."""
    _check_columns(columns, rows)
    name = rows[columns["stream"]][0]
    if name is None or name != name:  # NaN
        raise LamettaError(f"{columns['stream']} must be there in every row, got {name}")
    try:
        in_order = _in_order(columns["order"], rows[columns["order"]])
        rows = {column: values[in_order] for column, values in rows.items()}
        features = _matrix(columns["features"], rows[columns["features"]])
        source = _source(columns, rows)
        own = clone(corrector)
        cuts = [slice(i, i + batch_size) for i in range(0, len(source), batch_size)]
        found = [own.correct(features[cut], source[cut]) for cut in cuts]
        parts = [to_numpy(checked_prediction(one, own).probs) for one in found]
    except LamettaError as error:
        raise LamettaError(f"stream {name}: {error}") from error
    probs = np.concatenate(parts)
    labels = {"label": probs.argmax(axis=1), "source_label": source.argmax(axis=1)}
    return {**rows, "probs": probs, **labels}


def _check_columns(columns: Mapping[str, str], known: Collection[str]) -> None:
    for argument, column in columns.items():
        if column not in known:
            raise LamettaError(
                f"{argument} must be a column of the dataset, {', '.join(known)}, got {column!r}"
                f"{did_you_mean(column, known)}"
            )


def _in_order(name: str, times: NDArray[Any]) -> NDArray[np.intp]:
    if times.dtype.kind in "fM" and not np.isfinite(times).all():
        raise LamettaError(f"{name} must be there in every row, got NaN, NaT or infinity")
    try:
        rows = np.argsort(times)
        later = times[rows[1:]] > times[rows[:-1]]
    except TypeError as error:
        raise LamettaError(f"{name} must have values that can be compared: {error}") from error
    if not np.all(later):
        once = times[rows[1:]][~later][0]
        raise LamettaError(f"{name} must be another in every row, got {once} twice")
    return rows


def _source(columns: Mapping[str, str], rows: _Columns) -> NDArray[np.floating]:
    """The source's probabilities."""
    if "probs" in columns:
        return _matrix(columns["probs"], rows[columns["probs"]])
    name = columns["logits"]
    return probabilities(name, _matrix(name, rows[name]))


def _matrix(name: str, column: NDArray[Any]) -> NDArray[np.floating]:
    if column.dtype == object and len({np.shape(row) for row in column}) == 1:
        column = np.stack(list(column))
    if column.ndim != 2 or column.dtype.kind != "f":
        shapes = sorted({np.shape(row) for row in column})[:3]
        raise LamettaError(
            f"{name} must have a vector of floating-point numbers in every row, all of one "
            f"length, got {column.dtype} of shapes {', '.join(map(str, shapes))}"
        )
    return column
