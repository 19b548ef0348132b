"""Moments of samples at normalizations: how far a domain has moved, measured without labels.

A layer's input is looked at in units of its running statistics, mu and v (with eps): of a sample's
channel with the mean m and the mean square q over its positions,

    z = (m - mu) / sqrt(v),        u = (q - 2 m mu + mu^2) / v.

Moments of n samples are a tensor [n, 2, C], z and u, with the channels of all layers side by side.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

_FLOOR = 1e-4  # of a variance, in units of the source's
_REACH = 3.0  # of the logarithm of a variance that moves: a factor of 20


def has_statistics(module: nn.Module) -> bool:
    """Whether a layer normalizes channels by running statistics in eval mode, frozen or not.

    Examples
    --------
    >>> has_statistics(nn.BatchNorm2d(3)), has_statistics(nn.GroupNorm(1, 3))
    (True, False)
    """
    mean, var = (getattr(module, name, None) for name in ("running_mean", "running_var"))
    return isinstance(mean, Tensor) and isinstance(var, Tensor) and mean.ndim == 1


def sample_moments(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    """Moments [N, 2, C] of a layer's input [N, C, ...], by a mean and a variance (with eps).

    Examples
    --------
    >>> sample_moments(torch.tensor([[[1.0, 3.0]]]), torch.tensor([1.0]), torch.tensor([4.0]))
    tensor([[[0.5000],
             [0.5000]]])
    """
    over, wide = tuple(range(2, x.ndim)), mean.dtype
    m = x.mean(over, dtype=wide) if over else x.to(wide)
    q = _mean_square(x, wide)
    return torch.stack([(m - mean) / var.sqrt(), (q - 2 * m * mean + mean**2) / var], 1)


def _mean_square(x: Tensor, wide: torch.dtype) -> Tensor:
    """The mean square over positions, in a type in which squares do not overflow."""
    over = tuple(range(2, x.ndim))
    if not over:
        return x.to(wide) ** 2
    if x.is_contiguous() or x.is_cuda:  # in one kernel, which on a CPU is slow in other layouts
        size = x.numel() / max(x.shape[0] * x.shape[1], 1)
        length: Tensor = torch.linalg.vector_norm(x, dim=over, dtype=wide)
        return length**2 / max(size, 1)
    return x.to(wide).square().mean(over)


class Meter:
    """The moments that normalizations have seen in a pass, in the order of their calls.

    Examples
    --------
    >>> net = nn.Sequential(nn.BatchNorm1d(2), nn.ReLU(), nn.BatchNorm1d(3, affine=False))
    >>> with measuring([net[0]], 4) as meter:
    ...     _ = net[0].eval()(torch.rand(4, 2))
    >>> meter.moments(meter.seen).shape
    torch.Size([4, 2, 2])
    """

    def __init__(self) -> None:
        self._found: dict[nn.Module, list[Tensor | None]] = {}

    def add(self, norm: nn.Module, moments: Tensor | None) -> None:
        """Note what a layer has seen; None for what is no batch of samples."""
        self._found.setdefault(norm, []).append(moments)

    @property
    def seen(self) -> list[nn.Module]:
        """The layers that were called once, with a row for each sample."""
        found = self._found.items()
        return [norm for norm, (first, *more) in found if first is not None and not more]

    def moments(self, norms: Sequence[nn.Module]) -> Tensor:
        """The moments of these layers, side by side."""
        found = [self._found[norm][0] for norm in norms]
        return torch.cat([one for one in found if one is not None], 2)


@contextmanager
def measuring(
    norms: Sequence[nn.Module], n: int, held: Tensor | None = None, share: float = 0.0
) -> Iterator[Meter]:
    """Measure n samples in a pass, and with ``share`` let the layers move towards what they see.

    A layer that moves normalizes by the mean mu + a sqrt(v) zb and the variance v exp(a lam), with
    a the share, and zb and lam those of the samples ``held`` [h, 2, C] and these together
    (`summary`). Afterwards its running statistics are the source's again.

    Examples
    --------
    >>> norm = nn.BatchNorm1d(1, affine=False).eval()
    >>> with measuring([norm], 2, share=1.0):
    ...     found = norm(torch.tensor([[1.0], [5.0]]))
    >>> found.round(decimals=3)
    tensor([[-1.],
            [ 1.]])
    """
    meter, start = Meter(), 0
    source, columns = {}, {}
    for norm in norms:
        mean, var = norm.running_mean, norm.running_var
        assert isinstance(mean, Tensor)
        assert isinstance(var, Tensor)
        source[norm] = mean.clone(), var.clone()
        columns[norm] = slice(start, start := start + len(mean))

    def before(norm: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        x = args[0] if args else next(iter(kwargs.values()))
        if len(x) != n:
            return meter.add(norm, None)
        dtype = torch.promote_types(source[norm][0].dtype, torch.float32)
        eps = float(getattr(norm, "eps", 1e-5))
        mean, var = source[norm][0].to(dtype), source[norm][1].to(dtype) + eps
        moments = sample_moments(x.detach(), mean, var)
        meter.add(norm, moments)
        if share:
            if held is not None:
                moments = torch.cat([held[:, :, columns[norm]], moments])
            to, log_var, _ = summary(moments)
            moved = mean + share * var.sqrt() * to
            wide = var * (share * log_var.clamp(-_REACH, _REACH)).exp() - eps
            _put(norm, moved, wide.clamp(min=0))
        return None

    # In a compiled network it would be compiled anew in each pass. Who compiles has loaded this.
    compiler = sys.modules.get("torch._dynamo")
    hook = before if compiler is None else compiler.disable(before)
    hooks = [norm.register_forward_pre_hook(hook, with_kwargs=True) for norm in norms]
    try:
        yield meter
    finally:
        for hook in hooks:
            hook.remove()
        if share:
            for norm, (mean, var) in source.items():
                _put(norm, mean, var)


def _put(norm: nn.Module, mean: Tensor, var: Tensor) -> None:
    with torch.no_grad():
        norm.running_mean.copy_(mean)  # type: ignore[operator]
        norm.running_var.copy_(var)  # type: ignore[operator]


def summary(moments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean zb, logarithm of the variance lam and spread of both [C], of n samples' moments.

        v = max(mean u - zb^2, 1e-4),  lam = log v,
        spread = mean (z - zb)^2 + mean ((u - 2 zb z + zb^2) / v - 1)^2 / 2.

    The spread over n is what sampling alone makes of zb^2 + lam^2 / 2.

    Examples
    --------
    >>> summary(torch.tensor([[[1.0], [2.0]], [[3.0], [10.0]]]))
    (tensor([2.]), tensor([0.6931]), tensor([1.]))
    """
    z, u = moments.unbind(1)
    mean = z.mean(0)
    var = (u.mean(0) - mean**2).clamp(min=_FLOOR)
    squares = (u - 2 * mean * z + mean**2) / var
    return mean, var.log(), ((z - mean) ** 2).mean(0) + ((squares - 1) ** 2).mean(0) / 2


