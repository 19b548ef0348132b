"""Modules under their names of version 0.1.0, for as long as somebody imports them."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "lametta.bench.config": "lametta.bench.experiment",
    "lametta.bench.prepare": "lametta.bench.workspace",
    "lametta.data.cache": "lametta.data.bank.images",
    "lametta.data.embedded": "lametta.data.readers.digits",
    "lametta.data.extract": "lametta.data.bank.extraction",
    "lametta.data.folders": "lametta.data.readers.folders",
    "lametta.data.hierarchy": "lametta.data.classes.wordnet",
    "lametta.data.imagenets": "lametta.data.readers.imagenet",
    "lametta.data.tao": "lametta.data.readers.tao",
    "lametta.data.vid": "lametta.data.readers.vid",
}
"""The modules that the documentation of 0.1.0 named, and where they are."""


class _Finder(MetaPathFinder, Loader):
    """Finds a moved module under its old name, once everyone else has found nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        old, new = module.__name__, MOVED[module.__name__]
        warnings.warn(f"{old} is now {new}", DeprecationWarning, stacklevel=2)
        # What is in sys.modules when this returns is what the import gives.
        sys.modules[old] = importlib.import_module(new)


def install() -> None:
    """Let old names be found."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
