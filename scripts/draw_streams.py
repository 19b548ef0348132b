"""Store the tables of the streams experiment in docs/tables, and draw its figures.

python scripts/draw_streams.py results/streams; python scripts/tables.py
"""

import csv
import sys
from pathlib import Path

import numpy as np
import polars as pl
from matplotlib.figure import Figure

from drawing import save
from lametta.bench import read_cells
from lametta.bench.analysis import gains

STORED = Path(__file__).parents[1] / "docs" / "tables"
CHOSEN = ["lite0", "resnet20", "resnet56"]
REPORTED = ["lite1", "lite2", "resnet32", "resnet44"]
STREAM = ["model", "scenario", "seed", "batch_size"]
UNORDERED = pl.col("scenario").str.contains("_iid|_zipf|_tail")
# The fifteen orders and priors of either half; domains in sequence have a study of their own.
IMAGES = pl.col("scenario").str.contains("_[ab]_") & ~pl.col("scenario").str.contains(
    "hopeless|domains|gradual|recurring|few"
)
KINDS = {
    "b_iid": "clean,\nshuffled",
    "b_markov": "clean,\nin runs",
    "b_by_class": "clean,\nby class",
    "c_b_iid": "corrupted,\nshuffled",
    "c_b_continual": "corruptions\nin turn, runs",
    "c_b_by_class": "corrupted,\nby class",
}
SETS = {
    "cifar": "all classes occur (CIFAR-10)",
    "photos": "ten of a thousand occur (ImageNet's photographs)",
}
SHOWN = [
    *("AdaBN", "TENT", "SHOT-IM", "Label shift", "OATTA"),
    *("Smoothing", "Memory (track)", "LAME", "Prudent"),
]
# On photographs, in the order of KINDS, by one H200 on 2026-11-16: a CPU takes hours for them.
MEASURED = {
    "AdaBN": (-3.6, -1.8, -2.0, -7.6, -12.1, -8.0),
    "TENT": (-3.4, -2.0, -2.0, -6.5, -10.8, -7.9),
    "SHOT-IM": (-3.8, -2.0, -2.0, -7.0, -10.8, -8.2),
}
VIDEO = ["Prudent", "Smoothing", "Average", "Label shift (smoothed)", "Windowed LAME"]
KERNELS = {
    "LAME": "kNN",
    "LAME (rbf)": "rbf",
    "LAME (rbf, row sums 5)": "rbf, rows scaled to 5",
    "LAME (linear)": "linear",
}
TITLES = {  # of methods, where the page has others; those with a dagger look ahead in the batch
    "Prudent": "Prudent †",
    "LAME": "LAME †",
    "Memory (track)": 'Memory, `scope="track"`',
    "Label shift": "Label shift (Saerens' EM)",
    "Label shift (smoothed)": "Label shift, smoothed",
    "Prior correction": "ROID's prior correction",
    "Smoothing": "Smoothing, 0.9",
    "TENT": "TENT †",
    "SHOT-IM": "SHOT-IM †",
    "PseudoLabel": "PseudoLabel †",
    "AdaBN": "AdaBN †",
}
BATCHES = {1: "one by one", 16: "batches of 16", 64: "batches of 64"}


def main(folder: Path) -> None:
    """Store all tables, and draw the figures."""
    cells = gains(read_cells(folder)).with_columns(pl.col("gain", "accuracy", "ece") * 100)
    source = cells.filter(pl.col("method") == "Source")
    source = source.select(*STREAM, source="accuracy", source_nll="nll", source_ece="ece")
    cells = cells.join(source, on=STREAM).with_columns(
        nll=pl.col("nll") - pl.col("source_nll"), ece=pl.col("ece") - pl.col("source_ece")
    )
    images = cells.filter(IMAGES & pl.col("model").is_in(REPORTED))
    store("streams_data", by_data(images))
    store("streams_batches", by_batch(images))
    store("streams_methods", by_method(images.filter(pl.col("batch_size") == 64)))
    store("streams_videos", of_videos(cells.filter(pl.col("batch_size") == 1)))
    store("streams_tracks", of_tracks(cells))
    store("streams_kernels", of_kernels(cells))
    draw(images)
    draw_kinds(images.filter(pl.col("batch_size") == 64))


