"""Classifier: features and logits of a network from one forward pass, and its head."""

import math
import threading
import weakref
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, Self, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn

from lametta._checks import ONE_OF_SEVERAL, check_flag
from lametta.classmap import ClassMap
from lametta.preprocess import Preprocess
from lametta.types import LamettaError, Output, Prototypes

OutputKey: TypeAlias = str | int | Callable[[Any], torch.Tensor] | None
"""Which part of what a network returns is the logits: a name, a place, or a function."""

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
        output: OutputKey = None,
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
        if preprocess is not None and not isinstance(preprocess, Preprocess):
            got = type(preprocess).__name__
            raise LamettaError(f"preprocess must be a lametta.torch.Preprocess, got {got}")
        self.preprocess = preprocess
        self._checked = False  # at whether the outputs are logits or probabilities, as said
        self._hook_head()

    def _hook_head(self) -> None:
        _add_hook(self.head)
        self._release = weakref.finalize(self, _remove_hook, self.head)
        self._release.atexit = False

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_release"}

    def __setstate__(self, state: dict[str, object]) -> None:
        vars(self).update(state)
        self._hook_head()

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
        check = not self._checked and len(logits) > 0 and not torch.compiler.is_compiling()
        if check:
            check_sigmoid(self.net, logits, self.probabilities)
        if logits.shape[1] == 1:  # of a binary classifier
            other = 1 - logits if self.probabilities else torch.zeros_like(logits)
            logits = torch.cat([other, logits], dim=1)
        if check:
            self._checked = True  # once: a check makes the host wait for the device
            check_logits(logits, self.probabilities)
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
        return all(hook is _record_head_input for hooks in tables for hook in hooks.values())

    @property
    def prototypes(self) -> Prototypes | None:
        """A copy of the weights and biases of a linear head; None where the head is no such layer.

        Layers that do nothing in eval mode, such as dropout, and those that reshape may be beside
        it. With ``classes`` they are pooled, as `ClassMap.pool_prototypes` says.
        """
        linear = _linear_of(self.head)
        if linear is None:
            return None
        weight = linear.weight.detach().clone().flatten(1)
        bias = None if linear.bias is None else linear.bias.detach().clone()
        if len(weight) == 1:  # of a binary classifier, whose other logit is 0
            weight = torch.cat([torch.zeros_like(weight), weight])
            bias = None if bias is None else torch.cat([torch.zeros_like(bias), bias])
        found = Prototypes(weight, bias)
        return found if self.classes is None else self.classes.pool_prototypes(found)

    def close(self) -> None:
        """Take the hook off the network, unless another classifier of it needs it."""
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_hook_counts: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
_hook_lock = threading.RLock()  # re-entrant: garbage may be collected, and so detached, meanwhile


def _record_head_input(
    head: nn.Module, args: tuple[torch.Tensor, ...], kwargs: dict[str, torch.Tensor]
) -> None:
    current = _PASS.get()
    if current is not None and current[0] is head:
        current[1].append(args[0] if args else next(iter(kwargs.values())))


def _add_hook(head: nn.Module) -> None:
    """Put the hook on a head: one for all of its classifiers, for as long as there are any."""
    # One that came and went with each call would change PyTorch's table of hooks while another
    # thread reads it.
    with _hook_lock:
        _hook_counts[head] = _hook_counts.get(head, 0) + 1
        # A copy of a network has it already.
        if _record_head_input not in head._forward_pre_hooks.values():
            head.register_forward_pre_hook(_record_head_input, with_kwargs=True)


def _remove_hook(head: nn.Module) -> None:
    with _hook_lock:
        _hook_counts[head] = _hook_counts.get(head, 0) - 1
        if _hook_counts[head] > 0:
            return
        hooks = head._forward_pre_hooks
        for number in [n for n, hook in hooks.items() if hook is _record_head_input]:
            del hooks[number]
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


# Where torchvision, timm, Hugging Face and most others keep the layer that makes the logits.
_CONVENTIONAL = ("fc", "classifier", "head", "heads", "_fc", "linear", "score")


