"""Published numbers beside ours.

Boudiaf, Mueller, Ben Ayed and Bertinetto, "Parameter-free Online Test-time Adaptation", CVPR 2022.
Accuracies and gains are in percent and in points; times are seconds a batch. `BY_BATCH_SIZE` and
`SECONDS` are read off plots, so they are approximate.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TypeAlias

import polars as pl

from lametta.bench.analysis import gains, summary
from lametta.bench.columns import names

Numbers: TypeAlias = Mapping[str, tuple[float, ...]]

TRAININGS = ("original", "torchvision", "SimCLR")
BY_TRAINING: Numbers = {
    "Source": (52.07, 53.39, 47.68),
    "PseudoLabel": (52.17, 45.53, 47.67),
    "SHOT-IM": (52.11, 50.77, 47.64),
    "TENT": (49.74, 28.54, 37.00),
    "AdaBN": (49.31, 50.43, 41.07),
    "LAME": (55.70, 57.74, 51.46),
}
"""Accuracy of a ResNet-50 by how it was trained: mean of the 7 test scenarios, batches of 16."""

ARCHITECTURES = ("RN-18", "RN-50", "RN-101", "EN-B4", "ViT-B")
BY_ARCHITECTURE: Numbers = {
    "Source": (47.28, 52.07, 54.93, 62.67, 67.69),
    "PseudoLabel": (33.13, 52.17, 55.17, 59.64, 69.86),
    "SHOT-IM": (42.95, 52.11, 54.98, 59.64, 65.33),
    "TENT": (28.59, 49.74, 53.04, 53.27, 54.00),
    "LAME": (51.46, 55.70, 58.79, 66.17, 71.22),
}
"""Accuracy by architecture: mean of the 7 test scenarios, batches of 16."""

BATCH_SIZES = (16, 32, 64, 128)
BY_BATCH_SIZE: Numbers = {
    "Source": (52.2, 52.2, 52.2, 52.2),
    "PseudoLabel": (52.4, 52.3, 52.3, 53.1),
    "SHOT-IM": (52.2, 52.2, 52.2, 53.1),
    "TENT": (49.8, 51.6, 52.2, 52.3),
    "AdaBN": (49.3, 49.9, 50.4, 50.9),
    "LAME": (56.1, 56.1, 56.0, 55.7),
}
"""Accuracy of the original ResNet-50 by batch size: mean of the 7 test scenarios, approximate."""

SECONDS: Numbers = {
    "TENT": (0.19, 0.34, 0.53, 0.42, 0.67),
    "LAME": (0.09, 0.15, 0.22, 0.20, 0.34),
}
"""Seconds a batch by architecture, in the order of `ARCHITECTURES`: approximate."""

NON_IID = {
    "Source": 53.6,
    "PseudoLabel": 53.6,
    "SHOT-IM": 53.6,
    "TENT": 52.6,
    "AdaBN": 50.2,
    "LAME": 60.3,
}
"""Accuracy of the original ResNet-50: mean of the 3 non-i.i.d. test scenarios, batches of 64."""

WORST = {"LAME": -1.2, "TENT": -66.0}
"""The lowest gain of a configuration in a validation scenario that it was not tuned on."""

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
_STUDIES: Mapping[str, tuple[str, str, tuple[object, ...], Numbers]] = {
    "radar_trainings": ("accuracy (%)", "training", TRAININGS, BY_TRAINING),
    "radar_architectures": ("accuracy (%)", "architecture", ARCHITECTURES, BY_ARCHITECTURE),
    "batch_size": ("accuracy (%)", "batch_size", BATCH_SIZES, BY_BATCH_SIZE),
    "runtime": ("seconds a batch", "architecture", ARCHITECTURES, SECONDS),
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


def _published() -> Iterator[tuple[str, str, str, str, float]]:
    """The paper's numbers: study, quantity, of what (a batch size, say), method and value."""
    at_64 = {name: values[BATCH_SIZES.index(64)] for name, values in BY_BATCH_SIZE.items()}
    for of, means in (("all scenarios", at_64), ("non-i.i.d. scenarios", NON_IID)):
        for method, value in means.items():
            if method != "Source":
                yield "boxes", "mean gain (points)", of, method, value - means["Source"]
    for method, low in WORST.items():
        yield "cross_shift", "worst gain (points)", "where not tuned", method, low
    for study, (quantity, _, keys, table) in _STUDIES.items():
        for method, values in table.items():
            for key, value in zip(keys, values, strict=True):
                yield study, quantity, _of(study, key), method, value


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
        for study, quantity, of, method, paper in _published()
        if (key := _key(study, of, method)) in ours
    ]
    names = dict.fromkeys(("quantity", "of", "method"), pl.String)
    return pl.DataFrame(both, names | dict.fromkeys(("ours", "paper"), pl.Float64), orient="row")


def _key(study: str, of: object, method: str) -> tuple[str, str, str]:
    return study, normalize_name(str(of)), normalize_name(method)


def _of(study: str, key: object) -> str:
    return f"batches of {key}" if study == "batch_size" else str(key)


def _ours(study: str, frame: pl.DataFrame, source: str) -> pl.DataFrame:
    """Columns of what, method and value, as `_published` has them."""
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
    if study not in _STUDIES or paired.is_empty():
        return pl.DataFrame(schema=["of", "method", "value"])
    key = _STUDIES[study][1]
    means = summary(paired, [key, "method"]).with_columns(pl.col("accuracy") * 100)
    return means.select(
        pl.col(key).map_elements(partial(_of, study), pl.String), "method", "accuracy"
    )
