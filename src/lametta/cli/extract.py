"""``lametta extract``: features and logits of a data set, once and for all."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.text import Text

from lametta.cli._console import err, progress_bar, require, say, show_table, user_errors
from lametta.data.bank import Bank
from lametta.data.bank import extract as run
from lametta.data.bank.extraction import weights_hash
from lametta.data.catalog import datasets, load
from lametta.data.dataset import Dataset
from lametta.data.readers.folders import image_folder

_ROWS = 4096  # that are scored at a time


class Dtype(StrEnum):
    """How numbers are stored."""

    float32 = "float32"
    float16 = "float16"


def extract(
    model: Annotated[
        str, typer.Option(metavar="NAME", help="A model by name, such as timm:resnet50.")
    ],
    data: Annotated[
        str,
        typer.Option(
            metavar="NAME|PATH",
            help="A data set by name, or a folder or .zip file with a folder of images a class.",
        ),
    ],
    target: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="Where to: a .safetensors file.")
    ],
    weights: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The model's weights, where it brings none.")
    ] = None,
    root: Annotated[
        Path | None,
        typer.Option(metavar="ROOT", help="Where data sets lie; LAMETTA_DATA if not given."),
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Images that the model sees together.")] = 64,
    workers: Annotated[
        int,
        typer.Option(
            help="Processes that decode ahead of the model; 0 for none. One a core with a GPU."
        ),
    ] = 1,
    device: Annotated[str, typer.Option(help="Where the model runs: cpu, cuda, ...")] = "cpu",
    dtype: Annotated[Dtype, typer.Option(help="How numbers are stored.")] = Dtype.float32,
    skip_broken: Annotated[
        bool,
        typer.Option("--skip-broken", help="Leave out images that cannot be read, and name them."),
    ] = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Delete what is there and begin anew.")
    ] = False,
) -> None:
    """Run a model over a data set, and keep its features and logits in a bank.

    A run that was stopped or killed goes on where it was when it is started again, and OUT comes
    out the same. OUT holds features [N, d], logits [N, K], labels, keys and groups in the order of
    the data set, and says which model, weights, preprocessing and files they are from.

    Example: lametta extract --model efficientnet_lite0 --data photos -o bank.safetensors
    """
    with user_errors(), _resumable():
        require("torch", "torch")
        from lametta.torch import Classifier, zoo

        dataset, loaded = _dataset(data, root), zoo.load(model, weights=weights, device=device)
        start = time.perf_counter()
        done: list[int] = []
        with progress_bar() as bar, Classifier(loaded.net) as classifier:
            task = bar.add_task("extracting")

            def show(n_done: int, n: int) -> None:
                done.append(n_done)
                bar.update(task, completed=n_done, total=n)

            bank = run(
                lambda x: classifier(x.to(device)),
                dataset,
                loaded.preprocess,
                target,
                batch_size=batch_size,
                workers=workers,
                dtype=dtype.value,
                header={"model": loaded.name, "weights_hash": weights_hash(loaded.net)},
                on_error="report" if skip_broken else "raise",
                restart=restart,
                progress=show,
            )
        # What an earlier run had done is in the first count.
        _report(bank, done[-1] - done[0] if done else 0, time.perf_counter() - start)
    say(f"wrote {target}")


def _dataset(data: str, root: Path | None) -> Dataset:
    if data not in datasets() and Path(data).exists():
        return image_folder(data)
    return load(data, root)


@contextmanager
def _resumable() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        say("lametta: stopped; run the same command again to go on", err)
        raise typer.Exit(130) from None


def _report(bank: Bank, n_new: int, seconds: float) -> None:
    rows: list[tuple[str, str | Text]] = [("samples", f"{len(bank)}")]
    if failed := bank.header["failed"]:
        some = ", ".join(failed[:3]) + ", ..." * (len(failed) > 3)
        rows.append(("left out", f"{len(failed)} ({some})"))
    rows.append(("features, classes", f"{bank.features.shape[1]}, {bank.logits.shape[1]}"))
    rows.append(("extracted now", f"{n_new} in {seconds:.1f} s, {n_new / seconds:.1f} a second"))
    if (accuracy := _accuracy(bank)) is not None:
        rows.append(("accuracy", Text(f"{accuracy:.2%}", "bold")))
    show_table(rows=rows)


def _accuracy(bank: Bank) -> float | None:
    """Share of samples whose label has the highest logit; None if labels are of other classes."""
    classes = bank.class_map
    if classes is not None and classes.n_source not in (None, bank.n_classes):
        return None  # a map from another network's classes
    bank = bank.mapped(classes)
    labels = bank.labels
    if labels is None or len(bank.header["classes"]) != bank.n_classes:
        return None
    blocks = np.array_split(np.arange(len(bank)), -(-len(bank) // _ROWS))
    right = sum((bank(rows).logits.argmax(axis=1) == labels[rows]).sum() for rows in blocks)
    return float(right / len(bank))
