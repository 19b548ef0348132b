"""wrap: an adapter as an nn.Module that returns probabilities."""

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from safetensors.numpy import load, save
from torch import nn

from lametta import methods
from lametta.adapters import Corrected, Source
from lametta.classmap import ClassMap
from lametta.correctors import Streams
from lametta.preprocess import Preprocess
from lametta.torch.model import (
    Classifier,
    Inputs,
    OutputKey,
    check_ready,
    unwrapped,
    with_logits,
)
from lametta.torch.stored import Stored
from lametta.types import Adapter, Array, Corrector, Id, LamettaError, Prediction


class Wrapped(nn.Module):
    """Module from inputs to probabilities [N, K], as `wrap` makes it.

    Its ``state_dict`` holds the memory of the corrector beside the weights of the network, as one
    tensor of bytes, ``_extra_state``: it can be saved as safetensors, and by ``torch.save``, to be
    loaded with ``weights_only=True``. Under ``torch.compile`` the network is compiled, and the
    correction is not.

    Attributes
    ----------
    net : torch.nn.Module
        The network as it was given.
    model : Classifier
        What reads its features.
    adapter : Adapter
        What makes the predictions.

    Examples
    --------
    >>> from lametta.torch import wrap
    >>> from lametta.torch.digits import digits_net
    >>> model = wrap(digits_net(), "lame")
    >>> model(torch.rand(8, 1, 8, 8)).shape
    torch.Size([8, 10])
    >>> model.prediction.info["neighbors"], model.prediction.source.shape
    (5, torch.Size([8, 10]))
    """

    def __init__(self, model: Classifier, adapter: Adapter) -> None:
        super().__init__()
        self.net = model.net
        self.model = model
        self.adapter = adapter
        self._last: Prediction | None = None

    def forward(
        self,
        *args: object,
        stream: Id | Sequence[Id] | Array | None = None,
        **kwargs: object,
    ) -> object:
        """Predict one batch: probabilities [N, K], without gradients.

        ``stream`` says whose samples these are, as for `lametta.Streams`: one id for all, or one
        for each. Each stream has a memory of its own; without it, all samples are one stream's.

        Called with keywords, as Hugging Face's pipelines call a model, a network whose own output
        has ``logits`` gives an output of that kind, with the logarithms of the probabilities in
        their place: their softmax is the corrected prediction. The rest of it is the network's.
        """
        x: object = args[0] if len(args) == 1 and not kwargs else Inputs(args, kwargs)
        if not torch.compiler.is_compiling():
            return self._answer(x, stream, bool(kwargs))
        if isinstance(self.adapter, Source) or getattr(self.adapter, "base", None) is self.model:
            x = self.model(x)  # the network's part, which is compiled
        return self._answer_uncompiled(x, stream, bool(kwargs))

    def _answer(self, x: object, stream: Any, named: bool) -> object:
        with torch.no_grad():
            if stream is None or isinstance(self.adapter, Source):  # to which rows are all alone
                prediction = self.adapter.step(x)
            elif isinstance(self.adapter, Corrected | Stored):
                prediction = self.adapter.step(x, stream=stream)
            else:
                raise LamettaError(
                    f"stream must be left out for {type(self.adapter).__name__}, which adapts one "
                    f"network for all samples, got {stream!r:.100}"
                )
        self._last = prediction
        if named and hasattr(prediction.returned, "logits"):
            return with_logits(prediction.returned, prediction.probs.log())
        return prediction.probs

    # PyTorch's own way not to load its compiler, which takes seconds, before someone compiles.
    _answer_uncompiled = torch._disable_dynamo(_answer)  # type: ignore[attr-defined]

    @property
    def prediction(self) -> Prediction | None:
        """The last one, with the network's own probabilities, its outputs, and diagnostics.

        They are ``source``, ``returned`` and ``info``. To ask for it waits for the device.
        """
        return None if self._last is None else self._last.plain()

    def __getattr__(self, name: str) -> Any:
        """Look up in the network what this module lacks: ``config``, ``device``, ``dtype``, ..."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name.startswith("_") or "net" not in self.__dict__.get("_modules", {}):
                raise
            return getattr(self.net, name)

    def reset(self) -> None:
        """Return to exactly the state after construction."""
        self.adapter.reset()
        self._last = None

    def get_extra_state(self) -> torch.Tensor:
        """The memory of the corrector, and of `HalfBN` under it, as bytes of safetensors."""
        state = self.adapter.state_dict() if isinstance(self.adapter, Corrected | Stored) else {}
        if not state:
            return torch.empty(0, dtype=torch.uint8)
        return torch.frombuffer(bytearray(save(state)), dtype=torch.uint8)

    def set_extra_state(self, state: torch.Tensor) -> None:
        """Continue from what `get_extra_state` gave."""
        arrays = load(state.cpu().numpy().tobytes()) if len(state) else {}
        if isinstance(self.adapter, Corrected | Stored):
            self.adapter.load_state_dict(arrays)
        elif arrays:
            raise LamettaError(
                f"state must hold no memory of a corrector for {type(self.adapter).__name__}, got "
                f"{', '.join(arrays)}"
            )

    def close(self) -> None:
        """Take the hook off the network, and leave its weights as they are."""
        self.model.close()

    def train(self, mode: bool = True) -> Self:
        """Switch this module's mode; the network is frozen and stays in eval mode."""
        super().train(mode)
        self.net.eval()
        return self


