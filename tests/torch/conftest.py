"""Fixtures of several tests of `lametta.torch`."""

import sys
from types import ModuleType

import pytest
import torch

from lametta.preprocess import Preprocess
from tests.torch.nets import Tiny

# Convolutions on a GPU would keep ten bits of float32; without one this does nothing.
torch.backends.cudnn.allow_tf32 = False


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
