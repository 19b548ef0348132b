"""What is still true in the file of an earlier run, if samples may have changed since."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from lametta.data.bank.shards import DATA, check_same, check_shape
from lametta.data.bank.store import Arrays, Header, Rows, decode_columns, read_layout

_COLUMNS = ("keys.utf8", "labels", "groups", "groups.utf8", "stamps")  # that are no rows
_FAILED, _MISSING = -1, -2  # a sample that could not be read, one that is not known


@dataclass(frozen=True)
class Known:
    """The rows of a file whose samples have not changed."""

    rows: Mapping[str, Rows]  # all of the file
    row_of: NDArray[np.int64]  # [N], of each sample, or one of the two above
    whole: bool = False  # the file is exactly what is asked for

    @classmethod
    def find(
        cls, path: Path, header: Header, keys: Sequence[str], stamps: NDArray[np.uint64] | None
    ) -> Self:
        """Compare a file with what is asked for, or raise if it is of something else.

        A file of a data set without stamps, or of a version of lametta that stored none, has to be
        of the same samples; whether these were changed is not known.
        """
        row_of = np.full(len(keys), _MISSING)
        if not path.exists():
            return cls({}, row_of)
        arrays, stored = read_layout(path)
        if stamps is None or "stamps" not in arrays:
            check_same(path, stored, header)
            return cls({}, row_of, whole=True)
        check_same(path, stored, header, DATA)
        columns = {name: arrays.pop(name) for name in _COLUMNS if name in arrays}
        names = np.asarray(decode_columns(columns)["keys"]).tolist()
        of_rows = zip(range(len(names)), columns["stamps"][...].tolist(), strict=True)
        found = dict(zip(names, of_rows, strict=True))
        failed = zip(stored["failed"], stored.get("failed_stamps", []), strict=True)
        found |= {key: (_FAILED, stamp) for key, stamp in failed}
        if not found.keys() & set(keys):  # not one: another data set altogether
            check_same(path, stored, header)
        for i, (key, now) in enumerate(zip(keys, stamps.tolist(), strict=True)):
            row, stamp = found.get(key, (_MISSING, None))
            if stamp == now:
                row_of[i] = row
        same = all(stored.get(name) == header[name] for name in DATA)
        return cls(arrays, row_of, same and not (row_of == _MISSING).any())

    @property
    def failed(self) -> NDArray[np.intp]:
        """The samples that could not be read."""
        return np.flatnonzero(self.row_of == _FAILED)

    def missing(self, positions: range) -> list[int]:
        """The samples among these that are not known."""
        return [i for i in positions if self.row_of[i] == _MISSING]

    def merged(
        self, positions: range, index: NDArray[np.int64], rows: Arrays
    ) -> tuple[NDArray[np.int64], Arrays]:
        """The rows of the samples at these positions: new rows are put among the known ones."""
        kept = np.array([i for i in positions if self.row_of[i] >= 0], np.int64)
        if not len(kept):
            return index, rows
        old = {name: x[self.row_of[kept]] for name, x in self.rows.items()}
        if not len(index):
            return kept, old
        for name, x in rows.items():
            check_shape(name, x, old[name].shape[1:] if name in old else None)
        both = np.concatenate([kept, index])
        order = np.argsort(both)
        merged = {name: np.concatenate([old[name], x])[order] for name, x in rows.items()}
        return both[order], merged
