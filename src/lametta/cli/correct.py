"""``lametta correct``: any output-only method on cached predictions."""

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import typer
from numpy.typing import NDArray
from rich.table import Column
from rich.text import Text

import lametta
from lametta import methods
from lametta._arrays import Floats
from lametta.cli._console import (
    MapFile,
    err,
    find_method,
    parse_settings,
    print_line,
    progress_bar,
    show_table,
    user_errors,
)
from lametta.cli._predictions import Predictions, check_target, read, write
from lametta.correctors.base import give_prototypes
from lametta.correctors.chain import Chain
from lametta.data.bank.bank import check_finite
from lametta.types import LamettaError

_N_GROUPS = 20  # that are shown; the others are counted
_NO_NEIGHBORS = (
    "{} of {} batches have one sample, which {} left as it was: it corrects the samples of a batch "
    "by each other; take a larger --batch-size, or a method with memory, such as prudent"
)
_NO_PROTOTYPES = "IN: they are its arrays prototypes [K, d] and, where there is one, bias [K]"


class _Step(NamedTuple):
    """How the correction of one batch went."""

    n_iter: float | None
    converged: bool
    alone: bool  # a single sample, which stayed as it was


class _Group(NamedTuple):
    """How one group changed, and its accuracies where labels are known."""

    name: str
    n: int
    changed: float  # the share of its samples
    scores: list[float]  # accuracy before and after, where labels are known
    gain: float  # points of accuracy, or else less the more changed


