"""Batch, Outputs, Network and Copy: what a method that adapts the network works with."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor, nn
from torch.autograd.graph import register_multi_grad_hook

from lametta.preprocess import Preprocess
from lametta.torch import losses
from lametta.torch.model import Classifier, Inputs, first_tensor
from lametta.torch.norm import batch_statistics, contiguous_groups, is_batch_norm
from lametta.torch.profiling import StepTimer
from lametta.types import LamettaError, Output

Transform: TypeAlias = Callable[[Tensor, torch.Generator], Tensor]
"""From pixels [N, 3, H, W] in [0, 1], and a source of draws on the host, to such pixels."""

Weights: TypeAlias = "float | Mapping[str, Tensor]"


@dataclass(frozen=True)
class Outputs(Output):
    """What one pass gives: features [N, d], logits [N, K], and what follows from them.

    Examples
    --------
    >>> out = Outputs(torch.zeros(2, 3), torch.tensor([[0.0, 9.0], [0.0, 0.0]]))
    >>> out.labels, out.entropy.round(decimals=2)
    (tensor([1, 0]), tensor([0.0000, 0.6900]))
    """

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities [N, K], in float32 at least."""
        with self._recorded():
            return losses.widen(self.logits.log_softmax(1))

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities [N, K], in float32 at least."""
        with self._recorded():
            return self.log_probs.exp()

    @cached_property
    def entropy(self) -> Tensor:
        """Entropy of each prediction [N]."""
        with self._recorded():
            return losses.entropy(self.log_probs)

    @cached_property
    def labels(self) -> Tensor:
        """Predicted class of each sample [N]."""
        labels: Tensor = self.logits.argmax(1)
        return labels

    @property
    def classes(self) -> int:
        """The number of classes K."""
        return int(self.logits.shape[1])

    def __len__(self) -> int:
        return len(self.logits)

    def _recorded(self) -> torch.set_grad_enabled:
        # What is first read under no_grad is kept, and a loss of it has to have gradients.
        return torch.set_grad_enabled(self.logits.requires_grad)

    @classmethod
    def cat(cls, parts: "Sequence[Output]") -> Self:
        """Put passes of parts of a batch together."""
        features = torch.cat([part.features for part in parts])
        return cls(features, torch.cat([part.logits for part in parts]))


class Batch:
    """Inputs, and on demand what the network makes of them.

    Attributes
    ----------
    inputs : tensor [N, ...] or Inputs
        As they were given to ``step``.
    info : dict
        What the method says of this batch: it joins ``Prediction.info``. Numbers or 0-d tensors,
        which stay on their device, and nothing that needs labels.

    Examples
    --------
    >>> from lametta.torch import TENT, Classifier
    >>> from lametta.torch.digits import digits_net
    >>> class Watchful(TENT):
    ...     def loss(self, outputs):
    ...         return outputs.entropy.mean()
    ...     def adapt(self, batch, net):
    ...         batch.info["least"] = batch.outputs.entropy.min()
    ...         return super().adapt(batch, net)
    >>> "least" in Watchful(Classifier(digits_net())).step(torch.rand(8, 1, 8, 8)).info
    True
    """

    def __init__(self, inputs: Any, network: "Network") -> None:
        self.inputs = inputs
        self.info: dict[str, Any] = {}
        self._network = network

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: Any) -> "Batch":
        """A part of the batch: by a slice, a mask or indices."""
        return Batch(_part(self.inputs, len(self), index), self._network)

    @cached_property
    def outputs(self) -> Outputs:
        """The first pass over this batch, made when it is first asked for."""
        return self._network(self)

    @property
    def logits(self) -> Tensor:
        """Logits [N, K] of the first pass."""
        logits: Tensor = self.outputs.logits
        return logits

    @property
    def features(self) -> Tensor:
        """Features [N, d] of the first pass."""
        features: Tensor = self.outputs.features
        return features

    @property
    def pixels(self) -> Tensor:
        """The images before standardization, [N, 3, H, W] in [0, 1]."""
        return self._network.preprocess.to_pixels(self._images())

    def augment(self, transform: Transform) -> "Batch":
        """The batch with its images transformed, and standardized again."""
        pixels = transform(self.pixels, self._network.generator)
        inputs = self._network.preprocess.from_pixels(pixels).to(self._images().dtype)
        return Batch(inputs, self._network)

    def _images(self) -> Tensor:
        x = self.inputs
        if not isinstance(x, Tensor) or x.ndim != 4 or x.shape[1] != 3:
            got = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise LamettaError(f"x must be color images [N, 3, H, W] to be augmented, got {got}")
        return x


@dataclass
class Count:
    """Passes of a step, counted where they happen, by calls and by samples."""

    forwards: int = 0
    forward_samples: int = 0
    backwards: int = 0
    backward_samples: int = 0

    def forward(self, n: int) -> None:
        self.forwards += 1
        self.forward_samples += n

    def watch(self, output: Output) -> None:
        """Count a backward pass when gradients really come through these outputs."""
        n = len(output.logits)

        def backward(_: object) -> None:
            self.backwards += 1
            self.backward_samples += n

        recorded = [x for x in (output.features, output.logits) if x.requires_grad]
        if recorded:
            register_multi_grad_hook(recorded, backward, mode="any")


class Network:
    """The network while it adapts: a method's `adapt` is given it.

    Calling it is one pass, which is counted and timed; ``train=True`` lets the batch normalizations
    go by the statistics of the batch, ``train=False`` by their running ones.

    Attributes
    ----------
    parameters : dict of str to Parameter
        Those that adapt, by their names in the network.
    source : dict of str to tensor
        Their values before anything was learned.
    optimizer : Optimizer or None
        What takes the steps; None where a method learns no parameters.
    model : Classifier
        What gives features and logits; ``model.net`` is the module itself.

    Examples
    --------
    >>> from lametta.torch import Classifier, GradientMethod
    >>> from lametta.torch.digits import digits_net
    >>> class Climb(GradientMethod):
    ...     def adapt(self, batch, net):
    ...         gradients = net.gradients(batch.outputs.entropy.mean())
    ...         with net.moved(gradients):
    ...             net.step(net(batch).entropy.mean())
    >>> Climb(Classifier(digits_net())).step(torch.rand(8, 1, 8, 8)).info["backwards"]
    2
    """

    def __init__(
        self,
        model: Classifier,
        parameters: dict[str, nn.Parameter],
        norms: Sequence[str],
        optimizer: torch.optim.Optimizer | None,
        bn_momentum: float,
        seed: int,
    ) -> None:
        self.model = model
        self.parameters = parameters
        self.optimizer = optimizer
        self.source = {name: p.detach().clone() for name, p in parameters.items()}
        self.passes = Count()
        chosen = set(parameters.values())
        self._frozen = [p for p in model.net.parameters() if p not in chosen]
        self._norms = [model.net.get_submodule(name) for name in norms]
        self._norm_names = list(norms)
        on_cpu = all(parameter.device.type == "cpu" for parameter in parameters.values())
        self._groups = [m for m in model.net.modules() if on_cpu and isinstance(m, nn.GroupNorm)]
        self._bn_momentum = bn_momentum
        self._seed = seed
        self._buffers = {name: b.clone() for name, b in model.net.named_buffers()}
        self._copies: dict[str, Copy] = {}
        begin = None if optimizer is None else copy.deepcopy(optimizer.state_dict())
        self._begin = Values({**self.source, **self._buffers}, begin, {})
        self._timer: StepTimer | None = None
        self._length = length(list(self.source.values())).clamp(min=1e-12)

    def __call__(self, x: Any, *, train: bool = True) -> Outputs:
        """Make one pass over a batch, or over inputs."""
        return self._pass(self.model, self._norms if train else [], x)

    def batch(self, inputs: Any) -> Batch:
        """Other inputs than those of the step, as from a memory, as a batch."""
        return Batch(inputs, self)

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """The gradient of each parameter, None where the loss does not depend on it."""
        with self._stage("optimization_time"):
            return list(torch.autograd.grad(loss, [*self.parameters.values()], allow_unused=True))

    def apply(self, gradients: Sequence[Tensor | None], *, when: bool | Tensor = True) -> None:
        """Take one step of the optimizer; where ``when`` is False, none at all."""
        if self.optimizer is None:
            raise LamettaError("make_optimizer must give an optimizer to learn with, got None")
        if not when:
            return
        with self._stage("optimization_time"):
            for parameter, gradient in zip(self.parameters.values(), gradients, strict=True):
                parameter.grad = gradient
            self.optimizer.step()
            self.optimizer.zero_grad()

    def step(self, loss: Tensor, *, when: bool | Tensor = True) -> None:
        """Take one step of the optimizer down the gradient of a loss."""
        self.apply(self.gradients(loss), when=when)

    @contextmanager
    def moved(self, by: Sequence[Tensor | None], *, scale: float | Tensor = 1) -> Iterator[None]:
        """Displace the parameters inside a ``with`` block; afterwards they have the same bits."""
        before = [parameter.detach().clone() for parameter in self.parameters.values()]
        pairs = zip(self.parameters.values(), by, strict=True)
        moves = [(parameter, shift) for parameter, shift in pairs if shift is not None]
        if moves:
            with torch.no_grad():
                parameters, shifts = map(list, zip(*moves, strict=True))
                torch._foreach_add_(parameters, torch._foreach_mul(shifts, scale))
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_([*self.parameters.values()], before)

    def blend(self, target: Mapping[str, Tensor], weight: Weights) -> None:
        """Move parameters towards a target: (1 - weight) own + weight target.

        The weight is one number, or a tensor for each parameter; of a mask, True takes the target.
        """
        own: list[Tensor] = [*self.parameters.values()]
        others = [target[name] for name in self.parameters]
        with torch.no_grad():
            if isinstance(weight, Mapping):
                pairs = zip(self.parameters, own, strict=True)
                torch._foreach_lerp_(own, others, [weight[name].to(p.dtype) for name, p in pairs])
            else:
                torch._foreach_lerp_(own, others, weight)

    def teacher(self) -> "Copy":
        """A copy of the source that may `Copy.follow` the network; the same one at each call."""
        return self._copy("teacher")

    def anchor(self) -> "Copy":
        """A copy of the source that stays as it is; the same one at each call."""
        return self._copy("anchor")

    def snapshot(self) -> "Values":
        """What `restore` can go back to: parameters, buffers, optimizer and copies, as they are."""
        optimizer = None if self.optimizer is None else copy.deepcopy(self.optimizer.state_dict())
        copies = {name: _values_of(one.model.net) for name, one in self._copies.items()}
        tensors = {name: tensor.detach().clone() for name, tensor in self._live().items()}
        return Values(tensors, optimizer, copies)

    def restore(self, to: "Values | None" = None, *, optimizer: bool = True) -> None:
        """Go back to a snapshot, by default to the source; copies come along.

        With ``optimizer=False`` the optimizer keeps its state, as momentum. State that the method
        declares is its own business (``self.forget()``).
        """
        to = to or self._begin
        _put(self._live(), to.tensors)
        if optimizer and self.optimizer is not None and to.optimizer is not None:
            self.optimizer.load_state_dict(copy.deepcopy(to.optimizer))
        for name, one in self._copies.items():
            if name in to.copies:
                _put(_tensors_of(one.model.net), to.copies[name])
            else:
                one.load(self.source, self._buffers)

    @cached_property
    def generator(self) -> torch.Generator:
        """Draws that are seeded by the method, on the host, so that nothing waits for the device.

        `lametta.torch.augment.generator_on` makes one for tensors that are drawn on a device.
        """
        return torch.Generator().manual_seed(self._seed)

    @property
    def preprocess(self) -> Preprocess:
        """How pixels become inputs."""
        if self.model.preprocess is None:
            raise LamettaError(
                "preprocess must be known to augment images, got None: "
                "Classifier(net, preprocess=lametta.torch.Preprocess(...)), or the same of wrap"
            )
        return self.model.preprocess

    def drift(self) -> Tensor:
        """How far the parameters are from the source's, as a share of their length."""
        if not self.source:
            return torch.zeros(())
        with torch.no_grad():  # a kernel for all of them, not one for each
            now, source = (
                torch.cat([tensor.flatten() for tensor in tensors])
                for tensors in (self.parameters.values(), self.source.values())
            )
            moved: Tensor = torch.linalg.vector_norm(now - source)
            return moved / self._length

    @contextmanager
    def stepping(self, timer: StepTimer) -> Iterator[None]:
        """Let the chosen parameters learn, time and count; and put flags back as they were."""
        on = [p for p in self.parameters.values() if not p.requires_grad]
        off = [p for p in self._frozen if p.requires_grad]
        _switch(on, off)
        self._timer, self.passes = timer, Count()
        try:
            with torch.set_grad_enabled(self.optimizer is not None):
                yield
        finally:
            self._timer = None
            _switch(off, on)

    def predict(self, x: Any) -> Outputs:
        """Make a pass in eval mode and without gradients, as for a network that does not adapt."""
        with torch.no_grad():
            return self._pass(self.model, [], x, "inference_time")

    def _pass(
        self, model: Classifier, norms: Sequence[nn.Module], x: Any, stage: str = "forward_time"
    ) -> Outputs:
        inputs = x.inputs if isinstance(x, Batch) else x
        alone, groups = len(inputs) == 1, self._groups if torch.is_grad_enabled() else ()
        statistics = batch_statistics(norms, self._bn_momentum, alone=alone)
        with self._stage(stage), statistics, contiguous_groups(groups):
            output = model.forward(inputs)
        self.passes.forward(len(inputs))
        self.passes.watch(output)
        return Outputs(output.features, output.logits, output.returned)

    @contextmanager
    def _stage(self, name: str) -> Iterator[None]:
        if self._timer is None:
            yield
        else:
            with self._timer.stage(name):
                yield

    def _copy(self, name: str) -> "Copy":
        if name not in self._copies:
            self._copies[name] = Copy(self)
        return self._copies[name]

    def _live(self) -> dict[str, Tensor]:
        return {**self.parameters, **dict(self.model.net.named_buffers())}

    def close(self) -> None:
        """Let go of the copies, which hold this object as it holds them."""
        self._copies.clear()

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_timer": None}
        if "generator" in state:
            state["generator"] = state["generator"].get_state()
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "generator" in state:
            drawn, state["generator"] = state["generator"], torch.Generator()
            state["generator"].set_state(drawn)
        vars(self).update(state)


