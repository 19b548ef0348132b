"""``lametta correct``: any output-only method on cached predictions."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Column
from rich.text import Text

import lametta
from lametta import methods
from lametta._arrays import Floats
from lametta.cli._camera_traps import correct_results, in_file, read_results, show
from lametta.cli._console import err, parsed, progress_bar, say, show_table, typed, user_errors
from lametta.cli._predictions import Predictions, check_target, read, write
from lametta.data.bank.bank import check_finite
from lametta.types import Corrector, LamettaError

_N_GROUPS = 20  # that are shown; the others are counted
_NO_NEIGHBORS = (
    "{} of {} batches have one sample, which {} left as it was: it corrects the samples of a batch "
    "by each other; take a larger --batch-size, or a method with memory, such as prudent"
)


class _Step(NamedTuple):
    """What is known of a batch."""

    n_iter: float | None
    converged: bool
    alone: bool  # a single sample, which stayed as it was


def correct(
    given: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A .npz or .safetensors file with features [N, d] and logits or probs [N, K], in "
            "the order of the stream; labels [N] and groups [N] are optional. Or a .json file of "
            "camera traps, in MegaDetector's format.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            help="Where to: .npz or .safetensors, or .csv or .parquet to look at; .json for one "
            "that is .json.",
        ),
    ],
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A corrector; lametta list methods shows them. lame if not given, and for .json "
            "track, or prudent where images have no times.",
        ),
    ] = None,
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
    map_file: Annotated[
        Path | None,
        typer.Option(
            "--map",
            metavar="MAP",
            help="A class map, as lametta map writes it, that predictions are pooled by first.",
        ),
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="animal|sequence|location",
            help="Of .json: which detections are a stream of their own.",
        ),
    ] = None,
    gap: Annotated[
        float | None,
        typer.Option(help="Of .json: the most seconds between images of a sequence; 60."),
    ] = None,
    confidence: Annotated[
        float | None,
        typer.Option(help="Of .json: detections that are less sure neither vote nor change; 0.15."),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Of .json: coarser classes by name, as for lametta map; categories that are a "
            "kind of one are pooled.",
        ),
    ] = None,
    drop_source: Annotated[
        bool | None,
        typer.Option("--drop-source", help="Of .json: don't keep the classifications before."),
    ] = None,
) -> None:
    """Correct cached predictions.

    Batches are cut in the order of the file. With groups, one for each video or camera say, each
    group is a stream of its own: a batch never holds samples of two of them.

    OUT has a row for each sample, in the order of IN: the class before and after, the confidence
    in the latter, and keys, groups and labels where IN has them. A .npz or .safetensors file has
    features and probs [N, K] too, and the names of the classes, so that it can be corrected again;
    a .csv or .parquet file has the classes by name. With labels, the accuracy before and after is
    printed, of each group too.

    A .json file keeps all that it has but for the classifications of detections; what they were is
    kept as source_classifications.

    Example: lametta correct features.npz -o corrected.npz --method lame --set k=3 --batch-size 64
    """
    with user_errors():
        if batch_size < 0:
            raise LamettaError(f"--batch-size must be >= 0, got {batch_size}")
        wish: dict[str, object] = {
            "by": by,
            "gap": gap,
            "confidence": confidence,
            "targets": targets,
        }
        wish |= {"drop_source": drop_source}
        wish = {name: x for name, x in wish.items() if x is not None}
        results = None
        if given.suffix == ".json":
            check_target(target, given, ".json")
            results, usual, stream = read_results(given)
            method, wish = method or usual, {"by": stream} | wish
        else:
            for name in wish:
                option = f"--{name.replace('_', '-')}"
                raise LamettaError(f"{option} must be left out for files other than .json")
            check_target(target, given)
        method = method or "lame"
        shortcuts = {"affinity": affinity and affinity.lower(), "k": k, "row_sum": row_sum}
        shortcuts |= {"symmetric": symmetric, "weight": weight, "max_iter": max_iter, "tol": tol}
        shortcuts = {name: value for name, value in shortcuts.items() if value is not None}
        params = shortcuts | (named := parsed(settings or [], "--set"))
        found = methods.find(method, "--method")
        for name, message in found.problems(params):
            short = name in shortcuts.keys() - named.keys()
            option = f"--{name.replace('_', '-')}" if short else f"--set {name}"
            raise LamettaError(f"{option} {message}" if name else message)
        with typed(method="--method"):
            found.correctors(params)  # or say that the method needs more than outputs
        if results is not None:
            with in_file(given):
                show(correct_results(results, target, found, params, batch_size, map_file, wish))
            say(f"corrected by {method}, each {wish['by']} by itself")
            say(f"wrote {target}")
            return
        predictions = read(given, map_file)
        for note in predictions.notes:
            say(note, err)
        corrected, steps = _correct(found, params, predictions, batch_size)
        made_by = {"method": method, "params": params, "lametta": lametta.__version__}
        write(target, predictions, corrected, made_by)
    _show(predictions, corrected, steps)
    _show_groups(predictions, corrected)
    if not found.stateful and (n := sum(step.alone for step in steps)):
        say(_NO_NEIGHBORS.format(n, len(steps), method), err)
    say(f"wrote {target}")


def _correct(
    method: methods.Method, params: Mapping[str, object], given: Predictions, batch_size: int
) -> tuple[Floats, list[_Step]]:
    """The corrected probabilities, and what is known of each batch."""
    corrected, steps = np.empty_like(given.probs), []
    with progress_bar() as progress, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LAME gets one sample")  # which the command says itself
        task = progress.add_task("correcting", total=len(corrected))
        for stream in _streams(len(corrected), given.groups):
            correctors = method.correctors(params)  # new ones: no stream sees another's state
            for batch in _batches(stream, batch_size):
                corrected[batch], step = _apply(correctors, given, batch)
                steps.append(step)
                progress.advance(task, len(batch))
    return corrected, steps


def _apply(
    correctors: Sequence[Corrector], given: Predictions, rows: NDArray[np.intp]
) -> tuple[Floats, _Step]:
    features, before = given.features[rows], given.probs[rows]
    check_finite("features", features, rows)
    probs, n_iter, converged = before, None, True
    for corrector in correctors:
        prediction = corrector.correct(features, probs)
        probs, n_iter = np.asarray(prediction.probs), prediction.info.get("n_iter", n_iter)
        converged &= bool(prediction.info.get("converged", True))
    if probs.shape != before.shape:
        raise LamettaError(f"--method must give probs {before.shape}, got {probs.shape}")
    check_finite("probs of --method", probs, rows)
    alone = len(probs) == 1 and np.allclose(probs, before)
    return probs, _Step(n_iter, converged, alone)


def _streams(n: int, groups: NDArray[np.generic] | None) -> list[NDArray[np.intp]]:
    """The positions of each group, by first appearance; all of them where there are no groups."""
    if groups is None:
        return [np.arange(n)]
    _, first, group, count = np.unique(
        groups, return_index=True, return_inverse=True, return_counts=True
    )
    streams = np.split(np.argsort(group, kind="stable"), np.cumsum(count)[:-1])
    return [streams[g] for g in np.argsort(first)]


def _batches(stream: NDArray[np.intp], batch_size: int) -> list[NDArray[np.intp]]:
    size = batch_size or max(1, len(stream))
    return [stream[start : start + size] for start in range(0, len(stream), size)]


def _show(given: Predictions, after: Floats, steps: Sequence[_Step]) -> None:
    counted = [step.n_iter for step in steps if step.n_iter is not None]
    stopped = sum(not step.converged for step in steps)
    rows: list[tuple[str, str | Text]]
    rows = [("samples", f"{len(after)}"), ("batches", f"{len(steps)}")]
    if counted:
        rows.append(("updates a batch", f"{np.mean(counted):.1f}"))
    if stopped:
        text = f"{stopped} of {len(steps)} batches, stopped at max_iter"
        rows.append(("not converged", Text(text, "yellow")))
    rows.append(("predictions changed", f"{_share(given.probs.argmax(1) != after.argmax(1)):.1%}"))
    if given.labels is not None and len(after):
        old, new = (_share(probs.argmax(1) == given.labels) for probs in (given.probs, after))
        rows.append(("accuracy before", f"{old:.2%}"))
        points = f"  ({100 * (new - old):+.2f} points)"
        rows.append(("accuracy after", Text.assemble((f"{new:.2%}", "bold"), points)))
    show_table(rows=rows)


def _show_groups(given: Predictions, after: Floats) -> None:
    """Print a row for each group: the mean over all hides a video that got worse."""
    streams = _streams(len(after), given.groups)
    if len(streams) < 2 or given.groups is None:
        return
    old, new, labels = given.probs.argmax(1), after.argmax(1), given.labels
    changes = []
    for rows in streams:
        changed = _share(old[rows] != new[rows])
        scores = [] if labels is None else [_share(x[rows] == labels[rows]) for x in (old, new)]
        gain = 100 * (scores[1] - scores[0]) if scores else -changed
        changes.append((gain, str(given.groups[rows[0]]), len(rows), changed, scores))
    changes.sort(key=lambda change: change[0])  # the worst first, or what changed most
    shown: list[list[str | Text]] = []
    for gain, name, n, changed, scores in changes[:_N_GROUPS]:
        shown.append([name, f"{n}", f"{changed:.1%}", *(f"{x:.2%}" for x in scores)])
        if scores:
            shown[-1].append(Text(f"{gain:+.2f}", "red" if gain < 0 else "green"))
    numbers = ["samples", "changed"] + (["before", "after", "points"] if labels is not None else [])
    columns = [Column(name, justify="right", no_wrap=True) for name in numbers]
    say("")
    show_table(Column("group", overflow="fold"), *columns, rows=shown)
    if (more := len(changes) - _N_GROUPS) > 0:
        say(f"and {more} groups more")
    if labels is not None:
        worse = sum(gain < 0 for gain, *_ in changes)
        say(f"{worse} of {len(changes)} groups got worse")


def _share(hits: NDArray[np.bool_]) -> float:
    return float(np.mean(hits)) if len(hits) else 0.0
