"""NetworkMethod: what a method that adapts the network derives from.

A method is a dataclass whose fields are its options, and whose `adapt` is the algorithm of its
paper: it learns from a `Batch` by means of a `Network`, and gives the outputs that answer.
`LossMethod` is for the many methods that are a loss and nothing else. `reset` gives the network
back bit for bit: parameters, buffers, layers that were replaced, flags.
"""

import warnings
import weakref
from collections.abc import Callable, Sequence, Sized
from contextvars import ContextVar
from dataclasses import KW_ONLY, Field, dataclass, field, fields
from typing import Any, ClassVar, Literal
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from lametta._checks import check_choice, check_flag, check_integer, check_number
from lametta._locks import FairLock
from lametta.signals import signals
from lametta.torch.model import Classifier, Inputs, check_ready
from lametta.torch.network import (
    Batch,
    Network,
    Outputs,
    Snapshot,
    check_finite,
    norms_of,
)
from lametta.torch.norm import is_batch_norm
from lametta.torch.profiling import StepTimer
from lametta.torch.select import Selector, as_selector, layers_of
from lametta.types import LamettaDeprecationWarning, LamettaError, Output, Prediction

BN_MOMENTUM = 0.1  # PyTorch's own


def own(default: Any = None, *, factory: Callable[[], Any] | None = None) -> Any:
    """Declare state of a method, which is no option: `NetworkMethod.forget` sets it back.

    Parameters
    ----------
    default
        The value at first: None, a number or text.
    factory : callable, optional
        Makes the value at first, where it is a list, a dictionary or an object.

    Examples
    --------
    >>> from lametta.torch import LossMethod
    >>> @dataclass(kw_only=True)
    ... class Counting(LossMethod):
    ...     seen: int = own(0)
    ...     def loss(self, outputs):
    ...         self.seen += len(outputs)
    ...         return outputs.entropy.mean()
    """
    options: dict[str, Any] = {"init": False, "repr": False, "compare": False}
    options["metadata"] = {"own": True}
    if factory is not None:
        return field(default_factory=factory, **options)
    return field(default=default, **options)


