"""Fixtures of several tests of `lametta.torch`."""

import sys
from types import ModuleType

import pytest

from lametta.preprocess import Preprocess
from tests.torch.nets import Tiny


@pytest.fixture
def user_module(monkeypatch):
    """A module of the user's, with functions that a `torch:` name can name."""
    module = ModuleType("user_nets")
    module.tiny = Tiny
    module.small_images = lambda: (Tiny(), Preprocess(resize=None, crop=None))
    module.number = lambda: 3
    module.pair = lambda: (Tiny(), 3)
    monkeypatch.setitem(sys.modules, "user_nets", module)
    return module
