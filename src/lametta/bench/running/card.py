"""Protocol card: what has to be equal before two people's numbers can be compared."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

import numpy as np

from lametta.bench.experiment import Cell
from lametta.bench.experiment.schema import source_data
from lametta.bench.running.workspace import Workspace
from lametta.data.bank.extraction import weights_hash
from lametta.methods import find
from lametta.stream import Stream

_MOST_DOMAINS = 100  # that are counted one by one: corruptions rather than videos
METRIC = "accuracy: the share of a stream's samples that are right; its error is the rest"
INTERVAL = (
    "95 % of a mean over seeds, of gains on the same streams: it covers the draw of the streams, "
    "not that of images, corruptions, weights or a method's own random numbers"
)


def protocol_card(
    workspace: Workspace, cells: Sequence[Cell], selected: Mapping[str, Mapping[str, object]]
) -> dict[str, object]:
    """What results depend on beside the methods, as plain values for JSON.

    Most results that cannot be reproduced differ in one of these: weights and preprocessing, images
    a domain, the order, resets, the batch size, whether a method answers before or after its
    update, what it was tuned on, the metric and what its interval covers.

    Parameters
    ----------
    workspace : Workspace
        The experiment with its data.
    cells : sequence of Cell
        What is run, studies first.
    selected : mapping
        The parameters that the validation chose, by method.
    """
    experiment = workspace.experiment
    scenarios = {cell.scenario: experiment.scenarios[cell.scenario] for cell in cells}
    datasets = dict.fromkeys(spec.dataset for spec in scenarios.values())
    datasets |= {name: None for cell in cells for name in source_data(cell.params).values()}
    by_scenario, by_method = (_first_by(name, cells) for name in ("scenario", "method"))
    return {
        "experiment": experiment.name,
        "citation": experiment.citation,
        "models": {
            name: _model(workspace, name) for name in dict.fromkeys(cell.model for cell in cells)
        },
        "datasets": {name: _dataset(workspace, name) for name in datasets},
        "scenarios": {
            name: {"dataset": spec.dataset, **spec.identity()}
            | _stream(workspace, by_scenario[name])
            for name, spec in scenarios.items()
        },
        "batch_sizes": sorted({cell.batch_size for cell in cells}),
        "seeds": sorted({cell.seed for cell in cells}),
        "methods": {
            name: {**_method(cell), "tuned_on": _tuned_on(workspace, name, selected)}
            for name, cell in by_method.items()
        },
        "metric": METRIC,
        "interval": INTERVAL,
    }


def _method(cell: Cell) -> dict[str, object]:
    return {
        "kind": cell.kind,
        "params": {key: _as_named(key, value) for key, value in cell.params.items()},
        "answers": find(cell.kind).answers(cell.params) or "",
    }


def _first_by(name: str, cells: Iterable[Cell]) -> dict[str, Cell]:
    """The first cell of each: those of studies, where there are any."""
    found: dict[str, Cell] = {}
    for cell in cells:
        found.setdefault(getattr(cell, name), cell)
    return found


def _as_named(key: str, value: object) -> object:
    """The name that layers have now, where ids of cells hash an older one."""
    return "norms" if value == "everything" and key.rpartition(".")[2] == "layers" else value


def _model(workspace: Workspace, name: str) -> dict[str, object]:
    spec, (net, preprocess) = workspace.experiment.models[name], workspace.network(name)
    return {
        "network": spec.zoo,
        "weights": spec.weights or "its own",
        "weights_sha256": weights_hash(net),
        **spec.computed,
        "preprocessing": None if preprocess is None else asdict(preprocess),
    }


def _dataset(workspace: Workspace, name: str) -> dict[str, object]:
    data, spec = workspace.dataset(name), workspace.experiment.datasets[name]
    groups, counts = np.unique(
        np.array(["all"] * len(data)) if data.groups is None else np.asarray(data.groups, str),
        return_counts=True,
    )
    few = len(groups) <= _MOST_DOMAINS
    return {
        **spec.identity(),
        "samples": len(data),
        "classes": data.n_known,
        "unknown_samples": int((np.asarray(data.labels) == data.n_known).sum()),
        "domains": len(groups),
        "images_a_domain": dict(zip(groups.tolist(), counts.tolist(), strict=True))
        if few
        else {"least": int(counts.min()), "most": int(counts.max())},
        "fingerprint": data.fingerprint,
    }


def _stream(workspace: Workspace, cell: Cell) -> dict[str, object]:
    """How long a stream is and what is reset in it, by that of the first seed."""
    spec = workspace.experiment.scenarios[cell.scenario]
    data = workspace.dataset(spec.dataset)
    stream: Stream = spec.scenario(cell.batch_size, cell.seed)(data.labels, data.groups)
    streams = len(set(stream.ids))
    resets = "never"
    if streams > 1:
        resets = f"each of {streams} streams begins anew"
    return {"samples": len(stream.index), "resets": resets}


def _tuned_on(
    workspace: Workspace, method: str, selected: Mapping[str, Mapping[str, object]]
) -> str:
    experiment, phase = workspace.experiment, workspace.experiment.validation
    tried = experiment.methods[method].n_configurations
    if method not in phase.methods or tried == 1:
        return "nothing here: parameters are those of the file"
    if method not in selected:
        return f"not yet: {tried} configurations"
    where = ", ".join(phase.scenarios)
    return f"{tried} configurations on {where}; networks {', '.join(phase.models)}"
