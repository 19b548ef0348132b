"""Cross-reference checks of an experiment: names, grids, sizes."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

from lametta import methods
from lametta._checks import check_choice
from lametta.bench.experiment.errors import ConfigError, expected
from lametta.bench.experiment.schema import source_data
from lametta.registry import is_third_party
from lametta.types import LamettaError

if TYPE_CHECKING:
    from lametta.bench.experiment import Experiment
    from lametta.bench.experiment.schema import MethodSpec, Study, Validation

_MOST_CONFIGURATIONS = 10_000  # of a method; the paper's have at most 54
_MOST_CELLS = 1_000_000


def check_references(experiment: "Experiment", check: str) -> list[ConfigError]:
    """Find what does not fit together in an experiment whose tables are each valid."""
    check_choice("check", check, ("ours", "all", "none"))
    if problems := list(_sizes(experiment)):
        return problems  # the other checks go through all configurations
    found = [*_sources(experiment), *_parameters(experiment, check), *_references(experiment)]
    if check != "none":
        found += _compiled(experiment)
    return list(dict.fromkeys(found)) or [*_unselected(experiment), *_timed(experiment)]


def _sizes(experiment: "Experiment") -> Iterator[ConfigError]:
    """A mistake in a grid can make more cells than anyone can count to, let alone run."""
    counts = {name: method.n_configurations for name, method in experiment.methods.items()}
    for name, n in counts.items():
        if n > _MOST_CONFIGURATIONS:
            message = f"must make at most {_MOST_CONFIGURATIONS} configurations, got {n}"
            yield ConfigError(("methods", name, "grid"), message)
    for keys, phase in _phases(experiment):
        chosen = len(phase.methods)  # one configuration of each
        every = sum(counts.get(name, 1) for name in phase.methods)
        lists = (phase.models, phase.scenarios, phase.seeds, phase.batch_sizes)
        n = math.prod(map(len, lists)) * (every if keys == ("validation",) else chosen)
        if n > _MOST_CELLS:
            yield ConfigError(keys, f"must have at most {_MOST_CELLS} cells, got {n}")


def _sources(experiment: "Experiment") -> Iterator[ConfigError]:
    """There is one baseline, which gains are counted from."""
    n = sum(method.kind == "source" for method in experiment.methods.values())
    if n != 1:
        yield ConfigError(("methods",), f"must have one method of kind 'source', got {n}")


def _compiled(experiment: "Experiment") -> Iterator[ConfigError]:
    """What a compiler has made of a network does not look at what a method changes in it."""
    compiled = [name for name, model in experiment.models.items() if model.compile]
    for name, method in experiment.methods.items():
        if compiled and method.kind != "source" and methods.find(method.kind).needs_network:
            message = f"must be false where a method adapts the network, got true with {name}"
            yield ConfigError(("models", compiled[0], "compile"), message)


def check_selected(experiment: "Experiment", selected: Mapping[str, Mapping[str, object]]) -> None:
    """Raise unless the methods take what was selected, perhaps by a person."""
    for name in selected.keys() & experiment.methods.keys():
        method = methods.find(experiment.methods[name].kind)
        for key, message in method.param_errors(selected[name]):
            raise LamettaError(f"selected must fit {name}, got {key}: {message}")


def _parameters(experiment: "Experiment", check: str) -> Iterator[ConfigError]:
    for name, method in experiment.methods.items():
        in_grids = {key for grid in method.grid for key in grid}
        for key in in_grids & method.params.keys():
            yield ConfigError(("methods", name, "grid", key), "must not be in params too, got both")
        if check == "all" or (check == "ours" and _is_ours(method)):
            for keys, message in _values(method, in_grids):
                yield ConfigError(("methods", name, *keys), message)
        configs = experiment.configs(name)
        if len(set(configs)) < len(configs):
            message = "must give each configuration once, got more"
            yield ConfigError(("methods", name, "grid"), message)


def _values(method: "MethodSpec", in_grids: set[str]) -> Iterator[tuple[tuple[str, ...], str]]:
    """What a method says against its parameters, in whichever of its tables they stand."""
    try:
        found = methods.find(method.kind)
    except LamettaError as error:
        yield ("kind",), str(error).removeprefix("method ")
        return
    for key, message in chain.from_iterable(map(found.param_errors, method.configurations())):
        yield ("grid" if key in in_grids else "params", key) if key else (), message


def _is_ours(method: "MethodSpec") -> bool:
    """Whether its parameters can be checked without third-party code, an affinity's say."""
    values = [
        *method.params.values(),
        *(x for grid in method.grid for xs in grid.values() for x in xs),
    ]
    return methods.is_builtin(method.kind) and not any(map(is_third_party, values))


def _references(experiment: "Experiment") -> Iterator[ConfigError]:
    for name, scenario in experiment.scenarios.items():
        yield from _defined(("scenarios", name, "dataset"), [scenario.dataset], experiment.datasets)
    for name, method in experiment.methods.items():
        for params in method.configurations():
            for option, data in source_data(params).items():
                table = "params" if option in method.params else "grid"
                yield from _defined(("methods", name, table, option), [data], experiment.datasets)
    if not experiment.studies and not experiment.validation.seeds:
        yield ConfigError((), "must have a validation or a study, got none")
    for keys, phase in _phases(experiment):
        yield from _named_by_phase(experiment, keys, phase)


def _named_by_phase(
    experiment: "Experiment", keys: tuple[str, ...], phase: "Validation | Study"
) -> Iterator[ConfigError]:
    yield from _defined((*keys, "models"), phase.models, experiment.models)
    yield from _defined((*keys, "scenarios"), phase.scenarios, experiment.scenarios)
    yield from _defined((*keys, "methods"), phase.methods, experiment.methods)
    kinds = {experiment.methods[m].kind for m in phase.methods if m in experiment.methods}
    if "source" not in kinds and phase.seeds:
        message = f"must have the method of kind 'source', got {', '.join(phase.methods)}"
        yield ConfigError((*keys, "methods"), message)


def _defined(
    keys: tuple[str, ...], names: Iterable[str], known: Iterable[str]
) -> list[ConfigError]:
    return [ConfigError(keys, expected(known, name)) for name in names if name not in known]


def _phases(experiment: "Experiment") -> Iterator[tuple[tuple[str, ...], "Validation | Study"]]:
    yield ("validation",), experiment.validation
    for name, study in experiment.studies.items():
        yield ("studies", name), study


def _unselected(experiment: "Experiment") -> Iterator[ConfigError]:
    """A study runs one configuration of each method, so somebody has to choose it."""
    for name, study in experiment.studies.items():
        for method in study.methods:
            n = len(experiment.configs(method))
            if n > 1 and method not in experiment.validation.methods:
                message = f"must be in validation.methods too, or have one configuration, got {n}"
                yield ConfigError(("studies", name, "methods"), f"{method!r} {message}")


def _timed(experiment: "Experiment") -> Iterator[ConfigError]:
    """In another phase too, cells that are timed or run on mirror images would be there twice."""
    studies = experiment.studies.values()
    timed = {name for study in studies if study.live for name in study.scenarios}
    validation = experiment.validation
    mirrored = validation.scenarios if validation.consistency else ()
    for keys, phase in _phases(experiment):
        for name in phase.scenarios:
            if name in timed and not phase.live:
                message = f"must not have what a timed study has, got {name!r}"
                yield ConfigError((*keys, "scenarios"), message)
            if name in mirrored and keys != ("validation",):
                message = f"must not have what validation.consistency is of, got {name!r}"
                yield ConfigError((*keys, "scenarios"), message)
