"""``lametta map``: the class map of the paper's appendix, for any targets."""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Column

from lametta._checks import reading
from lametta._files import check_destination
from lametta.classmap import ClassMap
from lametta.cli._console import (
    Json,
    err,
    option_names,
    print_json,
    print_line,
    show_table,
    user_errors,
)
from lametta.data.classes.imagenet import IMAGENET, IMAGENET_NAMES
from lametta.data.classes.wordnet import Choice, ancestral_map, load_wordnet, resolve
from lametta.types import LamettaError

Pooling = StrEnum("Pooling", ["mean", "sum", "max"])


def map_(
    targets: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="The target classes: nouns (red panda), senses (tiger.n.02) or synsets "
            "(n02129604) with commas between them, or @FILE with one a line.",
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="OUT", help="Where to save the map, as JSON."),
    ] = None,
    pooling: Annotated[
        Pooling, typer.Option(help="How the probabilities of a target's classes become one.")
    ] = Pooling.mean,
    drop_empty: Annotated[
        bool, typer.Option("--drop-empty", help="Leave out targets that no class goes to.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Map ImageNet's 1000 classes onto coarser ones.

    Each class goes to its closest ancestor among the targets in WordNet 3.0, to "dog" rather than
    to "animal" where both are targets; classes without one are dropped. A name with several senses
    takes the one that covers the most classes of ImageNet, and the command says which that is.

    Example: lametta map --targets "antelope,bear,red panda" -o map.json
    """
    with user_errors():
        if output is not None:
            check_destination("--output", output)
        names = target_names(targets)
        with option_names(target="--targets", targets="--targets"):
            choices = [resolve(name) for name in names]
            classes = _mapped(choices, names, pooling, drop_empty=drop_empty)
        if output is not None:
            classes.save(output)
    _show(choices, classes)
    for choice in choices:
        if len(choice.senses) > 1:
            print_line(_explained(choice))
    mapped = sum(map(len, classes.groups))
    print_line(f"{mapped} of {len(IMAGENET)} classes mapped onto {len(classes)}")
    if output is not None:
        print_line(f"wrote {output}")
    if as_json:
        print_json(dict(zip(classes.names, classes.groups, strict=True)))


def _mapped(
    choices: Sequence[Choice], names: Sequence[str], pooling: Pooling, *, drop_empty: bool
) -> ClassMap:
    try:
        return ancestral_map(names, pooling=pooling.value, drop_empty=drop_empty)
    except LamettaError as error:
        for choice in choices:
            if not choice.covered:
                print_line(_explained(choice), err)
        raise LamettaError(str(error).replace("drop_empty", "--drop-empty")) from None


def target_names(targets: str) -> list[str]:
    """The names that were typed, or those in a file."""
    parts = targets.split(",")
    if targets.startswith("@"):
        with reading(targets[1:], "a text file in UTF-8", ValueError):
            parts = Path(targets[1:]).read_text(encoding="utf-8").splitlines()
    names = [part.strip() for part in parts if part.strip()]
    if not names:
        raise LamettaError(f"--targets must name at least one class, got {targets!r}")
    return names


def _show(choices: list[Choice], classes: ClassMap) -> None:
    groups = dict(zip(classes.names, classes.groups, strict=True))
    rows = []
    for choice in choices:
        group = groups.get(choice.name, ())
        names = [IMAGENET_NAMES[index] for index in group[:3]] + ["…"] * (len(group) > 3)
        count, indices = str(len(group)), _ranges(group)
        rows.append((choice.name, choice.synset, count, indices, ", ".join(names)))
    synset = Column("synset", no_wrap=True)
    count_column = Column("classes", justify="right", no_wrap=True)
    show_table("target", synset, count_column, "indices", "ImageNet classes", rows=rows)


def _ranges(indices: tuple[int, ...]) -> str:
    """Sorted indices with the runs among them as first-last."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _explained(choice: Choice) -> str:
    """Which of its senses a name took, and why."""
    graph, numbers = load_wordnet(), {synset: i for i, synset in enumerate(choice.senses, start=1)}
    kind = " and ".join(graph.words(up)[0] for up in graph.hypernyms[choice.synset])
    others = [
        f"; sense {numbers[synset]} covers {count}"
        for synset, count in choice.senses.items()
        if count and synset != choice.synset
    ]
    why = f"covers the most classes, {choice.covered}" if choice.covered else "covers no class"
    sense = f"sense {numbers[choice.synset]} of {len(numbers)}"
    return f"{choice.name}: {sense}, a kind of {kind}, {why}{''.join(others)}"
