"""Experiment: a TOML file, its configurations and cells."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Self, get_args

from pydantic import Field, ValidationError, model_validator

from lametta._checks import check_choice
from lametta._files import PathLike
from lametta.bench.experiment.errors import StrictModel, config_error, errors_of, read_toml
from lametta.bench.experiment.references import check_references
from lametta.bench.experiment.schema import (
    COMPUTED,
    DatasetSpec,
    MethodSpec,
    ModelSpec,
    Params,
    Precision,
    ScenarioSpec,
    Study,
    Validation,
    source_data,
)
from lametta.types import LamettaError

# What files and folders of results are named by.
_FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.-]*$")]
_NO_VALIDATION = Validation.model_construct(models=(), scenarios=(), methods=(), seeds=())


@dataclass(frozen=True)
class Cell:
    """One method in one configuration on one stream.

    Attributes
    ----------
    method, model, scenario : str
        As the experiment calls them.
    kind : str
        Of the method.
    config : str
        Its parameters, as `canonical` writes them.
    seed, batch_size : int
        Of the stream.
    live : bool
        Whether the network runs even where a bank of its outputs would do: to be timed.
    id : str
        16 hexadecimal digits of a hash over all of this and what the names stand for.
    consistency : bool
        Whether it runs on the mirror images too, to see how often answers agree.

    Examples
    --------
    >>> Cell("LAME", "lame", '{"k": 3}', "net", "iid", 0, 64, False, "0123456789abcdef").params
    {'k': 3}
    """

    method: str
    kind: str
    config: str
    model: str
    scenario: str
    seed: int
    batch_size: int
    live: bool
    id: str
    consistency: bool = False

    @property
    def params(self) -> Params:
        """The parameters of the method."""
        params: Params = json.loads(self.config)
        return params


class Experiment(StrictModel):
    """An experiment: what there is, what is chosen from it, and what is run with the choice.

    ``precision`` and ``compile`` hold for models that do not say otherwise. `load` reads it from a
    file; ``experiments/demo.toml`` is one to start from.

    Examples
    --------
    >>> experiment = load(bundled("demo"))
    >>> experiment.source, len(experiment.validation.scenarios), list(experiment.studies)[0]
    ('Source', 12, 'main')
    """

    name: _FileName
    title: str = ""
    citation: str = ""  # of the protocol, for its card
    models: Annotated[dict[_FileName, ModelSpec], Field(min_length=1)]
    datasets: Annotated[dict[_FileName, DatasetSpec], Field(min_length=1)]
    scenarios: Annotated[dict[str, ScenarioSpec], Field(min_length=1)]
    methods: Annotated[dict[str, MethodSpec], Field(min_length=1)]
    validation: Validation = _NO_VALIDATION
    studies: dict[str, Study] = Field(default_factory=dict)
    precision: Precision = "float32"
    compile: bool = False

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, content: object) -> object:
        """Add what goes without saying: a key is its own label, and a phase runs all methods."""
        if not isinstance(content, dict):
            return content
        methods = content.get("methods")
        every: dict[str, object] = {"methods": list(methods)} if isinstance(methods, dict) else {}
        filled: dict[str, object] = {"title": str(content.get("name", "")), **content}
        shared = {name: content[name] for name in COMPUTED if name in content}
        for section, more in (("models", shared), ("scenarios", {})):
            if section in content:
                filled[section] = _each(content[section], partial(_labeled, more))
        filled["studies"] = _each(content.get("studies", {}), lambda key: every | {"title": key})
        filled["validation"] = _with(every, content.get("validation", _NO_VALIDATION))
        return filled

    @property
    def source(self) -> str:
        """The name of the baseline."""
        return next(name for name, method in self.methods.items() if method.kind == "source")

    def configurations(self, method: str) -> tuple[Params, ...]:
        """Give the parameters that a method can be run with, in the order of the file."""
        return tuple(self.methods[method].configurations())

    def configs(self, method: str) -> list[str]:
        """Give these parameters as text, as `canonical` writes them."""
        return [canonical(params) for params in self.configurations(method)]

    def only(self, *studies: str) -> Self:
        """Give the experiment with these studies alone, and the validation of their methods."""
        for name in studies:
            check_choice("study", name, self.studies)
        chosen = {name: study for name, study in self.studies.items() if name in studies}
        needed = {method for study in chosen.values() for method in study.methods}
        kept = tuple(method for method in self.validation.methods if method in needed)
        validation = self.validation.model_copy(update={"methods": kept})
        return self.model_copy(update={"studies": chosen, "validation": validation})

    def validation_cells(self) -> list[Cell]:
        """Give the cells that configurations are chosen by; none where nothing is to be chosen."""
        phase = self.validation
        configs = [(method, text) for method in phase.methods for text in self.configs(method)]
        return list(self._cells(phase, configs))

    def study_cells(self, study: str, selected: Mapping[str, Mapping[str, object]]) -> list[Cell]:
        """Give the cells of a study.

        Parameters
        ----------
        study : str
            Its name.
        selected : mapping of str to mapping
            The parameters that were chosen for each method; those with a single configuration
            need none.
        """
        phase = self.studies[study]
        configs = [(method, self._chosen(method, selected)) for method in phase.methods]
        return list(self._cells(phase, configs))

    def test_cells(self, selected: Mapping[str, Mapping[str, object]]) -> list[Cell]:
        """Give the cells of all studies, each once."""
        cells = (self.study_cells(study, selected) for study in self.studies)
        return list(dict.fromkeys(itertools.chain.from_iterable(cells)))

    def _source_identities(self, config: str) -> tuple[dict[str, object], ...]:
        """What the data sets that a configuration names stand for."""
        names = source_data(json.loads(config)).values()
        return tuple(self.datasets[name].identity() for name in names)

    def _chosen(self, method: str, selected: Mapping[str, Mapping[str, object]]) -> str:
        if method in selected:
            return canonical(selected[method])
        configs = self.configs(method)
        if len(configs) > 1:
            raise LamettaError(
                f"selected must have {method}, which has {len(configs)} configurations, "
                f"got {', '.join(selected) or 'none'}"
            )
        return configs[0]

    def _cells(
        self, phase: Validation | Study, configs: Iterable[tuple[str, str]]
    ) -> Iterator[Cell]:
        chosen = [(*pair, self._source_identities(pair[1])) for pair in configs]
        for model, scenario in itertools.product(phase.models, phase.scenarios):
            spec = self.scenarios[scenario]
            parts = (self.models[model], self.datasets[spec.dataset], spec)
            # If what the names stand for changes, so do the ids.
            definition = canonical([part.identity() for part in parts])
            for seed, size, (method, config, identities) in itertools.product(
                phase.seeds, phase.batch_sizes, chosen
            ):
                kind = self.methods[method].kind
                rest = (config, model, scenario, seed, size, phase.live)
                # As canonical([[...], *key]) is, but for thousands of cells the parts are long.
                # Ids without either of these stay.
                more = (("consistency",) if phase.consistency else ()) + identities
                key = _encode((method, _kind_as_stored(kind), *rest, *more))
                text = f"[{definition}, {key[1:-1]}]"
                id_ = hashlib.sha256(text.encode()).hexdigest()[:16]
                yield Cell(method, kind, *rest, id=id_, consistency=phase.consistency)


_encode = json.JSONEncoder(ensure_ascii=False).encode


def canonical(value: object) -> str:
    """Write parameters as JSON, the same for all ways to say the same.

    Examples
    --------
    >>> canonical({"lr": 1.0, "layers": "norms"})
    '{"layers": "everything", "lr": 1}'
    """
    plain = json.loads(json.dumps(value), parse_float=_number)
    if isinstance(plain, dict):
        plain = {key: _as_stored(key, item) for key, item in plain.items()}
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)


# Ids of cells hash the names that methods had when results were first stored, and ROID came after
# its prior correction, which had its name.
_STORED = {"prior_correction": "roid", "roid": "roid_network"}


def _kind_as_stored(kind: str) -> str:
    return "+".join(_STORED.get(part, part) for part in kind.split("+"))


def _as_stored(key: str, value: object) -> object:
    """The name that layers had when results were first stored: ids of cells hash it."""
    return "everything" if value == "norms" and key.rpartition(".")[2] == "layers" else value


def json_schema() -> dict[str, Any]:
    """The JSON Schema of an experiment's file, for editors and other programs.

    It knows keys, types and names. What refers to what, `load` alone can tell.

    Examples
    --------
    >>> sorted(json_schema()["required"])
    ['datasets', 'methods', 'models', 'name', 'scenarios']
    """
    schema = Experiment.model_json_schema()
    for table in (schema, *schema["$defs"].values()):
        table["description"] = table["description"].partition("\n")[0]
        # What goes without saying: a phase runs all methods.
        if "seeds" in table["properties"]:
            table["required"].remove("methods")
        for key in table["properties"].values():
            key.pop("title", None)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def load(
    path: PathLike, *, check: str = "ours", given: Mapping[str, object] | None = None
) -> Experiment:
    """Read an experiment from a TOML file.

    Parameters
    ----------
    path : path
        The file.
    check : {"ours", "all", "none"}
        Whose methods to import so that their parameters can be checked: lametta's own, those of
        other packages too, which runs the code of these, or nobody's.
    given : mapping, optional
        Keys of the file's first table that it must not have itself.

    Raises
    ------
    LamettaError
        With a line for each thing that is wrong: the file, the key, what was expected and what
        came.

    Examples
    --------
    >>> load("no/such.toml")
    Traceback (most recent call last):
    lametta.types.LamettaError: no such file: 'no/such.toml'
    """
    path = Path(path)
    content = read_toml(path)
    if twice := (given or {}).keys() & content.keys():
        name = sorted(twice)[0]
        raise LamettaError(f"{name} must be left out, got it for {path}, which has a {name}")
    content |= given or {}
    try:
        experiment = Experiment.model_validate(content)
    except ValidationError as error:
        problems = errors_of(error, _known)
    else:
        problems = check_references(experiment, check)
        if not problems:
            return experiment
    raise config_error(path, problems)


def bundled(name: str) -> Path:
    """Find an experiment that comes with lametta.

    Parameters
    ----------
    name : str
        Of the file, without ``.toml``.

    Examples
    --------
    >>> bundled("demo").name
    'demo.toml'
    """
    folder = Path(str(resources.files("lametta.bench"))) / "experiments"
    check_choice("name", name, sorted(file.stem for file in folder.glob("*.toml")))
    return folder / f"{name}.toml"


def _known(keys: tuple[str, ...]) -> Iterable[str]:
    """The fields of the table that the last of the keys is in."""
    if len(keys) == 1:
        return Experiment.model_fields
    section = Experiment.model_fields[keys[0]].annotation
    *_, table = get_args(section) or (section,)
    return list(table.model_fields)


def _labeled(more: dict[str, object], key: str) -> dict[str, object]:
    return {"label": key} | more


def _each(tables: object, defaults: Callable[[str], dict[str, object]]) -> object:
    if not isinstance(tables, dict):
        return tables
    return {key: _with(defaults(key), table) for key, table in tables.items()}


def _with(defaults: dict[str, object], table: object) -> object:
    return defaults | table if isinstance(table, dict) else table


def _number(text: str) -> float:
    # 1 and 1.0 are the same parameter: they must not make two configurations.
    value = float(text)
    return int(value) if value.is_integer() else value
