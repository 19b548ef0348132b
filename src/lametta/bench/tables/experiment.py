"""Tables of selected configurations, data sets and published numbers."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import polars as pl

from lametta.bench.analysis.paper import METHODS
from lametta.bench.experiment.schema import DatasetSpec
from lametta.bench.tables import Entry, Table, number, percent


def selected(
    params: Mapping[str, Mapping[str, object]], table: pl.DataFrame | None = None
) -> Table:
    """The configuration that the validation scenarios chose for each method.

    Parameters
    ----------
    params : mapping
        The parameters of each method.
    table : DataFrame, optional
        As `lametta.bench.analysis.selection.Selection` has it.

    Examples
    --------
    >>> print(selected({"LAME": {"k": 5}, "Source": {}}).markdown())
    | method | configuration |
    |---|---|
    | LAME | k = 5 |
    | Source | as it is |
    """
    known = {} if table is None else {row["method"]: row for row in table.iter_rows(named=True)}
    rows = [
        [
            Entry(method),
            Entry(format_params(config)),
            *(_validated(known.get(method)) if known else ()),
        ]
        for method, config in params.items()
    ]
    extra = ["validation accuracy (%)", "gain", "runner-up", "its accuracy (%)"] if known else []
    data = pl.DataFrame(
        {"method": list(params), "config": [json.dumps(config) for config in params.values()]}
    )
    title = "Chosen on the validation scenarios"
    return Table("selected", title, ["method", "configuration", *extra], rows, data)


def _validated(row: Mapping[str, Any] | None) -> list[Entry]:
    """Accuracy and gain of the chosen configuration, how the second best differs, its accuracy."""
    entries = [Entry("")] * 4
    if row is None:
        return entries
    entries[0] = Entry(percent(row["accuracy"]))
    if (gain := row["gain"]) is not None:
        entries[1] = Entry(percent(gain, signed=True), 100 * gain)
    if row["runner_up"] is not None:
        chosen, second = json.loads(row["config"]), json.loads(row["runner_up"])
        other = {name: value for name, value in second.items() if chosen.get(name) != value}
        entries[2:] = Entry(format_params(other)), Entry(percent(row["runner_up_accuracy"]))
    return entries


def label_free(costs: pl.DataFrame) -> Table:
    """What a choice without labels costs each method, in points: the mean and, below, the worst.

    Parameters
    ----------
    costs : DataFrame
        As `lametta.bench.analysis.selection.label_free` gives them.

    Examples
    --------
    >>> row = {"method": "TENT", "rule": "entropy", "scenario": "video", "config": "{}"}
    >>> row |= {"model": "net", "accuracy": 0.5, "oracle": 0.75, "cost": 0.25}
    >>> print(label_free(pl.DataFrame([row])).markdown().splitlines()[2])
    | TENT | 75.0 | 25.0 |
    """
    data = costs.group_by("method", "rule", maintain_order=True).agg(
        pl.col("oracle", "accuracy", "cost").mean(),
        pl.col("cost").max().alias("worst_cost"),
        worst_scenario=pl.col("scenario").get(pl.col("cost").arg_max()),
    )
    rules = list(dict.fromkeys(data["rule"]))
    entries = {(row["method"], row["rule"]): _cost(row) for row in data.iter_rows(named=True)}
    best = dict(data.select("method", "oracle").iter_rows())
    rows = [
        [
            Entry(method),
            Entry(percent(best[method])),
            *(entries.get((method, rule), Entry("")) for rule in rules),
        ]
        for method in best
    ]
    footnote = (
        "Oracle: the accuracy (%) of the configuration that is best on the very stream, by its "
        "labels. The others: how many points less the choice by a rule has, on average over the "
        "validation scenarios, and at worst. Chance: any configuration."
    )
    title = "What a choice without labels costs (points)"
    return Table("label_free", title, ["method", "oracle", *rules], rows, data, footnote)


def _cost(row: Mapping[str, Any]) -> Entry:
    worst = f"{percent(row['worst_cost'])} in {row['worst_scenario']}" if row["worst_cost"] else ""
    return Entry(percent(row["cost"]), note=worst)


def format_params(params: Mapping[str, object]) -> str:
    """Parameters as a reader sees them.

    Examples
    --------
    >>> format_params({"affinity": "knn", "k": 5})
    'affinity = knn, k = 5'
    """
    return ", ".join(f"{name} = {value}" for name, value in params.items()) or "as it is"


def datasets(counts: pl.DataFrame) -> Table:
    """The data sets and their counts: the paper's Table 2.

    Parameters
    ----------
    counts : DataFrame
        For each ``dataset`` what it is ``used_for``, its ``description``, and how many ``classes``
        occur in it, of ``all_classes`` that are told apart, in how many ``groups`` (videos or
        corruptions) and ``samples``; null where that is not known.

    Examples
    --------
    >>> row = {"dataset": "videos", "used_for": "test", "description": "videos:video"}
    >>> row |= {"classes": 7, "all_classes": 1000, "groups": 7, "samples": 427}
    >>> print(datasets(pl.DataFrame([row])).markdown())
    | data set | used for | what it is | classes | groups | samples |
    |---|---|---|---:|---:|---:|
    | videos | test | videos:video | 7 of 1,000 | 7 | 427 |
    """
    rows = [
        [
            Entry(row["dataset"]),
            Entry(row["used_for"]),
            Entry(row["description"]),
            Entry(_classes(row["classes"], row["all_classes"])),
            Entry(_count(row["groups"])),
            Entry(_count(row["samples"])),
        ]
        for row in counts.iter_rows(named=True)
    ]
    header = ["data set", "used for", "what it is", "classes", "groups", "samples"]
    return Table("datasets", "Data sets, with counts of what was read", header, rows, counts)


def card(content: Mapping[str, Any]) -> Table:
    """The protocol card of a run: all that has to be equal before numbers can be compared.

    Parameters
    ----------
    content : mapping
        As `lametta.bench.running.card.protocol_card` gives it.

    Examples
    --------
    >>> net = {"network": "embedded:digits", "weights": "its own", "weights_sha256": "5f1c" * 16}
    >>> content = {"models": {"net": net | {"preprocessing": None}}, "batch_sizes": [64]}
    >>> print(card(content).markdown())
    | what | which |
    |---|---|
    | network net | embedded:digits; weights its own, SHA-256 5f1c5f1c5f1c5f1c; pixels as they are |
    | batch size | 64 |
    """
    lines = [
        (f"{what} {name}".strip(), say(part))
        for key, (what, say) in _CARD.items()
        # Of models, data sets and so on there may be several, by their names.
        for name, part in _by_name(content.get(key))
    ]
    rows = [[Entry(what), Entry(which)] for what, which in lines]
    data = pl.DataFrame(lines, {"what": pl.String(), "which": pl.String()}, orient="row")
    return Table("card", "Protocol card", ["what", "which"], rows, data)


def _by_name(part: object) -> Iterable[tuple[str, Any]]:
    if isinstance(part, Mapping):
        return part.items()
    return [("", part)] if part else []


def _network(model: Mapping[str, Any]) -> str:
    pixels = model["preprocessing"]
    shown = "pixels as they are" if pixels is None else format_params(pixels)
    weights = f"weights {model['weights']}, SHA-256 {model['weights_sha256'][:16]}"
    return f"{model['network']}; {weights}; {shown}"


def _dataset(data: Mapping[str, Any]) -> str:
    counts = sorted(set(data["images_a_domain"].values()))
    each = " to ".join(f"{n:,}" for n in dict.fromkeys((counts[0], counts[-1])))
    domains = f"{data['domains']} domain{'s' * (data['domains'] > 1)}"
    text = f"{data['reader']}; {domains} of {each} images"
    if unknown := data.get("unknown_samples"):
        text += f"; {unknown:,} of them of unknown classes, {data['unknown']['reader']}"
    return text


def _stream(scenario: Mapping[str, Any]) -> str:
    order = format_params(scenario["order"])
    text = f"{scenario['dataset']}; {order}; {scenario['samples']:,} samples"
    return f"{text}; reset: {scenario['resets']}"


def _method(method: Mapping[str, Any]) -> str:
    answers = f"; answers {method['answers']} its update" if method["answers"] else ""
    text = f"{method['kind']}: {format_params(method['params'])}{answers}"
    return f"{text}; tuned on {method['tuned_on']}"


def _numbers(values: Sequence[object]) -> str:
    return ", ".join(map(str, values))


_CARD: Mapping[str, tuple[str, Callable[[Any], str]]] = {
    "citation": ("protocol", str),
    "models": ("network", _network),
    "datasets": ("data set", _dataset),
    "scenarios": ("stream", _stream),
    "batch_sizes": ("batch size", _numbers),
    "seeds": ("seeds", _numbers),
    "methods": ("method", _method),
    "metric": ("metric", str),
    "interval": ("interval", str),
}
"""The parts of a protocol card, in order: what a line calls each, and how it says it."""


def describe(spec: DatasetSpec) -> str:
    """What a data set is made of, in words.

    Examples
    --------
    >>> describe(DatasetSpec(reader="folder:photos", part=[1, 4], corruptions=["fog", "snow"]))
    'folder:photos, every 4th from the 2nd, fog and snow at severity 5'
    """
    words = [spec.reader]
    if spec.part is not None:
        first, step = spec.part
        words.append(f"every {_ordinal(step)} from the {_ordinal(first + 1)}")
    if spec.most is not None:
        words.append(f"at most {spec.most:,}")
    if spec.corruptions is not None:
        names = spec.corruptions
        kinds = " and ".join(names) if len(names) < 3 else f"{len(names)} corruptions"
        words.append(f"{kinds} at severity {spec.severity}")
    if spec.unknown is not None:
        words.append(f"with unknown {spec.unknown.reader}")
    if targets := spec.targets or spec.classes:
        words.append(f"{len(targets)} super-classes")
    return ", ".join(words)


def _ordinal(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n}{ending}"


def _count(n: int | None) -> str:
    return "" if n is None else f"{n:,}"


def _classes(n: int | None, of: int | None) -> str:
    return _count(n) if n == of or of is None else f"{_count(n)} of {_count(of)}"


def ours_and_papers(numbers: pl.DataFrame) -> Table:
    """Our numbers and the paper's, one column a method.

    Parameters
    ----------
    numbers : DataFrame
        As `lametta.bench.analysis.paper.join_published` gives them.

    Examples
    --------
    >>> row = {"quantity": "accuracy (%)", "of": "RN-50", "method": "LAME", "ours": 50, "paper": 55}
    >>> print(ours_and_papers(pl.DataFrame([row])).markdown())
    | ours / the paper's | LAME |
    |---|---:|
    | accuracy (%), RN-50 | 50.0 / 55.0 |
    """
    entries = {
        (quantity, of, method): _entry(quantity, ours, paper)
        for quantity, of, method, ours, paper in numbers.iter_rows()
    }
    methods = [name for name in METHODS if name in set(numbers["method"])]
    rows = [
        [Entry(f"{quantity}, {of}"), *(entries.get((quantity, of, m), Entry("")) for m in methods)]
        for quantity, of in dict.fromkeys(numbers.select("quantity", "of").iter_rows())
    ]
    header = ["ours / the paper's", *methods]
    return Table("paper", "Our numbers and the paper's", header, rows, numbers)


def _entry(quantity: str, ours: float, paper: float) -> Entry:
    if quantity.startswith("seconds"):  # where less is better, and one decimal says nothing
        return Entry(f"{ours:.3f} / {paper:.2f}")
    return Entry(f"{number(ours)} / {number(paper)}", ours - paper)
