"""Layout and Entry: where a data set lies on disk, and what the catalog says of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lametta._files import PathLike
from lametta.data.dataset import Dataset
from lametta.types import LamettaError


@dataclass(frozen=True)
class Layout:
    """Where a data set lies below the data root.

    Parameters
    ----------
    places : tuple of str
        Folders below the root, any of which will do.
    inside : tuple of str
        Files and folders that have to be in it.
    check : callable, optional
        Raises a `LamettaError` for a folder that cannot be read as it is; a quick look, not more.

    Examples
    --------
    >>> Layout(("ilsvrc12/val",)).find("photos")
    Traceback (most recent call last):
    lametta.types.LamettaError: no ilsvrc12/val in 'photos': there is no
    photos/ilsvrc12/val
    """

    places: tuple[str, ...]
    inside: tuple[str, ...] = ()
    check: Callable[[Path], object] | None = None

    def find(self, root: PathLike, /) -> Path:
        """Give the first place that has it all, or say what was looked for and is not there."""
        lacking = []
        for place in self.places:
            folder = Path(root) / place
            wanted = [folder, *(folder / name for name in self.inside)]
            missing = [path for path in wanted if not path.exists()]
            if not missing:
                if self.check is not None:
                    self.check(folder)
                return folder
            lacking.append(missing[0])
        raise LamettaError(
            f"no {self.places[0]} in {str(root)!r}: there is no {' or '.join(map(str, lacking))}"
        )


@dataclass(frozen=True)
class Entry:
    """What the catalog knows of a data set; a reader's module has one for each in ``ENTRIES``.

    Parameters
    ----------
    summary : str
        What it is.
    needs : str
        What it needs below the data root; empty for nothing.
    read : callable
        Gives the `Dataset`. A first parameter called ``root`` is the data root; where the name ends
        in ``:PATH``, the first is the path. The others are options.
    layout : Layout, optional
        Where it lies below the data root.
    published : int, optional
        How many samples it has as it was published, of ImageNet-C at one severity.
    """

    summary: str
    needs: str
    read: Callable[..., Dataset]
    layout: Layout | None = None
    published: int | None = None


def compare_counts(found: Mapping[str, int], published: Mapping[str, int]) -> str:
    """Say which counts differ from the published ones; empty if none do.

    Examples
    --------
    >>> compare_counts({"videos": 2, "frames": 9}, {"videos": 2, "frames": 6558})
    '9 frames where 6,558 were published'
    """
    return ", ".join(
        f"{found[what]:,} {what} where {number:,} were published"
        for what, number in published.items()
        if found[what] != number
    )


def read_text(file: Path) -> str:
    """The text of a file, or an error that names it."""
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise LamettaError(f"{file} must be text in UTF-8, got {error}") from None


def raise_or_skip(
    broken: str, failures: Sequence[tuple[str, str]], folder: Path
) -> tuple[str, ...]:
    """Raise for broken files, or give their names to be recorded."""
    if failures and broken == "raise":
        shown = "; ".join(f"{name}: {reason}" for name, reason in failures[:3])
        raise LamettaError(
            f"broken files in {folder}: {len(failures)} ({shown}"
            f"{'; ...' if len(failures) > 3 else ''}); broken='skip' leaves them out"
        )
    return tuple(name for name, _ in failures)
