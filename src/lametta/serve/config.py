"""ServerConfig: models, store, limits; builds the application, in every replica."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lametta.adapters import prototypes_of
from lametta.correctors.base import give_prototypes, wants_prototypes
from lametta.integrations.onnx import OnnxModel
from lametta.methods import as_corrector
from lametta.serve.app import make_app
from lametta.serve.middleware import ASGIApp, BodyReader, ServerLimits
from lametta.serve.monitoring import Monitor
from lametta.serve.service import Service
from lametta.serve.sessions import SessionManager
from lametta.serve.stores import IDLE, MOST, Store, open_store
from lametta.types import Corrector, LamettaError, Prototypes


class CorrectorSpec(NamedTuple):
    """A corrector by the name of its method and its options, or the corrector itself."""

    method: str | Corrector
    options: Mapping[str, object] | None = None

    def make(self) -> Corrector:
        """Make the corrector, or say what is wrong with its name or options."""
        return as_corrector(self.method, self.options, argument="correctors")


@dataclass(frozen=True)
class ServerConfig:
    """Configuration of a server: what is served, to whom, and where states survive.

    Parameters
    ----------
    correctors : mapping of str to CorrectorSpec, str or Corrector
        The models by name: each a method by its name, with options as a `CorrectorSpec`, or a
        corrector, of which every stream gets a copy.
    store : str
        As for `lametta.serve.stores.open_store`, with ``most``, ``idle``, ``durable`` and
        ``password``.
    memory : float
        Bytes of states held ready, for each corrector, and of a store in memory.
    threads : int or None
        As for `lametta.serve.app.Executor`.
    model : path, optional
        A classifier in ONNX's format that predicts here, with the options ``features`` and
        ``logits`` of `lametta.integrations.onnx.OnnxModel`.
    names : sequence of str, optional
        The names of the classes, for answers and the live page; by default those that the model's
        file has. Requests must then have as many classes.
    prototypes : Prototypes, optional
        For correctors that need them; by default those of the model, if it has any.
    limits : ServerLimits
        What clients may ask: tokens, rate, sizes, time.

    shadow : bool
        Whether answers are the network's own, and what a correction would have said is recorded.

    Examples
    --------
    >>> from lametta import LAME, knn
    >>> config = ServerConfig({"prudent": "prudent", "fast": LAME(knn(3))}, names=["cat", "dog"])
    >>> uvicorn.run(config.app())  # doctest: +SKIP
    """

    correctors: Mapping[str, CorrectorSpec | str | Corrector]
    store: str = "memory"
    most: int = MOST
    idle: float = IDLE
    memory: float = 2**30
    durable: str | None = None
    password: str | None = field(default=None, repr=False)
    threads: int | None = None
    model: Path | None = None
    features: str | None = None
    logits: str | None = None
    names: Sequence[str] | None = None
    prototypes: Prototypes | None = None
    shadow: bool = False
    limits: ServerLimits = field(default_factory=ServerLimits)

    def app(self) -> ASGIApp:
        """Open the store, load the model, and make the application."""
        network = None
        if self.model is not None:
            network = OnnxModel(
                self.model,
                features=self.features,
                logits=self.logits,
                max_pixels=self.limits.request.pixels,
            )
        names = _names(self.names, network)
        specs = {
            name: one if isinstance(one, CorrectorSpec) else CorrectorSpec(one)
            for name, one in self.correctors.items()
        }
        correctors = {name: one.make() for name, one in specs.items()}
        self._give_prototypes(correctors.values(), network)
        store = self.open_store()
        sessions = {
            name: SessionManager(corrector, name, store, memory=self.memory)
            for name, corrector in correctors.items()
        }
        reader = BodyReader(self.limits)
        gauges = {
            "queue": lambda: float(reader.n_requests),
            "streams": lambda: float(sum(len(manager) for manager in sessions.values())),
            "evictions": lambda: float(
                sum(one.evicted for one in (*sessions.values(), store) if hasattr(one, "evicted"))
            ),
            "damaged": lambda: float(store.damaged),
        }
        monitor = Monitor(list(sessions), gauges, classes=names, shadow=self.shadow)
        service = Service(sessions, monitor, self.limits.deadline, network, names, self.shadow)
        return make_app(service, reader, store, threads=self.threads)

    def open_store(self) -> Store:
        """Open the store."""
        return open_store(
            self.store,
            most=self.most,
            idle=self.idle,
            memory=self.memory,
            durable=self.durable,
            password=self.password,
        )

    def _give_prototypes(
        self, correctors: Collection[Corrector], network: OnnxModel | None
    ) -> None:
        found = prototypes_of(network) if self.prototypes is None else self.prototypes
        if self.prototypes is not None and not any(map(wants_prototypes, correctors)):
            raise LamettaError("prototypes must be for a corrector that needs them, got no such")
        for one in correctors:
            give_prototypes(one, found, "the server: give it some as prototypes, --prototypes")


def _names(given: Sequence[str] | None, network: OnnxModel | None) -> tuple[str, ...] | None:
    """The names of the classes: those that are given, or else those of the model's file."""
    about = None if network is None else network.metadata
    n_classes = None if about is None else about.n_classes
    if given is None:  # where the graph leaves their number open, names may be too few
        return None if about is None or n_classes is None else about.classes
    names = tuple(given)
    if isinstance(given, str) or not all(isinstance(name, str) for name in names):
        raise LamettaError(f"names must be a sequence of text, got {given!r:.100}")
    if n_classes not in (None, len(names)):
        raise LamettaError(
            f"names must be those of the model's {n_classes} classes, got {len(names)}"
        )
    return names
