"""How fast a network is on a device, from a few batches."""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from lametta import networks
from lametta._checks import import_optional
from lametta.bench.experiment.schema import ModelSpec
from lametta.data.dataset import Dataset
from lametta.registry import import_object
from lametta.types import LamettaError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from lametta.preprocess import Preprocess

_ROUNDS = 4  # the first warms up, the fastest of the others counts
_FEW, _ENOUGH = 2, 0.2  # a CPU is timed on a few images, or on what it does in so many seconds


class Speed(NamedTuple):
    """The speed of a network, and the sizes of its inputs and outputs."""

    forward: float  # seconds an image, of a forward pass
    backward: float  # seconds an image, of an update without its two forward passes
    outputs: int  # features and logits, which a bank keeps
    preprocess: "Preprocess | None"  # None where samples are the input
    pixels: int  # of an image that it sees


def probe(spec: ModelSpec, device: str, batch_size: int, data: Dataset | None = None) -> Speed:
    """Time a network, forward and in a step of TENT, on images of its size.

    Its weights are random, since time does not depend on them. No code of unknown packages is
    imported, and nothing is downloaded.

    Parameters
    ----------
    spec : ModelSpec
        The network.
    device : str
        Where it runs.
    batch_size : int
        The images that it is timed on; on a CPU fewer will do.
    data : Dataset, optional
        What it runs on, which gives the size of its inputs where the network does not.

    Raises
    ------
    LamettaError
        With the reason, where it cannot be timed.

    Examples
    --------
    >>> probe(ModelSpec(zoo="torch:someone.nets:large"), "cpu", 64)
    Traceback (most recent call last):
    lametta.types.LamettaError: its code is not run before the experiment is
    """
    import torch

    from lametta.torch import Classifier, tent

    net, preprocess = _build(spec)
    x = _inputs(preprocess, batch_size, data).to(device)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as a cell runs
    try:
        with Classifier(net.to(device).eval()) as network:
            if device == "cpu":  # on which many images take as long each as a few
                each = _fastest(lambda: network(x[:_FEW]), device) / _FEW
                x = x[: max(_FEW, int(_ENOUGH / each))]
            output = network(x)
            forward = _fastest(lambda: network(x), device)
            try:
                step = _fastest(partial(tent(network).step, x), device)
            except LamettaError:  # nothing in it adapts
                step = 2 * forward
    finally:
        torch.set_num_threads(threads)
    return Speed(
        forward / len(x),
        max(0.0, step - 2 * forward) / len(x),
        output.features.shape[1] + output.logits.shape[1],
        preprocess,
        math.prod(x.shape[2:]),
    )


def _build(spec: ModelSpec) -> "tuple[nn.Module, Preprocess | None]":
    from lametta.preprocess import Preprocess

    network = networks.find(spec.zoo)
    family, _, name = spec.zoo.partition(":")
    if is_strange(spec):
        raise LamettaError("its code is not run before the experiment is")
    if family == "hf":
        raise LamettaError("its files are not asked for before the experiment runs")
    if network.package == "timm":  # with random weights, since its own may have to be downloaded
        timm = import_optional("timm", network.install, "it")
        net = timm.create_model(network.options.get("model", name))
        options = network.options.get("preprocess")
        if options is None:
            raise LamettaError("the size of its images is known once it is loaded")
        return net, Preprocess(**options)
    made: tuple[nn.Module, Preprocess | None] = import_object(network.loader, "loader")(
        spec.zoo, None, **network.options
    )
    return made


def is_strange(spec: ModelSpec) -> bool:
    """Whether building a network runs code of packages that lametta does not know."""
    if spec.zoo.startswith("torch:"):
        return not spec.zoo.startswith("torch:lametta.")
    return not networks.NETWORKS.is_builtin(spec.zoo)


def _inputs(preprocess: "Preprocess | None", n: int, data: Dataset | None) -> "torch.Tensor":
    import torch

    if preprocess is not None and preprocess.crop_size is not None:
        return torch.rand(n, 3, *preprocess.crop_size)
    if preprocess is not None and isinstance(preprocess.resize, tuple):
        return torch.rand(n, 3, *preprocess.resize)
    if data is None:
        raise LamettaError("the size of its images is that of data which are missing")
    x = data.samples[0]
    one = torch.from_numpy(np.asarray(x)) if preprocess is None else preprocess(x)
    return one.expand(n, *one.shape).clone()


def _fastest(work: Callable[[], object], device: str) -> float:
    import torch

    seconds = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        work()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])