def find_head(net: nn.Module, head: nn.Module | str | None) -> nn.Module:
    """Find the head of a network, as `lametta.torch.Classifier` describes it."""
    if head is not None:
        return _given_head(net, head)
    get_classifier = getattr(net, "get_classifier", None)
    found = [get_classifier()] if callable(get_classifier) else []
    found += [getattr(net, name, None) for name in _CONVENTIONAL]
    for module in found:
        # An identity stands where a network was made without a head.
        if isinstance(module, nn.Module) and not isinstance(module, nn.Identity):
            return module
    if len(layers := _candidates(net)) == 1:
        return next(iter(layers.values()))
    raise LamettaError(
        f"head must be given for {type(net).__name__}, got none and found none; {_described(net)}"
    )


def _given_head(net: nn.Module, head: object) -> nn.Module:
    if isinstance(head, nn.Module):
        if all(head is not module for module in net.modules()):
            raise LamettaError(f"head must be a module of net, got {type(head).__name__}")
        return head
    if not isinstance(head, str):
        raise LamettaError(f"head must be a module or its name, got {type(head).__name__}")
    try:
        return net.get_submodule(head)
    except AttributeError:
        raise LamettaError(
            f"head must name a module of net, got {head!r}; {_described(net)}"
        ) from None


_IDLE = (nn.Identity, nn.Flatten, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.AlphaDropout)


def _linear_of(head: nn.Module) -> nn.Linear | nn.Conv2d | None:
    """The layer that a head amounts to in eval mode, if that is linear."""
    if type(head) is nn.Sequential:
        working = [layer for layer in head if not isinstance(layer, _IDLE)]
        return _linear_of(working[0]) if len(working) == 1 else None
    if isinstance(head, nn.Conv2d):
        return head if head.kernel_size == (1, 1) and head.groups == 1 else None
    return head if isinstance(head, nn.Linear) else None


def pooled(head: nn.Module, x: torch.Tensor, logits: torch.Tensor | None = None) -> torch.Tensor:
    """Features [N, d] from what goes into the head, averaged over places unless it flattens them.

    A head may score each of the tokens, and the network return the scores of one, often the last
    that is not padding: if ``logits`` are the scores of one token, the features are that token.

    Examples
    --------
    >>> pooled(nn.Conv2d(8, 10, 1), torch.zeros(2, 8, 7, 7)).shape
    torch.Size([2, 8])
    >>> pooled(nn.Sequential(nn.Flatten(), nn.Linear(32, 10)), torch.zeros(2, 8, 2, 2)).shape
    torch.Size([2, 32])
    """
    if x.ndim <= 2:
        return x.flatten(1)
    linear = next((layer for layer in head.modules() if isinstance(layer, nn.Linear)), None)
    if linear is not None and linear.in_features == math.prod(x.shape[1:]):
        return x.flatten(1)
    if x.ndim == 3:  # tokens [N, T, C]
        return x.mean(1) if logits is None or linear is not head else _returned(linear, x, logits)
    return x.flatten(2).mean(2)


