"""Draw where the gain comes from, on embedded digits and on files of outputs.

python scripts/draw_gains.py ResNet-20=resnet20.npz "ResNet-56, noise"=resnet56.npz

Each file has features, logits and labels.
"""

import sys
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

import lametta
from drawing import CLASSES, FAINT, METHODS, answers, digits, save, softmax
from lametta.stream import Scenario, few_classes, iid, markov

Outputs = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]  # features, probabilities, labels
STAYS = (0.3, 0.6, 0.8, 0.9, 0.95, 0.98)
COUNTS = (1, 2, 3, 4, 6, 8, 10)
SEEDS = range(3)


def read() -> dict[str, Outputs]:
    """The digits and the files that were named, 2000 samples each at most."""
    data, features, probs = digits("digits_c_test")
    found = {"digits, corrupted": (features, probs, np.asarray(data.labels))}
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        bank = np.load(path)
        kept = np.random.default_rng(0).permutation(len(bank["labels"]))[:2000]
        features, labels = (bank[key][kept] for key in ("features", "labels"))
        probs = softmax(bank["logits"][kept].astype(np.float64))
        found[name] = (features.astype(np.float32), probs, labels.astype(int))
    return found


def measure(outputs: Outputs, order: Any, seed: int) -> dict[str, float]:
    """Points gained by each method on one stream, and what the stream is like."""
    features, probs, labels = outputs
    batches = list(Scenario(order=order, batch_size=64, seed=seed)(labels))
    stream = np.concatenate(batches)
    before = probs.argmax(axis=1) == labels
    agree = []
    for batch in batches:
        neighbors = np.asarray(lametta.knn(5).neighbors(features[batch]).index)
        agree.append((labels[batch][neighbors] == labels[batch][:, None]).mean(axis=1))
    found = {
        "LAME": answers(lametta.LAME(), features, probs, batches),
        "Prudent": answers(lametta.Prudent(), features, probs, stream[:, None]),
    }
    gains = {k: 100 * np.mean((v == labels)[stream]) - 100 * np.mean(before[stream])
             for k, v in found.items()}  # fmt: skip
    same = 100 * np.mean([labels[i] == labels[j] for i, j in pairwise(stream)])
    return {**gains, "same": same, "agree": 100 * float(np.concatenate(agree).mean())}


def few(outputs: Outputs, count: int, seed: int) -> dict[str, float]:
    """LAME alone on independent batches of so many classes."""
    features, probs, labels = outputs
    batches = list(Scenario(order=few_classes(count, count), batch_size=64, seed=seed)(labels))
    stream = np.concatenate(batches)
    after = answers(lametta.LAME(), features, probs, batches)
    gain = np.mean((after == labels)[stream]) - np.mean((probs.argmax(axis=1) == labels)[stream])
    return {"LAME": 100 * float(gain)}


def mean(rows: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.mean([row[key] for row in rows])) for key in rows[0]}


found = read()
figure = Figure(figsize=(7.4, 2.9), layout="constrained")
first, second, third = figure.subplots(1, 3)
for (name, outputs), color in zip(
    found.items(), (CLASSES[0], CLASSES[2], CLASSES[4]), strict=False
):
    orders = [iid(), *(markov(stay) for stay in STAYS)]
    rows = [mean([measure(outputs, order, seed) for seed in SEEDS]) for order in orders]
    counts = [mean([few(outputs, n, seed) for seed in SEEDS]) for n in COUNTS]
    across = [row["same"] for row in rows]
    first.plot(across, [row["LAME"] for row in rows], "o-", ms=3, color=color, label=name)
    first.plot(across, [row["Prudent"] for row in rows], "^--", ms=3, color=color)
    second.plot(COUNTS, [row["LAME"] for row in counts], "o-", ms=3, color=color)
    third.plot(
        [row["agree"] for row in rows], [row["LAME"] for row in rows], "o-", ms=3, color=color
    )
    print(f"\n{name}: {100 * np.mean(outputs[1].argmax(axis=1) == outputs[2]):.1f} % right")
    for row in rows:
        print("  " + "  ".join(f"{key} {value:6.1f}" for key, value in row.items()))
    shown = (f"{n}: {row['LAME']:+.1f}" for n, row in zip(COUNTS, counts, strict=True))
    print("  by classes in a batch: ", ", ".join(shown))
first.plot([], [], "o-", color=METHODS["source"], ms=3, label="LAME, batches of 64")
first.plot([], [], "^--", color=METHODS["source"], ms=3, label="Prudent, one by one")
for axis in figure.axes:
    axis.axhline(0, color=FAINT, linewidth=0.8)
for axis, title in zip(figure.axes, ("order", "classes", "neighbors"), strict=True):
    axis.set_title(title, fontsize=9, weight="bold")
first.set(xlabel="next sample has the same class, %", ylabel="points of accuracy gained")
second.set(xlabel="classes in a batch of 64")
third.set(xlabel="neighbors of the same class, %")
figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8)
save(figure, "gains.svg")
