"""Schema of an experiment file (pydantic)."""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeInt,
    PositiveInt,
    ValidationInfo,
    field_validator,
    model_validator,
)

from lametta import methods
from lametta._checks import raise_as
from lametta.bench.experiment.errors import (
    OrElse,
    StrictModel,
    expected,
    json_value,
    named,
    one_of,
    unique,
)
from lametta.bench.views import VIEWS
from lametta.classmap import ClassMap
from lametta.data import catalog
from lametta.data.corruption import CONSTANTS, SETS
from lametta.networks import EMBEDDED, NETWORKS, find
from lametta.stream import Scenario
from lametta.types import LamettaError

# Shown in tables and figures; no result depends on it.
_SHOWN = {"label", "title", "architecture", "training", "figure", "source"}
_CORRUPTIONS = {"validation": SETS["val"]} | {name: SETS[name] for name in SETS if name != "val"}

# TOML has lists, which strict fields would not take as tuples.
_List = Field(strict=False, min_length=1)
_Names = Annotated[tuple[str, ...], _List, unique]
_Seeds = Annotated[tuple[NonNegativeInt, ...], _List, unique]
_Sizes = Annotated[tuple[PositiveInt, ...], _List, unique]
_Grid = dict[str, Annotated[tuple[object, ...], _List, json_value]]
_Grids = Annotated[
    tuple[_Grid, ...],
    _List,
    BeforeValidator(lambda x: (x,) if isinstance(x, dict) else x),
    OrElse(lambda grids: grids["items"]),
]

Params: TypeAlias = dict[str, object]
"""The parameters of a method: what TOML and JSON can say."""


_SOURCE_DATA = "dataset:"


def source_data(params: Mapping[str, object]) -> dict[str, str]:
    """Give the options that are a data set of the experiment, written ``dataset:NAME``.

    Its images, without labels, are what methods that need source data take.

    Examples
    --------
    >>> source_data({"fisher": "dataset:clean", "lr": 0.001})
    {'fisher': 'clean'}
    """
    return {
        option: value.removeprefix(_SOURCE_DATA)
        for option, value in params.items()
        if isinstance(value, str) and value.startswith(_SOURCE_DATA)
    }


COMPUTED = ("precision", "compile")
"""What of a network's table changes how it computes."""

Precision: TypeAlias = Annotated[str, one_of(("float32", "bf16"))]
"""As `lametta.torch.zoo.load` takes it."""


class _Spec(StrictModel):
    def identity(self) -> dict[str, object]:
        """Give what results depend on: all but defaults and what is only shown."""
        return self.model_dump(exclude=_SHOWN, exclude_defaults=True)


class ModelSpec(_Spec):
    """A network: its name for `lametta.torch.zoo.load`, and its weights below the data root.

    Examples
    --------
    >>> ModelSpec(zoo="paper:resnet18", weights="resnet18.pth", label="RN-18").identity()
    {'zoo': 'paper:resnet18', 'weights': 'resnet18.pth'}
    """

    zoo: Annotated[str, named(NETWORKS, "zoo")]
    weights: str | None = None
    label: str = ""
    architecture: str | None = None
    training: str | None = None
    precision: Precision = "float32"
    compile: bool = False

    @property
    def computed(self) -> dict[str, object]:
        """How it computes, where that is not as ever."""
        return {x: y for x, y in self.identity().items() if x in COMPUTED}

    @model_validator(mode="after")
    def _brings_its_weights_or_not(self) -> Self:
        if self.zoo.startswith(EMBEDDED) and self.weights is not None:
            raise LamettaError(f"weights must not be given for {self.zoo}, got {self.weights!r}")
        if find(self.zoo).published and self.weights is None:
            raise LamettaError(f"weights must be given for {self.zoo}, got none")
        return self


def _check_part(part: object) -> object:
    match part:
        case [int(first), int(step)] if 0 <= first < step:
            return part
    raise LamettaError(f"must be integers [i, n] with 0 <= i < n, got {part!r}")


