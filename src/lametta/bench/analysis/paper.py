"""Published numbers beside ours.

``bench/published.csv`` has those of Boudiaf, Mueller, Ben Ayed and Bertinetto, "Parameter-free
Online Test-time Adaptation", CVPR 2022. By training, architecture and batch size they are means
over the 7 test scenarios, in batches of 16; of box plots, in batches of 64. Those that are read off
a plot are approximate.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from importlib import resources

import polars as pl

from lametta.bench.analysis import gains, summary
from lametta.bench.columns import names

METHODS = ("Source", "PseudoLabel", "SHOT-IM", "TENT", "AdaBN", "LAME")
"""The paper's methods, in the order of its tables."""

FIGURES: Mapping[str, tuple[int, Mapping[str, int]]] = {
    "curves": (1, {"runs": 5, "samples a batch": 16}),
    "cross_shift": (3, {"scenarios": 12, "runs": 3}),
    "boxes": (4, {"scenarios": 7, "runs": 10, "samples a batch": 64}),
    "radar": (5, {"scenarios": 7, "runs": 10, "samples a batch": 16}),
    "runtime": (6, {"networks": 5}),
    "kernels": (8, {"networks": 5, "scenarios": 7, "runs": 10}),
    "batch_size": (9, {"scenarios": 7, "runs": 10, "networks": 1}),
}
"""The paper's number of each figure, and what it is drawn from. Figure 7 is a causal graph."""

_SYNONYMS = {"resnet": "rn", "efficientnet": "en", "vitb16": "vitb", "shotim": "shot"}
_COLUMNS = {  # whose means a study compares
    "radar_trainings": "training",
    "radar_architectures": "architecture",
    "batch_size": "batch_size",
}


def normalize_name(name: str) -> str:
    """A name without case, dashes and synonyms, so that the paper's names match ours.

    Examples
    --------
    >>> normalize_name("ResNet-50") == normalize_name("RN-50"), normalize_name("ViT-B/16")
    (True, 'vitb')
    """
    letters = "".join(letter for letter in name.lower() if letter.isalnum())
    for long, short in _SYNONYMS.items():
        letters = letters.replace(long, short)
    return letters


def differences(figure: str, frame: pl.DataFrame) -> str:
    """What a figure of the paper is drawn from, where these rows differ from it.

    It is a sentence to follow another, or empty.

    Parameters
    ----------
    figure : str
        A name in `FIGURES`.
    frame : DataFrame
        One row a cell.

    Examples
    --------
    >>> rows = pl.DataFrame({"model": "net", "scenario": ["a", "b"], "seed": 0, "batch_size": 64})
    >>> print("Accuracies." + differences("boxes", rows))
    Accuracies. The paper's Figure 4 has 7 scenarios (here 2), 10 runs (here 1).
    """
    number, facts = FIGURES[figure]
    columns = {"scenarios": "scenario", "runs": "seed", "networks": "model"}
    ours = {
        name: {frame[columns[name]].n_unique()} if name in columns else {*frame["batch_size"]}
        for name in facts
    }
    other = [
        f"{count} {name} (here {' and '.join(map(str, sorted(ours[name])))})"
        for name, count in facts.items()
        if ours[name] != {count}
    ]
    return f" The paper's Figure {number} has {', '.join(other)}." if other else ""


def published() -> pl.DataFrame:
    """The paper's numbers: study, quantity, of what (a batch size, say), method, value and source.

    Accuracies and gains are in percent and in points; times are seconds a batch.

    Examples
    --------
    >>> published().filter(study="radar_architectures", of="RN-50", method="LAME")["value"].item()
    55.7
    """
    with (resources.files("lametta.bench") / "published.csv").open("rb") as file:
        return pl.read_csv(file, schema_overrides={"value": pl.Float64})


def _comparable() -> pl.DataFrame:
    """The same, where the means of box plots are gains over the source."""
    numbers, boxes = published(), pl.col("study") == "boxes"
    of_source = pl.col("value").filter(method="Source").first().over("study", "of")
    gained = numbers.with_columns(value=pl.col("value") - of_source).filter(
        boxes, pl.col("method") != "Source"
    )
    return pl.concat(
        [gained.with_columns(quantity=pl.lit("mean gain (points)")), numbers.filter(~boxes)]
    )


def join_published(
    rows: Iterable[tuple[str, pl.DataFrame]], source: str = "Source"
) -> pl.DataFrame:
    """The paper's numbers with ours, where there are both.

    Parameters
    ----------
    rows : iterable of tuple of str and DataFrame
        Kinds of figures and their rows, one a cell, with the ``architecture`` and the ``training``
        of the model and whether the scenario is ``iid``; for ``"cross_shift"`` what that drew.
        Where a number occurs twice, the first counts.
    source : str
        The baseline.

    Examples
    --------
    >>> cells = {"method": "Source", "config": "{}", "model": "net", "scenario": "video", "seed": 0}
    >>> cells |= {"fingerprint": "5f1c", "batch_size": 16, "accuracy": 0.5, "architecture": "RN-50"}
    >>> join_published([("batch_size", pl.DataFrame([cells]))]).select("of", "ours", "paper").rows()
    [('batches of 16', 50.0, 52.2)]
    """
    ours: dict[tuple[str, str, str], float] = {}
    for study, frame in rows:
        for of, method, value in _ours(study, frame, source).iter_rows():
            ours.setdefault(_key(study, of, "Source" if method == source else method), value)
    both = [
        (quantity, of, method, ours[key], paper)
        for study, quantity, of, method, paper, _ in _comparable().iter_rows()
        if (key := _key(study, of, method)) in ours
    ]
    names = dict.fromkeys(("quantity", "of", "method"), pl.String)
    return pl.DataFrame(both, names | dict.fromkeys(("ours", "paper"), pl.Float64), orient="row")


def _key(study: str, of: object, method: str) -> tuple[str, str, str]:
    return study, normalize_name(str(of)), normalize_name(method)


def _of(study: str, key: object) -> str:
    return f"batches of {key}" if study == "batch_size" else str(key)


def _ours(study: str, frame: pl.DataFrame, source: str) -> pl.DataFrame:
    """Columns of what, method and value, as `published` has them."""
    if study == "cross_shift":
        elsewhere = frame.filter(pl.col("tuned_on") != pl.col("scenario"))
        lowest = elsewhere.group_by("method").agg(pl.col("gain").min())
        return lowest.select(pl.lit("where not tuned"), "method", "gain")
    if study == "runtime":
        stages = pl.sum_horizontal(names("stage"))
        timed = frame.filter(pl.col("forward_time").is_not_null())
        return timed.group_by("architecture", "method").agg(stages.mean().alias("seconds"))
    paired = gains(frame, source)
    if study == "boxes":
        parts = {"all scenarios": paired, "non-i.i.d. scenarios": paired.filter(~pl.col("iid"))}
        return pl.concat(
            summary(part).select(pl.lit(of), "method", pl.col("gain") * 100)
            for of, part in parts.items()
        )
    if study == "batch_size":  # which is of one network
        paired = paired.filter(
            pl.col("architecture").map_elements(normalize_name, pl.String) == "rn50"
        )
    if study not in _COLUMNS or paired.is_empty():
        return pl.DataFrame(schema=["of", "method", "value"])
    key = _COLUMNS[study]
    means = summary(paired, [key, "method"]).with_columns(pl.col("accuracy") * 100)
    return means.select(
        pl.col(key).map_elements(partial(_of, study), pl.String), "method", "accuracy"
    )
