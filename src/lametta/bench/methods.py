"""Methods by name: what an experiment may say of them, and the adapters that they become.

A kind is ``source``, ``lame``, ``tent``, ``shot_im``, ``pseudo_label`` or ``adabn``, or a network
method with LAME on top of it, such as ``tent+lame``, which takes the parameters of both. Nothing
here imports torch before a network method is built.
"""

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import reduce
from operator import and_
from typing import Annotated, Any, Self, TypeAlias

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    create_model,
    model_validator,
)

from lametta.adapters import Corrected, Source
from lametta.affinity import Affinity, knn, linear, rbf
from lametta.bench.problems import Problem, Strict, expected, find_problems, one_of
from lametta.correctors import LAME
from lametta.types import Adapter, LamettaError, Model

_Share: TypeAlias = Annotated[float, Field(ge=0, le=1)]
_Below1: TypeAlias = Annotated[float, Field(ge=0, lt=1)]

# In the paper's words, halves and everything are of the normalization layers.
LAYERS: dict[str, tuple[str, ...]] = {
    "first_half": ("norm", "first_half"),
    "second_half": ("norm", "second_half"),
    "everything": ("norm",),
    "conv_first_half": ("conv", "first_half"),
    "conv_second_half": ("conv", "second_half"),
    "conv": ("conv",),
}
"""What a file calls layers, and which predicates of `lametta.torch.select` all have to hold."""

_NORMS = [name for name, (kind, *_) in LAYERS.items() if kind == "norm"]

_AFFINITIES: dict[str, Callable[..., Affinity]] = {"knn": knn, "rbf": rbf, "linear": linear}


class _Source(Strict):
    """The baseline has nothing to choose."""


class _Lame(Strict):
    affinity: Annotated[str, one_of(_AFFINITIES)] = "knn"
    k: PositiveInt = 5
    row_sum: PositiveFloat | None = None
    symmetric: bool = False
    method: Annotated[str, one_of(("exact", "faiss"))] = "exact"
    weight: NonNegativeFloat = 1.0
    max_iter: NonNegativeInt = 100
    tol: NonNegativeFloat = 1e-5

    @model_validator(mode="after")
    def _affinity_takes_its_options(self) -> Self:
        for name in ("k", "row_sum", "symmetric", "method"):
            if name in self.model_fields_set and name not in _options(self.affinity):
                raise LamettaError(f"{name} is no option of the affinity {self.affinity!r}")
        return self


class _Gradient(Strict):
    lr: NonNegativeFloat = 1e-3
    optimizer: Annotated[str, one_of(("adam", "sgd"))] = "adam"
    momentum: _Below1 | None = None
    layers: Annotated[str, one_of(LAYERS)] = "everything"
    bn_momentum: _Share = 0.1
    steps: PositiveInt = 1
    predict_first: bool = False

    @model_validator(mode="after")
    def _only_norms_have_statistics(self) -> Self:
        if self.layers not in _NORMS and "bn_momentum" in self.model_fields_set:
            raise LamettaError(f"bn_momentum is no option of the layers {self.layers!r}")
        return self


class _PseudoLabel(_Gradient):
    threshold: _Below1 = 0.9


class _AdaBN(Strict):
    momentum: _Share = 0.1
    layers: Annotated[str, one_of(_NORMS)] = "everything"


_NETWORK_KINDS: dict[str, type[Strict]] = {
    "tent": _Gradient,
    "shot_im": _Gradient,
    "pseudo_label": _PseudoLabel,
    "adabn": _AdaBN,
}
KINDS: dict[str, type[Strict]] = {
    "source": _Source,
    "lame": _Lame,
    **_NETWORK_KINDS,
    **{
        # No parameter of LAME is called as one of the others is.
        f"{kind}+lame": create_model(f"{kind}+lame", __base__=(params, _Lame))
        for kind, params in _NETWORK_KINDS.items()
    },
}
"""The kinds of methods, and the parameters of each."""


def is_output_only(kind: str) -> bool:
    """Whether methods of this kind need features and logits alone, so that a bank will do.

    Examples
    --------
    >>> is_output_only("lame"), is_output_only("tent+lame")
    (True, False)
    """
    return kind.partition("+")[0] not in _NETWORK_KINDS


def check_params(kind: str, params: Mapping[str, Any]) -> list[Problem]:
    """Find what is wrong with the parameters of a method.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    params : mapping
        What is given of its parameters.

    Returns
    -------
    list of Problem
        Each with the name of a parameter, or with none where two do not go together.

    Examples
    --------
    >>> [problem.line for problem in check_params("lame", {"k": 0, "wieght": 1})]
    ['k: must be greater than 0, got 0', "wieght: must be one of affinity, k, row_sum, symmetric,
    method, weight, max_iter, tol, got 'wieght'; did you mean 'weight'?"]
    """
    try:
        KINDS[kind].model_validate(dict(params))
    except ValidationError as error:
        return find_problems(error, lambda _: KINDS[kind].model_fields)
    return []


def build(kind: str, params: Mapping[str, Any], model: Model) -> Adapter:
    """Make the adapter that a method stands for.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    params : mapping
        Its parameters: for LAME ``affinity`` by name with its options ``k``, ``row_sum``,
        ``symmetric`` and ``method`` beside it; for network methods ``layers`` by a name in
        `LAYERS`.
    model : Model
        What it works on; a `lametta.torch.Classifier` for all but output-only methods.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta import Output
    >>> adapter = build("lame", {"affinity": "rbf", "k": 3}, lambda x: Output(x, x @ np.eye(2)))
    >>> adapter.corrector.affinity
    rbf(k=3, row_sum=None, symmetric=False)
    """
    if kind not in KINDS:
        raise LamettaError(f"kind {expected(KINDS, kind)}")
    if problems := check_params(kind, params):
        raise LamettaError(f"params of {kind} are wrong at {problems[0].line}")
    of_lame = {name: value for name, value in params.items() if name in _Lame.model_fields}
    if kind == "source":
        return Source(model)
    if kind == "lame":
        return Corrected(model, _corrector(of_lame))
    base, _, corrector = kind.partition("+")
    own = {name: value for name, value in params.items() if name not in of_lame}
    adapter = _network_adapter(base, own, model)
    return Corrected(adapter, _corrector(of_lame)) if corrector else adapter


def _corrector(params: dict[str, Any]) -> LAME:
    name = params.pop("affinity", _Lame.model_fields["affinity"].default)
    options = {option: params.pop(option) for option in _options(name) if option in params}
    return LAME(_AFFINITIES[name](**options), **params)


def _options(affinity: str) -> list[str]:
    make: Any = _AFFINITIES[affinity]
    return [field.name for field in fields(make)]


def _network_adapter(kind: str, params: dict[str, Any], model: Model) -> Adapter:
    import lametta.torch
    from lametta.torch import select

    if not isinstance(model, lametta.torch.Classifier):
        raise LamettaError(
            f"model must be a lametta.torch.Classifier for {kind}, got {type(model).__name__}"
        )
    if "layers" in params:
        parts = (getattr(select, part) for part in LAYERS[params["layers"]])
        params["layers"] = reduce(and_, parts)
    adapter: Adapter = getattr(lametta.torch, kind)(model, **params)
    return adapter