@dataclass(frozen=True)
class Values:
    """Values to go back to, as `Network.snapshot` gives them."""

    tensors: dict[str, Tensor] = field(repr=False)
    optimizer: dict[str, Any] | None = field(repr=False)
    copies: dict[str, dict[str, Tensor]] = field(repr=False)


class Copy:
    """A second network with the source's values; its passes take no gradients, and are counted.

    Frozen parameters are shared with the network, so that a copy costs what adapts.

    Examples
    --------
    >>> from lametta.torch import Classifier, GradientMethod
    >>> from lametta.torch.digits import digits_net
    >>> class Taught(GradientMethod):
    ...     def adapt(self, batch, net):
    ...         answer = net.teacher()(batch)
    ...         net.step(losses.cross_entropy(answer.log_probs, batch.outputs.log_probs).mean())
    ...         net.teacher().follow(0.99)
    ...         return answer
    >>> Taught(Classifier(digits_net())).step(torch.rand(8, 1, 8, 8)).info["forwards"]
    2
    """

    def __init__(self, network: Network) -> None:
        chosen = set(network.parameters.values())
        memo = {id(p): p for p in network.model.net.parameters() if p not in chosen}
        self.model: Classifier = copy.deepcopy(network.model, memo)
        net = self.model.net
        self.parameters = {name: net.get_parameter(name) for name in network.parameters}
        self._norms = [net.get_submodule(name) for name in network._norm_names]
        self._network = network
        self.load(network.source, network._buffers)

    def __call__(self, x: Any, *, train: bool = True) -> Outputs:
        """Make one pass over a batch, or over inputs."""
        with torch.no_grad():
            return self._network._pass(self.model, self._norms if train else [], x)

    def follow(self, decay: float | Tensor) -> None:
        """Move parameters towards the network's: decay own + (1 - decay) the network's.

        Buffers, as running statistics, move by passes alone.
        """
        with torch.no_grad():
            own: list[Tensor] = [*self.parameters.values()]
            others: list[Tensor] = [self._network.parameters[name] for name in self.parameters]
            torch._foreach_mul_(own, decay)
            torch._foreach_add_(own, torch._foreach_mul(others, 1 - decay))

    def load(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor]) -> None:
        """Take these values."""
        _put(self.parameters, parameters)
        _put(dict(self.model.net.named_buffers()), buffers)