def _spell_out(corruptions: object) -> object:
    if not isinstance(corruptions, str):
        return corruptions
    if corruptions not in _CORRUPTIONS:
        raise LamettaError(expected([*_CORRUPTIONS, "a list of names"], corruptions))
    return _CORRUPTIONS[corruptions]


def _check_groups(classes: dict[str, list[int]]) -> dict[str, list[int]]:
    ClassMap(classes)
    return classes


_Part = Annotated[tuple[int, int], Field(strict=False), BeforeValidator(_check_part)]
_Corruption = Annotated[str, one_of(SETS["all"])]
_Corruptions = Annotated[
    tuple[_Corruption, ...],
    _List,
    unique,
    BeforeValidator(_spell_out),
    OrElse(lambda _: {"enum": list(_CORRUPTIONS)}),
]
_Severity = Annotated[int, Field(ge=1, le=5)]
_Numbered = BeforeValidator(
    lambda x: {str(i): item for i, item in enumerate(x)} if isinstance(x, list) else x
)
_Groups = Annotated[
    dict[str, list[int]],
    _Numbered,
    AfterValidator(_check_groups),
    OrElse(lambda groups: {"type": "array", "items": groups["additionalProperties"]}),
]


class UnknownSpec(_Spec):
    """Samples of classes that the network does not know: what a reader gives, and a part of that.

    Examples
    --------
    >>> UnknownSpec(reader="embedded:noise", options={"n": 100}).identity()
    {'reader': 'embedded:noise', 'options': {'n': 100}}
    """

    reader: Annotated[str, named(catalog.DATASETS, "reader")]
    options: Annotated[dict[str, object], json_value] = Field(default_factory=dict)
    part: _Part | None = None
    most: PositiveInt | None = None


class DatasetSpec(UnknownSpec):
    """A data set: what its reader gives, then a part of that, then corrupted, then super-classes.

    Samples of ``unknown`` classes come behind the part, and are corrupted too: methods see them,
    and only the AUROC and the H-score count them.

    The part ``[i, n]`` is every n-th sample from the i-th on. Where there are more samples than
    ``most``, that many are chosen by hashes of their keys, the same on every machine. Super-classes
    are ``classes``, which list the numbers of their members, or, where classes are ImageNet's,
    ``targets``, which are names in WordNet. The pooling is that of the class map onto these, or of
    the reader's own. ``source`` says that the network was trained on data like it, whose labels one
    has; the report compares what a choice by them costs.

    Examples
    --------
    >>> data = DatasetSpec(reader="folder:photos", part=[0, 2], corruptions=["fog"])
    >>> data.part, data.corruptions, data.severity
    ((0, 2), ('fog',), 5)
    """

    corruptions: _Corruptions | None = None
    severity: _Severity | Annotated[tuple[_Severity, ...], _List, unique] = 5
    constants: Annotated[str, one_of(CONSTANTS)] = "imagenet"
    unknown: UnknownSpec | None = None
    classes: _Groups | None = None
    targets: _Names | None = None
    pooling: Annotated[str, one_of(("mean", "sum", "max"))] = "mean"
    source: bool = False

    @model_validator(mode="after")
    def _severity_is_of_corruptions(self) -> Self:
        if self.severity != 5 and self.corruptions is None:
            raise LamettaError(f"severity must come with corruptions, got {self.severity} alone")
        if self.constants != "imagenet" and self.corruptions is None:
            raise LamettaError(f"constants must come with corruptions, got {self.constants} alone")
        if self.targets is not None and self.classes is not None:
            raise LamettaError("targets must not be given together with classes, got both")
        if self.unknown is not None and (self.targets or self.classes):
            raise LamettaError("unknown must not be given together with super-classes, got both")
        return self


