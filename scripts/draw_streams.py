"""Print the tables of docs/safe.md and draw its figures, from results of experiments/streams.toml.

python scripts/draw_streams.py results/streams
"""

import sys
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from drawing import save
from lametta.bench import read_cells
from lametta.bench.analysis import gains

HALVES = {
    "reported": ["lite1", "lite2", "resnet32", "resnet44"],
    "chosen": ["lite0", "resnet20", "resnet56"],
}
UNORDERED = "_iid|_zipf|_tail"
STREAM = ["model", "scenario", "seed", "batch_size"]
KINDS = {
    "b_iid": "clean,\nshuffled",
    "b_markov": "clean,\nin runs",
    "b_by_class": "clean,\nby class",
    "c_b_iid": "corrupted,\nshuffled",
    "c_b_continual": "corruptions\nin turn, runs",
    "c_b_by_class": "corrupted,\nby class",
}
SETS = {"cifar": "CIFAR-10: all 10 classes occur", "photos": "photographs: 10 of 1000 classes"}
SHOWN = [
    *("AdaBN", "TENT", "SHOT-IM", "Label shift", "OATTA"),
    *("Smoothing", "Memory (track)", "LAME", "Prudent"),
]


def main(folder: Path) -> None:
    """Print all tables, and draw the figure."""
    cells = gains(read_cells(folder)).with_columns(pl.col("gain", "accuracy", "ece") * 100)
    source = cells.filter(pl.col("method") == "Source")
    source = source.select(*STREAM, source="accuracy", source_nll="nll", source_ece="ece")
    cells = cells.join(source, on=STREAM).with_columns(
        nll=pl.col("nll") - pl.col("source_nll"), ece=pl.col("ece") - pl.col("source_ece")
    )
    images = cells.filter(~pl.col("scenario").str.contains("video|tracks|kernel"))
    for half, models in HALVES.items():
        table(f"{half} half, images", by_batch(of(images, models)))
        table(f"{half} half, by data", by_data(of(images, models)))
        videos = of(cells, models).filter(pl.col("batch_size") == 1)
        for name in ("videos", "videos_alone"):
            table(f"{half} half, {name}", by_method(videos.filter(pl.col("scenario") == name)))
    reported = of(images, HALVES["reported"])
    table("all methods, batches of 64", by_method(reported.filter(pl.col("batch_size") == 64)))
    worst = reported.filter(pl.col("method") == "Prudent")
    worst = worst.group_by("scenario", "model", "batch_size").agg(pl.col("gain").mean())
    table("Prudent's worst streams", worst.sort("gain").head(6))
    for name in ("tracks_5", "tracks_20"):
        table(name, by_method(cells.filter(pl.col("scenario") == name)))
    kernel = cells.filter(pl.col("scenario").str.contains("kernel"))
    kernel = kernel.group_by("scenario", "method", "batch_size").agg(pl.col("accuracy").mean())
    table("scale of the kernel", kernel.pivot("batch_size", values="accuracy").sort("scenario"))
    draw(reported)
    draw_kinds(reported.filter(pl.col("batch_size") == 64))


def of(cells: pl.DataFrame, models: list[str]) -> pl.DataFrame:
    """The cells of these networks."""
    return cells.filter(pl.col("model").is_in(models))


def by_batch(cells: pl.DataFrame) -> pl.DataFrame:
    """LAME and Prudent at each batch size; a stream is a scenario of a network, over its seeds."""
    unordered = pl.col("scenario").str.contains(UNORDERED)
    streams = cells.filter(pl.col("method").is_in(["LAME", "Prudent"]))
    streams = streams.group_by("method", "batch_size", "model", "scenario").agg(
        pl.col("gain", "nll", "ece").mean(), lowest=pl.col("gain").min()
    )
    return (
        streams.group_by("batch_size", "method")
        .agg(
            mean=pl.col("gain").mean(),
            worst_stream=pl.col("gain").min(),
            worst_run=pl.col("lowest").min(),
            unordered=pl.col("gain").filter(unordered).mean(),
            correlated=pl.col("gain").filter(~unordered).mean(),
            nll=pl.col("nll").filter(~unordered).mean(),
            ece=pl.col("ece").filter(~unordered).mean(),
        )
        .sort("batch_size", "method")
    )


