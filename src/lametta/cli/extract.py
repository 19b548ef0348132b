"""``lametta extract``: features and logits of a data set, once and for all."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lametta.cli._console import err, out, user_errors
from lametta.data.bank.bank import Bank
from lametta.data.bank.extraction import extract as run
from lametta.data.bank.extraction import weights_hash
from lametta.data.catalog import datasets, load
from lametta.data.dataset import Dataset
from lametta.data.readers.folders import image_folder
from lametta.types import LamettaError, Output

if TYPE_CHECKING:
    from lametta.torch.zoo import Loaded

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
        dataset, loaded = _dataset(data, root), _model(model, weights, device)
        start = time.perf_counter()
        with _Bar() as bar, _classifier(loaded, device) as classifier:
            bank = run(
                classifier,
                dataset,
                loaded.preprocess,
                target,
                batch_size=batch_size,
                workers=workers,
                dtype=dtype.value,
                header={"model": loaded.name, "weights_hash": weights_hash(loaded.net)},
                on_error="report" if skip_broken else "raise",
                restart=restart,
                progress=bar,
            )
        _report(bank, bar.n_new, time.perf_counter() - start)
    out.print(f"wrote {target}", highlight=False, soft_wrap=True)


def _dataset(data: str, root: Path | None) -> Dataset:
    if data not in datasets() and Path(data).exists():
        return image_folder(data)
    return load(data, root)


def _model(name: str, weights: Path | None, device: str) -> "Loaded":
    try:
        from lametta.torch import zoo
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise LamettaError("extract needs torch: pip install 'lametta[torch]'") from None
    return zoo.load(name, weights=weights, device=device)


@contextmanager
def _classifier(loaded: "Loaded", device: str) -> Iterator[Callable[[Any], Output]]:
    from lametta.torch import Classifier

    with Classifier(loaded.net) as classifier:
        yield lambda x: classifier(x.to(device))


class _Bar(Progress):
    """A progress bar that knows how much of the work was done before."""

    def __init__(self) -> None:
        columns = TextColumn("extracting"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
        super().__init__(*columns, console=err, transient=True)
        self._task = self.add_task("")
        self._done: list[int] = []

    def __call__(self, done: int, n: int) -> None:
        self._done.append(done)
        self.update(self._task, completed=done, total=n)

    @property
    def n_new(self) -> int:
        """Samples that were done since the first call."""
        return self._done[-1] - self._done[0] if self._done else 0


@contextmanager
def _resumable() -> Iterator[None]:
    """Say after Ctrl-C that nothing is lost."""
    try:
        yield
    except KeyboardInterrupt:
        err.print("lametta: stopped; run the same command again to go on", highlight=False)
        raise typer.Exit(130) from None


def _report(bank: Bank, n_new: int, seconds: float) -> None:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_row("samples", f"{len(bank)}")
    if failed := bank.header["failed"]:
        some = ", ".join(failed[:3]) + ", ..." * (len(failed) > 3)
        table.add_row("left out", escape(f"{len(failed)} ({some})"))
    table.add_row("features, classes", f"{bank.features.shape[1]}, {bank.logits.shape[1]}")
    table.add_row("extracted now", f"{n_new} in {seconds:.1f} s, {n_new / seconds:.1f} a second")
    if (accuracy := _accuracy(bank)) is not None:
        table.add_row("accuracy", f"[bold]{accuracy:.2%}[/]")
    out.print(table)


def _accuracy(bank: Bank) -> float | None:
    """Share of samples whose label has the highest logit; None if labels are of other classes."""
    classes = bank.class_map
    if classes is not None and classes.n_source not in (None, bank.n_classes):
        return None  # a map from another network's classes
    bank = bank.mapped(classes)
    if len(bank.header["classes"]) != bank.n_classes:
        return None
    blocks = np.array_split(np.arange(len(bank)), -(-len(bank) // _ROWS))
    right = sum((bank(rows).logits.argmax(axis=1) == bank.labels[rows]).sum() for rows in blocks)
    return float(right / len(bank))
