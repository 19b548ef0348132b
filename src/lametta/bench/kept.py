"""One adapter for each stream of a cell, so that streams keep nothing of each other."""

from collections.abc import Callable, Generator, Sequence

from lametta.types import Adapter


def adapters(
    make: Callable[[], Adapter], ids: Sequence[str], *, shared: bool = False
) -> Generator[Adapter, None, None]:
    """The adapter of each batch: one for each stream, from its first batch to its last.

    Parameters
    ----------
    make : callable
        Makes an adapter.
    ids : sequence of str
        The stream of each batch.
    shared : bool
        Whether streams that run side by side share one: there is one network to adapt, and
        a method without state has nothing to keep apart. Streams that follow each other never do.

    Examples
    --------
    >>> from types import SimpleNamespace as Own
    >>> made = iter("abc")
    >>> make = lambda: Own(name=next(made), reset=lambda: None)
    >>> [adapter.name for adapter in adapters(make, ["left", "right", "left", "later"])]
    ['a', 'b', 'a', 'c']
    """
    last = {name: i for i, name in enumerate(ids)}
    kept: dict[str, Adapter] = {}
    try:
        for i, name in enumerate(ids):
            if name not in kept:
                kept[name] = next(iter(kept.values())) if shared and kept else make()
            yield kept[name]
            if last[name] == i:
                adapter = kept.pop(name)
                if not (shared and kept):
                    adapter.reset()
    finally:
        for adapter in kept.values():
            adapter.reset()
