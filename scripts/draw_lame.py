"""Draw LAME's updates on one batch of digits, moving and still.

python scripts/draw_lame.py

A batch of 64 frames, four tumbling digits that come with lametta. Each frame is drawn beside its
neighbors in feature space, on a ground that says which class it is taken for.
"""

import base64
import io
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import lametta
from drawing import CLASSES, IMAGES, INK, digits
from lametta.stream import Scenario, by_group

SEED, BATCH = 9, 18  # a batch in which much changes, and not all for the better
SIDE, TILE = 400, 26
HOLD, STEP = 2.2, 0.9  # seconds

data, features, probs = digits("digits_vid")
labels = np.asarray(data.labels)
batch = list(Scenario(order=by_group(), batch_size=64, seed=SEED)(labels, data.groups))[BATCH]
x, q, y = features[batch], probs[batch], labels[batch]
neighbors = np.asarray(lametta.knn(5).neighbors(x).index)

UPDATES = (0, 1, 2, 3, 6, 9, 12)  # after the last, no class changes any more
steps = [q, *(np.asarray(lametta.lame(x, q, tol=0, max_iter=n).probs) for n in UPDATES[1:])]
assert (steps[-1].argmax(axis=1) == lametta.lame(x, q).probs.argmax(axis=1)).all()


def layout() -> NDArray[Any]:
    """Places [N, 2]: two principal components, pulled by neighbors, then pushed off each other."""
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    centered = unit - unit.mean(axis=0)
    place = np.asarray(centered @ np.linalg.svd(centered, full_matrices=False)[2][:2].T, float)
    place *= SIDE / 4 / place.std()
    for turn in range(400):
        gap = place[:, None] - place[None]
        far = np.hypot(*gap.transpose(2, 0, 1)) + 1e-9
        push = np.clip(TILE * 1.75 - far, 0, None) / far
        place += 0.2 * (gap * push[..., None]).sum(axis=1)
        if turn < 300:
            place += 0.03 * (place[neighbors].mean(axis=1) - place)
    low, high = place.min(axis=0), place.max(axis=0)
    return np.asarray((place - low) / (high - low) * (SIDE - 1.5 * TILE) + 0.75 * TILE)


def picture(image: NDArray[Any]) -> str:
    """A digit as a data address: black ink, whose density is its opacity."""
    ink = (np.clip(image[0], 0, 1) * 255).astype(np.uint8)
    rgba = np.dstack([np.zeros((8, 8, 3), np.uint8), ink])
    file = io.BytesIO()
    Image.fromarray(rgba, "RGBA").save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


PLACES, PICTURES = layout(), [picture(data.samples[i]) for i in batch]


def tile(i: int, ground: str) -> str:
    """One frame on its ground, whose attributes are given."""
    left, top = PLACES[i] - TILE / 2
    return (
        f'<g transform="translate({left:.0f} {top:.0f})">'
        f'<rect width="{TILE}" height="{TILE}" rx="5" {ground}/>'
        f'<image href="{PICTURES[i]}" x="3" y="3" width="20" height="20"/></g>'
    )


def cross(left: float, top: float, attributes: str = "") -> str:
    """The mark of an error."""
    return (
        f'<path d="M{left:.0f} {top:.0f}l9 9m0 -9l-9 9" stroke="#c92a2a" stroke-width="2.4" '
        f'stroke-linecap="round" {attributes}/>'
    )


def corner(i: int) -> tuple[float, float]:
    return float(PLACES[i][0]) + 7, float(PLACES[i][1]) - 15


def edges() -> str:
    """Lines between neighbors."""
    ends = (f"M{PLACES[i][0]:.0f} {PLACES[i][1]:.0f}L{PLACES[j][0]:.0f} {PLACES[j][1]:.0f}"
            for i, row in enumerate(neighbors) for j in row)  # fmt: skip
    return f'<path d="{"".join(ends)}" stroke="#aab2bd" stroke-width=".8" fill="none"/>'


def fill(z: NDArray[Any]) -> tuple[str, str]:
    """The color of the likeliest class, and how sure the prediction is."""
    return CLASSES[int(z.argmax())], f"{0.25 + 0.75 * float(z.max()):.2f}"


def right(z: NDArray[Any]) -> str:
    return f"{100 * np.mean(z.argmax(axis=1) == y):.0f} %"


def name(step: int) -> str:
    n = UPDATES[step]
    return f"after {n} update{'s'[: n > 1]}" if n else "the network alone"


