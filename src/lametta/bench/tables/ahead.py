"""Which methods look ahead in a batch, and how tables say so."""

from collections.abc import Mapping

import polars as pl

from lametta.bench.tables.table import Entry

_FOOTNOTE = "† looks ahead: what it says of a sample may depend on later samples of the batch."


def looks_ahead(frame: pl.DataFrame) -> dict[str, bool]:
    """Whether each method looks ahead, where that is known: older results do not say it.

    In batches of one sample there is nothing ahead.

    Examples
    --------
    >>> runs = {"method": ["Source", "LAME"], "causal": [True, False], "batch_size": 64}
    >>> looks_ahead(pl.DataFrame(runs))
    {'Source': False, 'LAME': True}
    """
    if "causal" not in frame.columns:
        return {}
    ahead = (~pl.col("causal") & (pl.col("batch_size") > 1)).any()
    known = frame.filter(pl.col("causal").is_not_null())
    return dict(known.group_by("method", maintain_order=True).agg(ahead.alias("ahead")).iter_rows())


def marked(frame: pl.DataFrame, source: str) -> tuple[Mapping[str, Entry], str]:
    """The entry that names each method, and the footnote that explains the marks in them.

    Methods that look ahead have a mark where there are others, besides the source, that do not.

    Examples
    --------
    >>> runs = {"method": ["Source", "LAME", "average"], "causal": [True, False, True]}
    >>> entries, footnote = marked(pl.DataFrame(runs).with_columns(batch_size=64), "Source")
    >>> [entry.text for entry in entries.values()], footnote[:13]
    (['Source', 'LAME †', 'average'], '† looks ahead')
    """
    ahead = looks_ahead(frame)
    tells_apart = len({x for name, x in ahead.items() if name != source}) == 2
    names = dict.fromkeys(frame["method"])
    shown = {name for name in names if tells_apart and ahead.get(name)}
    entries = {name: Entry(f"{name} †" if name in shown else name) for name in names}
    return entries, _FOOTNOTE if shown else ""
