"""``lametta correct``: LAME on cached predictions."""

from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import lametta
from lametta._arrays import softmax
from lametta.affinity import Affinity
from lametta.cli._console import err, out, user_errors
from lametta.data.bank.bank import unpack_class_map
from lametta.data.bank.files import check_suffix, read_arrays, write_arrays
from lametta.types import LamettaError


class AffinityName(StrEnum):
    """The affinities that the command offers."""

    knn = "knn"
    rbf = "rbf"
    linear = "linear"


def correct(
    source: Annotated[
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
    affinity: Annotated[
        AffinityName, typer.Option(case_sensitive=False, help="How samples pull on each other.")
    ] = AffinityName.knn,
    k: Annotated[
        int | None, typer.Option(help="Neighbors of knn, bandwidth of rbf; 5 if not given.")
    ] = None,
    row_sum: Annotated[
        float | None,
        typer.Option(
            help="Scale the rows of rbf or linear to this sum, so that the strength does not grow "
            "with the batch."
        ),
    ] = None,
    symmetric: Annotated[
        bool, typer.Option("--symmetric", help="Average W with its transpose.")
    ] = False,
    weight: Annotated[float, typer.Option(help="Strength of the correction.")] = 1.0,
    batch_size: Annotated[
        int,
        typer.Option(help="Samples corrected together; 0 for all of the file or group."),
    ] = 64,
    max_iter: Annotated[int, typer.Option(help="The most updates for a batch.")] = 100,
    tol: Annotated[float, typer.Option(help="Stop when an update moves less than this.")] = 1e-5,
) -> None:
    """Correct cached predictions with LAME.

    Batches are cut in the order of the file. With groups, one for each video or camera say, a batch
    never holds samples of two of them. OUT gets probs [N, K] in the order of IN, and labels and
    groups where IN has them. With labels, the accuracy before and after is printed.

    Example: lametta correct features.npz -o corrected.npz --batch-size 64
    """
    with user_errors():
        if batch_size < 0:
            raise LamettaError(f"--batch-size must be >= 0, got {batch_size}")
        if target.resolve() == source.resolve():
            raise LamettaError(f"--output must not be IN itself, got {target}")
        check_suffix("--output", target)
        method = lametta.LAME(_affinity(affinity, k, row_sum, symmetric), weight, max_iter, tol)
        arrays = _read(source)
        features, probs = arrays["features"], _probabilities(arrays)
        corrected, iterations = _correct(method, features, probs, arrays.get("groups"), batch_size)
        kept = {name: x for name, x in arrays.items() if name in ("labels", "groups")}
        write_arrays(target, {"probs": corrected} | kept, "--output")
    _report(probs, corrected, arrays.get("labels"), iterations)
    out.print(f"wrote {target}", highlight=False, soft_wrap=True)


def _read(path: Path) -> dict[str, Any]:
    """Read the file; a bank's logits are pooled onto the classes of its labels."""
    arrays, header = read_arrays(path, "IN")
    if (classes := unpack_class_map(header.get("class_map"))) is not None:
        arrays["logits"] = classes(np.asarray(arrays["logits"]))
    n_classes = arrays["logits" if "logits" in arrays else "probs"].shape[1]
    if len(header.get("classes", range(n_classes))) != n_classes:
        arrays.pop("labels", None)  # of other classes than the network's, and no map says of which
    labels = arrays.get("labels")
    if labels is not None and len(labels) and not 0 <= labels.min() <= labels.max() < n_classes:
        raise LamettaError(
            f"labels must lie in 0..{n_classes - 1}, got {labels.min()}..{labels.max()}"
        )
    return arrays


def _affinity(
    name: AffinityName, k: int | None, row_sum: float | None, symmetric: bool
) -> Affinity:
    if name is AffinityName.linear:
        if k is not None:
            raise LamettaError(f"--k must not be given with --affinity linear, got {k}")
        return lametta.linear(row_sum=row_sum, symmetric=symmetric)
    k = 5 if k is None else k
    if name is AffinityName.rbf:
        return lametta.rbf(k, row_sum=row_sum, symmetric=symmetric)
    if row_sum is not None:
        raise LamettaError(f"--row-sum must not be given with --affinity knn, got {row_sum}")
    return lametta.knn(k, symmetric=symmetric)


def _correct(
    method: lametta.LAME, features: Any, probs: Any, groups: Any, batch_size: int
) -> tuple[Any, list[int]]:
    corrected, iterations = np.empty_like(probs), []
    columns = (
        TextColumn("correcting"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as progress:
        task = progress.add_task("", total=len(probs))
        for batch in _batches(len(probs), groups, batch_size):
            prediction = method.correct(features[batch], probs[batch])
            corrected[batch] = prediction.probs
            iterations.append(prediction.info["n_iter"])
            progress.advance(task, len(batch))
    return corrected, iterations


def _batches(n: int, groups: Any, batch_size: int) -> Iterator[Any]:
    """Index batches in the order of the stream, none with samples of two groups."""
    if groups is None:
        streams = [np.arange(n)]
    else:
        _, first, group, count = np.unique(
            groups, return_index=True, return_inverse=True, return_counts=True
        )
        streams = np.split(np.argsort(group, kind="stable"), np.cumsum(count)[:-1])
        streams = [streams[g] for g in np.argsort(first)]
    for stream in streams:
        size = batch_size or max(1, len(stream))
        for start in range(0, len(stream), size):
            yield stream[start : start + size]


def _probabilities(arrays: dict[str, Any]) -> Any:
    """Probabilities in float32 or float64, from logits where those are given."""
    name = "logits" if "logits" in arrays else "probs"
    values = np.asarray(arrays[name])
    values = values.astype(np.result_type(values, np.float32), copy=False)
    if name == "probs":
        return values
    if not np.isfinite(values).all():
        raise LamettaError("logits must be finite, got NaN or infinity")
    return softmax(np, values)


def _report(before: Any, after: Any, labels: Any, iterations: list[int]) -> None:
    changed = np.mean(before.argmax(axis=1) != after.argmax(axis=1)) if len(after) else 0.0
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("samples", f"{len(after)}")
    table.add_row("batches", f"{len(iterations)}")
    table.add_row("updates a batch", f"{np.mean(iterations) if iterations else 0:.1f}")
    table.add_row("predictions changed", f"{changed:.1%}")
    if labels is not None and len(labels):
        old, new = (np.mean(probs.argmax(axis=1) == labels) for probs in (before, after))
        table.add_row("accuracy before", f"{old:.2%}")
        table.add_row("accuracy after", f"[bold]{new:.2%}[/]  ({100 * (new - old):+.2f} points)")
    out.print(table)
