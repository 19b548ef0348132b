"""``lametta correct`` on results in MegaDetector's format."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lametta import methods
from lametta.classmap import ClassMap
from lametta.cli._console import err, load_map, progress_bar, say, show_table, typed
from lametta.cli.map import target_names
from lametta.data.classes.wordnet import ancestral_map, load_wordnet, resolve
from lametta.integrations.megadetector import Corrected, Results
from lametta.integrations.megadetector import correct as corrected
from lametta.types import LamettaError

_OPTIONS = {"by": "--by", "gap": "--gap", "confidence": "--confidence", "class_map": "--map"}


def read_results(path: Path) -> tuple[Results, str, str]:
    """Read a file; give also the method and the kind of stream that are usual for it."""
    results = Results.read(path)
    with in_file(path):
        # Without times a folder would be one sequence, of many visits.
        timed = results.is_timed
    return results, *(("track", "animal") if timed else ("prudent", "location"))


@contextmanager
def in_file(path: Path) -> Iterator[None]:
    """Name the file in errors that name a place in it."""
    try:
        yield
    except LamettaError as error:
        inside = str(error).startswith(("images", "classification"))
        raise LamettaError(f"{path}: {error}" if inside else str(error)) from None


def correct_results(
    results: Results,
    target: Path,
    method: methods.Method,
    params: Mapping[str, object],
    batch_size: int,
    map_file: Path | None,
    wish: Mapping[str, Any],
) -> Corrected:
    """Correct the classifications, and write the file; ``wish`` holds the options given."""
    options = {name: x for name, x in wish.items() if name in _OPTIONS}
    options["class_map"] = _class_map(results, map_file, wish.get("targets"))
    with progress_bar() as progress, typed(**_OPTIONS):
        task = progress.add_task("correcting", total=None)
        found = corrected(
            results.document,
            methods.as_corrector(method.name, params),
            **options,
            batch_size=batch_size,
            keep_source="drop_source" not in wish,
            progress=lambda n: progress.advance(task, n),
        )
    results.write(target, found.document)
    return found


def show(found: Corrected) -> None:
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
    synsets = [resolve(names[i]).synset for i in known]
    groups: dict[str, list[int]] = {}
    with typed(targets="--targets", target="--targets"):
        choices = {resolve(name, synsets).synset: name for name in targets}
        if not any(choices.keys() & load_wordnet().ancestors(one).keys() for one in synsets):
            raise LamettaError(f"targets must cover a category of IN, got {', '.join(targets)}")
        found = ancestral_map(targets, synsets, drop_empty=True, pooling="sum")
    for name, group in zip(found.names, found.groups, strict=True):
        groups[name] = [known[place] for place in group]
    if empty := [name for name in targets if name not in groups]:
        say(f"no category is a kind of {', '.join(empty)}", err)
    mapped = {i for group in groups.values() for i in group}
    for i, name in enumerate(names):
        if i not in mapped:
            groups.setdefault(name, []).append(i)
    return ClassMap(groups, n_source=len(names), pooling="sum")


def _word(name: str) -> str:
    return "_".join(name.lower().replace("_", " ").split())
