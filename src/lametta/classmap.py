"""ClassMap: pooling of a model's classes onto super-classes."""

import json
import math
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from numbers import Integral
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
from array_api_compat import device
from numpy.typing import NDArray

from lametta._arrays import check_matrix, log, namespace, widen
from lametta._checks import check_choice, check_integer
from lametta.types import Array, LamettaError, Prototypes

if TYPE_CHECKING:
    from lametta._files import PathLike

_FORMAT = "lametta.ClassMap/1"
_MAX_PADDED = 2**26

_Groups: TypeAlias = tuple[tuple[str, ...], tuple[tuple[int, ...], ...]]
"""The names of the targets, and the members of each."""


@dataclass(frozen=True, eq=False)
class ClassMap:
    """A map from a model's classes to target classes; those without a target are dropped.

    Parameters
    ----------
    mapping
        One of

        - an index array: for each of the model's classes its target, -1 for none;
        - groups: for each target the sequence of its members among the model's classes;
        - a dict of groups, ``{target name: [member, ...]}``;
        - a dict of members, ``{member: target}``, with targets named or numbered from 0, and None
          or -1 for none.
    n_source : int, optional
        How many classes the model has. Without it, an index array says so, and other maps take
        any number that has room for the largest member.
    pooling : {"mean", "sum", "max"}
        How the probabilities of a target's members become one. The mean does not favor targets of
        many members; it is the paper's choice.

    Examples
    --------
    >>> import numpy as np
    >>> pets = ClassMap({"cat": [0, 1], "dog": [2]}, n_source=4, pooling="sum")
    >>> pets.names, pets.groups
    (('cat', 'dog'), ((0, 1), (2,)))
    >>> pets.pool_probs(np.array([[0.2, 0.2, 0.1, 0.5]]))
    array([[0.8, 0.2]])
    """

    mapping: Any
    _: KW_ONLY
    n_source: int | None = None
    pooling: str = "mean"

    def __post_init__(self) -> None:
        check_choice("pooling", self.pooling, ("mean", "sum", "max"))
        if self.n_source is not None:
            check_integer("n_source", self.n_source, 1)
        if not self.groups:
            raise LamettaError("mapping must have at least one target, got none")
        owner: dict[int, str] = {}
        for name, group in zip(self.names, self.groups, strict=True):
            if not group:
                raise LamettaError(f"mapping must give each target a class, got none for {name!r}")
            for member in group:
                if not 0 <= member < self.min_classes:
                    limit = "" if self.n_source is None else f" and < n_source = {self.n_source}"
                    raise LamettaError(f"mapping must hold classes >= 0{limit}, got {member}")
                if member in owner:
                    raise LamettaError(
                        "mapping must give a class one target at most, "
                        f"got {owner[member]!r} and {name!r} for class {member}"
                    )
                owner[member] = name

    @cached_property
    def _parsed(self) -> _Groups:
        return _parse(self.mapping)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the targets; their numbers where the map names none."""
        return self._parsed[0]

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The members of each target, by their numbers among the model's classes."""
        return self._parsed[1]

    @cached_property
    def min_classes(self) -> int:
        """The least number of classes that a model can have for the map to be applied."""
        if self._exact is not None:
            return self._exact
        return max((member for group in self.groups for member in group), default=-1) + 1

    def __len__(self) -> int:
        return len(self.groups)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ClassMap) and self._key == other._key

    def __hash__(self) -> int:
        return hash(self._key)

    @property
    def _key(self) -> tuple[object, ...]:
        return self.names, self.groups, self.pooling, self._exact

    @cached_property
    def _exact(self) -> int | None:
        """The number of the model's classes, where it is known."""
        is_index = self.n_source is None and _is_index(self.mapping)
        return len(self.mapping) if is_index else self.n_source

    def pool_logits(self, logits: Array, /) -> Array:
        """Pool logits [N, K] to [N, T], so that their softmax is that of `pool_probs`."""
        xp, members, exists = self._members("logits", logits)
        members = xp.where(exists, members, -xp.inf)
        top = xp.max(members, axis=2)
        if self.pooling == "max":
            return xp.astype(top, logits.dtype)
        # A target none of whose members has any probability stays at -inf.
        anchor = xp.where(top == -xp.inf, xp.zeros_like(top), top)
        pooled = anchor + log(xp, xp.sum(xp.exp(members - anchor[:, :, None]), axis=2))
        if self.pooling == "mean":
            pooled = pooled - xp.log(self._counts(xp, pooled))
        return xp.astype(pooled, logits.dtype)

    def pool_probs(self, probs: Array, /) -> Array:
        """Pool probabilities [N, K] to [N, T] and renormalize them over the targets.

        A row with no probability on any target becomes uniform.
        """
        xp, members, exists = self._members("probs", probs)
        members = xp.where(exists, members, xp.zeros_like(members))
        if self.pooling == "max":
            pooled = xp.max(members, axis=2)
        else:
            pooled = xp.sum(members, axis=2)
            if self.pooling == "mean":
                pooled = pooled / self._counts(xp, pooled)
        total = xp.sum(pooled, axis=1, keepdims=True)
        lost = total <= 0
        pooled = xp.where(lost, xp.ones_like(pooled), pooled)
        pooled = pooled / xp.where(lost, xp.full_like(total, len(self)), total)
        return xp.astype(pooled, probs.dtype)

    def pool_prototypes(self, prototypes: Prototypes, /) -> Prototypes:
        """Pool prototypes [K, d] to [T, d]: those of a target are the mean of its members'.

        No kind of pooling of logits is linear, so that the logits of pooled prototypes are not the
        pooled logits, but for targets of one member: they are as near as one vector a class can be.

        Examples
        --------
        >>> ClassMap([[0, 1], [2]]).pool_prototypes(Prototypes(np.eye(3))).weight
        array([[0.5, 0.5, 0. ],
               [0. , 0. , 1. ]])
        """
        bias = prototypes.bias
        pooled = None if bias is None else self._mean("bias of prototypes", bias[None, :])[0, :]
        return Prototypes(self._mean("weight of prototypes", prototypes.weight.T).T, pooled)

    def _mean(self, name: str, x: Array) -> Array:
        """The mean of each target's members [N, T]."""
        xp, members, exists = self._members(name, x)
        total = xp.sum(xp.where(exists, members, xp.zeros_like(members)), axis=2)
        return xp.astype(total / self._counts(xp, total), x.dtype)

    __call__ = pool_logits

    def to_dict(self) -> dict[str, object]:
        """The map as JSON can hold it, with its targets in their order.

        Examples
        --------
        >>> packed = ClassMap({"cat": [0, 1], "dog": [2]}).to_dict()
        >>> packed["names"], ClassMap.from_dict(packed).groups
        (('cat', 'dog'), ((0, 1), (2,)))
        """
        return {name: getattr(self, name) for name in ("names", "groups", "n_source", "pooling")}

    @classmethod
    def from_dict(cls, content: Mapping[str, Any], /) -> Self:
        """Make a map from what `to_dict` gave, or from what `save` wrote."""
        try:
            groups = content["groups"]
            if "names" in content:
                names = content["names"]
                if len(set(names)) < len(names):
                    raise ValueError("one name for two targets")
                groups = dict(zip(names, groups, strict=True))
            return cls(groups, n_source=content["n_source"], pooling=content["pooling"])
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise LamettaError(f"class map must be as to_dict gives it, got {reason}") from None

    def save(self, path: "PathLike") -> None:
        """Write the map as JSON, whole or not at all."""
        from lametta._files import write_text  # few save maps, and all import this module

        content = {
            "format": _FORMAT,
            "pooling": self.pooling,
            "n_source": self._exact,
            "groups": dict(zip(self.names, self.groups, strict=True)),
        }
        write_text(path, json.dumps(content, indent=1) + "\n")

    @classmethod
    def load(cls, path: "PathLike") -> Self:
        """Read a map that `save` wrote."""
        if not os.path.isfile(path):
            raise LamettaError(f"no such file: {os.fspath(path)!r}")
        try:
            with open(path, encoding="utf-8") as file:
                content = json.load(file)
        except OSError as error:
            raise LamettaError(f"cannot read {os.fspath(path)!r}: {error.strerror}") from None
        except (ValueError, RecursionError) as error:
            raise LamettaError(f"{os.fspath(path)!r} is not valid JSON: {error}") from None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise LamettaError(f"{os.fspath(path)!r} is no class map that lametta saved")
        try:
            return cls.from_dict(content)
        except LamettaError as error:
            raise LamettaError(f"{os.fspath(path)!r} is no class map: {error}") from None

    @cached_property
    def _padded(self) -> NDArray[np.intp]:
        """Members [T, M] of each target, filled up with -1."""
        shape = len(self), max(map(len, self.groups))
        if math.prod(shape) > _MAX_PADDED:
            raise LamettaError(
                f"mapping must have at most {_MAX_PADDED} places, targets times the classes of "
                f"the largest, to be applied, got {shape[0]} times {shape[1]}"
            )
        padded = np.full(shape, -1)
        for row, group in zip(padded, self.groups, strict=True):
            row[: len(group)] = group
        return padded

    def _members(self, name: str, x: Array) -> tuple[ModuleType, Array, Array]:
        """Columns of each target [N, T, M], and which of them [T, M] exist."""
        xp = namespace(**{name: x})
        check_matrix(xp, name, "[N, K]", x)
        n_classes, least, is_exact = x.shape[1], self.min_classes, self._exact is not None
        if n_classes < least or (is_exact and n_classes > least):
            expected = least if is_exact else f"at least {least}"
            raise LamettaError(f"{name} must have K = {expected} classes, got {n_classes}")
        flat = xp.asarray(np.maximum(self._padded, 0).ravel(), device=device(x))
        members = xp.reshape(xp.take(widen(xp, x), flat, axis=1), (x.shape[0], *self._padded.shape))
        return xp, members, xp.asarray(self._padded >= 0, device=device(x))

    def _counts(self, xp: ModuleType, like: Array) -> Array:
        counts = [float(len(group)) for group in self.groups]
        return xp.asarray(counts, dtype=like.dtype, device=device(like))


