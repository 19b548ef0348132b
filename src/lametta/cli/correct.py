"""``lametta correct``: any output-only method on cached predictions."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray
from rich.text import Text

import lametta
from lametta import methods
from lametta._arrays import softmax
from lametta.cli._console import progress_bar, say, show_table, user_errors
from lametta.data.bank.files import check_suffix, read_arrays, write_arrays
from lametta.types import Corrector, LamettaError

_Floats = NDArray[Any]


def correct(
    given: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A .npz or .safetensors file with features [N, d] and logits or probs [N, K], in "
            "the order of the stream; labels [N] and groups [N] are optional.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where to write probs: .npz or .safetensors."
        ),
    ],
    method: Annotated[
        str, typer.Option(metavar="NAME", help="A corrector; lametta list methods shows them.")
    ] = "lame",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="NAME=VALUE", help="An option of the method; may be given repeatedly."
        ),
    ] = None,
    affinity: Annotated[
        str | None, typer.Option(help="The same as --set affinity=...: knn, rbf, linear.")
    ] = None,
    k: Annotated[int | None, typer.Option(help="The same as --set k=...")] = None,
    row_sum: Annotated[float | None, typer.Option(help="The same as --set row_sum=...")] = None,
    symmetric: Annotated[
        bool | None, typer.Option("--symmetric", help="The same as --set symmetric=true.")
    ] = None,
    weight: Annotated[float | None, typer.Option(help="The same as --set weight=...")] = None,
    max_iter: Annotated[int | None, typer.Option(help="The same as --set max_iter=...")] = None,
    tol: Annotated[float | None, typer.Option(help="The same as --set tol=...")] = None,
    batch_size: Annotated[
        int,
        typer.Option(help="Samples corrected together; 0 for all of the file or group."),
    ] = 64,
) -> None:
    """Correct cached predictions.

    Batches are cut in the order of the file. With groups, one for each video or camera say, each
    group is a stream of its own: a batch never holds samples of two of them. OUT gets probs [N, K]
    in the order of IN, and labels and groups where IN has them. With labels, the accuracy before
    and after is printed.

    Example: lametta correct features.npz -o corrected.npz --method lame --set k=3 --batch-size 64
    """
    with user_errors():
        if batch_size < 0:
            raise LamettaError(f"--batch-size must be >= 0, got {batch_size}")
        if target.resolve() == given.resolve():
            raise LamettaError(f"--output must not be IN itself, got {target}")
        check_suffix("--output", target)
        shortcuts = {"affinity": affinity and affinity.lower(), "k": k, "row_sum": row_sum}
        shortcuts |= {"symmetric": symmetric, "weight": weight, "max_iter": max_iter, "tol": tol}
        params = {name: value for name, value in shortcuts.items() if value is not None}
        params |= _parsed(settings or [])
        found = methods.find(method, "--method")
        for name, message in found.problems(params):
            raise LamettaError(f"{_as_typed(name, shortcuts, settings or [])} {message}".strip())
        found.correctors(params)  # or say that the method needs more than outputs
        arrays = _read(given)
        features, probs = arrays["features"], _probabilities(arrays)
        streams = _streams(len(probs), arrays.get("groups"))
        corrected, updates = _correct(found, params, features, probs, streams, batch_size)
        kept = {name: x for name, x in arrays.items() if name in ("labels", "groups")}
        write_arrays(target, {"probs": corrected} | kept, "--output")
    _report(probs, corrected, arrays.get("labels"), updates)
    say(f"wrote {target}")


def _parsed(settings: Sequence[str]) -> dict[str, Any]:
    """The values of ``name=value``, as TOML has them; what TOML cannot read is text."""
    params: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not name or not equals:
            raise LamettaError(f"--set must be NAME=VALUE, got {setting!r}")
        try:
            params[name.strip()] = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            params[name.strip()] = text
    return params


def _as_typed(name: str, shortcuts: Mapping[str, object], settings: Sequence[str]) -> str:
    """An option by the words that the user typed."""
    if name in _parsed(settings) or shortcuts.get(name) is None:
        return f"--set {name}" if name else ""
    return f"--{name.replace('_', '-')}"


def _read(path: Path) -> dict[str, Any]:
    """Read the file; a bank's logits are pooled onto the classes of its labels."""
    arrays, header = read_arrays(path, "IN")
    if (packed := header.get("class_map")) is not None:
        arrays["logits"] = lametta.ClassMap.from_dict(packed)(np.asarray(arrays["logits"]))
    n_classes = arrays["logits" if "logits" in arrays else "probs"].shape[1]
    if len(header.get("classes", range(n_classes))) != n_classes:
        arrays.pop("labels", None)  # of other classes than the network's, and no map says of which
    labels = arrays.get("labels")
    if labels is not None and len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        raise LamettaError(
            f"labels must lie in 0..{n_classes - 1}, got {labels.min()}..{labels.max()}"
        )
    return arrays