def correct(
    given: Annotated[
        Path,
        typer.Argument(
            metavar="IN",
            help="A .npz or .safetensors file: features [N, d], logits or probs [N, K]; optional "
            "labels [N], groups [N], prototypes [K, d], bias [K]; or a .csv or .parquet.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Option(
            "--output", "-o", metavar="OUT", help="A .npz, .safetensors, .csv or .parquet."
        ),
    ],
    method: Annotated[
        str,
        typer.Option(
            metavar="NAME", show_default=False, help="Of lametta list methods; default: lame."
        ),
    ] = "lame",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the method; repeatable.",
        ),
    ] = None,
    affinity: Annotated[str | None, typer.Option(hidden=True)] = None,
    k: Annotated[int | None, typer.Option(hidden=True)] = None,
    row_sum: Annotated[float | None, typer.Option(hidden=True)] = None,
    symmetric: Annotated[bool | None, typer.Option("--symmetric", hidden=True)] = None,
    weight: Annotated[float | None, typer.Option(hidden=True)] = None,
    max_iter: Annotated[int | None, typer.Option(hidden=True)] = None,
    tol: Annotated[float | None, typer.Option(hidden=True)] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="N", show_default=False, help="Default: 64; 0: all of a group at once."
        ),
    ] = 64,
    map_file: MapFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Correct cached predictions.

    Batches are cut in the order of the file; each group, such as a video, is a stream of its own.
    OUT has a row for each sample: its class before and after, confidence, key, group and label;
    .npz and .safetensors have all arrays. With labels, accuracies are printed. --affinity, --k,
    --row-sum, --symmetric, --weight, --max-iter and --tol are short for --set with lame's options.

    Example: lametta correct features.npz -o corrected.npz --method lame --set k=3
    """
    with user_errors():
        _check(given, target, batch_size)
        shortcuts = {"affinity": affinity and affinity.lower(), "k": k, "row_sum": row_sum}
        shortcuts |= {"symmetric": symmetric, "weight": weight, "max_iter": max_iter, "tol": tol}
        shortcuts = {name: value for name, value in shortcuts.items() if value is not None}
        named = parse_settings(settings or [], "--set")
        params = shortcuts | named
        found = find_method(method, params, shortcuts.keys() - named.keys())
        predictions = read(given, map_file)
        for note in predictions.notes:
            print_line(note, err)
        corrected, steps = _correct(found, params, predictions, batch_size)
        made_by = {"method": method, "params": params, "lametta": lametta.__version__}
        write(target, predictions, corrected, made_by)
    if as_json:
        typer.echo(json.dumps(_summary(predictions, corrected, steps) | {"output": str(target)}))
        return
    _show(predictions, corrected, steps)
    _show_groups(predictions, corrected)
    n_alone = sum(step.alone for step in steps)
    if n_alone and not found.trait("stateful", params):
        print_line(_NO_NEIGHBORS.format(n_alone, len(steps), method), err)
    print_line(f"wrote {target}")


def _check(given: Path, target: Path, batch_size: int) -> None:
    if given.suffix == ".json":
        raise LamettaError(
            f"IN must be a .npz or .safetensors file, got {given}: lametta camera-traps corrects "
            "results in MegaDetector's format"
        )
    if batch_size < 0:
        raise LamettaError(f"--batch-size must be >= 0, got {batch_size}")
    check_target(target, given)


def _correct(
    method: methods.Method, params: Mapping[str, object], given: Predictions, batch_size: int
) -> tuple[Floats, list[_Step]]:
    """The corrected probabilities, and what is known of each batch."""
    corrected, steps = np.empty_like(given.probs), []
    with progress_bar() as progress, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "LAME gets one sample")  # which the command says itself
        task = progress.add_task("correcting", total=len(corrected))
        for stream in _streams(len(corrected), given.groups):
            chain = Chain(tuple(method.correctors(params)))  # new: no stream sees another's state
            give_prototypes(chain, given.prototypes, _NO_PROTOTYPES)
            for batch in _batches(stream, batch_size):
                corrected[batch], step = _apply(chain, given, batch)
                steps.append(step)
                progress.advance(task, len(batch))
    return corrected, steps


def _apply(chain: Chain, given: Predictions, rows: NDArray[np.intp]) -> tuple[Floats, _Step]:
    features, before = given.features[rows], given.probs[rows]
    check_finite("features", features, rows)
    prediction = chain.correct(features, before)
    probs, info = np.asarray(prediction.probs), prediction.info
    check_finite("probs of --method", probs, rows)
    alone = len(probs) == 1 and np.allclose(probs, before)
    return probs, _Step(info.get("n_iter"), bool(info.get("converged", True)), alone)


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


def _summary(given: Predictions, after: Floats, steps: Sequence[_Step]) -> dict[str, Any]:
    """What is printed, for scripts: shares from 0 to 1."""
    old, new, labels = given.probs.argmax(1), after.argmax(1), given.labels
    found: dict[str, Any] = {
        "samples": len(after),
        "batches": len(steps),
        "not_converged": sum(not step.converged for step in steps),
        "changed": _share(old != new),
    }
    if labels is not None:
        found |= {"before": _share(old == labels), "after": _share(new == labels)}
    names = ("before", "after")
    found["groups"] = [
        {"group": one.name, "samples": one.n, "changed": one.changed}
        | dict(zip(names, one.scores, strict=False))
        for one in _groups(given, after)
    ]
    return found


def _show_groups(given: Predictions, after: Floats) -> None:
    """Print a row for each group: the mean over all hides a video that got worse."""
    groups = sorted(_groups(given, after), key=lambda group: group.gain)
    if len(groups) < 2:
        return
    scored = given.labels is not None
    numbers = ["samples", "changed"] + (["before", "after", "points"] if scored else [])
    columns = [Column(name, justify="right", no_wrap=True) for name in numbers]
    print_line("")
    show_table(Column("group", overflow="fold"), *columns, rows=map(_row, groups[:_N_GROUPS]))
    if (more := len(groups) - _N_GROUPS) > 0:
        print_line(f"and {more} groups more")
    if scored:
        worse = sum(group.gain < 0 for group in groups)
        print_line(f"{worse} of {len(groups)} groups got worse")


def _row(group: _Group) -> list[str | Text]:
    shown: list[str | Text] = [group.name, f"{group.n}", f"{group.changed:.1%}"]
    if group.scores:
        gain = Text(f"{group.gain:+.2f}", "red" if group.gain < 0 else "green")
        shown += [*(f"{score:.2%}" for score in group.scores), gain]
    return shown


def _groups(given: Predictions, after: Floats) -> Iterator[_Group]:
    if given.groups is None:
        return
    old, new, labels = given.probs.argmax(1), after.argmax(1), given.labels
    for rows in _streams(len(after), given.groups):
        changed = _share(old[rows] != new[rows])
        scores = [] if labels is None else [_share(x[rows] == labels[rows]) for x in (old, new)]
        gain = 100 * (scores[1] - scores[0]) if scores else -changed
        yield _Group(str(given.groups[rows[0]]), len(rows), changed, scores, gain)


def _share(hits: NDArray[np.bool_]) -> float:
    return float(np.mean(hits)) if len(hits) else 0.0
