"""What is known of the data behind results: from the banks and the manifests in their folder."""

from contextlib import suppress

import numpy as np
import polars as pl

from lametta.bench.results import Results, read_json
from lametta.bench.tables.used import describe
from lametta.bench.workspace import Workspace
from lametta.data.bank.bank import Bank
from lametta.types import Array, LamettaError

_SCHEMA = {
    **dict.fromkeys(("dataset", "used_for", "description"), pl.String()),
    **dict.fromkeys(("classes", "all_classes", "groups", "samples"), pl.Int64()),
}


def find_bank(results: Results, dataset: str) -> Bank | None:
    """What some network said of a data set, if the run left it in the folder."""
    workspace = Workspace(results.experiment, results.folder)
    for model in results.experiment.models:
        with suppress(LamettaError):
            return workspace.bank(model, dataset)
    return None


def stream_classes(results: Results, fingerprint: str) -> Array | None:
    """The class of each sample of a stream [M]; None without the bank that it was drawn from.

    The stream is made anew; if its fingerprint is another, the data are no longer the same.
    """
    rows = results.frame.filter(fingerprint=fingerprint)
    if rows.is_empty():
        return None
    row = rows.row(0, named=True)
    scenario = results.experiment.scenarios[row["scenario"]]
    bank = find_bank(results, scenario.dataset)
    if bank is None or bank.labels is None:
        return None
    stream = scenario.scenario(row["batch_size"], row["seed"])(
        bank.labels, bank.groups, keys=bank.keys
    )
    return bank.labels[stream.index] if stream.fingerprint == fingerprint else None


def count_datasets(results: Results) -> pl.DataFrame:
    """The data sets that were run, as `lametta.bench.tables.datasets` takes them.

    Samples are counted in the banks or, without them, read from the manifests of the streams.
    Classes and groups are in the banks alone.
    """
    experiment = results.experiment
    validating = {*experiment.validation.scenarios}
    rows = []
    for name, spec in experiment.datasets.items():
        scenarios = {
            key for key, scenario in experiment.scenarios.items() if scenario.dataset == name
        }
        cells = results.frame.filter(pl.col("scenario").is_in([*scenarios]))
        if cells.is_empty():
            continue
        ran = {*cells["scenario"]}
        used = [("validation", ran & validating), ("test", ran - validating)]
        bank = find_bank(results, name)
        row = {
            "dataset": name,
            "used_for": ", ".join(phase for phase, some in used if some),
            "description": describe(spec),
            "samples": _n_samples(results, cells["fingerprint"][0]) if bank is None else len(bank),
        }
        if bank is not None and bank.labels is not None:
            row |= {"classes": len(np.unique(bank.labels)), "all_classes": bank.n_classes}
        if bank is not None and bank.groups is not None:
            row["groups"] = len(np.unique(bank.groups))
        rows.append(row)
    return pl.DataFrame(rows, schema=_SCHEMA)


def _n_samples(results: Results, fingerprint: str) -> int | None:
    """The size of the data set that a stream was drawn from, as its manifest says."""
    file = results.folder / "streams" / f"{fingerprint}.json"
    with suppress(LamettaError):
        n = read_json(file).get("n_samples")
        return n if isinstance(n, int) else None
    return None