def store(name: str, rows: list[list[str]]) -> None:
    """Write a table, its titles first, and print it."""
    with (STORED / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    print(f"\n{name}", *(" | ".join(row) for row in rows), sep="\n")


def signed(value: object, digits: int = 1) -> str:
    """A difference, with its sign."""
    return f"{round(as_float(value), digits) + 0:+.{digits}f}"  # 0 without a minus


def as_float(value: object) -> float:
    """A mean, which polars gives as a number of any type, or as none of nothing."""
    if not isinstance(value, float):
        raise TypeError(f"value must be a float, got {value!r}")
    return value


def over_seeds(cells: pl.DataFrame) -> pl.DataFrame:
    """The mean gain of each stream: one scenario of one network, over its seeds."""
    return cells.group_by("method", "batch_size", "model", "scenario").agg(pl.col("gain").mean())


def of(cells: pl.DataFrame, method: str, batch_size: int) -> pl.DataFrame:
    """The cells of a method at a batch size."""
    return cells.filter(method=method, batch_size=batch_size)


def by_data(cells: pl.DataFrame) -> list[list[str]]:
    """Mean gains, apart for data of which all classes occur and of which few do."""
    streams = over_seeds(cells)
    columns = {
        "Prudent, one by one": ("Prudent", 1),
        "in batches of 64": ("Prudent", 64),
        "LAME, in batches of 64": ("LAME", 64),
    }
    rows = [["", *columns]]
    for data, title in SETS.items():
        part = streams.filter(pl.col("scenario").str.starts_with(data))
        rows.append([title, *(signed(of(part, *at)["gain"].mean()) for at in columns.values())])
    lowest = (signed(of(streams, *at)["gain"].min()) for at in columns.values())
    return [*rows, ["the worst of all streams", *lowest]]


def by_batch(cells: pl.DataFrame) -> list[list[str]]:
    """LAME and Prudent at each batch size."""
    titles = ["LAME, mean", "worst stream", "Prudent, mean", "worst stream of Prudent"]
    rows = [["", *titles, "shuffled", "correlated", "NLL, correlated", "ECE, correlated"]]
    streams = over_seeds(cells)
    for size, title in BATCHES.items():
        row = [title]
        for method in ("LAME", "Prudent"):
            found = of(streams, method, size)["gain"]
            row += [signed(found.mean()), signed(found.min())]
        prudent = of(cells, "Prudent", size)
        correlated = prudent.filter(~UNORDERED)
        row += [signed(part["gain"].mean()) for part in (prudent.filter(UNORDERED), correlated)]
        rows.append([*row, signed(correlated["nll"].mean(), 2), signed(correlated["ece"].mean())])
    return rows


def by_method(cells: pl.DataFrame) -> list[list[str]]:
    """Every method: mean and worst gain over runs, changes of NLL and ECE."""
    found = (
        cells.filter(pl.col("method") != "Source")
        .group_by("method")
        .agg(pl.col("gain", "nll", "ece").mean(), worst=pl.col("gain").min(), runs=pl.len())
        .sort("gain", descending=True)
    )
    rows = [["method", "runs", "mean gain", "worst run", "NLL", "ECE"]]
    for row in found.iter_rows(named=True):
        shown = (signed(row["gain"]), signed(row["worst"]), signed(row["nll"], 2))
        title = TITLES.get(row["method"], row["method"])
        rows.append([title, str(row["runs"]), *shown, signed(row["ece"])])
    return rows


def of_videos(cells: pl.DataFrame) -> list[list[str]]:
    """Gains on videos, frame by frame."""
    rows = [["", "source", *VIDEO]]
    for scenario, title in {
        "videos": "seven videos in order (five orders)",
        "videos_alone": "a video at a time",
    }.items():
        for models, half in ((CHOSEN, "EN-Lite0, chosen half"), (REPORTED, "EN-Lite1 and 2")):
            part = cells.filter(pl.col("model").is_in(models) & (pl.col("scenario") == scenario))
            shown = (signed(part.filter(method=method)["gain"].mean()) for method in VIDEO)
            rows.append([f"{title}, {half}", f"{as_float(part['source'].mean()):.1f}", *shown])
    return rows


def of_tracks(cells: pl.DataFrame) -> list[list[str]]:
    """Gains on tracks of one object."""
    methods = ["Memory (track)", "Majority", "Product", "Average", "Prudent"]
    rows = [["", *methods]]
    for scenario, title in {
        "tracks_5": "five CIFAR-10 images a track",
        "tracks_20": "twenty photographs a track",
    }.items():
        part = cells.filter(pl.col("scenario") == scenario)
        rows.append([title, *(signed(part.filter(method=m)["gain"].mean()) for m in methods)])
    return rows


def of_kernels(cells: pl.DataFrame) -> list[list[str]]:
    """Accuracy of LAME's kernels by batch size, shuffled and by class."""
    orders = {"kernel_iid": "i.i.d.", "kernel_by_class": "by class"}
    titles = [f"{kernel}, {order}" for order in orders.values() for kernel in KERNELS.values()]
    rows = [["batch size", *titles]]
    for size in (16, 64, 256):
        part = cells.filter(pl.col("batch_size") == size)
        found = (
            part.filter(scenario=s, method=m)["accuracy"].mean() for s in orders for m in KERNELS
        )
        rows.append([str(size), *(f"{as_float(value):.1f}" for value in found)])
    return rows


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
        unordered = wide.select(UNORDERED).to_series()
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
        if data == "photos":
            for i, method in enumerate(SHOWN):
                if np.isnan(values[i]).any():
                    values[i] = MEASURED[method]
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
