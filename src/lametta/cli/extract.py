"""``lametta extract``: features and logits of a data set, once and for all."""

import sys
import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.text import Text

from lametta._checks import did_you_mean, raise_as
from lametta.cli._console import (
    Compiled,
    Json,
    Precision,
    computed,
    find_device,
    load_map,
    option_names,
    print_json,
    print_line,
    progress_bar,
    require,
    resumable,
    show_table,
    user_errors,
)
from lametta.data.bank import Bank
from lametta.data.bank import extract as run
from lametta.data.bank.extraction import weights_hash
from lametta.data.catalog import load, names
from lametta.data.dataset import Dataset, Samples, UnreadableImageError, abbreviate
from lametta.data.readers.folders import CountClasses, open_names, open_path
from lametta.types import LamettaError

if TYPE_CHECKING:
    from torch import nn

    from lametta.torch import Classifier
    from lametta.torch.zoo import Loaded

_ROWS = 4096  # that are scored at a time

Dtype = StrEnum("Dtype", ["float32", "float16"])


def extract(
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A model by name, such as timm:resnet50.")
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="PATH|NAME|-",
            help="A folder or .zip file of images, or of a folder of images for each class or "
            "video; video files; a data set by name; or - for images named on standard input.",
        ),
    ],
    target: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="Where to: a .safetensors file.")
    ],
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights, where it brings none.")
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="LAYER",
            help="The layer that features go into, by its name in the model, such as fc or "
            "classifier.1; found if not given.",
        ),
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(metavar="ROOT", help="Where data sets lie; LAMETTA_DATA if not given."),
    ] = None,
    class_map: Annotated[
        Path | None,
        typer.Option(
            "--map", metavar="MAP", help="A class map from the model's classes onto the labels'."
        ),
    ] = None,
    fps: Annotated[
        float | None, typer.Option(help="Frames a second that are taken of videos; else all.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images that the model sees together.")] = 64,
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that decode ahead of the model; 0 for none. One a core with a GPU."
        ),
    ] = 1,
    device: Annotated[
        str,
        typer.Option(
            help="Where the model runs: cpu, cuda, ...; auto takes a GPU if there is one."
        ),
    ] = "cpu",
    precision: Precision = None,
    compiled: Compiled = False,
    dtype: Annotated[Dtype, typer.Option(help="How numbers are stored.")] = Dtype.float32,
    skip_broken: Annotated[
        bool,
        typer.Option("--skip-broken", help="Leave out images that cannot be read, and name them."),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete what is there and begin anew.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Run a model over a data set, and keep its features and logits in a bank.

    A run that was stopped or killed goes on where it was when it is started again, and OUT comes
    out the same. Where images were changed or added since, only these are extracted. OUT holds
    features [N, d], logits [N, K], labels, keys and groups in the order of the data set, and says
    which model, weights, preprocessing and files they are from.

    Folders are classes where they are called so: by ImageNet's synsets, by numbers, by the targets
    of --map, or if they are as many as the model's classes. Otherwise each is a video, and a group
    of its own. --data folder:PATH takes them as classes anyway.

    Example: lametta extract --model efficientnet_lite0 --data photos -o bank.safetensors
    """
    with user_errors(), resumable("lametta: stopped; run the same command again to go on"):
        found = run_model(
            model,
            data,
            target,
            weights=weights,
            head=head,
            root=root,
            class_map=class_map,
            fps=fps,
            batch_size=batch_size,
            workers=workers,
            device=device,
            dtype=dtype.value,
            skip_broken=skip_broken,
            restart=restart,
            **computed(precision, compiled),
        )
        summary = _summary(found)
        _report(summary)
    print_line(f"wrote {target}")
    if as_json:
        print_json(summary | {"output": target})


class Extracted(NamedTuple):
    """A bank, what it was made of, and how many samples that took how many seconds now."""

    bank: Bank
    dataset: Dataset
    n_new: int
    seconds: float


def run_model(
    model: str,
    data: str,
    target: Path,
    *,
    weights: Path | None = None,
    head: str | None = None,
    root: Path | None = None,
    class_map: Path | None = None,
    fps: float | None = None,
    batch_size: int = 64,
    workers: int = 1,
    device: str = "cpu",
    dtype: str = "float32",
    skip_broken: bool = False,
    restart: bool = False,
    **how: Any,
) -> Extracted:
    """Run a model by its name over what ``data`` stands for, as the options of `extract` say."""
    require("torch", "torch")
    from lametta.torch import Classifier, zoo

    device = find_device(device)
    with option_names(
        name="--model",
        weights="--weights",
        device="--device",
        head="--head",
        precision="--precision",
    ):
        loaded = zoo.load(model, weights=weights, device=device, **how)
        classifier = Classifier(loaded.net, head)
    header = {"model": loaded.name, "weights_hash": weights_hash(loaded.net), **loaded.computed}
    header |= {"class_names": list(loaded.class_names)} if loaded.class_names else {}
    header |= {} if head is None else {"head": head}  # features of two heads are never mixed
    start = time.perf_counter()
    done: list[int] = []
    with classifier, progress_bar() as bar:
        # A layer that the user names need not be the last.
        last = classifier.head if head is None else None
        count = _counter(classifier, last, loaded, device)
        dataset = _dataset(data, root, class_map, fps, count)
        task = bar.add_task("extracting")

        def show(n_done: int, n: int) -> None:
            done.append(n_done)
            bar.update(task, completed=n_done, total=n)

        with option_names(
            path="--output", batch_size="--batch-size", workers="--workers", head="--head"
        ):
            bank = run(
                classifier,
                dataset,
                loaded.preprocess,
                target,
                batch_size=batch_size,
                workers=workers,
                device=device,
                dtype=dtype,
                header=header,
                on_error="report" if skip_broken else "raise",
                restart=restart,
                progress=show,
            )
    # What an earlier run had done is in the first count.
    n_new = done[-1] - done[0] if done else 0
    return Extracted(bank, dataset, n_new, time.perf_counter() - start)


def _dataset(
    data: str,
    root: Path | None,
    class_map: Path | None,
    fps: float | None,
    count_classes: CountClasses,
) -> Dataset:
    """What ``--data`` stands for, a path before a name, in the classes of the map."""
    classes = load_map(class_map)
    if fps is not None and not Path(data).exists():
        raise LamettaError(f"--fps must be given for video files alone, got {fps} for {data}")
    with option_names(path="--data", fps="--fps", data="--root", root="--root", name="--data"):
        if data == "-":
            with raise_as("standard input must be text in UTF-8", data, UnicodeDecodeError):
                dataset = open_names(sys.stdin)
        elif Path(data).exists():
            targets = () if classes is None else classes.names
            dataset = open_path(data, targets=targets, count_classes=count_classes, fps=fps)
        elif data in names() or f"{data.partition(':')[0]}:" in ("folder:", "videos:", "python:"):
            dataset = load(data, root)
        else:
            raise LamettaError(
                f"no such folder, file or data set: {data!r}{did_you_mean(data, names())}"
            )
    if classes is None:
        return dataset
    with option_names(class_map="--map"):
        mapped = dataset.mapped(classes)
    if lost := len(dataset) - len(mapped):
        print_line(
            f"left out {lost} of {len(dataset)} images, whose classes {class_map} does not map"
        )
    return mapped


def _counter(
    classifier: "Classifier", last: "nn.Module | None", loaded: "Loaded", device: str
) -> CountClasses:
    """Count the classes of the model by its last layer, or by its output for a first sample."""

    def count(samples: Samples) -> int:
        import torch

        if isinstance(last, torch.nn.Linear):
            return max(last.out_features, 2)  # one logit stands for two classes
        for i in range(len(samples)):
            try:
                x = samples[i]
            except UnreadableImageError:
                continue
            x = torch.as_tensor(x if loaded.preprocess is None else loaded.preprocess(x))
            return int(classifier(x[None].to(device)).logits.shape[1])
        raise LamettaError("no image of --data can be read")

    return count


def _summary(found: Extracted) -> dict[str, Any]:
    """What there is to say of a bank."""
    bank, labels = _scored(found.bank)
    return {
        "samples": len(bank),
        "left_out": list(bank.header["failed"]),
        "features": found.bank.features.shape[1],
        "classes": found.bank.logits.shape[1],
        "groups": [] if bank.groups is None else list(dict.fromkeys(bank.groups.tolist())),
        "labels": labels or "used",
        "extracted_now": found.n_new,
        "seconds": found.seconds,
        "accuracy": None if labels else _accuracy(bank),
    }


def _report(said: Mapping[str, Any]) -> None:
    rows: list[tuple[str, str | Text]] = [("samples", f"{said['samples']}")]
    if failed := said["left_out"]:
        rows.append(("left out", f"{len(failed)} ({abbreviate(failed)})"))
    rows.append(("features, classes", f"{said['features']}, {said['classes']}"))
    groups, n, seconds = said["groups"], said["extracted_now"], said["seconds"]
    rows.append(("groups", f"{len(groups)} ({abbreviate(groups)})" if groups else "none"))
    if said["accuracy"] is None:
        rows.append(("labels", said["labels"]))
    rows.append(("extracted now", f"{n} in {seconds:.1f} s, {n / seconds:.1f} a second"))
    if said["accuracy"] is not None:
        rows.append(("accuracy", Text(f"{said['accuracy']:.2%}", "bold")))
    show_table(rows=rows)


def _scored(bank: Bank) -> tuple[Bank, str]:
    """The bank in the classes of its labels, or why its labels are not used."""
    if bank.labels is None:
        return bank, "none"
    names, classes = bank.header["classes"], bank.class_map
    if classes is not None and classes.n_source not in (None, bank.n_classes):
        whose = f"the class map is for {classes.n_source} classes, the model has {bank.n_classes}"
        return bank, f"unused: {whose}"
    bank = bank.mapped(classes)
    if len(names) != bank.n_classes:
        return bank, (
            f"unused: {abbreviate(names)} are not the {bank.n_classes} classes of the model; "
            "--map says how they are related"
        )
    return bank, ""


def _accuracy(bank: Bank) -> float:
    """Share of samples whose label has the highest logit."""
    labels = np.asarray(bank.labels)
    blocks = np.array_split(np.arange(len(bank)), -(-len(bank) // _ROWS))
    right = sum((bank(rows).logits.argmax(axis=1) == labels[rows]).sum() for rows in blocks)
    return float(right / len(bank))
