"""A PyTorch classifier as a `lametta.Model`: features and logits from one forward pass."""

from types import TracebackType
from typing import Any, Self

import torch
from torch import nn

from lametta.classmap import ClassMap
from lametta.types import LamettaError, Output

# Where torchvision, timm, Hugging Face and most others keep the layer that makes the logits.
_CONVENTIONAL = ("fc", "classifier", "head", "heads", "_fc", "linear")


class Classifier:
    """A frozen network that gives its features beside its logits.

    The features are what goes into the head, the part that makes the logits. They are read by a
    hook on it, so a batch costs one ordinary forward pass. Nothing else in the network is touched;
    `close`, or the end of a ``with`` block, takes the hook off again.

    Parameters
    ----------
    net : torch.nn.Module
        A classifier in eval mode. It may return logits, or an object with ``logits``.
    head : torch.nn.Module or str, optional
        The head, or its dotted name. Without it, ``net.get_classifier()`` is asked (timm), then
        the conventional attributes: ``fc``, ``classifier``, ``head``, ``heads``, ``_fc``,
        ``linear``.
    classes : ClassMap, optional
        Pools the network's classes onto those of interest.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential()
    >>> net.body, net.fc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
    >>> with Classifier(net.eval()) as model:
    ...     output = model(torch.zeros(4, 3))
    >>> output.features.shape, output.logits.shape
    (torch.Size([4, 5]), torch.Size([4, 2]))
    """

    def __init__(
        self,
        net: nn.Module,
        head: nn.Module | str | None = None,
        classes: ClassMap | None = None,
    ) -> None:
        self.net = net
        self.head = _find_head(net, head)
        self.classes = classes
        self._seen: list[torch.Tensor] | None = None
        self._hook = self.head.register_forward_pre_hook(self._see)

    def _see(self, _: nn.Module, inputs: tuple[Any, ...]) -> None:
        if self._seen is not None:  # this classifier's own pass, not another's on the same net
            self._seen.append(inputs[0])

    def __call__(self, x: Any, /) -> Output:
        """Return features [N, d] and logits [N, K] of a batch, without gradients."""
        with torch.no_grad():
            return self.forward(x)

    def forward(self, x: Any, /) -> Output:
        """Do the same, and let autograd record it."""
        check_ready(self.net, x)
        seen = self._seen = []
        try:
            logits = _logits(self.net(x))
            if len(seen) != 1:
                raise LamettaError(
                    "head must be called once in a forward pass, and its classifier not be closed, "
                    f"got {len(seen)} calls"
                )
            features = seen[0].flatten(1)
        finally:
            self._seen = None
        if self.classes is not None:
            logits = self.classes.pool_logits(logits)
        return Output(features, logits)

    def close(self) -> None:
        """Take the hook off the network."""
        self._hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


def _find_head(net: nn.Module, head: nn.Module | str | None) -> nn.Module:
    if isinstance(head, nn.Module):
        if all(head is not module for module in net.modules()):
            raise LamettaError(f"head must be a module of net, got {type(head).__name__}")
        return head
    if isinstance(head, str):
        try:
            return net.get_submodule(head)
        except AttributeError:
            raise LamettaError(
                f"head must name a module of net, got {head!r}; {_candidates(net)}"
            ) from None
    if head is not None:
        raise LamettaError(f"head must be a module or its name, got {type(head).__name__}")
    get_classifier = getattr(net, "get_classifier", None)
    found = [get_classifier()] if callable(get_classifier) else []
    found += [getattr(net, name, None) for name in _CONVENTIONAL]
    for module in found:
        # An identity stands where a network was made without a head.
        if isinstance(module, nn.Module) and not isinstance(module, nn.Identity):
            return module
    raise LamettaError(
        f"head must be given for {type(net).__name__}, got none and found none; {_candidates(net)}"
    )


def check_ready(net: nn.Module, x: Any = None) -> None:
    """Raise unless the network is in eval mode, and on the device of ``x`` where that is given."""
    if net.training:
        raise LamettaError("net must be in eval mode, got training mode: call net.eval()")
    parameter = next(net.parameters(), None)
    if parameter is not None and isinstance(x, torch.Tensor) and x.device != parameter.device:
        raise LamettaError(
            f"x must be on the device of net, {parameter.device}, got a tensor on {x.device}"
        )


def _candidates(net: nn.Module) -> str:
    layers = [
        f"{name} ({type(module).__name__} to {size})"
        for name, module in net.named_modules()
        if isinstance(size := getattr(module, "out_features", None), int)
    ]
    return f"layers that could be it: {', '.join(layers[-5:]) or 'none'}"


def _logits(output: Any) -> torch.Tensor:
    logits = getattr(output, "logits", output)
    if not isinstance(logits, torch.Tensor) or logits.ndim != 2:
        got = tuple(logits.shape) if isinstance(logits, torch.Tensor) else type(output).__name__
        raise LamettaError(f"net must return logits [N, K], or an object with them, got {got}")
    return logits
