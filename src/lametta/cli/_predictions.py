"""Files of predictions that ``lametta correct`` reads and writes."""

import csv
import io
import os
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

import lametta
from lametta._arrays import Floats, check_classes, softmax, widen
from lametta._checks import ONE_OF_SEVERAL, import_optional
from lametta._files import (
    atomic_write,
    check_destination,
    escape_formula,
    remove_abandoned_files,
)
from lametta.cli._console import load_map, option_names
from lametta.cli._table import read_table, root_probs
from lametta.data.bank.bank import (
    check_finite,
    check_prototypes,
    map_labels,
    pop_prototypes,
    read_arrays,
)
from lametta.data.bank.safetensors import Header, Rows, encode_columns, write_blocks
from lametta.data.classes.imagenet import IMAGENET, IMAGENET_NAMES
from lametta.data.dataset import abbreviate, check_range
from lametta.types import LamettaError, Prototypes

_ENDINGS = (".npz", ".safetensors", ".csv", ".parquet")
_SLACK = 0.05  # of the sum of a row
_ENTRIES = 2**24  # that are pooled at a time
_IMAGENET_MODELS = ("efficientnet_lite", "paper:", "timm:")  # names of those with its 1000 classes
_Column: TypeAlias = NDArray[np.generic]  # numbers or text, one a sample


@dataclass(frozen=True, eq=False)
class Predictions:
    """Contents of a file of predictions: features [N, d], probs [N, K], columns, class names."""

    features: Rows
    probs: Floats
    columns: Mapping[str, _Column]  # labels, groups, keys: those that are there
    classes: tuple[str, ...] = ()  # the names of the K classes, if known
    header: Header = field(default_factory=dict)
    prototypes: Prototypes | None = None  # of the K classes, if the file has them
    notes: tuple[str, ...] = ()  # what the user should know of the file

    @property
    def labels(self) -> _Column | None:
        """The true classes [N], if the file has them."""
        return self.columns.get("labels")

    @property
    def groups(self) -> _Column | None:
        """The video or camera, say, of each sample [N], if the file has them."""
        return self.columns.get("groups")


def read(path: Path, map_file: Path | None) -> Predictions:
    """Read the file; its logits or probs are pooled by the map that is given, or by its own."""
    is_table = path.suffix in (".csv", ".parquet")
    arrays, header, unused = read_table(path) if is_table else read_arrays(path, "IN", bare=True)
    prototypes = pop_prototypes(arrays)
    name = "logits" if "logits" in arrays else "probs"
    outputs = _checked(name, arrays[name])
    n_outputs, notes = outputs.shape[1], []
    if "features" not in arrays:
        arrays["features"] = root_probs(name, widen(np, outputs))
        notes.append("IN has no features: the square roots of probabilities take their place")
    check_prototypes(prototypes, n_outputs, arrays["features"].shape[1])
    classes, names = _class_map(map_file, header, n_outputs), class_names(header, n_outputs)
    if classes is not None:
        names = classes.names
        mapping = "class_map of IN" if map_file is None else "--map"
        with option_names(logits="logits of IN", probs="probs of IN", mapping=mapping):
            outputs = _pooled(name, outputs, classes)
            prototypes = None if prototypes is None else classes.pool_prototypes(prototypes)
    labels, note = _labels(arrays.pop("labels", None), header, classes, n_outputs)
    columns = {key: _known(x) for key, x in arrays.items() if x.ndim == 1}
    columns |= {} if labels is None else {"labels": labels}
    probs: Floats = widen(np, outputs)
    probs = softmax(np, probs) if name == "logits" else probs
    notes.append(note)
    if unused:
        notes.append(
            f"not used of IN: {abbreviate(unused)}; groups would keep videos or cameras apart"
        )
    told = tuple(filter(None, notes))
    return Predictions(arrays["features"], probs, columns, names, header, prototypes, told)


def _checked(name: str, rows: Rows) -> Floats:
    """Logits or probs as an array; classes of probs that do not exclude each other are refused."""
    outputs: Floats = np.asarray(rows)
    check_finite(name, outputs)
    check_classes(f"{name} of IN", outputs)
    if name == "probs":  # what rounding does, methods look at
        sums = widen(np, outputs).sum(axis=1)
        if (wrong := abs(sums - 1) > _SLACK).any():
            row = int(wrong.argmax())
            raise LamettaError(
                f"probs must have rows that sum to 1, got {sums[row]:.6g} in row {row}; "
                f"{ONE_OF_SEVERAL}"
            )
    return outputs


def class_names(header: Header, n_outputs: int) -> tuple[str, ...]:
    """The names of the model's classes: the file's, or ImageNet's if its model knows these."""
    for key in ("classes", "class_names"):  # of the labels, or of the model by itself
        if len(names := tuple(header.get(key, ()))) == n_outputs:
            return names
    known = str(header.get("model")).startswith(_IMAGENET_MODELS) and n_outputs == len(IMAGENET)
    return IMAGENET if known else ()