HEAD = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
    'height="{height}" font-family="system-ui, sans-serif" font-size="{size}">'
    '<title>{title}</title><style>image{{image-rendering:pixelated}}{style}</style>'
    '<rect width="{width}" height="{height}" fill="#fff"/>'
)  # fmt: skip
TITLE = "LAME corrects a batch of 64 frames in a few updates"


def legend(top: int) -> str:
    rows = []
    for row, k in enumerate(sorted({int(k) for z in steps for k in z.argmax(axis=1)})):
        where = f'y="{top + 21 * row}"'
        rows.append(f'<rect x="428" {where} width="14" height="14" rx="3" fill="{CLASSES[k]}"/>')
        rows.append(f'<text x="450" y="{top + 12 + 21 * row}" fill="{INK}">taken for {k}</text>')
    return "".join(rows)


def moving() -> str:
    """One picture in which grounds change color from update to update."""
    length = HOLD + STEP * (len(steps) - 2) + 1.5 * HOLD
    starts = [0.0] + [(HOLD + STEP * i) / length * 100 for i in range(len(steps) - 1)]
    style, tiles, errors = [], [], []

    def track(label: str, values: list[str]) -> str:
        """Keyframes that hold each value until the next step, if there is more than one."""
        frames = []
        for i, value in enumerate(values):
            if i == 0 or value != values[i - 1]:
                frames.append(f"{starts[i]:.1f}%{{{value}}}")
            if i + 1 == len(values):
                frames.append(f"100%{{{value}}}")
            elif values[i + 1] != value:
                frames.append(f"{max(starts[i + 1] - 2.5, 0):.1f}%{{{value}}}")
        if len(set(values)) == 1:
            return f'style="{values[0]}"'
        style.append(f"@keyframes {label}{{{''.join(frames)}}}")
        # At rest, as for readers who prefer reduced motion, the end is shown.
        return f'style="{values[-1]};animation:{label} {length:.1f}s infinite"'

    for i in range(len(y)):
        ground = [
            f"fill:{color};fill-opacity:{sure}" for color, sure in (fill(z[i]) for z in steps)
        ]
        tiles.append(tile(i, track(f"g{i}", ground)))
        wrong = [f"opacity:{int(z[i].argmax() != y[i])}" for z in steps]
        if "opacity:1" in wrong:
            errors.append(cross(*corner(i), track(f"c{i}", wrong)))
    words = []
    for i, z in enumerate(steps):
        seen = track(f"t{i}", [f"opacity:{int(i == j)}" for j in range(len(steps))])
        words.append(
            f'<g {seen}><text x="428" y="30" fill="{INK}">{name(i)}</text>'
            f'<text x="428" y="66" font-size="30" font-weight="600" fill="{INK}">{right(z)}</text>'
            f'<text x="428" y="88" fill="{INK}">right</text></g>'
        )
    key = (
        f'{cross(430, 358)}<text x="450" y="367" fill="{INK}">wrong</text>'
        f'<path d="M428 387h14" stroke="#aab2bd"/>'
        f'<text x="450" y="391" fill="{INK}">neighbors</text>'
    )
    style.append("@media(prefers-reduced-motion:reduce){*{animation:none!important}}")
    head = HEAD.format(width=560, height=SIDE, size=13, title=TITLE, style="".join(style))
    return f"{head}{edges()}{''.join(tiles + errors + words)}{legend(118)}{key}</svg>"


def still() -> str:
    """The same as three pictures side by side."""
    shown = [0, 1, len(steps) - 1]
    head = HEAD.format(width=SIDE * 3 + 40, height=SIDE + 34, size=20, title=TITLE, style="")
    panels = []
    for column, step in enumerate(shown):
        z = steps[step]
        tiles = []
        for i in range(len(y)):
            color, sure = fill(z[i])
            tiles.append(tile(i, f'fill="{color}" fill-opacity="{sure}"'))
        tiles += [cross(*corner(i)) for i in range(len(y)) if z[i].argmax() != y[i]]
        panels.append(
            f'<g transform="translate({column * (SIDE + 20)} 0)">{edges()}{"".join(tiles)}'
            f'<text x="{SIDE / 2}" y="{SIDE + 26}" text-anchor="middle" fill="{INK}">'
            f"{name(step)}: {right(z)} right</text></g>"
        )
    return f"{head}{''.join(panels)}</svg>"


for file, text in (("lame.svg", moving()), ("lame_steps.svg", still())):
    (IMAGES / file).write_text(text, encoding="utf-8")
    print(f"{len(text) / 1024:4.0f} KiB  docs/img/{file}")
print(" -> ".join(right(z) for z in steps), f"true classes: {sorted(set(y.tolist()))}")
