"""The results file of a trial: what was run, so that the next call goes on from there."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

import lametta
from lametta._checks import reading
from lametta._files import atomic_write, check_regular_file
from lametta.bench.trial.runs import SERIES, Candidate, Outputs, Run
from lametta.data.bank.safetensors import read_layout, write_blocks
from lametta.types import LamettaError

_KIND = "lametta try"
_COLUMNS = ("after", "confidence", "kept")


class Done:
    """The runs that are done by candidate, those in a results file among them; new ones go there.

    Examples
    --------
    >>> done = Done(None, fingerprint(Outputs(np.eye(2), np.eye(2)), 64))
    >>> done.add(Run(Candidate("lame", 64), np.zeros(2, int), np.ones(2), np.ones(2), 0.0))
    >>> [candidate.title for candidate in done.runs]
    ['lame, batches of 64']
    """

    def __init__(self, file: Path | None, wanted: str) -> None:
        self._file, self._wanted = file, wanted
        found = [] if file is None else read(file, wanted)
        self.runs = {run.candidate: run for run in found}  # other methods' runs, too

    def add(self, run: Run) -> None:
        """Take a run in, and write the file anew."""
        self.runs[run.candidate] = run
        if self._file is not None:
            write(self._file, self._wanted, self.runs.values())


def fingerprint(outputs: Outputs, batch_size: int) -> str:
    """What tells one trial from another: the outputs, labels, groups, batch size and version.

    Examples
    --------
    >>> one = Outputs(np.eye(2), np.eye(2))
    >>> fingerprint(one, 64) == fingerprint(Outputs(np.eye(2), np.eye(2)), 64)
    True
    >>> fingerprint(one, 64) == fingerprint(one, 16)
    False
    """
    found = hashlib.blake2b(f"{lametta.__version__} {batch_size}".encode(), digest_size=16)
    for array in (outputs.features, outputs.probs, outputs.labels, outputs.groups):
        if array is None:
            found.update(b"none")
            continue
        found.update(f"{array.dtype} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def read(path: Path, wanted: str) -> list[Run]:
    """The runs in a results file; none where there is no file, or one of other outputs.

    A file that `write` did not make is refused, so that nothing of the user's is overwritten.
    """
    if not path.exists():
        return []
    check_regular_file("the results file", path)
    arrays, header = read_layout(path)
    if header.get("kind") != _KIND:
        raise LamettaError(f"the results file must be one of lametta try, got {path}")
    if header.get("fingerprint") != wanted:
        return []
    with reading(path, "results of lametta try"):
        return [_run(i, about, arrays) for i, about in enumerate(header["runs"])]


def _run(i: int, about: dict[str, Any], arrays: Any) -> Run:
    columns = {name: np.asarray(arrays[f"{i}.{name}"]) for name in _COLUMNS}
    series = {name: np.asarray(arrays[f"{i}.{name}"]) for name in SERIES if f"{i}.{name}" in arrays}
    return Run(
        Candidate(str(about["method"]), int(about["batch_size"]), bool(about["causal"])),
        columns["after"].astype(np.intp),
        columns["confidence"],
        columns["kept"],
        float(about["seconds"]),
        {str(name): float(value) for name, value in about["scores"].items()},
        series,
    )


def write(path: Path, wanted: str, runs: Iterable[Run]) -> None:
    """Write runs into a results file, whole or not at all."""
    arrays: dict[str, Any] = {}
    listed = []
    for i, run in enumerate(runs):
        arrays[f"{i}.after"] = [run.after.astype(np.int32)]
        arrays |= {f"{i}.{name}": [getattr(run, name)] for name in _COLUMNS[1:]}
        arrays |= {f"{i}.{name}": [values] for name, values in run.series.items()}
        one = run.candidate
        listed.append(
            {
                "method": one.method,
                "batch_size": one.batch_size,
                "causal": one.causal,
                "seconds": run.seconds,
                "scores": dict(run.scores),
            }
        )
    with atomic_write(path) as temporary:
        write_blocks(temporary, arrays, {"kind": _KIND, "fingerprint": wanted, "runs": listed})