class Snapshot:
    """A network as it was, to the last bit: its modules, their tables, attributes and values.

    Hooks are left alone: those that others put on in the meantime stay.
    """

    def __init__(self, net: nn.Module) -> None:
        self.net = net
        self.modules = [
            (module, type(module), _attributes(module), _tables(module)) for module in net.modules()
        ]
        tensors = dict.fromkeys([*net.parameters(), *net.buffers()])
        self.tensors = list(tensors)
        self.values = [tensor.detach().clone() for tensor in tensors]
        self.extra = [
            (module, copy.deepcopy(module.get_extra_state()))
            for module in net.modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        ]

    def restore(self) -> None:
        """Put everything back, in place, so that references of others stay true."""
        for module, kind, attributes, tables in self.modules:
            if type(module) is not kind:
                module.__class__ = kind
            for name in _attributes(module).keys() - attributes.keys():
                del module.__dict__[name]
            module.__dict__.update(attributes)
            for table, entries in zip(_TABLES, tables, strict=True):
                own = module.__dict__[table]
                own.clear()
                own.update(entries)
        if self.tensors:  # or a network without any would hide what is wrong with it
            with torch.no_grad():
                torch._foreach_copy_(self.tensors, self.values)
        for parameter in self.net.parameters():
            parameter.grad = None
        for module, extra in self.extra:
            module.set_extra_state(copy.deepcopy(extra))


