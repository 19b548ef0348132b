"""How often a step makes the host wait for the device, counted without one."""

import re
import warnings

import pytest
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from lametta import methods
from lametta.torch import Classifier, adapt
from lametta.torch.augment import Views
from tests.torch.golden import PLAIN, Net
from tests.torch.test_seam import INPUTS, SHIPPED, shipped

WAITS = {
    "eata": 1, "eta": 1, "rdumb": 1, "sar": 1, "deyo": 2, "roid": 1, "cmf": 1, "cotta": 1,
    "pseudo_label": 1, "rotta": 1, "petta": 1, "note": 1, "sotta": 1, "half_bn": 2,
}  # fmt: skip
TIMES = {"once": 1, "twice": 2}


class Waits(TorchDispatchMode):
    """Counts what a device has to be done for: looks at values, and sizes that depend on them."""

    def __init__(self):
        super().__init__()
        self.count, self.paused = 0, False

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        name = operation.overloadpacket.__name__
        if name in ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim"):
            self.add()
        elif name in ("index", "index_put", "index_put_", "_index_put_impl_"):
            self.add(sum(i is not None and i.dtype == torch.bool for i in args[1]))
        return operation(*args, **(kwargs or {}))

    def add(self, count=1):
        self.count += 0 if self.paused else count


@pytest.fixture
def waits(monkeypatch):
    found, tolist, draw = Waits(), torch.Tensor.tolist, Views.draw

    def counted(tensor):
        found.add()
        return tolist(tensor)

    def on_the_host(views, generator, side):
        assert generator.device.type == "cpu"
        found.paused = True
        drawn = draw(views, generator, side)
        found.paused = False
        return drawn

    def pause(*_):
        found.paused = True

    def go_on(*_):
        found.paused = False

    monkeypatch.setattr(torch.Tensor, "tolist", counted)
    monkeypatch.setattr(Views, "draw", on_the_host)
    monkeypatch.setattr(adapt, "signals", lambda probs: {})  # numbers on a CPU alone
    # Adam keeps the number of its steps on the host.
    hooks = [register_optimizer_step_pre_hook(pause), register_optimizer_step_post_hook(go_on)]
    known = adapt.skip_finite_check.set(True)
    yield found
    adapt.skip_finite_check.reset(known)
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("name", SHIPPED)
def test_no_step_waits_unless_it_says_so(name, waits):
    method = shipped(name, Classifier(Net(), preprocess=PLAIN), copies=4)
    method.step(INPUTS)  # which prepares the network
    waits.count = 0
    with waits:
        method.step(INPUTS)
    assert waits.count == WAITS.get(name, 0)
    own = [kind for kind in type(method).mro() if kind.__module__.startswith("lametta.torch.meth")]
    says = re.findall(r"host\s+waits for the device\s+(\w+)", " ".join(k.__doc__ for k in own))
    assert {TIMES[word] for word in says} == ({waits.count} if waits.count else set())


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", SHIPPED)
def test_a_gpu_waits_no_more_often(name):
    """As PyTorch itself counts it, with copies of numbers to the device."""
    model, images = Classifier(Net().cuda(), preprocess=PLAIN), INPUTS.cuda()
    method = shipped(name, model, copies=4)
    known = adapt.skip_finite_check.set(True)
    method.step(images)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            method.step(images)
    finally:
        torch.cuda.set_sync_debug_mode("default")
        adapt.skip_finite_check.reset(known)
    found = [f"{one.filename}:{one.lineno}" for one in seen if "synchronizing" in str(one.message)]
    assert len(found) <= WAITS.get(name, 0), found


def test_views_of_cotta_wait_for_nothing(waits):
    method = shipped("cotta", Classifier(Net(), preprocess=PLAIN), unsure_below=1.0, views=3)
    method.step(INPUTS)
    waits.count = 0
    with waits:
        assert method.step(INPUTS).info["views"] == 3
    assert waits.count == 1


def test_waits_are_seen(waits):
    x = torch.rand(4)
    with waits:
        x[x > 0.5].sum().item()
        x.tolist()
        bool(x.sum() > 0)
        x.nonzero()
    assert waits.count == 5


def test_everything_is_there():
    assert {*WAITS} <= {*methods.names()}
