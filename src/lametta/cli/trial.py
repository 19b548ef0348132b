"""``lametta try``: every output-only method on your own data at once, with a page and advice."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from lametta._arrays import log
from lametta._checks import raise_as
from lametta._files import check_regular_file
from lametta.cli._console import (
    Compiled,
    MapFile,
    Precision,
    check_beside,
    computed,
    err,
    load_map,
    option_names,
    out,
    print_line,
    progress_bar,
    require,
    resumable,
    show_entries,
    user_errors,
)
from lametta.cli._predictions import check_target, read
from lametta.data.bank import Bank
from lametta.integrations.megadetector import Results, as_bank
from lametta.types import LamettaError

if TYPE_CHECKING:
    from lametta.bench.trial import Trial
    from lametta.data.dataset import Dataset

_FILES = (".npz", ".safetensors", ".csv", ".parquet")
_WIDE = 120  # columns of a terminal that has room for intervals beside scores
_UNITS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


def try_(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="Outputs of a model: a bank (.safetensors or .npz), or a .csv or .parquet with "
            "prob_<class>, or a .json in MegaDetector's format. Or, with --model, a folder of "
            "images or videos, or a data set by name.",
        ),
    ],
    target: Annotated[
        Path,
        typer.Option("--output", "-o", metavar="PAGE", help="The .html file to write."),
    ] = Path("try.html"),
    model: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For images: a model as for lametta extract."),
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights, if it brings none.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(metavar="LAYER", help="The layer that features go into.")
    ] = None,
    fps: Annotated[
        float | None, typer.Option(help="Frames a second that are taken of videos; else all.")
    ] = None,
    device: Annotated[str, typer.Option(help="Where the model runs: auto, cpu, cuda.")] = "auto",
    precision: Precision = None,
    compiled: Compiled = False,
    map_file: MapFile = None,
    single: Annotated[
        bool,
        typer.Option("--one-object", help="Each group is one object, as a tracker's tracks are."),
    ] = False,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAMES", help="With commas between them; all that fit if not given."),
    ] = None,
    batch_size: Annotated[
        int, typer.Option(metavar="N", help="How many samples arrive together.")
    ] = 64,
    budget: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="60s, 5m or 1h, for the methods; a model's pass over images is not counted.",
        ),
    ] = "60s",
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Processes; by default one a core.")
    ] = None,
    label: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Show N samples on PAGE whose labels would settle soonest what to take.",
        ),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Labels that PAGE handed out; they measure the gains."),
    ] = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Run again what was run before, also the model.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the result as JSON, for scripts.")
    ] = False,
) -> None:
    """Try every method that fits on your own data, and say which one to take.

    Each group, such as a video, is a stream of its own. PAGE shows what each method changes, an
    estimate of what that gains without labels, what the stream looks like, and the samples that
    would change most; with labels in SOURCE also accuracy, the worst group, calibration and cost.
    Beside PAGE lies its results file, from which the same command goes on, and with --model the
    bank of the model's outputs.

    Example: lametta try bank.safetensors -o try.html
    """
    with user_errors(), resumable("lametta: stopped; run the same command again to go on"):
        require("bench", "polars", "joblib", "jinja2", "matplotlib", "pydantic")
        from lametta.bench.trial import try_methods
        from lametta.bench.trial.labels import read as read_labels

        seconds = _seconds(budget)
        for option, given in (
            *(("--weights", weights), ("--head", head), ("--fps", fps)),
            *(("--precision", precision), ("--compile", compiled or None)),
        ):
            check_beside(option, given, "--model", model)
        check_target(target, Path(source), ".html")
        if Path(source).suffix == ".json":
            bank, single, code = _camera_traps(source, model, map_file)
            pictures = None
        else:
            how = computed(precision, compiled) | {"restart": restart}
            bank, pictures = _open(source, target, model, weights, head, fps, device, map_file, how)
            code = ""
        file = target.with_suffix(".results.safetensors")
        if restart:
            file.unlink(missing_ok=True)
        with progress_bar() as bar, option_names(
            names="--methods", name="--methods", method="--methods", batch_size="--batch-size",
            bank="SOURCE", budget="--budget",
        ):  # fmt: skip
            task = bar.add_task("trying")
            trial = try_methods(
                bank,
                None if methods is None else [one.strip() for one in methods.split(",")],
                batch_size=batch_size,
                budget=seconds,
                jobs=jobs,
                single=single,
                results=file,
                progress=lambda done, n, _: bar.update(task, completed=done, total=n),
            )
            trial = replace(trial, command=code)
            kept = Path(source) if model is None else _bank_beside(target)
            if trial.outputs.classes and kept.suffix == ".safetensors" and map_file is None:
                trial = replace(trial, names=str(kept))
            if labels is not None:
                trial = trial.measured(read_labels(labels, trial.outputs))
            if label is not None and bank.labels is not None:
                raise LamettaError(f"--label must be left out, got {label}: SOURCE has labels")
            with option_names(n="--label"):
                drawn = None if label is None else trial.draw(label)
        command = ["lametta", "try", *sys.argv[2:]] if sys.argv[1:2] == ["try"] else []
        name = Path(source).name
        trial.write(target, title=name, command=command, pictures=pictures, to_label=drawn)
    if as_json:
        found = trial.as_dict() | {"page": str(target)}
        found |= {} if drawn is None else {"to_label": drawn.as_dict()}
        typer.echo(json.dumps(found, indent=2))
        return
    _show(trial)
    if drawn is not None:
        n = len(drawn.rows) - drawn.known
        print_line(f"{target} shows {n} samples to label, and hands out a file for --labels")
    print_line(f"wrote {target} and {file.name}")


def _open(
    source: str,
    target: Path,
    model: str | None,
    weights: Path | None,
    head: str | None,
    fps: float | None,
    device: str,
    map_file: Path | None,
    how: Mapping[str, Any],
) -> tuple[Bank, Callable[[int], Any] | None]:
    """The outputs that SOURCE holds, or that the model gives for it, and pictures of samples."""
    path = Path(source)
    if path.suffix in _FILES:
        if model is not None:
            raise LamettaError(f"--model must be left out, got {model}: {source} has its outputs")
        return _bank(path, map_file), None
    if model is None:
        known = ", ".join(_FILES)
        raise LamettaError(
            f"SOURCE must be a file of outputs ({known}), or have a --model beside it"
        )
    from lametta.cli.extract import run_model

    file = _bank_beside(target)
    found = run_model(
        model, source, file, weights=weights, head=head, fps=fps, device=device,
        class_map=map_file, **how,
    )  # fmt: skip
    return _bank(file, None), _pictures(found.dataset)


def _bank_beside(page: Path) -> Path:
    return page.with_suffix(".bank.safetensors")


def _camera_traps(source: str, model: str | None, map_file: Path | None) -> tuple[Bank, bool, str]:
    """Results in MegaDetector's format: visit by visit, or camera by camera without times."""
    if model is not None:
        raise LamettaError(f"--model must be left out, got {model}: {source} has its outputs")
    check_regular_file("SOURCE", Path(source))
    results = Results.read(source)
    by = "animal" if results.is_timed else "location"
    bank = as_bank(results.document, by=by, class_map=load_map(map_file))
    if not len(bank):
        raise LamettaError(
            f"SOURCE must have detections with classifications, got none in {source}"
        )
    code = shlex.join(["lametta", "camera-traps", source, "-o", "corrected.json"])
    return bank, by == "animal", f"{code} --method METHOD --by {by}"