def _parse(mapping: Any) -> _Groups:
    """Names and members of the targets, from any of the forms of ``ClassMap(mapping)``."""
    if isinstance(mapping, Mapping):
        if all(_is_group(value) for value in mapping.values()):
            return tuple(map(str, mapping)), tuple(_integers(group) for group in mapping.values())
        pairs = mapping.items()
        return _by_target([(member, target) for member, target in pairs if target is not None])
    if _is_index(mapping):
        return _by_target(list(enumerate(_integers(mapping))))
    if isinstance(mapping, Sequence) and not isinstance(mapping, str):
        groups = tuple(_integers(group) for group in mapping)
        return tuple(map(str, range(len(groups)))), groups
    raise LamettaError(
        "mapping must be an index array, a sequence of groups or a dict, "
        f"got {type(mapping).__name__}"
    )


def _n_targets(targets: list[int]) -> int:
    """How many targets there are, by the numbers that classes have as theirs."""
    if (lowest := min(targets, default=0)) < 0:
        raise LamettaError(f"mapping must hold targets >= 0, or -1 for none, got {lowest}")
    # One more target than members is enough: at least one of them has none, and is refused.
    return min(max(targets, default=-1), len(targets)) + 1


def _by_target(pairs: list[tuple[Any, Any]]) -> _Groups:
    """Names and members of the targets, from pairs of a class and its target."""
    groups: dict[Hashable, list[int]] = {}
    if all(isinstance(target, Integral) for _, target in pairs):
        pairs = [(member, int(target)) for member, target in pairs if target != -1]
        groups = {target: [] for target in range(_n_targets([target for _, target in pairs]))}
    for member, target in pairs:
        if not isinstance(target, Hashable):
            raise LamettaError(f"mapping must hold names or numbers of targets, got {target!r}")
        groups.setdefault(target, []).extend(_integers([member]))
    return tuple(map(str, groups)), tuple(tuple(sorted(group)) for group in groups.values())


def _is_group(value: object) -> bool:
    return isinstance(value, Sequence | np.ndarray) and not isinstance(value, str)


def _is_index(mapping: Any) -> bool:
    if hasattr(mapping, "ndim"):  # an array of any library
        return bool(mapping.ndim == 1)
    return (
        isinstance(mapping, Sequence)
        and not isinstance(mapping, str)
        and len(mapping) > 0
        and all(isinstance(target, Integral) for target in mapping)
    )


def _integers(values: Any) -> tuple[int, ...]:
    try:
        values = tuple(values.tolist() if hasattr(values, "tolist") else values)
    except (TypeError, RuntimeError):  # which a sparse tensor raises
        message = f"mapping must hold sequences of class indices, got {values!r}"
        raise LamettaError(message) from None
    for value in values:
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise LamettaError(f"mapping must hold integer class indices, got {value!r}")
    return tuple(map(int, values))