def _correct(
    method: methods.Method,
    params: Mapping[str, Any],
    features: _Floats,
    probs: _Floats,
    streams: Sequence[NDArray[np.intp]],
    batch_size: int,
) -> tuple[_Floats, list[float | None]]:
    """The corrected probabilities, and the updates that each batch took, where it says so."""
    corrected, updates = np.empty_like(probs), []
    with progress_bar() as progress:
        task = progress.add_task("correcting", total=len(probs))
        for stream in streams:
            correctors = method.correctors(params)  # anew: no stream sees another's state
            for batch in _batches(stream, batch_size):
                corrected[batch], n_iter = _apply(correctors, features[batch], probs[batch])
                updates.append(n_iter)
                progress.advance(task, len(batch))
    return corrected, updates


def _apply(
    correctors: Sequence[Corrector], features: _Floats, probs: _Floats
) -> tuple[_Floats, float | None]:
    n_iter = None
    for corrector in correctors:
        prediction = corrector.correct(features, probs)
        probs, n_iter = prediction.probs, prediction.info.get("n_iter", n_iter)
    return probs, n_iter


def _streams(n: int, groups: NDArray[Any] | None) -> list[NDArray[np.intp]]:
    """The positions of each group, by first appearance; all of them where there are no groups."""
    if groups is None:
        return [np.arange(n)]
    _, first, group, count = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    streams = np.split(np.argsort(group, kind="stable"), np.cumsum(count)[:-1])
    return [streams[g] for g in np.argsort(first)]


def _batches(stream: NDArray[np.intp], batch_size: int) -> Iterator[NDArray[np.intp]]:
    size = batch_size or max(1, len(stream))
    for start in range(0, len(stream), size):
        yield stream[start : start + size]


def _probabilities(arrays: Mapping[str, Any]) -> _Floats:
    """Probabilities in float32 or float64, from logits where those are given."""
    name = "logits" if "logits" in arrays else "probs"
    values = np.asarray(arrays[name])
    values = values.astype(np.result_type(values, np.float32), copy=False)
    if name == "probs":
        return values
    if not np.isfinite(values).all():
        raise LamettaError("logits must be finite, got NaN or infinity")
    probs: _Floats = softmax(np, values)
    return probs


def _report(
    before: _Floats,
    after: _Floats,
    labels: NDArray[Any] | None,
    updates: Sequence[float | None],
) -> None:
    changed = np.mean(before.argmax(axis=1) != after.argmax(axis=1)) if len(after) else 0.0
    counted = [n for n in updates if n is not None]
    rows: list[tuple[str, str | Text]]
    rows = [("samples", f"{len(after)}"), ("batches", f"{len(updates)}")]
    if counted:
        rows.append(("updates a batch", f"{np.mean(counted):.1f}"))
    rows.append(("predictions changed", f"{changed:.1%}"))
    if labels is not None and len(labels):
        old, new = (np.mean(probs.argmax(axis=1) == labels) for probs in (before, after))
        rows.append(("accuracy before", f"{old:.2%}"))
        points = f"  ({100 * (new - old):+.2f} points)"
        rows.append(("accuracy after", Text.assemble((f"{new:.2%}", "bold"), points)))
    show_table(rows=rows)