_TABLES = ("_modules", "_parameters", "_buffers")


def _tables(module: nn.Module) -> list[dict[str, Any]]:
    return [dict(module.__dict__[table]) for table in _TABLES]


def _attributes(module: nn.Module) -> dict[str, Any]:
    """What a module holds beside submodules, tensors and hooks."""
    return {
        name: value
        for name, value in module.__dict__.items()
        if name not in _TABLES and "_hooks" not in name
    }


def _part(x: Any, n: int, index: Any) -> Any:
    if isinstance(x, Inputs):
        kwargs = {name: _part(value, n, index) for name, value in x.kwargs.items()}
        return Inputs(tuple(_part(value, n, index) for value in x.args), kwargs)
    return x[index] if isinstance(x, Tensor) and x.ndim and len(x) == n else x


def _tensors_of(net: nn.Module) -> dict[str, Tensor]:
    return {**dict(net.named_parameters()), **dict(net.named_buffers())}


def _values_of(net: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in _tensors_of(net).items()}


def _put(own: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> None:
    if values:  # a network without batch normalizations has no buffers
        with torch.no_grad():
            torch._foreach_copy_([own[name] for name in values], list(values.values()))


def _switch(on: Sequence[Tensor], off: Sequence[Tensor]) -> None:
    for tensor in on:
        tensor.requires_grad_(True)
    for tensor in off:
        tensor.requires_grad_(False)


def length(tensors: "Sequence[Tensor | None]") -> Tensor:
    """Euclidean length of all tensors together, in a handful of kernels; None counts as 0.

    Examples
    --------
    >>> length([torch.tensor([3.0]), None, torch.tensor([[4.0]])])
    tensor(5.)
    """
    held = [tensor for tensor in tensors if tensor is not None]
    if not held:
        return torch.zeros(())
    # A network can hold parameters of several dtypes: hstack promotes them, stack does not.
    found: Tensor = torch.linalg.vector_norm(torch.hstack(torch._foreach_norm(held)))
    return found


def check_finite(x: object) -> None:
    """Raise where a batch has NaN or infinity; the host waits for the device."""
    tensor = first_tensor(x)
    if not isinstance(tensor, torch.Tensor) or not tensor.is_floating_point() or not len(tensor):
        return
    if bool(tensor.sum().isfinite()):  # one pass, in which NaN and infinity stay what they are
        return
    fine = tensor.flatten(1).isfinite().all(1)
    if not bool(fine.all()):  # or the sum alone is too large
        row = int((~fine).nonzero()[0])
        raise LamettaError(f"x must be finite, got NaN or infinity in sample {row} of the batch")


def norms_of(net: nn.Module) -> dict[str, nn.Module]:
    """All batch normalizations of a network, by name."""
    return {name: module for name, module in net.named_modules() if is_batch_norm(module)}