def _pooled(name: str, outputs: Floats, classes: lametta.ClassMap) -> Floats:
    """Pool a few rows at a time, since each target is padded to the size of the largest."""
    pool = classes.pool_logits if name == "logits" else classes.pool_probs
    rows = max(1, _ENTRIES // (len(classes) * max(map(len, classes.groups))))
    blocks = [pool(outputs[i : i + rows]) for i in range(0, len(outputs), rows)]
    pooled: Floats = np.concatenate(blocks) if blocks else pool(outputs)
    return pooled


def _labels(
    labels: NDArray[np.integer] | None,
    header: Header,
    classes: lametta.ClassMap | None,
    n_outputs: int,
) -> tuple[NDArray[np.integer] | None, str]:
    """The labels in terms of the predictions' classes, or None and why they are of no use."""
    names = header.get("classes")
    if labels is None or names == []:
        return None, ""
    if classes is not None:
        try:
            unnamed = "labels are taken for numbers of targets: IN does not name its classes"
            return map_labels(labels, header, classes, n_outputs), "" if names else unnamed
        except LamettaError as error:
            return None, f"labels are not used: {error}"
    if names is not None and len(names) != n_outputs:
        return None, (
            f"labels are not used: they are of {len(names)} classes, and predictions of "
            f"{n_outputs}; --map says which belong to which"
        )
    check_range("labels", labels, n_outputs)
    return labels, ""


def _class_map(map_file: Path | None, header: Header, n_outputs: int) -> lametta.ClassMap | None:
    if (given := load_map(map_file)) is not None:
        return given
    packed = header.get("class_map")
    classes = None if packed is None else lametta.ClassMap.from_dict(packed)
    if classes is not None and classes.n_source not in (None, n_outputs):
        return None  # from another network's classes
    return classes


def _known(x: NDArray[Any]) -> _Column:
    """A column as every kind of file can hold it: numbers, or text."""
    if x.dtype.kind in "iufbU":
        return x
    return np.char.decode(x, "utf-8", "replace") if x.dtype.kind == "S" else x.astype(str)


def check_target(path: Path, given: Path, *endings: str) -> None:
    """Raise unless a file can be written there: before the work, not after."""
    *others, last = endings or _ENDINGS
    if path.suffix not in (*others, last):
        known = f"{', '.join(others)} or {last}" if others else last
        raise LamettaError(f"--output must end in {known}, got {path}")
    if os.path.realpath(path) == os.path.realpath(given):
        raise LamettaError(f"--output must not be IN itself, got {path}")
    check_destination("--output", path)
    try:
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise LamettaError(f"could not write {path}: {error.strerror}") from None
    remove_abandoned_files(path.parent)
    if path.suffix == ".parquet":
        import_optional("polars", "polars", "--output in .parquet")


def write(path: Path, given: Predictions, probs: Floats, made_by: Mapping[str, object]) -> None:
    """Write corrected probabilities, and what is known of samples: for programs, or for people."""
    found = {
        "before": given.probs.argmax(axis=1),
        "after": probs.argmax(axis=1),
        "confidence": probs.max(axis=1),
    }
    with atomic_write(path) as temporary:
        if path.suffix in (".csv", ".parquet"):
            table = _table(given, found)
            (_write_csv if path.suffix == ".csv" else _write_parquet)(temporary, table)
            return
        columns: dict[str, Any] = {**given.columns, **found}
        if path.suffix == ".npz":
            columns |= {"classes": np.array(given.classes)} if given.classes else {}
            with temporary.open("wb") as file:
                np.savez(file, features=given.features, probs=probs, **columns, **_head(given))
            return
        replaced = ("class_map", "classes")  # probs are pooled by now
        header = {key: value for key, value in given.header.items() if key not in replaced}
        if given.classes:
            header["classes"] = list(given.classes)
        arrays = {"features": given.features, "probs": probs} | encode_columns(columns)
        arrays |= _head(given)
        blocks = {name: [x] for name, x in arrays.items()}
        write_blocks(temporary, blocks, header | {"corrected": dict(made_by)})


def _head(given: Predictions) -> dict[str, Any]:
    """The prototypes and their bias as arrays of a file; none if they are not known."""
    if (found := given.prototypes) is None:
        return {}
    return {"prototypes": found.weight} | ({} if found.bias is None else {"bias": found.bias})


def _table(given: Predictions, found: Mapping[str, _Column]) -> dict[str, list[Any]]:
    """A row for each sample, with the names of classes where they have any."""
    table: dict[str, list[Any]] = {"row": list(range(len(given.probs)))}
    for name in ("keys", "groups", "labels"):
        if name in given.columns:
            table[name.removesuffix("s")] = given.columns[name].tolist()
    table |= {name: x.tolist() for name, x in found.items()}
    if names := _readable(given.classes):
        for name in table.keys() & {"label", "before", "after"}:
            table[name] = [names[i] for i in table[name]]
    return table


def _readable(classes: Sequence[str]) -> list[str]:
    """Names of classes, with ImageNet's synsets by their words."""
    words = dict(zip(IMAGENET, IMAGENET_NAMES, strict=True))
    names = [words.get(name, name) for name in classes]
    count = Counter(names)  # two classes are called crane
    return [
        word if count[word] == 1 else f"{word} ({name})"
        for word, name in zip(names, classes, strict=True)
    ]


def _write_csv(path: Path, table: Mapping[str, list[object]]) -> None:
    with path.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(table)
        for row in zip(*table.values(), strict=True):
            writer.writerow([_cell(value) for value in row])


def _cell(value: object) -> object:
    if isinstance(value, str):
        return escape_formula(value)
    return f"{value:.6g}" if isinstance(value, float) else value


def _write_parquet(path: Path, table: Mapping[str, list[object]]) -> None:
    polars = import_optional("polars", "polars", "--output in .parquet")
    content = io.BytesIO()  # a full disk is then an error like any other
    polars.DataFrame(dict(table)).write_parquet(content)
    path.write_bytes(content.getvalue())