def wrap(
    net: nn.Module,
    method: str | Corrector | Streams | Callable[..., Any] = "prudent",
    *,
    head: nn.Module | str | None = None,
    classes: ClassMap | None = None,
    output: OutputKey = None,
    probabilities: bool = False,
    preprocess: Preprocess | None = None,
    **options: object,
) -> Wrapped:
    """Wrap a classifier so that calling it gives corrected probabilities.

    Parameters
    ----------
    net : torch.nn.Module
        A classifier in eval mode. Methods that see outputs alone change nothing in it; the others
        adapt it in place, and ``reset()`` gives it back.
    method : str, Corrector, Streams, or a class or function that makes a method
        What corrects the predictions, by a name of `lametta.methods`: ``"prudent"``, ``"lame"``,
        ``"tent"``, ``"tent+lame"``, ``"python:package.module:Name"``; ``"source"`` gives the
        network's own. Or an object, such as ``LAME(knn(3))``, or a class, such as ``TENT``.
        `lametta.Prudent`, the default wherever samples are a stream, takes them one by one or in
        batches, and remembers; LAME needs batches.
    head, classes, output, probabilities, preprocess
        As for `Classifier`; methods that augment images need ``preprocess``.
    **options
        Those of the method: of `lametta.LAME`, `tent`, `shot_im`, `pseudo_label`, `adabn`, ...

    Returns
    -------
    Wrapped
        A module: ``probs = wrapped(x)``, ``probs = wrapped(x, stream=ids)``.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential()
    >>> net.body, net.fc = torch.nn.Linear(3, 5), torch.nn.Linear(5, 2)
    >>> model = wrap(net.eval(), method="lame", affinity="rbf", k=3, weight=0.5)
    >>> model(torch.zeros(4, 3)).shape
    torch.Size([4, 2])
    """
    if isinstance(net, Wrapped):
        raise LamettaError("net must be a network, got one that is wrapped already: take its .net")
    check_ready(unwrapped(net))
    make = _maker(method, options)
    model = Classifier(
        net, head, classes, output=output, probabilities=probabilities, preprocess=preprocess
    )
    return Wrapped(model, make(model))


def _maker(method: Any, options: dict[str, object]) -> Callable[[Classifier], Adapter]:
    """What makes the adapter of a model; the method and its options are checked before."""
    if isinstance(method, Streams) and not options:
        return lambda model: Corrected(model, method)
    if isinstance(method, str):
        found = methods.find(method)
    elif isinstance(method, type) or (callable(method) and not isinstance(method, Corrector)):
        name = getattr(method, "__name__", type(method).__name__)
        found = methods.Method(name, (methods.Component(name, method),))
    else:
        own = methods.as_corrector(method, options, argument="method")
        return lambda model: Corrected(model, own)
    for option, message in found.param_errors(options):
        raise LamettaError(f"{option} {message}".strip())
    if all(part.is_corrector for part in found.components):
        one = found.corrector(options)  # for streams to have copies of
        return lambda model: Corrected(model, one)
    return lambda model: found.build(model, options)
