"""A PyTorch classifier as a `lametta.Model`: features and logits from one forward pass."""

import threading
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Self
from weakref import WeakKeyDictionary

import torch
from torch import nn

from lametta._checks import check_flag
from lametta.classmap import ClassMap
from lametta.torch.head import find_head, pooled
from lametta.torch.outputs import (
    Pick,
    check_kind,
    check_one_of_many,
    check_sigmoid,
    pick_logits,
)
from lametta.torch.preprocess import Preprocess
from lametta.types import LamettaError, Output

# The head of the forward pass that is under way in this thread or task, and what went into it:
# passes in other threads, and passes inside this one, have their own.
_PASS: ContextVar[tuple[nn.Module, list[torch.Tensor]] | None] = ContextVar("pass", default=None)


@dataclass(frozen=True)
class Inputs:
    """A batch that is more than one positional argument, for networks that take several."""

    args: tuple[object, ...]
    kwargs: Mapping[str, object]

    def __len__(self) -> int:
        return len(self.first_tensor())

    def first_tensor(self) -> torch.Tensor:
        """The first of the arguments that is a tensor."""
        for value in (*self.args, *self.kwargs.values()):
            if isinstance(value, torch.Tensor):
                return value
        raise LamettaError("x must hold a tensor, got none among the arguments of the network")


