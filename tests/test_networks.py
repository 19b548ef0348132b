"""The table of networks: read without torch, and every loader in it is there."""

import inspect
import subprocess
import sys

import pytest

from lametta.networks import NETWORKS, find, names
from lametta.registry import import_object


@pytest.mark.parametrize("name", NETWORKS)
def test_loaders_take_the_options_of_the_table(name):
    network = find(name)
    assert network is NETWORKS[name]
    loader = import_object(network.loader, "loader")
    inspect.signature(loader).bind(name, None, **network.options)


def test_names_are_read_without_torch():
    code = "import sys; from lametta.networks import names; print(*names(), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == [*names(), "False"], done.stderr
