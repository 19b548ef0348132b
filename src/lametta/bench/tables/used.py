"""The data sets of an experiment: what they are used for, and how much they hold."""

import polars as pl

from lametta.bench.specs import DatasetSpec
from lametta.bench.tables.table import Entry, Table


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