class Classifier:
    """A frozen network that gives its features beside its logits.

    The features are what goes into the head, the part that makes the logits. They are read by a
    hook on it, so that a batch costs one ordinary forward pass; the hook is removed with the last
    classifier of the network. Calls from several threads, and several classifiers on one network,
    do not disturb each other.

    Parameters
    ----------
    net : torch.nn.Module
        A classifier in eval mode. Of a ``DataParallel``, and of what ``torch.compile`` gave, the
        network inside is taken.
    head : torch.nn.Module or str, optional
        The head, or its dotted name. By default what ``net.get_classifier()`` gives (timm), else
        a conventional attribute (``fc``, ``classifier``, ``head``, ...), else the only layer that
        could be it.
    classes : ClassMap, optional
        Pools the network's classes onto those of interest.
    output : str, int or callable, optional
        Where the logits are, if the network returns several things: an attribute or a key, a place
        in a tuple, or a function of all of it. By default ``logits``, or the only [N, K] tensor.
    probabilities : bool
        Whether the network ends in a softmax: then its outputs are taken as they are.
    preprocess : Preprocess, optional
        How pixels become the network's inputs; methods that augment images need it.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential()
    >>> net.body, net.fc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
    >>> output = Classifier(net.eval())(torch.zeros(4, 3))
    >>> output.features.shape, output.logits.shape
    (torch.Size([4, 5]), torch.Size([4, 2]))
    """

    def __init__(
        self,
        net: nn.Module,
        head: nn.Module | str | None = None,
        classes: ClassMap | None = None,
        *,
        output: Pick = None,
        probabilities: bool = False,
        preprocess: Preprocess | None = None,
    ) -> None:
        check_flag("probabilities", probabilities)
        if classes is not None and not isinstance(classes, ClassMap):
            raise LamettaError(f"classes must be a lametta.ClassMap, got {type(classes).__name__}")
        self.net = unwrapped(net)
        check_one_of_many(getattr(self.net, "config", None))
        self.head = find_head(self.net, head)
        self.classes = classes
        self.output = output
        self.probabilities = probabilities
        self.preprocess = preprocess
        self._looked = False  # at whether the outputs are logits or probabilities, as said
        self._watch()

    def _watch(self) -> None:
        _attach(self.head)
        self._release = weakref.finalize(self, _detach, self.head)
        self._release.atexit = False

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_release"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._watch()

    def __call__(self, x: object, /) -> Output:
        """Return features [N, d] and logits [N, K] of a batch, without gradients.

        An `Output` is what this gave for a batch before, and is given back.
        """
        if isinstance(x, Output):
            return x
        with torch.no_grad():
            return self.forward(x)

    def forward(self, x: object, /) -> Output:
        """Do the same, and let autograd record it."""
        check_ready(self.net, x)
        seen, returned = self._pass(x)
        logits = pick_logits(returned, self.output, len(seen))
        features = pooled(self.head, seen, logits)
        look = not self._looked and len(logits) > 0 and not torch.compiler.is_compiling()
        if look:
            check_sigmoid(self.net, logits, self.probabilities)
        if logits.shape[1] == 1:  # of a binary classifier
            other = 1 - logits if self.probabilities else torch.zeros_like(logits)
            logits = torch.cat([other, logits], dim=1)
        if look:
            self._looked = True  # once: a look makes the host wait for the device
            check_kind(logits, self.probabilities)
        if self.probabilities:
            # The logarithm of 0 would have no gradient, and poison a network that adapts.
            wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
            logits = wide.clamp(min=torch.finfo(wide.dtype).tiny).log().to(logits.dtype)
        if self.classes is not None:
            logits = self.classes.pool_logits(logits)
        return Output(features, logits, None if isinstance(returned, torch.Tensor) else returned)

    def _pass(self, x: object) -> tuple[torch.Tensor, object]:
        """What went into the head, and what the network returned."""
        seen: list[torch.Tensor] = []
        token = _PASS.set((self.head, seen))
        try:
            returned = call(self.net, x)
        finally:
            _PASS.reset(token)
        if len(seen) != 1:
            raise LamettaError(
                f"head must be called once in a forward pass, got {len(seen)} calls: name another "
                "layer as head, and call no classifier that is closed"
            )
        return seen[0], returned

    @property
    def replayable(self) -> bool:
        """Whether calls can be recorded and replayed: a replay would skip the hooks of others."""
        tables = [
            hooks for m in self.net.modules() for hooks in (m._forward_hooks, m._forward_pre_hooks)
        ]
        return all(hook is _see for hooks in tables for hook in hooks.values())

    def close(self) -> None:
        """Take the hook off the network, unless another classifier of it needs it."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_watchers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_attaching = threading.RLock()  # re-entrant: garbage may be collected, and so detached, meanwhile


def _see(head: nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]) -> None:
    current = _PASS.get()
    if current is not None and current[0] is head:
        current[1].append(args[0] if args else next(iter(kwargs.values())))


def _attach(head: nn.Module) -> None:
    """Put the hook on a head: one for all of its classifiers, for as long as there are any."""
    # One that came and went with each call would change PyTorch's table of hooks while another
    # thread reads it.
    with _attaching:
        _watchers[head] = _watchers.get(head, 0) + 1
        if _see not in head._forward_pre_hooks.values():  # a copy of a network has it already
            head.register_forward_pre_hook(_see, with_kwargs=True)


def _detach(head: nn.Module) -> None:
    with _attaching:
        _watchers[head] = _watchers.get(head, 0) - 1
        if _watchers[head] > 0:
            return
        for number in [n for n, hook in head._forward_pre_hooks.items() if hook is _see]:
            del head._forward_pre_hooks[number]
            head._forward_pre_hooks_with_kwargs.pop(number, None)


_CLOSED = (torch.jit.ScriptModule, torch.export.ExportedProgram, torch.export.UnflattenedModule)


def unwrapped(net: nn.Module) -> nn.Module:
    """The network inside ``DataParallel`` and ``torch.compile``; refuse what hides its layers."""
    nodes = net.graph.nodes if isinstance(net, torch.fx.GraphModule) else ()
    # An exported graph calls operators where others call layers.
    operators = any(isinstance(node.target, torch._ops.OpOverload) for node in nodes)
    if operators or isinstance(net, _CLOSED):
        raise LamettaError(
            "net must be an ordinary module, got a scripted, traced or exported one, whose layers "
            "cannot be looked into: wrap the network before that, or make it return its features "
            "too and correct them with lametta.lame"
        )
    if not isinstance(net, nn.Module):
        raise LamettaError(f"net must be a torch.nn.Module, got {type(net).__name__}")
    if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return unwrapped(net.module)
    if isinstance(inside := getattr(net, "_orig_mod", None), nn.Module):
        return unwrapped(inside)
    return net


def call(net: nn.Module, x: object) -> object:
    """Call a network on a batch."""
    return net(*x.args, **x.kwargs) if isinstance(x, Inputs) else net(x)


def first_tensor(x: object) -> object:
    """The first tensor of a batch, which says how many samples it has and where they are."""
    return x.first_tensor() if isinstance(x, Inputs) else x


def check_ready(net: nn.Module, x: object = None) -> None:
    """Raise unless the network is in eval mode, and on the device of ``x`` where that is given."""
    if net.training:
        raise LamettaError("net must be in eval mode, got training mode: call net.eval()")
    tensor, parameter = first_tensor(x), next(net.parameters(), None)
    if parameter is not None and parameter.is_meta:
        raise LamettaError("net must have weights, got parameters on the meta device: load them")
    if not isinstance(tensor, torch.Tensor) or parameter is None:
        return
    if tensor.device != parameter.device:
        raise LamettaError(
            f"x must be on the device of net, {parameter.device}, got a tensor on {tensor.device}"
        )