@dataclass
class NetworkMethod:
    """A method that adapts the network itself: derive from it and define ``adapt``.

    Parameters
    ----------
    model : Classifier
        The network; it is adapted in place, and given back exactly by `reset`.
    layers : Selector or str
        Which layers adapt: a predicate of `lametta.torch.select`, or one of its `LAYERS`.
    bn_momentum : float
        How far running statistics move towards those of a batch in a pass with ``train=True``: 0
        keeps the source's for prediction, 1 takes the batch's.

    Notes
    -----
    What a class may say beside its options: ``statistics``, which batch normalizations go by the
    batch in a pass with ``train=True``, the ``"chosen"`` ones among ``layers`` or ``"all"``, or
    ``"own"`` where it learns no parameters, and measures and moves statistics itself;
    ``transform``, the augmentation of pixels that it makes, for which the model has to know its
    ``preprocess``; ``seed``, of the draws of ``net.generator`` (an option, in a method that draws);
    ``ordered``, whether the order inside a batch matters; ``needs``, out of
    `lametta.methods.NEEDS`; ``answers``, from ``"before"`` or ``"after"`` its update; ``passes``,
    how many forward and backward passes it makes for a sample with its default options, None where
    it does not say.

    Examples
    --------
    >>> from lametta.torch.digits import digits_net
    >>> class Statistics(NetworkMethod):
    ...     def adapt(self, batch, net):
    ...         net(batch)  # one pass, in which running statistics move; None: predict afterwards
    >>> Statistics(Classifier(digits_net())).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    model: Classifier
    _: KW_ONLY
    layers: Selector | str = "norms"
    bn_momentum: float = BN_MOMENTUM
    _network: Network | None = field(default=None, init=False, repr=False, compare=False)
    _before: Snapshot | None = field(default=None, init=False, repr=False, compare=False)

    needs_network: ClassVar[bool] = True
    stateful: ClassVar[bool] = True
    ordered: ClassVar[bool] = False
    causal: ClassVar[bool] = False
    needs: ClassVar[frozenset[str]] = frozenset()
    answers: ClassVar[str] = "after"
    passes: ClassVar[tuple[float, float] | None] = None
    statistics: ClassVar[Literal["chosen", "all", "own"]] = "chosen"
    transform: ClassVar[Any] = None  # a Transform; mypy would take a callable for a method
    seed: ClassVar[int] = 0

    def __post_init__(self) -> None:
        kind = type(self)
        for name in [name for name, value in vars(kind).items() if isinstance(value, Field)]:
            raise LamettaError(f"{kind.__name__} must be a dataclass, got {name} in a plain class")
        as_selector(self.layers)
        check_number("bn_momentum", self.bn_momentum, 0, 1)
        check_choice("statistics", self.statistics, ("chosen", "all", "own"))
        check_integer("seed", self.seed, 0)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in _HOOKS:
            if isinstance(vars(cls).get(name), Field):
                raise LamettaError(f"{cls.__name__} must define {name} as a method, got a field")

    def prepare(self, net: nn.Module, /) -> None:
        """Replace layers, before parameters are chosen; by default none."""

    def start(self, net: Network, /) -> None:
        """Learn about the source before the first batch, by passes and gradients, or not at all."""

    def adapt(self, batch: Batch, net: Network, /) -> Output | None:
        """Learn from a batch, and answer it.

        Returns
        -------
        Output or None
            What answers, features and logits of one pass; None for a pass in eval mode afterwards.
        """
        raise LamettaError(f"{type(self).__name__} must define adapt(batch, net)")

    def make_optimizer(self, parameters: Sequence[Tensor], /) -> torch.optim.Optimizer | None:
        """What takes the gradient steps; None to record no gradients at all."""
        return None

    def forget(self) -> None:
        """Set the state that the class declares by `own` back to what it was at first."""
        for one in fields(self):
            if one.metadata.get("own"):
                made = callable(one.default_factory)
                setattr(self, one.name, one.default_factory() if made else one.default)  # type: ignore[operator]

    def step(self, x: Sized, /) -> Prediction:
        """Update the network on this batch, and predict it.

        A batch with NaN or infinity is refused before anything changes, since it would poison the
        network for good; to look for them makes the host wait for the device. Steps of several
        threads on one network take turns, in the order in which they come.

        The statistics of a batch of one image are those of its pixels. A batch normalization whose
        maps have shrunk to 1 x 1 keeps to its running statistics then; one of vectors [N, d] has no
        statistics of one sample, which is an error.
        """
        if not isinstance(self.model, Classifier):
            got = type(self.model).__name__
            raise LamettaError(f"model must be a lametta.torch.Classifier, got {got}")
        check_ready(self.model.net, x)
        if not skip_finite_check.get():
            check_finite(x)
        # Autograd cannot be on in inference mode.
        with _lock_of(self.model.net), torch.inference_mode(False):
            return self._step(_out_of_inference_mode(x))

    def _step(self, x: Sized) -> Prediction:
        network = self._network or self._begin(x)
        timer, batch = StepTimer(next(self.model.net.parameters()).device), Batch(x, network)
        with network.stepping(timer):
            output = self.adapt(batch, network) if len(x) else None
            if output is None:
                output = network.predict(x)
        probs = output.logits.detach().softmax(1)
        info = {**signals(probs), "drift": network.drift(), **vars(network.passes), **timer.info()}
        features, returned = output.features.detach(), output.returned
        return Prediction(probs, features, info | batch.info, returned=returned)

    def _begin(self, x: Sized) -> Network:
        """Replace layers, choose parameters, and learn about the source, before the first step."""
        net, before = self.model.net, Snapshot(self.model.net)
        try:
            self.prepare(net)
            network = self._make_network(x)
            if self.transform is not None:
                _ = Batch(x, network).pixels  # raises where there are none, or it is not known how
            with network.stepping(StepTimer(next(net.parameters()).device)):
                self.start(network)
        except BaseException:
            before.restore()
            raise
        self._before, self._network = before, network
        _started.setdefault(net, []).append(weakref.ref(self))
        return network

    def _make_network(self, x: Sized) -> Network:
        if self.statistics == "own":
            return Network(self.model, {}, [], None, self.bn_momentum, self.seed)
        # Hooks, by which layers are found, are not called then.
        if self.model.net._compiled_call_impl is not None:
            raise LamettaError(
                "net must not be compiled where a method adapts it, got one after net.compile()"
            )
        chosen, optimizer = self._choose(x)
        norms = norms_of(self.model.net) if self.statistics == "all" else chosen
        parameters = _parameters(chosen)
        return Network(self.model, parameters, list(norms), optimizer, self.bn_momentum, self.seed)

    def _choose(self, x: Sized) -> tuple[dict[str, nn.Module], torch.optim.Optimizer | None]:
        """The layers that adapt, by name, and the optimizer of their parameters if they learn."""
        choose = as_selector(self.layers)
        chosen = {one.name: one.module for one in layers_of(self.model.net, x) if choose(one)}
        parameters = _parameters(chosen)
        optimizer = self.make_optimizer(list(parameters.values())) if parameters else None
        if optimizer is None:
            chosen = {name: module for name, module in chosen.items() if is_batch_norm(module)}
        if not _parameters(chosen):
            learns = type(self).make_optimizer is not NetworkMethod.make_optimizer
            what = "layers" if learns else "batch normalization layers"
            named = f" in {self.layers!r}" if isinstance(self.layers, str) else ""
            raise LamettaError(f"layers must choose {what} of net to adapt, got none{named}")
        return chosen, optimizer

    def predict(self, x: Sized, /) -> Outputs:
        """Make a pass as the method answers by, which learns nothing: for probes and vetoes.

        Normalizations go by this batch where ``bn_momentum`` is 0, since running statistics are
        then the source's, and by running ones else. A teacher answers where there is one.
        """
        with _lock_of(self.model.net), torch.inference_mode(False):
            x = _out_of_inference_mode(x)
            network = self._network or self._begin(x)
            with network.stepping(StepTimer(next(self.model.net.parameters()).device)):
                asked = network.teacher() if "teacher" in self.needs else network
                with torch.no_grad():
                    return asked(x, train=self.bn_momentum == 0)

    def reset(self) -> None:
        """Give the network back as it was before the first step, and forget all state."""
        if self._before is None or self._network is None:
            self.forget()
            return
        with _lock_of(self.model.net):  # not amid the step of another thread
            _end(self)
            self._before.restore()
            self._network.close()
            self._before = self._network = None
            self.forget()


_HOOKS = ("prepare", "start", "adapt", "make_optimizer", "forget", "step", "reset", "loss")


@dataclass(kw_only=True)
class GradientMethod(NetworkMethod):
    """A method that takes gradient steps: derive from it and define ``adapt``.

    Parameters
    ----------
    model : Classifier
        The network to adapt.
    lr : float
        Learning rate.
    optimizer : {"adam", "sgd", "heavy_ball"} or callable
        Adam as in the paper of LAME; SGD with Nesterov momentum as in its released code; SGD with
        the classical momentum, as in EATA, SAR and DeYO; or a class such as ``torch.optim.AdamW``,
        called with parameters and ``lr``.
    momentum : float, optional
        Adam's beta1, or the momentum of SGD: 0.9 if not given. A callable has its own.
    weight_decay : float, optional
        How strongly parameters are pulled to 0. If not given, 1e-4 with "sgd", as in that released
        code, and none else. A callable has its own.
    layers, bn_momentum
        As for `NetworkMethod`.

    Examples
    --------
    >>> from lametta.torch.digits import digits_net
    >>> class TwoSteps(GradientMethod):
    ...     def adapt(self, batch, net):
    ...         for _ in range(2):
    ...             net.step(net(batch).entropy.mean())
    >>> prediction = TwoSteps(Classifier(digits_net()), lr=1e-3).step(torch.rand(8, 1, 8, 8))
    >>> prediction.info["forwards"], prediction.info["backwards"]
    (3, 2)
    """

    lr: float = 1e-3
    optimizer: str | Callable[..., torch.optim.Optimizer] = "adam"
    momentum: float | None = None
    weight_decay: float | None = None

    needs: ClassVar[frozenset[str]] = frozenset({"gradients"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number("lr", self.lr, 0)
        if not callable(self.optimizer):
            check_choice("optimizer", self.optimizer, ("adam", "sgd", "heavy_ball"))
        for name, value, below in (
            ("momentum", self.momentum, 1),
            ("weight_decay", self.weight_decay, None),
        ):
            if value is None:
                continue
            if callable(self.optimizer):
                raise LamettaError(f"{name} must be bound in a callable optimizer, got {value!r}")
            check_number(name, value, 0, below=below)
        own_default = type(self).__dataclass_fields__["bn_momentum"].default
        if str(self.layers).startswith("conv") and self.bn_momentum != own_default:
            raise LamettaError(
                f"bn_momentum is no option of the layers {self.layers!r}, "
                f"which have no statistics, got {self.bn_momentum!r}"
            )

    def make_optimizer(self, parameters: Sequence[Tensor], /) -> torch.optim.Optimizer:
        """Make Adam, SGD or the one that was given."""
        if callable(self.optimizer):
            return self.optimizer(parameters, lr=self.lr)
        momentum = 0.9 if self.momentum is None else float(self.momentum)  # Adam takes no int
        decay = self.weight_decay
        if self.optimizer == "adam":
            # In float16 its usual 1e-8 is 0, and a gradient of 0 would become NaN.
            eps = max(1e-8, *(torch.finfo(p.dtype).tiny for p in parameters))
            return torch.optim.Adam(
                parameters, lr=self.lr, betas=(momentum, 0.999), eps=eps, weight_decay=decay or 0
            )
        nesterov = self.optimizer == "sgd" and momentum > 0
        if decay is None:
            decay = 1e-4 if self.optimizer == "sgd" else 0
        return torch.optim.SGD(
            parameters, lr=self.lr, momentum=momentum, nesterov=nesterov, weight_decay=decay
        )


@dataclass(kw_only=True)
class LossMethod(GradientMethod):
    """A method that is a loss: derive from it and define ``loss``.

    Parameters
    ----------
    steps : int
        Updates for each batch, each with a pass of its own.
    predict_first : bool
        Predict from the first update pass, before its step, which saves the last forward pass.
    model, lr, optimizer, momentum, weight_decay, layers, bn_momentum
        As for `GradientMethod`.

    Examples
    --------
    >>> from lametta.torch.digits import digits_net
    >>> class Sure(LossMethod):
    ...     def loss(self, outputs):
    ...         return -outputs.log_probs.amax(1).mean()
    >>> Sure(Classifier(digits_net()), lr=0.001).step(torch.rand(8, 1, 8, 8)).probs.shape
    torch.Size([8, 10])
    """

    steps: int = 1
    predict_first: bool = False

    passes: ClassVar[tuple[float, float] | None] = (2, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("steps", self.steps, 1)
        check_flag("predict_first", self.predict_first)
        if self.predict_first:
            self.answers = "before"  # type: ignore[misc]
        self.passes = self.steps + (not self.predict_first), self.steps  # type: ignore[misc]

    def loss(self, outputs: Outputs, /) -> Tensor | None:
        """What to minimize, a number; None takes no step."""
        raise LamettaError(f"{type(self).__name__} must define loss(outputs)")

    def adapt(self, batch: Batch, net: Network, /) -> Output | None:
        """Take the steps."""
        outputs = batch.outputs
        for number in range(self.steps):
            loss = self.loss(outputs if number == 0 else net(batch))
            batch.info.pop("loss", None)
            if loss is not None:
                net.step(loss)
                batch.info["loss"] = loss.detach()
        return outputs if self.predict_first else None


class NetworkAdapter(LossMethod):
    """The former base of methods, whose ``loss`` takes log-probabilities: use `LossMethod`.

    Examples
    --------
    >>> with warnings.catch_warnings(action="ignore"):
    ...     class Former(NetworkAdapter):
    ...         def loss(self, log_probs):
    ...             return -(log_probs.exp() * log_probs).sum(1).mean()
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        warnings.warn(
            f"derive {cls.__name__} from lametta.torch.LossMethod, whose loss takes Outputs; "
            "NetworkAdapter goes in 0.3",
            LamettaDeprecationWarning,
            stacklevel=2,
        )
        if (former := vars(cls).get("loss")) is not None:
            cls.loss = lambda self, outputs: former(self, outputs.log_probs)  # type: ignore[method-assign]


