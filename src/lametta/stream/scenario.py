"""Scenario: a pure function from labels, groups and a seed to a Stream of batches."""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from numbers import Integral, Real
from typing import Any, TypeVar

import numpy as np

from lametta._checks import check_flag, check_integer
from lametta.registry import FactoryRegistry
from lametta.stream._draws import Groups, Index, generator
from lametta.stream._groups import checked_groups, checked_keys, checked_labels
from lametta.stream.order import ORDERS, Order
from lametta.stream.prior import PRIORS, Prior
from lametta.types import Array, LamettaError

T = TypeVar("T")

# Raise the number with any change to the batches that a scenario gives.
_FORMAT = "lametta.Stream/1"


@dataclass(frozen=True, eq=False)
class Stream:
    """Batches of positions in a data set, in the order of their arrival.

    Iterating gives an int64 array for each batch. `Scenario` makes streams.

    Attributes
    ----------
    index : array of int64 [M]
        The positions of all samples, batch after batch.
    sizes : tuple of int
        The size of each batch.
    ids : tuple of str
        The camera, or other stream, that each batch comes from; all are ``"0"`` where there is
        only one. Streams are independent: a method carries nothing from one to another.
    manifest : dict
        What the stream was made of, as plain values for JSON.

    Examples
    --------
    >>> from lametta.stream import Scenario
    >>> stream = Scenario(batch_size=4)([0, 1, 2, 0, 1, 2])
    >>> [batch.tolist() for batch in stream], stream.ids
    ([[3, 2, 1, 0], [4, 5]], ('0', '0'))
    """

    index: Index
    sizes: tuple[int, ...]
    ids: tuple[str, ...]
    manifest: dict[str, object]

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[Index]:
        end = 0
        for size in self.sizes:
            begin, end = end, end + size
            # A copy, since PyTorch warns of arrays that cannot be written, as the index is.
            yield self.index[begin:end].copy()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of manifest and batches: equal where two machines ran the same stream."""
        digest = hashlib.sha256(json.dumps(self.manifest, sort_keys=True).encode())
        for name, batch in zip(self.ids, self, strict=True):
            digest.update(f"\n{name}\0{len(batch)}\0".encode())
            digest.update(_bytes(batch))
        return digest.hexdigest()


@dataclass(frozen=True)
class Scenario:
    """In which order samples arrive, and how often each class does.

    The prior chooses samples, the order arranges them, and the limit cuts off the end.
    A scenario gives the same stream for the same labels, groups and seed, always and everywhere.

    Parameters
    ----------
    order : order, str or mapping
        When each sample arrives: an order such as ``dirichlet(0.1)``, its name, or a mapping such
        as ``{"kind": "dirichlet", "gamma": 0.1}``. `lametta.stream.orders` lists them.
    prior : prior, str or mapping
        How often each class occurs, likewise. `lametta.stream.priors` lists them.
    batch_size : int
        How many samples come at once; the last batch of a camera may hold fewer.
    seed : int
        Decides all that is random.
    limit : int, optional
        The most samples of a stream; those that come later are left out.
    split_groups : bool
        Begin a batch wherever another group begins, as ``lametta correct`` does. Otherwise the
        stream is that of one camera, and a batch may hold the end of a video and the beginning of
        the next, as in the paper.

    Examples
    --------
    >>> labels, videos = [0, 0, 1, 1], ["b", "a", "b", "a"]
    >>> stream = Scenario("by_group", batch_size=2)(labels, videos)
    >>> for batch in stream:
    ...     print(batch)
    [1 3]
    [0 2]
    >>> stream.fingerprint[:8]
    'a66c50c0'
    """

    order: Order | str | Mapping[str, object] = "iid"
    prior: Prior | str | Mapping[str, object] = "as_is"
    batch_size: int = 64
    seed: int = 0
    limit: int | None = None
    split_groups: bool = False

    def __post_init__(self) -> None:
        # Names and mappings become what they stand for, so that equal scenarios compare equal.
        object.__setattr__(self, "order", _built(ORDERS, self.order))
        object.__setattr__(self, "prior", _built(PRIORS, self.prior))
        check_integer("batch_size", self.batch_size, 1)
        check_integer("seed", self.seed, 0)
        if self.limit is not None:
            check_integer("limit", self.limit, 1)
        check_flag("split_groups", self.split_groups)

    @property
    def parameters(self) -> dict[str, Any]:
        """Plain values for JSON that make an equal scenario: ``Scenario(**parameters)``."""
        parameters = {field.name: to_json(getattr(self, field.name)) for field in fields(self)}
        if not self.split_groups:  # streams from before this option keep their hash
            del parameters["split_groups"]
        return parameters

    def __call__(
        self, labels: Array, groups: Array | None = None, *, keys: Sequence[str] | None = None
    ) -> Stream:
        """Make the stream of a data set.

        Parameters
        ----------
        labels : array of int [N]
            The class of each sample.
        groups : array of str or int [N], optional
            Where each sample comes from: its video, its corruption.
        keys : sequence of str [N], optional
            A name for each sample, for the manifest.

        Returns
        -------
        Stream
        """
        labels = checked_labels(labels)
        if groups is not None:
            groups = checked_groups(groups, len(labels))
        if keys is not None:
            keys = checked_keys(keys, len(labels))
        if self.split_groups and groups is None:
            raise LamettaError("groups must be given for split_groups, got None")
        batches = self._batches(labels, groups)
        index = np.concatenate([batch for _, batch in batches]).astype(np.int64)
        index.flags.writeable = False
        manifest = {
            "format": _FORMAT,
            "scenario": self.parameters,
            "n_samples": len(labels),
            "n_streamed": len(index),
            "labels_sha256": hashlib.sha256(_bytes(labels)).hexdigest(),
            "groups_sha256": None if groups is None else _hash(groups),
            "keys_sha256": None if keys is None else _hash(keys),
        }
        sizes = tuple(len(batch) for _, batch in batches)
        return Stream(index, sizes, tuple(name for name, _ in batches), manifest)

    def _batches(self, labels: Index, groups: Groups | None) -> list[tuple[str, Index]]:
        """The batches, each of one stream; cameras take turns as long as they have samples."""
        rng = generator(int(self.seed))
        prior: Callable[..., Index] = _built(PRIORS, self.prior)
        grouped = getattr(prior, "grouped", False)
        chosen = prior(labels, rng, groups) if grouped else prior(labels, rng)
        arrival = _built(ORDERS, self.order)(
            labels[chosen], None if groups is None else groups[chosen], rng
        )
        if isinstance(arrival, np.ndarray):
            arrival = {"0": arrival}
        streams = arrival.items() if isinstance(arrival, Mapping) else arrival
        cut = [
            [(name, batch) for batch in self._cut(chosen[positions], groups)]
            for name, positions in streams
        ]
        turns = itertools.zip_longest(*cut) if isinstance(arrival, Mapping) else cut
        return list(self._limited(filter(None, itertools.chain.from_iterable(turns))))

    def _limited(self, batches: Iterable[tuple[str, Index]]) -> Iterator[tuple[str, Index]]:
        """The batches up to the limit of samples, the last perhaps cut short."""
        left = self.limit
        for name, index in batches:
            batch = index[:left]
            if len(batch):
                yield name, batch
            if left is not None:
                left -= len(batch)

    def _cut(self, index: Index, groups: Groups | None) -> list[Index]:
        """The batches of one camera."""
        runs = [index]
        if self.split_groups and groups is not None:
            group = groups[index]
            runs = np.split(index, np.flatnonzero(group[1:] != group[:-1]) + 1)
        size = self.batch_size
        return [run[begin : begin + size] for run in runs for begin in range(0, len(run), size)]


def options(name: str) -> tuple[str, ...]:
    """The options of an order or a prior with their defaults, as one would write them.

    Examples
    --------
    >>> options("zipf")
    ('a=2', "variant='validation'")
    """
    registry: FactoryRegistry[Any] = ORDERS if name in ORDERS else PRIORS
    return tuple(parameter.text for parameter in registry.options(name).values())


def to_json(value: object) -> object:
    """Turn a parameter into plain values for JSON, which `Scenario` reads back."""
    if is_dataclass(value):
        options = {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
        return {"kind": type(value).__name__, **options}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        # 1 and 1.0 are the same parameter: they must not make two fingerprints.
        return int(float(value)) if float(value).is_integer() else float(value)
    raise LamettaError(f"parameters must be numbers, text, tuples or dataclasses, got {value!r}")


def _built(registry: FactoryRegistry[T], given: T | str | Mapping[str, object]) -> T:
    """The order or prior that a name, a mapping or the thing itself stands for."""
    built = registry.build(given)
    # Fingerprints hash the fields of a dataclass.
    if not callable(built) or not is_dataclass(built) or isinstance(built, type):
        raise LamettaError(
            f"{registry.kind} must be a name, a mapping with a kind or a callable dataclass, "
            f"got {built!r}"
        )
    return built


def _bytes(index: Index) -> bytes:
    return index.astype("<i8").tobytes()


def _hash(texts: Iterable[object]) -> str:
    return hashlib.sha256("".join(f"{text}\0" for text in texts).encode()).hexdigest()