def _returned(head: nn.Linear, tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """The token of each row whose scores are the logits; the mean of tokens if there is none."""
    with torch.no_grad():
        scores = head.forward(tokens)  # past the hooks, which have seen this call
        apart, place = (scores - logits[:, None]).abs().amax(2).min(1)
        fits = apart <= 4 * torch.finfo(logits.dtype).eps * (1 + logits.abs().amax(1))
    found = tokens[torch.arange(len(tokens), device=tokens.device), place]
    return torch.where(fits.all(), found, tokens.mean(1))  # an if would wait for the device


def _candidates(net: nn.Module) -> dict[str, nn.Module]:
    """Linear layers, which could be the head."""
    return {
        name: module
        for name, module in net.named_modules()
        if isinstance(getattr(module, "out_features", None), int)
    }


def _described(net: nn.Module) -> str:
    layers = [
        f"{name} ({type(module).__name__} to {module.out_features})"
        for name, module in _candidates(net).items()
    ]
    return f"layers that could be it: {', '.join(layers[-5:]) or 'none'}"


def pick_logits(returned: object, output: OutputKey, n: int) -> torch.Tensor:
    """Find the logits [N, K] of n samples in what a network returned."""
    try:
        found = _chosen(returned, output)
    except (KeyError, IndexError):
        among = ", ".join(_parts(returned)) or type(returned).__name__
        raise LamettaError(f"output must be one of {among}, got {output!r}") from None
    if isinstance(found, torch.Tensor) and found.shape == (n,):
        found = found[:, None]  # one logit for each sample
    if not isinstance(found, torch.Tensor) or found.ndim != 2:
        got = tuple(found.shape) if isinstance(found, torch.Tensor) else type(found).__name__
        raise LamettaError(f"net must return logits [N, K], or say which with output=, got {got}")
    return found


def _chosen(returned: object, output: OutputKey) -> object:
    if callable(output):
        return output(returned)
    if isinstance(output, int):
        return tuple(_parts(returned).values())[output]
    return _only_logits(returned) if output is None else _parts(returned)[output]


def with_logits(returned: Any, logits: torch.Tensor) -> object:
    """The same output of a network with other logits: for records that have them by name."""
    kind: Callable[..., object] = type(returned)
    return kind(**{**_parts(returned), "logits": logits})


def _only_logits(returned: object) -> object:
    parts = _parts(returned)
    if "logits" in parts:
        return parts["logits"]
    if not parts:
        return returned
    matrices = {name: x for name, x in parts.items() if getattr(x, "ndim", 0) == 2}
    if len(matrices) != 1:
        found = ", ".join(f"{name} {tuple(getattr(x, 'shape', ()))}" for name, x in parts.items())
        raise LamettaError(f"output must say which of these are the logits, got none: {found}")
    return next(iter(matrices.values()))


def _parts(returned: object) -> dict[str, object]:
    """What a network returned, by name or place; nothing for a tensor."""
    if isinstance(returned, torch.Tensor):
        return {}
    if isinstance(returned, Mapping):
        return dict(returned)
    if isinstance(returned, tuple | list):
        names = getattr(returned, "_fields", range(len(returned)))
        return {str(name): part for name, part in zip(names, returned, strict=True)}
    if is_dataclass(returned):
        return {field.name: getattr(returned, field.name) for field in fields(returned)}
    return dict(vars(returned)) if hasattr(returned, "__dict__") else {}


def check_one_of_many(config: object) -> None:
    """Raise where a configuration as Hugging Face has it says that no single class is chosen."""
    if not hasattr(config, "problem_type"):
        return
    if config.problem_type == "multi_label_classification":
        raise LamettaError(
            "net must choose one class of several, got one that says yes or no to each: "
            f"multi_label_classification, by its config; {ONE_OF_SEVERAL}"
        )
    if config.problem_type == "regression" or getattr(config, "num_labels", 2) < 2:
        raise LamettaError(
            "net must choose one class of several, got one for regression, or of a single class; "
            f"{ONE_OF_SEVERAL}"
        )


def check_sigmoid(net: nn.Module, returned: torch.Tensor, probabilities: bool) -> None:
    """Raise where a network ends in a sigmoid: it says yes or no to each class, or gives no logit.

    Its last layer has to be one, and its outputs to be between 0 and 1: layers may be made in
    another order than they are called in.
    """
    leaves = [module for module in net.modules() if not any(True for _ in module.children())]
    if not isinstance(leaves[-1], nn.Sigmoid) or not bool(
        ((returned >= 0) & (returned <= 1)).all()
    ):
        return
    if returned.shape[1] > 1:
        raise LamettaError(
            "net must choose one class of several, got one that ends in a sigmoid, which says yes "
            f"or no to each; {ONE_OF_SEVERAL}"
        )
    if not probabilities:
        raise LamettaError(
            "net must return a logit, got a probability, as after its sigmoid: say "
            "probabilities=True to take it as it is"
        )


def check_logits(returned: torch.Tensor, probabilities: bool) -> None:
    """Raise if these are rows of probabilities and should be logits, or the other way round."""
    values = returned.detach().float()
    fit = bool((values >= 0).all() & ((values.sum(1) - 1).abs() < 1e-3).all())
    if fit and not probabilities:
        raise LamettaError(
            "net must return logits, got rows that sum to 1, as after a softmax: say "
            "probabilities=True to take them as they are, or leave the softmax out"
        )
    if probabilities and not fit:
        raise LamettaError(
            "net must return rows of probabilities, as probabilities=True says, got others: leave "
            "that out if these are logits"
        )
