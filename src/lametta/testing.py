"""The contracts of `lametta.types` as code: run these on your own methods, too.

Each check is a function of the method, works on a fresh copy of it, and raises `AssertionError`
with what it found. A method may refuse an input instead of handling it, by a `LamettaError` whose
message names the argument.
"""

import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from lametta import _contract as contract
from lametta import _contract_memory as memory
from lametta._contract import Batch, Method
from lametta.types import Adapter, Array, Corrector

__all__ = ["check_adapter", "check_corrector", "yield_checks"]


def check_corrector(corrector: Corrector, /) -> None:
    """Check that an output-only method keeps the contract: all of `yield_checks`, one by one.

    Rows of probabilities, in the input's library, dtype and device (NumPy, and PyTorch and JAX
    where they are imported already), for ordinary batches and at the edges: no sample, one sample,
    fewer samples than neighbors, duplicates, zero features, one-hot and tiny probabilities, half
    precision. Inputs stay as they are; a reset and a replay give the same bits; a pickled copy
    continues the stream alike; copies share no state. The order of a batch plays no part, unless
    the corrector says that it is ``ordered``.

    One that says that it is ``stateful`` has to be a `lametta.types.Stateful`: a fresh copy that is
    given its state continues bit for bit, the state does not grow along the stream, and what is
    refused (NaN, other numbers of columns, an invalid state) leaves it as it was. One that says
    that it is ``causal`` answers alike wherever the stream is cut into batches.

    Parameters
    ----------
    corrector : Corrector
        Is copied, and not changed.

    Raises
    ------
    AssertionError
        If the method does not keep the contract.

    Examples
    --------
    >>> from lametta import LAME
    >>> check_corrector(LAME())
    """
    for check in yield_checks(corrector):
        check(corrector)


def check_adapter(adapter: Adapter, x: Array, /, *, batch_size: int = 8) -> None:
    """Check that an adapter keeps the contract.

    As `check_corrector`, for whatever the adapter takes; and the model under it, where it is at
    ``adapter.base`` or ``adapter.model``, must give the same bits after a reset as before.

    Parameters
    ----------
    adapter : Adapter
        Is copied, and not changed.
    x : array [M, ...]
        Inputs for the adapter, at least two batches of them, and no two alike to the model: which
        of several equally near samples are neighbors may depend on their order.
    batch_size : int
        How many to give at a time.

    Raises
    ------
    AssertionError
        If the adapter does not keep the contract.

    Examples
    --------
    >>> import numpy as np
    >>> from lametta import LAME, Corrected, Output
    >>> def model(x):
    ...     return Output(features=x, logits=x[:, :3])
    >>> check_adapter(Corrected(model, LAME()), np.random.default_rng(0).normal(size=(32, 5)))
    """
    for check in yield_checks(adapter, x, batch_size=batch_size):
        check(adapter)


def yield_checks(
    method: Method, x: Array | None = None, /, *, batch_size: int = 8
) -> Iterator[Callable[[Method], None]]:
    """Give the checks of a corrector, or of an adapter with its inputs ``x``, each by itself.

    Each is a function of the method whose ``__name__`` says what it checks, for
    ``pytest.mark.parametrize``: then one failure does not hide the next.

    Parameters
    ----------
    method : Corrector or Adapter
        What will be checked; only its traits are looked at here.
    x : array [M, ...]
        As for `check_adapter`; for adapters alone.
    batch_size : int
        As for `check_adapter`.

    Examples
    --------
    >>> from lametta import LAME
    >>> [check.__name__ for check in yield_checks(LAME())][:3]
    ['check_rows', 'check_inputs_are_kept', 'check_reset_is_exact']
    """
    checks = [*contract.ALONG_A_STREAM]
    if not getattr(method, "ordered", False):
        checks.append(contract.check_order_plays_no_part)
    if isinstance(method, Corrector):
        stream: list[Batch] = [contract.make_batch(24, seed) for seed in range(4)]
        edges = [*contract.edges()]
        libraries = [name for name in ("numpy", "torch", "jax") if name in sys.modules]
        if getattr(method, "stateful", False):
            checks += memory.WITH_STATE
        if getattr(method, "causal", False):
            checks.append(memory.check_cuts_play_no_part)
    else:
        if x is None or len(x) < 2 * batch_size:
            given = 0 if x is None else len(x)
            raise AssertionError(f"x must hold two batches of {batch_size}, got {given} inputs")
        starts = range(0, len(x) - batch_size + 1, batch_size)
        stream = [(x[start : start + batch_size],) for start in starts]
        edges = [(f"batch_of_{n}", (x[:n],)) for n in (0, 1)]
        libraries = []
        checks.append(contract.check_model_is_given_back)
    for check in checks:
        yield _named(check.__name__, check, stream=stream)
    for edge, batch in edges:
        yield _named(f"check_{edge}", contract.check_edge, edge=edge, batch=batch)
    for library in libraries:
        yield _named(f"check_{library}_is_kept", contract.check_library, library=library)


def _named(name: str, check: Callable[..., None], **arguments: object) -> Callable[[Method], None]:
    bound: Any = partial(check, **arguments)
    bound.__name__ = name
    bound.__doc__ = check.__doc__
    return bound  # type: ignore[no-any-return]
