"""Registry of data sets, and where they lie on disk."""

import inspect
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple, cast

from lametta._checks import check_callable
from lametta._files import PathLike
from lametta.data.dataset import Dataset
from lametta.data.readers.layout import Entry
from lametta.registry import GROUPS, Registry, import_object, summary_of
from lametta.types import LamettaError


def _load(target: str, argument: str, name: str) -> Entry:
    """A data set of another package: an `Entry`, or a function that gives a `Dataset`."""
    read: object = import_object(target, argument, name)
    if isinstance(read, Entry):
        return read
    check_callable(name, read, "a function that gives a lametta.data.Dataset")
    return Entry(summary_of(read) or target, "", cast(Callable[..., Dataset], read))


# A new reader is one more name here: a module of `lametta.data.readers` with ENTRIES.
_READERS = ("imagenet", "cifar", "vid", "tao", "tiny", "folders", "digits", "noise")
_MODULES = [import_module(f"lametta.data.readers.{reader}") for reader in _READERS]
DATASETS: Registry[Entry] = Registry(
    "name",
    {name: entry for module in _MODULES for name, entry in module.ENTRIES.items()},
    group=GROUPS["datasets"],
    load=_load,
)
"""The data sets by name; capitals stand for what the caller fills in."""


class Description(NamedTuple):
    """Description of a data set: what it is in one line, and what it needs on disk."""

    summary: str
    needs: str


class Availability(NamedTuple):
    """Whether a data set is there: its name, whether all of it was found, and where.

    If it was not, or cannot be read as it lies there, ``why`` says what is missing.
    """

    name: str
    found: bool
    where: Path
    why: str = ""


def data_root(given: PathLike | None = None) -> Path:
    """Where data sets lie: the folder that is given, or else the one in ``LAMETTA_DATA``.

    Examples
    --------
    >>> data_root("no/such/folder")
    Traceback (most recent call last):
    lametta.types.LamettaError: no such data folder: 'no/such/folder'
    """
    root = os.environ.get("LAMETTA_DATA") if given is None else given
    if not root:
        raise LamettaError("data must be a folder, given or named by LAMETTA_DATA, got none")
    if not Path(root).is_dir():
        raise LamettaError(f"no such data folder: {str(root)!r}")
    return Path(root)


def names() -> list[str]:
    """What `load` can be asked for; capitals stand for what the caller fills in.

    Examples
    --------
    >>> names()[0], "folder:PATH" in names()
    ('imagenet_val', True)
    """
    return DATASETS.names()


def datasets() -> dict[str, Description]:
    """Say what `load` can be asked for, in one line each, and what it needs below the data root.

    Capitals stand for what the caller fills in. This imports the readers of other packages; where
    that fails, the line says why.

    Examples
    --------
    >>> datasets()["imagenet_val"].needs
    'ilsvrc12/val/<synset>/*.JPEG, or ilsvrc12/{val/*.JPEG,ILSVRC2012_devkit_t12}'
    """
    described = {}
    for name in DATASETS.names():
        try:
            entry = DATASETS.find(name)
            described[name] = Description(entry.summary, entry.needs)
        except LamettaError as error:
            described[name] = Description(str(error), "")
    return described


def locate(root: PathLike) -> list[Availability]:
    """Which of the named data sets are below a root.

    Examples
    --------
    >>> locate("/no/data")[0].found
    False
    """
    rows = []
    for name in filter(DATASETS.is_builtin, DATASETS.names()):
        entry = DATASETS[name]
        if entry.layout is None:
            continue
        try:
            rows.append(Availability(name, True, entry.layout.find(root)))
        except LamettaError as error:
            where = Path(root) / entry.layout.places[0]
            rows.append(Availability(name, False, where, str(error)))
    return rows


def published(name: str, /) -> int | None:
    """How many samples a data set of lametta's own has as it was published, if that is known.

    Examples
    --------
    >>> published("imagenet_c_test"), published("folder:photos")
    (500000, None)
    """
    is_own = name in DATASETS and DATASETS.is_builtin(name)
    return DATASETS[name].published if is_own else None


def count_mismatch(name: str, data: Dataset, /) -> str:
    """Say how a data set that `load` gave differs from the published one; empty if it does not.

    Examples
    --------
    >>> count_mismatch("embedded:digits_val", load("embedded:digits_val"))
    ''
    """
    return f"{name} has {data.differs}" if data.differs else ""


def load(name: str, root: PathLike | None = None, /, **options: object) -> Dataset:
    """Read a data set by name.

    Parameters
    ----------
    name : str
        One of `datasets`. Those of ``embedded:`` need nothing on disk; the path of ``folder:PATH``
        and ``videos:PATH`` is relative to the data root, or where there is none to the working
        directory.
        ``python:package.module:function`` calls a function that gives a `Dataset`: with the data
        root, if its first parameter is called ``root``, and with the options. A package that has
        such a function as an entry point of the group ``lametta.datasets`` adds it by name.
    root : path, optional
        The data root; ``LAMETTA_DATA`` by default.
    **options
        For the reader: ``severities=[1, 3]`` for ``imagenet_c_test``, say.

    Examples
    --------
    >>> len(load("embedded:digits_val"))
    450
    """
    read = DATASETS.find(name).read
    parameters = inspect.signature(read).parameters
    fixed = read.keywords if isinstance(read, partial) else {}
    known = [parameter for parameter in parameters if parameter not in fixed]
    where = [data_root(root)] if known[:1] == ["root"] else _given_path(name, root)
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        _check_options(name, options, known[len(where) :])
    data = read(*where, **options)
    if not isinstance(data, Dataset):
        raise LamettaError(f"{name} must give a lametta.data.Dataset, got {type(data).__name__}")
    return data


def _check_options(name: str, options: Iterable[str], known: Sequence[str]) -> None:
    for option in options:
        if option not in known:
            among = ", ".join(known) or "none"
            raise LamettaError(f"options of {name} must be among {among}, got {option!r}")


def _given_path(name: str, root: PathLike | None) -> list[Path]:
    """The path in a name such as ``folder:PATH``, below the data root if there is one."""
    family, _, rest = name.partition(":")
    if f"{family}:PATH" not in DATASETS:
        return []
    path = Path(rest)
    rooted = not path.is_absolute() and (root is not None or os.environ.get("LAMETTA_DATA"))
    return [data_root(root) / path if rooted else path]
