"""``lametta camera-traps``: results in MegaDetector's format, corrected visit by visit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from lametta import methods
from lametta._files import check_regular_file
from lametta.classmap import ClassMap
from lametta.cli._console import (
    Json,
    MapFile,
    Settings,
    err,
    find_method,
    load_map,
    option_names,
    parse_settings,
    print_json,
    print_line,
    progress_bar,
    show_table,
    user_errors,
)
from lametta.cli._predictions import check_target
from lametta.cli.map import target_names
from lametta.data.classes.wordnet import ancestral_map, load_wordnet, resolve
from lametta.integrations.megadetector import CorrectionResult, Results, correct
from lametta.types import LamettaError

_OPTIONS = {  # by the arguments that errors name
    **{name: f"--{name}" for name in ("by", "gap", "confidence")},
    "class_map": "--map",
    "batch_size": "--batch-size",
}


def camera_traps(
    given: Annotated[
        Path, typer.Argument(metavar="IN", help="A .json file in MegaDetector's format.")
    ],
    target: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The .json file to write.")
    ],
    method: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A corrector; lametta list methods shows them. By default track, or prudent where "
            "images have no times.",
        ),
    ] = None,
    settings: Settings = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="STREAM",
            help="Which detections are a stream of their own, those of an animal, a sequence or a "
            "location. By default animal, or location where images have no times.",
        ),
    ] = None,
    gap: Annotated[
        float,
        typer.Option(metavar="SECONDS", help="The longest time between images of a sequence."),
    ] = 60.0,
    confidence: Annotated[
        float, typer.Option(help="Detections that are less sure neither vote nor change.")
    ] = 0.15,
    batch_size: Annotated[
        int, typer.Option(metavar="N", help="Detections corrected together; 0 for all of a stream.")
    ] = 64,
    map_file: MapFile = None,
    targets: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="Coarser classes by name, as for lametta map; categories that are a kind of one "
            "are pooled.",
        ),
    ] = None,
    drop_source: Annotated[
        bool, typer.Option("--drop-source", help="Don't keep the classifications before.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Correct the classifications of camera traps' images.

    Each is corrected by the other images of the same visit. OUT keeps all that IN has but for the
    classifications of detections; what they were is kept as source_classifications.

    Example: lametta camera-traps detections.json -o corrected.json
    """
    with user_errors():
        if given.suffix in (".npz", ".safetensors"):
            raise LamettaError(
                f"IN must be a .json file, got {given}: lametta correct corrects arrays"
            )
        check_regular_file("IN", given)
        check_target(target, given, ".json")
        results = Results.read(given)
        with _named(given):
            # Without times a folder would be one sequence, of many visits.
            usual = ("track", "animal") if results.is_timed else ("prudent", "location")
        method, by = method or usual[0], by or usual[1]
        params = parse_settings(settings or [], "--set")
        find_method(method, params)
        class_map = _class_map(results, map_file, targets)
        with progress_bar() as progress, option_names(**_OPTIONS), _named(given):
            task = progress.add_task("correcting", total=None)
            found = correct(
                results.document,
                methods.as_corrector(method, params),
                by=by,
                gap=gap,
                confidence=confidence,
                batch_size=batch_size,
                class_map=class_map,
                keep_source=not drop_source,
                progress=lambda n: progress.advance(task, n),
            )
        results.write(target, found.document)
    _show(found)
    print_line(f"corrected by {method}, each {by} by itself")
    print_line(f"wrote {target}")
    if as_json:
        print_json(
            {
                "images": len(found.document["images"]),
                "detections": found.detections,
                "unsure": found.unsure,
                "streams": found.streams,
                "changed": found.changed,
                "method": method,
                "by": by,
                "output": target,
            }
        )


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Name the file in errors that name an image or a category in it."""
    try:
        yield
    except LamettaError as error:
        inside = str(error).startswith(("images", "classification"))
        raise LamettaError(f"{path}: {error}" if inside else str(error)) from None


def _show(found: CorrectionResult) -> None:
    """Print what was corrected."""
    share = found.changed / max(1, found.detections)
    images = f"{len(found.document['images'])}"
    rows = [("images", images), ("classified detections", f"{found.detections}")]
    if found.unsure:
        rows.append(("below --confidence", f"{found.unsure}, left as they are"))
    rows += [("streams", f"{found.streams}"), ("predictions changed", f"{share:.1%}")]
    show_table(rows=rows)


def _class_map(results: Results, map_file: Path | None, targets: str | None) -> ClassMap | None:
    if targets is None:
        return load_map(map_file)
    if map_file is not None:
        raise LamettaError("--targets must be left out with --map, which has targets of its own")
    categories = results.document.get("classification_categories")
    names = [str(name) for name in categories.values()] if isinstance(categories, dict) else []
    return map_by_name(names, target_names(targets))


def map_by_name(names: Sequence[str], targets: Sequence[str]) -> ClassMap:
    """Map classes to their closest ancestors among the targets; the others stay as they are.

    Examples
    --------
    >>> found = map_by_name(["red fox", "Arctic fox", "moose", "blank"], ["fox", "deer"])
    >>> dict(zip(found.names, found.groups))
    {'fox': (0, 1), 'deer': (2,), 'blank': (3,)}
    """
    known = [i for i, name in enumerate(names) if _word(name) in load_wordnet().senses]
    with option_names(targets="--targets", target="--targets"):
        found = _ancestors([resolve(names[i]).synset for i in known], targets)
    groups = {
        name: [known[place] for place in group]
        for name, group in zip(found.names, found.groups, strict=True)
    }
    if empty := [name for name in targets if name not in groups]:
        print_line(f"no category is a kind of {', '.join(empty)}", err)
    return ClassMap(_with_others(groups, names), n_source=len(names), pooling="sum")


def _with_others(groups: dict[str, list[int]], names: Sequence[str]) -> dict[str, list[int]]:
    """Give the classes that are in no group one of their own name."""
    mapped = {i for group in groups.values() for i in group}
    for i, name in enumerate(names):
        if i not in mapped:
            groups.setdefault(name, []).append(i)
    return groups


def _ancestors(synsets: Sequence[str], targets: Sequence[str]) -> ClassMap:
    """Map synsets to the targets that they are kinds of; raise where none of them is."""
    choices = {resolve(name, synsets).synset for name in targets}
    if not any(choices & load_wordnet().ancestors(one).keys() for one in synsets):
        raise LamettaError(f"targets must cover a category of IN, got {', '.join(targets)}")
    return ancestral_map(targets, synsets, drop_empty=True, pooling="sum")


def _word(name: str) -> str:
    return "_".join(name.lower().replace("_", " ").split())