def shift(moments: Tensor, sizes: Tensor) -> Tensor:
    """How far n samples are from the source beyond sampling: 0 at it, 1 where it is far away.

    The mean over layers, of ``sizes`` channels, of max(0, mean of zb^2 + lam^2 / 2 - spread / n),
    with each channel clipped to [-1, 1].

    Examples
    --------
    >>> shift(torch.tensor([[[0.0], [1.0]]]).expand(9, 2, 1), torch.tensor([1]))
    tensor(0.)
    """
    mean, log_var, spread = summary(moments)
    far = (mean**2 + log_var**2 / 2 - spread / len(moments)).clamp(-1, 1)
    return _by_layer(far, sizes).clamp(min=0).mean()


def change(before: Tensor, after: Tensor, sizes: Tensor) -> Tensor:
    """How far two sets of samples are apart, in units of what sampling and classes make of it.

    The geometric mean over layers of the squared distance of zb and lam (by half), over the mean
    spread times 1/n + 1/m + 1/2: classes in a run differ by about a quarter of the spread within.

    Examples
    --------
    >>> z = torch.tensor([[-1.0], [1.0]])
    >>> same, other = (torch.stack([x, x**2], 1) for x in (z, z + 9))
    >>> change(same, same, torch.tensor([1])) < 1 < change(same, other, torch.tensor([1]))
    tensor(True)
    """
    (mean, log_var, spread), (mean_after, log_var_after, spread_after) = map(
        summary, (before, after)
    )
    apart = (mean_after - mean) ** 2 + (log_var_after - log_var) ** 2 / 2
    usual = (1 / len(before) + 1 / len(after) + 1 / 2) * (spread + spread_after) / 2
    tiny = torch.finfo(apart.dtype).tiny
    ratio = _by_layer(apart, sizes).clamp(min=tiny) / _by_layer(usual, sizes).clamp(min=tiny)
    return ratio.log().mean().exp()


def _by_layer(channels: Tensor, sizes: Tensor) -> Tensor:
    """The mean over the channels of each layer."""
    return torch.segment_reduce(channels, "mean", lengths=sizes, unsafe=True)  # or it would wait