GradientAdapter = NetworkAdapter


# One update at a time on a network, whichever methods it has.
_locks: WeakKeyDictionary[nn.Module, FairLock] = WeakKeyDictionary()


def _lock_of(net: nn.Module) -> FairLock:
    return _locks.get(net) or _locks.setdefault(net, FairLock())  # to make one takes a while


# The methods that have changed a network and not given it back, the first one first.
_started: WeakKeyDictionary[nn.Module, "list[weakref.ref[NetworkMethod]]"] = WeakKeyDictionary()

skip_finite_check = ContextVar("skip_finite_check", default=False)
"""Whether the caller of `step` has looked for NaN and infinity, so that `step` need not."""


def _end(method: NetworkMethod) -> None:
    """Take a method off its network's list; later ones hold its values, and have to go first."""
    started = [one for one in _started.get(method.model.net, []) if one() is not None]
    if any(one() is method for one in started) and started[-1]() is not method:
        later = type(started[-1]()).__name__
        raise LamettaError(
            f"methods on one network must be reset in the reverse order of their first steps, "
            f"got {type(method).__name__} before {later}"
        )
    _started[method.model.net] = [one for one in started if one() is not method]


def _out_of_inference_mode(x: Any) -> Any:
    """The batch with tensors that autograd can record, which those of inference mode are not."""
    if isinstance(x, Inputs):
        kwargs = {name: _out_of_inference_mode(value) for name, value in x.kwargs.items()}
        return Inputs(tuple(map(_out_of_inference_mode, x.args)), kwargs)
    return x.clone() if isinstance(x, Tensor) and x.is_inference() else x


def _parameters(modules: dict[str, nn.Module]) -> dict[str, nn.Parameter]:
    """The parameters of the modules themselves, each once."""
    names: dict[nn.Parameter, str] = {}
    for name, module in modules.items():
        for inside, parameter in module.named_parameters(recurse=False):
            names.setdefault(parameter, f"{name}.{inside}" if name else inside)
    return {name: parameter for parameter, name in names.items()}
