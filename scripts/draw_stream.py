"""Draw a stream before and after, one color a class.

python scripts/draw_stream.py                                    # digits that come with lametta
python scripts/draw_stream.py --order videos -o stream_video.svg
python scripts/draw_stream.py bank.npz -o stream_photos.svg      # features, logits and labels
"""

import argparse
from typing import Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

import lametta
from drawing import CLASSES, FAINT, answers, digits, save, softmax
from lametta.stream import Scenario, by_class, by_group, dirichlet, iid

ORDERS: dict[str, Any] = {
    "bursts": dirichlet(0.1),
    "videos": by_group(),
    "shuffled": iid(),
    "classes": by_class(),
}

parser = argparse.ArgumentParser(description="Draw a stream before and after.")
parser.add_argument("bank", nargs="?", help=".npz file; embedded digits if not given")
parser.add_argument("--order", choices=ORDERS, default="bursts")
parser.add_argument("--network", default="digits", help="of the embedded ones")
parser.add_argument("--most", type=int, default=2000, help="samples of the bank")
parser.add_argument("--shown", type=int, default=360, help="samples of the stream that are drawn")
parser.add_argument("-o", "--output", default="stream.svg")
args = parser.parse_args()

groups = None
if args.bank:
    bank = np.load(args.bank)
    kept = np.random.default_rng(0).permutation(len(bank["labels"]))[: args.most]
    features, labels = bank["features"][kept].astype(np.float32), bank["labels"][kept].astype(int)
    probs = softmax(bank["logits"][kept].astype(np.float64))
else:
    data, features, probs = digits("digits_vid", args.network)
    labels, groups = np.asarray(data.labels), data.groups

batches = list(Scenario(order=ORDERS[args.order], batch_size=64, seed=0)(labels, groups))
order = np.concatenate(batches)
rows = {
    "truth": labels,
    "the network alone": probs.argmax(axis=1),
    "LAME, batches of 64": answers(lametta.LAME(), features, probs, batches),
    "Prudent, one by one": answers(lametta.Prudent(), features, probs, order[:, None]),
    "Prudent, batches of 64": answers(lametta.Prudent(), features, probs, batches),
}

# Made for a column of a phone, 360 pixels: there its words have 11 and a sample has one.
figure = Figure(figsize=(5, 3.9), layout="constrained")
axes = figure.subplots(len(rows), 1, sharex=True)
known = np.unique(labels)  # of a thousand classes, say, those that occur
shown = order[: args.shown]
colors = ListedColormap([*CLASSES[: len(known)], FAINT])
for axis, (name, found) in zip(axes, rows.items(), strict=True):
    place = np.searchsorted(known, found[shown]).clip(max=len(known) - 1)
    place[known[place] != found[shown]] = len(known)
    axis.imshow(
        place[None], aspect="auto", interpolation="none", cmap=colors, vmin=0, vmax=len(known)
    )
    axis.set_yticks([])
    axis.set_xticks([])
    axis.spines[:].set_visible(False)
    right = "" if name == "truth" else f"{100 * np.mean(found == labels):.1f} % right"
    axis.set_title(name, loc="left", fontsize=11, pad=3)
    axis.set_title(right, loc="right", fontsize=11, pad=3, weight="bold")
    print(f"{name:24}{right}")
axes[-1].set_xlabel(f"the first {len(shown)} of {len(order)} samples, as they came", fontsize=11)
save(figure, args.output)