class ScenarioSpec(_Spec):
    """A data set, and how its samples arrive: as `lametta.stream.Scenario` takes it.

    Examples
    --------
    >>> scenario = ScenarioSpec(dataset="videos", order={"kind": "dirichlet", "gamma": 1})
    >>> scenario.identity()["order"]["bursts"]
    True
    """

    dataset: str
    order: Any = "iid"
    prior: Any = "as_is"
    limit: PositiveInt | None = None
    split_groups: bool = False
    label: str = ""

    @field_validator("order", "prior")
    @classmethod
    def _is_for_streams(cls, value: Any, info: ValidationInfo) -> object:
        # A TypeError: a list or a table, which cannot be hashed, where a name is looked up.
        with raise_as("must be as Scenario takes it", value, TypeError):
            Scenario(**{str(info.field_name): value})
        return value

    def identity(self) -> dict[str, object]:
        """Give what streams depend on, the same for all ways to write it."""
        parameters = self.scenario(1, 0).parameters
        return {name: x for name, x in parameters.items() if name not in ("batch_size", "seed")}

    def scenario(self, batch_size: int, seed: int) -> Scenario:
        """Make the scenario, with the batch size and the seed of a cell."""
        return Scenario(self.order, self.prior, batch_size, seed, self.limit, self.split_groups)


def _check_kind(kind: str) -> str:
    methods.check_name(kind, "kind")
    return kind


class MethodSpec(_Spec):
    """A method: its kind, its parameters, and lists of values to choose others from.

    There may be several grids, which give their configurations one after another.

    Examples
    --------
    >>> method = MethodSpec(kind="lame", params={"weight": 2}, grid={"k": [1, 3]})
    >>> list(method.configurations())
    [{'weight': 2, 'k': 1}, {'weight': 2, 'k': 3}]
    """

    kind: Annotated[str, AfterValidator(_check_kind)]
    params: Annotated[Params, json_value] = Field(default_factory=dict)
    grid: _Grids = ({},)

    @property
    def n_configurations(self) -> int:
        """How many configurations the grids make."""
        return sum(math.prod(map(len, grid.values())) for grid in self.grid)

    def configurations(self) -> Iterator[Params]:
        """Give all parameters that the grids make, the last list changing fastest."""
        for grid in self.grid:
            for values in itertools.product(*grid.values()):
                yield self.params | dict(zip(grid, values, strict=True))


class _Phase(_Spec):
    models: _Names
    scenarios: _Names
    methods: _Names
    seeds: _Seeds


class Validation(_Phase):
    """What every configuration runs on, so that one can be chosen for each method.

    With ``consistency`` each runs on the mirror images of all inputs, too, and the share of the
    samples for which the two answer alike is measured: twice the time, for one more way to choose
    without labels.

    Examples
    --------
    >>> plan = Validation(models=["net"], scenarios=["iid"], methods=["LAME"], seeds=[0])
    >>> plan.batch_size
    64
    """

    batch_size: PositiveInt = 64
    consistency: bool = False

    live: ClassVar[bool] = False

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The one batch size, as studies have them."""
        return (self.batch_size,)


class Study(_Phase):
    """What the chosen configurations run on, and the figure that shows it.

    ``timed`` makes networks run even where a bank of their outputs would do. It is true by itself
    where the figure shows times.

    Examples
    --------
    >>> cost = Study(
    ...     models=["net"], scenarios=["iid"], methods=["LAME"], seeds=[0], timed=True
    ... )
    >>> cost.live, cost.figure, cost.batch_sizes
    (True, 'boxes', (64,))
    """

    title: str = ""
    figure: Annotated[str, named(VIEWS, "figure")] = "boxes"
    timed: bool | None = None
    batch_sizes: _Sizes = (64,)

    consistency: ClassVar[bool] = False

    @model_validator(mode="after")
    def _times_are_measured(self) -> Self:
        if VIEWS.find(self.figure).timed and self.timed is False:
            raise LamettaError(f"timed must be true for the figure {self.figure!r}, got false")
        return self

    @property
    def live(self) -> bool:
        """Whether networks run even where a bank of their outputs would do: to be timed."""
        return VIEWS.find(self.figure).timed if self.timed is None else self.timed
