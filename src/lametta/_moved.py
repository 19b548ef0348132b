"""Modules under their names of version 0.1.0, for as long as somebody imports them."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED: dict[str, dict[str, str]] = {
    "lametta.bench.config": {"": "lametta.bench.experiment"},
    "lametta.bench.prepare": {"": "lametta.bench.workspace"},
    "lametta.data.cache": {"": "lametta.data.bank.images"},
    "lametta.data.embedded": {
        "": "lametta.data.readers.digits",
        "datasets": "lametta.data.readers.digits:_lines",
        "load": "lametta.data.readers.digits:make_digits",
        "network": "lametta.torch.digits:digits_net",
    },
    "lametta.data.extract": {"": "lametta.data.bank.extraction"},
    "lametta.data.folders": {
        "": "lametta.data.readers.folders",
        "arrays": "lametta.data.dataset:arrays",
    },
    "lametta.data.hierarchy": {
        "": "lametta.data.classes.wordnet",
        "load": "lametta.data.classes.wordnet:load_wordnet",
    },
    "lametta.data.imagenets": {
        "": "lametta.data.readers.imagenet",
        "tiny_imagenet": "lametta.data.readers.tiny:tiny_imagenet",
    },
    "lametta.data.tao": {"": "lametta.data.readers.tao"},
    "lametta.data.vid": {"": "lametta.data.readers.vid"},
}
"""The modules that the documentation of 0.1.0 named, where they are now, and names that changed."""


class _Finder:
    """Finds a moved module under its old name, once all other finders have found nothing."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Not derived from Loader: to load importlib.abc takes a fifth of the time of lametta.
        return ModuleSpec(fullname, self) if fullname in MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        places = MOVED[module.__name__]
        warnings.warn(f"{module.__name__} is now {places['']}", DeprecationWarning, stacklevel=2)
        now = importlib.import_module(places[""])
        from lametta._packages import load_object  # slow to load, and needed by few

        def find(name: str) -> object:
            if name in places:
                return load_object(places[name], name)
            return getattr(now, name)

        module.__getattr__ = find  # type: ignore[method-assign]


sys.meta_path.append(_Finder())