def by_data(cells: pl.DataFrame) -> pl.DataFrame:
    """The same means, apart for data of which all classes occur and of which few do."""
    data = pl.col("scenario").str.extract("^([a-z]+)").replace_strict(SETS)
    return (
        cells.filter(pl.col("method").is_in(["LAME", "Prudent"]))
        .group_by("model", "scenario", "method", "batch_size", data=data)
        .agg(pl.col("gain").mean())
        .group_by("data", "batch_size", "method")
        .agg(mean=pl.col("gain").mean(), worst_stream=pl.col("gain").min(), streams=pl.len())
        .sort("data", "batch_size", "method")
    )


def by_method(cells: pl.DataFrame) -> pl.DataFrame:
    """Every method: mean and worst gain over runs, changes of NLL and ECE."""
    return (
        cells.group_by("method")
        .agg(
            source=pl.col("source").mean(),
            gain=pl.col("gain").mean(),
            worst=pl.col("gain").min(),
            nll=pl.col("nll").mean(),
            ece=pl.col("ece").mean(),
            runs=pl.len(),
        )
        .sort("gain", descending=True)
    )


def table(title: str, frame: pl.DataFrame) -> None:
    """Print a frame as Markdown."""
    print(f"\n## {title}\n")
    print("| " + " | ".join(frame.columns) + " |")
    print("|" + "---|" * frame.width)
    for row in frame.iter_rows():
        shown = (f"{x:.2f}" if isinstance(x, float) else str(x) for x in row)
        print("| " + " | ".join(shown) + " |")


def draw(cells: pl.DataFrame) -> None:
    """Each stream's gain: LAME's across, Prudent's up."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, size in zip(figure.subplots(1, 3, sharey=True), (1, 16, 64), strict=True):
        wide = (
            cells.filter(pl.col("batch_size") == size)
            .group_by("model", "scenario", "method")
            .agg(pl.col("gain").mean())
            .pivot("method", values="gain")
        )
        unordered = wide["scenario"].str.contains(UNORDERED)
        for kind, marker in ((unordered, "o"), (~unordered, "^")):
            part = wide.filter(kind)
            label = "no order" if marker == "o" else "correlated"
            axes.scatter(part["LAME"], part["Prudent"], marker=marker, s=18, alpha=0.7, label=label)
        axes.axline((0, 0), slope=1, color="gray", linewidth=0.8)
        axes.axhline(0, color="gray", linewidth=0.8)
        one = size == 1
        axes.set(title="one by one" if one else f"batches of {size}", xlabel="LAME, points gained")
    first = figure.axes[0]
    first.set_ylabel("Prudent, points gained")
    first.set_xlim(-5, 30)
    first.legend(frameon=False, loc="upper right")
    save(figure, "streams_gain.svg")


def draw_kinds(cells: pl.DataFrame) -> None:
    """What each method gains on each kind of stream, a table in colors."""
    figure = Figure(figsize=(7.4, 3.5), layout="constrained")
    for axes, (data, title) in zip(figure.subplots(1, 2, sharey=True), SETS.items(), strict=True):
        wide = (
            cells.group_by("method", "scenario")
            .agg(pl.col("gain").mean())
            .pivot("scenario", values="gain")
        )
        rows = pl.DataFrame({"method": SHOWN}).join(wide, on="method", maintain_order="left")
        values = rows.select(f"{data}_{kind}" for kind in KINDS).to_numpy()
        axes.imshow(np.clip(values, -25, 25), cmap="RdBu", vmin=-45, vmax=45, aspect="auto")
        for (i, j), value in np.ndenumerate(values):
            axes.text(j, i, f"{value:+.1f}", ha="center", va="center", fontsize=7.5)
        axes.set_title(title, fontsize=9)
        axes.set_xticks(range(len(KINDS)), KINDS.values(), fontsize=6.5)
        axes.set_yticks(range(len(SHOWN)), SHOWN)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    save(figure, "kinds.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
