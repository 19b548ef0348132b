"""Make the golden vectors of tests/golden: fixed inputs, and what must come out of them.

    python scripts/make_golden.py                     # from the equation
    python scripts/make_golden.py --check             # are the stored ones those of the equation?
    python scripts/make_golden.py --released FOLDER   # from the stored outputs of the released code

``equation/`` holds what the method's definition gives in float64, term by term, and shares no code
with lametta. ``released/`` holds outputs of the code that the paper's authors released, on fixed
inputs: of a larger set of such files, as much as is compact. Both are arrays and nothing else.
"""

import argparse
import json
import math
import operator
import random
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

GOLDEN = Path(__file__).parents[1] / "tests" / "golden"
# Of the released code's files, two that add little to the others of their size.
LEFT_OUT = ("lame_N64_K1000_d512.npz", "lame_N64_K30_d512.npz")
Rows = list[list[float]]


@dataclass(frozen=True)
class Case:
    """A batch and how it is corrected; without ``max_iter`` the update runs until z rests."""

    n: int
    n_classes: int
    d: int = 8
    affinity: str = "knn"
    k: int = 5
    symmetric: bool = False
    row_sum: float | None = None
    weight: float = 1.0
    max_iter: int | None = None
    batch: str = "plain"  # plain, peaked, duplicates, zeros or one-hot

    @property
    def name(self) -> str:
        """Shape, batch and options, those at their defaults left out."""
        parts = [f"n{self.n}", f"c{self.n_classes}"]
        parts += [self.batch] if self.batch != "plain" else []
        parts += [self.affinity if self.affinity == "linear" else f"{self.affinity}{self.k}"]
        parts += ["symmetric"] if self.symmetric else []
        parts += [f"sum{self.row_sum:g}"] if self.row_sum is not None else []
        parts += [f"weight{self.weight:g}"] if self.weight != 1 else []
        parts += [f"iter{self.max_iter}"] if self.max_iter is not None else []
        return "-".join(parts)


CASES = [
    *(Case(n, 2, k=k) for n, k in [(1, 5), (2, 1), (2, 5), (3, 2), (6, 5), (7, 5), (33, 31)]),
    *(Case(n, c) for n, c in [(16, 3), (64, 10), (65, 40), (128, 7), (256, 4)]),
    *(Case(n, 1000, batch="peaked") for n in (1, 24)),
    *(Case(12, 1000, affinity=a, batch="peaked") for a in ("rbf", "linear")),
    *(Case(64, c, batch="peaked") for c in (60, 200)),
    *(Case(48, 6, k=k) for k in (1, 2, 9)),
    *(Case(40, 5, weight=weight) for weight in (0.0, 0.25, 3.0)),
    *(Case(40, 5, symmetric=True, k=k) for k in (1, 3)),
    *(Case(n, c, affinity="rbf") for n, c in [(1, 3), (2, 3), (5, 4), (48, 6), (128, 3)]),
    *(Case(32, 4, affinity="rbf", k=k, row_sum=5.0) for k in (1, 3)),
    Case(32, 4, affinity="rbf", row_sum=2.0, symmetric=True),
    *(Case(n, c, affinity="linear") for n, c in [(1, 3), (2, 3), (48, 6), (256, 3)]),
    Case(32, 4, affinity="linear", row_sum=5.0),
    Case(32, 4, affinity="linear", row_sum=2.0, symmetric=True, weight=0.5),
    Case(24, 300, affinity="linear", row_sum=5.0, batch="peaked"),
    *(Case(40, 6, max_iter=n) for n in (0, 1, 2, 3, 7)),
    *(Case(64, 200, batch="peaked", max_iter=n) for n in (1, 4, 21)),
    *(Case(96, 12, weight=w, max_iter=30) for w in (2.0, 9.3)),
    Case(24, 300, batch="peaked", weight=4.0, max_iter=12),
    *(Case(32, 4, affinity=a, row_sum=5.0, max_iter=3) for a in ("rbf", "linear")),
    *(Case(n, 5, batch="duplicates", k=k) for n, k in [(12, 1), (60, 5)]),
    *(Case(30, 5, batch="duplicates", affinity=a) for a in ("rbf", "linear")),
    Case(60, 120, batch="duplicates", max_iter=9),
    *(Case(8, 4, batch="zeros", affinity=a, k=7) for a in ("knn", "rbf", "linear")),
    *(Case(20, 4, batch="one-hot", affinity=a) for a in ("knn", "rbf")),
]


