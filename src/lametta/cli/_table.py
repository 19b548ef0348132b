"""Predictions in a .csv or .parquet file: one row a sample, one column a class."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from lametta._arrays import softmax
from lametta._checks import ONE_OF_SEVERAL, import_optional, reading
from lametta._files import check_regular_file
from lametta.data.bank.safetensors import Header
from lametta.data.dataset import abbreviate
from lametta.types import LamettaError

_COLUMNS = {name: f"{name}s" for name in ("label", "group", "key")}
_SKIPPED = ("row", "before", "after", "confidence")  # a correction writes them
_FEATURE = re.compile(r"(?:features?|f)[_.]?(\d+)")
_OUTPUT = re.compile(r"(probs?|p|logits?)[_.](.+)")
_SLACK = 1e-3  # of the sum of a row


def read_table(path: Path) -> tuple[dict[str, Any], Header, list[str]]:
    """Read ``prob_<class>`` or ``logit_<class>`` and more, as arrays, header and unused names.

    ``feature_0``, ``feature_1``, ... are features; where there are none, the square roots of the
    probabilities take their place. ``label`` (a class's name or number), ``group`` and ``key`` are
    optional. Columns of numbers from 0 to 1 that sum to 1 are probabilities whatever their names.
    """
    frame = _open(path)
    columns, features, rest = _by_role(frame.columns)
    kind, names = _outputs(frame, rest, path)
    classes = list(names.values())
    outputs = _numbers(frame, list(names), path)
    if kind == "probs":
        _check_probs(outputs, path)
    found = _numbers(frame, features, path) if features else root_probs(kind, outputs)
    arrays: dict[str, Any] = {kind: outputs, "features": found}
    for name, column in columns.items():
        read = _labels(frame[column], classes) if name == "labels" else _text(frame[column])
        arrays[name] = read
    return arrays, {"classes": classes}, [name for name in rest if name not in names]


def root_probs(kind: str, outputs: Any) -> Any:
    """Square roots of probabilities, which take the place of features; outputs may be logits."""
    return np.sqrt(softmax(np, outputs) if kind == "logits" else np.maximum(outputs, 0))


def _by_role(names: list[str]) -> tuple[dict[str, str], list[str], list[str]]:
    """The columns of labels, groups and keys; those of features in their order; all others."""
    single = {name: name.rstrip("s") for name in names}
    columns = {_COLUMNS[one]: name for name, one in single.items() if one in _COLUMNS}
    numbered = {int(m[1]): name for name in names if (m := _FEATURE.fullmatch(name))}
    features = [numbered[i] for i in sorted(numbered)]
    known = {*features, *(name for name in names if single[name] in (*_COLUMNS, *_SKIPPED))}
    return columns, features, [name for name in names if name not in known]


def _open(path: Path) -> Any:
    """The table in a file, as a frame of polars with a row or more."""
    if not path.exists():
        raise LamettaError(
            f"no such file: {str(path)!r}; IN must end in .npz or .safetensors, or be a .csv or "
            ".parquet with a column prob_<class> for each class"
        )
    polars = import_optional("polars", "polars", f"a {path.suffix} file")
    check_regular_file("IN", path)
    with reading(path, f"a {path.suffix} file"):
        frame = (polars.read_csv if path.suffix == ".csv" else polars.read_parquet)(path)
    if not len(frame):
        raise LamettaError(f"no rows in {str(path)!r}: IN must have one for each sample")
    return frame


def _outputs(frame: Any, rest: list[str], path: Path) -> tuple[str, dict[str, str]]:
    """Whether there are probs or logits, and the name of the class of each of their columns."""
    if len(found := {name: m for name in rest if (m := _OUTPUT.fullmatch(name))}) > 1:
        kind = "logits" if next(iter(found.values()))[1].startswith("logit") else "probs"
        return kind, {name: m[2] for name, m in found.items() if m[1][0] == kind[0]}
    names = {name: name for name in rest if frame[name].dtype.is_numeric()}
    if len(names) < 2:
        raise LamettaError(
            "no column of probabilities for each class, prob_<class>, nor of logits, "
            f"logit_<class>, in {str(path)!r}; it has {abbreviate(frame.columns)}"
        )
    return "probs", names


def _check_probs(probs: Any, path: Path) -> None:
    sums = probs.sum(axis=1)
    wrong = (probs < 0).any(axis=1) | ~(abs(sums - 1) <= _SLACK)
    if wrong.any():
        row = int(wrong.argmax())
        raise LamettaError(
            f"probabilities of IN must be >= 0 and sum to 1 in each row, got a sum of "
            f"{sums[row]:g} in row {row} of {path} (rows count from 0); columns logit_<class> "
            f"would be logits; {ONE_OF_SEVERAL}"
        )


def _numbers(frame: Any, names: list[str], path: Path) -> Any:
    for name in names:
        if not frame[name].dtype.is_numeric() or frame[name].null_count():
            got = "an empty cell" if frame[name].null_count() else str(frame[name].dtype)
            raise LamettaError(f"column {name!r} of IN must be numbers, got {got} in {path}")
    return frame.select(names).to_numpy().astype(np.float64)


def _text(column: Any) -> Any:
    return column.cast(str).to_numpy().astype(str)


def _labels(column: Any, classes: list[str]) -> Any:
    if column.null_count():
        raise LamettaError("label of IN must be there in every row, or in none")
    if column.dtype.is_integer():
        return column.to_numpy().astype(np.int64)
    places = {name: i for i, name in enumerate(classes)}
    unknown = sorted(set(column.to_list()) - places.keys())
    if unknown:
        raise LamettaError(f"label of IN must be one of its classes, got {unknown[0]!r}")
    return np.array([places[name] for name in column.to_list()], np.int64)
