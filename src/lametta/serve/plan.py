"""All that a server is made from, so that each replica of it can make its own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from starlette.types import ASGIApp

from lametta import methods
from lametta.correctors._chain import Chain
from lametta.integrations.onnx import OnnxModel
from lametta.serve.app import make_app
from lametta.serve.gate import Bodies, Manners
from lametta.serve.keeper import Keeper
from lametta.serve.monitor import Monitor
from lametta.serve.service import Service
from lametta.serve.stores import IDLE, MOST, open_store
from lametta.types import Corrector


class Served(NamedTuple):
    """A corrector by name: a method and its options."""

    method: str
    options: Mapping[str, object]

    def make(self) -> Corrector:
        """Make the corrector, or say what is wrong with its name or options."""
        made = methods.find(self.method).correctors(self.options)
        return made[0] if len(made) == 1 else Chain(tuple(made))


@dataclass(frozen=True)
class Plan:
    """What is served, to whom, and where states survive.

    Parameters
    ----------
    correctors : mapping of str to Served
        The models by name.
    store : str
        As for `lametta.serve.stores.open_store`, with ``most`` and ``idle``.
    memory : float
        Bytes of states held ready, for each corrector.
    threads : int or None
        As for `lametta.serve.workers.Workers`.
    model : path, optional
        A classifier in ONNX's format that predicts here, with the options ``features`` and
        ``logits`` of `lametta.integrations.onnx.OnnxModel`.
    manners : Manners
        What is asked of clients.
    """

    correctors: Mapping[str, Served]
    store: str = "memory"
    most: int = MOST
    idle: float = IDLE
    memory: float = 2**30
    threads: int | None = None
    model: Path | None = None
    features: str | None = None
    logits: str | None = None
    manners: Manners = field(default_factory=Manners)

    def app(self) -> ASGIApp:
        """Open the store, load the model, and make the application."""
        network = None
        if self.model is not None:
            network = OnnxModel(self.model, features=self.features, logits=self.logits)
        correctors = {name: served.make() for name, served in self.correctors.items()}
        store = open_store(self.store, most=self.most, idle=self.idle)
        keepers = {
            name: Keeper(corrector, name, store, memory=self.memory)
            for name, corrector in correctors.items()
        }
        bodies = Bodies(self.manners)
        gauges = {
            "queue": lambda: float(bodies.n_requests),
            "streams": lambda: float(sum(len(keeper) for keeper in keepers.values())),
            "evictions": lambda: float(sum(keeper.evicted for keeper in keepers.values())),
        }
        classes = None if network is None else network.metadata.classes
        monitor = Monitor(list(keepers), gauges, classes=classes)
        service = Service(keepers, monitor, self.manners.limits, self.manners.deadline, network)
        return make_app(service, bodies, store, threads=self.threads)