def _bank(path: Path, map_file: Path | None) -> Bank:
    """A file of outputs as a bank, with labels that are of its classes, or none."""
    with option_names(IN="SOURCE"):
        given = read(path, map_file)
    for note in given.notes:
        print_line(re.sub(r"\bIN\b", "SOURCE", note), err)
    keys = given.columns.get("keys")
    return Bank(
        given.features,
        log(np, given.probs),
        None if given.labels is None else np.asarray(given.labels),
        given.groups,
        () if keys is None else tuple(map(str, keys)),
        {"classes": list(given.classes)} if given.classes else {},
        prototypes=given.prototypes,
    )


def _pictures(dataset: "Dataset") -> Callable[[int], Any]:
    return lambda row: dataset.samples[row]


def _seconds(budget: str) -> float:
    """The seconds of ``--budget``: 90, 90s, 2m, 1h."""
    found = re.fullmatch(r"(\d+\.?\d*)\s*([a-z]*)", budget.strip())
    if found is None or found[2] not in _UNITS or not float(found[1]):
        raise LamettaError(f"--budget must be a time such as 60s, 5m or 1h, got {budget!r}")
    with raise_as("--budget must be a time", budget):
        return float(found[1]) * _UNITS[found[2]]


def _show(trial: "Trial") -> None:
    for said in trial.look.sentences():
        print_line(said)
    print_line("")
    show_entries(trial.table(), notes=trial.outputs.labels is None or out.width >= _WIDE)
    print_line("")
    advice = trial.advice
    print_line(advice.headline)
    print_line(f"Why: {advice.reason}")
    print_line(f"Risk: {advice.risk}")
    if advice.code:
        print_line(f"\n{advice.code}\n")
    if advice.watch:
        print_line(f"To watch it first, without letting it answer:\n\n{advice.watch}\n")
    late = [name for name, reason in trial.left.items() if reason.startswith("out of time")]
    if late:
        print_line(f"not tested, out of time: {'; '.join(late)}")
        print_line(
            "the same command goes on with methods, and a larger --budget takes more samples"
        )