def main() -> None:
    """Write the files, or compare them with what would be written."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare only, byte for byte")
    parser.add_argument("--released", type=Path, help="folder with the released code's outputs")
    options = parser.parse_args()
    if options.released is not None:
        write_released(options.released, GOLDEN / "released")
    elif not options.check:
        write_equation(GOLDEN / "equation")
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_equation(Path(folder))
            wrong = differing(Path(folder), GOLDEN / "equation")
        if wrong:
            raise SystemExit(f"not as the equation gives them: {', '.join(wrong)}")
        print(f"{len(CASES)} files, all as the equation gives them")


def write_equation(folder: Path) -> None:
    """A file for each case."""
    folder.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        features, logits = make_batch(case)
        q = [softmax(row) for row in logits]
        w = weights(case, features)
        z = iterate(q, w, case.weight, case.max_iter)
        arrays: dict[str, Any] = {
            "options": json.dumps(asdict(case)),
            "features": np.array(features, np.float16),
            "logits": np.array(logits, np.float16),
            "z": np.array(z, np.float32),
            "energy": energy(z, q, w, case.weight),
        }
        if case.n <= 64:
            plain = case.affinity == "knn" and not case.symmetric
            arrays["w"] = np.array(w, np.uint8 if plain else np.float32)
        # Not compressed, so that the bytes depend on no version of zlib.
        np.savez(folder / f"{case.name}.npz", **arrays)


def differing(one: Path, other: Path) -> list[str]:
    """Names of the files whose arrays the two folders do not share byte for byte."""
    names = {path.name for folder in (one, other) for path in folder.glob("*.npz")}
    return sorted(name for name in names if _arrays(one / name) != _arrays(other / name))


def _arrays(path: Path) -> dict[str, bytes] | None:
    # Not the whole file: Python 3.11.4 began to write another header of a zip's members.
    if not path.exists():
        return None
    with zipfile.ZipFile(path) as stored:
        return {name: stored.read(name) for name in stored.namelist()}


# Batches, of values that float16 holds exactly


def make_batch(case: Case) -> tuple[Rows, Rows]:
    """Features and logits whose nearest neighbors no rounding can exchange."""
    for seed in range(1000):
        features, logits = _draw(case, random.Random(f"{case.name} {seed}"))
        if case.affinity != "knn" or _clear(features, logits, case.k):
            return features, logits
    raise SystemExit(f"no clear neighbors found for {case.name}")


def _draw(case: Case, rng: random.Random) -> tuple[Rows, Rows]:
    one = rng.random  # which alone is the same in every Python

    def noise() -> float:  # near to normal
        return one() + one() + one() + one() + one() + one() - 3

    groups = min(case.n_classes, 5)
    centers = [[1 + noise() for _ in range(case.d)] for _ in range(groups)]
    features, logits = [], []
    for i in range(case.n):
        label = int(rng.random() * groups)
        features.append(_halves([x + 0.7 * noise() for x in centers[label]]))
        logits.append(_halves([noise() for _ in range(case.n_classes)]))
        if case.batch == "peaked":  # a few classes compete, and a little is left to every other
            logits[-1][:groups] = _halves([x + 5 for x in logits[-1][:groups]])
        logits[-1][label] += 4 if case.batch == "peaked" else 1.5
        logits[-1] = _halves(logits[-1])
        if case.batch == "duplicates" and i % 3:  # as in video: the same frame, the same output
            features[-1], logits[-1] = features[-2], logits[-2]
        if case.batch == "zeros" and i % 3 == 0:
            features[-1] = [0.0] * case.d
        if case.batch == "one-hot" and i % 2:
            logits[-1] = [0.0 if c == label else -math.inf for c in range(case.n_classes)]
    return features, logits


def _halves(values: list[float]) -> list[float]:
    found: list[float] = np.array(values, np.float16).tolist()
    return found


def _clear(features: Rows, logits: Rows, k: int) -> bool:
    """Whether the k-th neighbor is nearer than the next one, or the same sample again."""
    for i, row in enumerate(distances(features)):
        order = sorted((square, j) for j, square in enumerate(row) if j != i)
        if len(order) > k:
            (near, a), (far, b) = order[k - 1], order[k]
            alike = features[a] == features[b] and logits[a] == logits[b]
            if not alike and far - near < 1e-5:
                return False
    return True


# The definition


def distances(features: Rows) -> Rows:
    """Squares of the distances between all samples, scaled to length 1."""
    x = np.array([_unit(row) for row in features])
    squares = np.zeros((len(x), len(x)))
    for values in x.T:  # in this order, as with the sums below: no rounding may depend on NumPy
        squares += (values[:, None] - values) ** 2
    found: Rows = squares.tolist()
    return found


def products(rows: Rows) -> Any:
    """The inner products of all rows, summed in their order, too."""
    x = np.array(rows)
    return sum((values[:, None] * values for values in x.T), np.zeros((len(x), len(x))))


def weights(case: Case, features: Rows) -> Rows:
    """W [N, N] by its definition."""
    n, squares = case.n, distances(features)
    if case.affinity == "knn":
        w = [[0.0] * n for _ in range(n)]
        for i in range(n):
            others = sorted((j for j in range(n) if j != i), key=lambda j: squares[i][j])
            for j in others[: case.k]:
                w[i][j] = 1.0
    elif case.affinity == "rbf":
        # The sorted row begins with the sample itself.
        widths = [math.sqrt(sorted(row)[min(case.k, n - 1)]) for row in squares]
        width = max(total(widths) / n, 1e-6)
        w = [[math.exp(-square / (2 * width**2)) for square in row] for row in squares]
    else:
        w = products([_unit(row) for row in features]).tolist()
    if case.row_sum is not None:
        for i, row in enumerate(w):
            kept = [0.0 if j == i else max(value, 0.0) for j, value in enumerate(row)]
            w[i] = [value * case.row_sum / total(kept) for value in kept]
    if case.symmetric:
        w = [[(w[i][j] + w[j][i]) / 2 for j in range(n)] for i in range(n)]
    return w


def iterate(q: Rows, w: Rows, weight: float, max_iter: int | None) -> Rows:
    """Equation 5 of the paper: exactly max_iter times, or until z moves by less than 1e-10."""
    start, pulls, n_iter = np.array(q), weight * np.array(w), 0
    z, moved = start, 1.0
    while n_iter < max_iter if max_iter is not None else moved > 1e-10:
        pull = np.zeros_like(z)
        for strength, row in zip(pulls.T, z, strict=True):
            pull += strength[:, None] * row
        new = start * [[math.exp(value) for value in row] for row in pull.tolist()]
        z_old, z = z, new / [[total(row)] for row in new.tolist()]
        moved = np.abs(z - z_old).max()
        n_iter += 1
    found: Rows = z.tolist()
    return found


def energy(z: Rows, q: Rows, w: Rows, weight: float) -> float:
    """Sum of KL(z_i || q_i), less half of sum_ij w_ij z_i.z_j."""
    kl = total(a * math.log(a / b) for a, b in zip(_flat(z), _flat(q), strict=True) if a > 0)
    pulls = np.array(w) * products(z)
    return kl - weight * total(_flat(pulls.tolist())) / 2


def softmax(logits: list[float]) -> list[float]:
    """Probabilities of one sample."""
    top = max(logits)
    e = [math.exp(value - top) for value in logits]
    norm = total(e)
    return [value / norm for value in e]


def total(values: Iterable[float]) -> float:
    """The sum, rounded after each term: from Python 3.12 on, `sum` is more exact than that."""
    return reduce(operator.add, values, 0.0)


def _unit(row: list[float]) -> list[float]:
    norm = math.sqrt(total(value * value for value in row))
    return [value / norm for value in row] if norm > 0 else row


def _flat(rows: Rows) -> Iterable[float]:
    return (value for row in rows for value in row)


# What the released code gave


def write_released(outputs: Path, folder: Path) -> None:
    """Copy small files whole, and of large ones only what belongs to the default affinity."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in sorted(outputs.glob("*.npz")):
        if path.name in LEFT_OUT:
            continue
        with np.load(path) as archive:
            arrays: dict[str, Any] = {name: archive[name] for name in archive.files}
        if path.stat().st_size > 220_000:
            arrays = {
                name: array
                for name, array in arrays.items()
                if name in ("features", "logits") or name.endswith("kNN_k5")
            }
        arrays.pop("labels", None)
        np.savez_compressed(folder / path.name, **arrays)


if __name__ == "__main__":
    main()
