"""The page of a trial: one HTML file with everything in it."""

import base64
import hashlib
import io
import json
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from markupsafe import Markup

from lametta._files import PathLike, write_text
from lametta.bench.report.page import template
from lametta.bench.tables import Entry, Table
from lametta.bench.trial.labels import Draw
from lametta.bench.trial.stream import flows, most_changed, neighbors
from lametta.bench.trial.strips import (
    OTHER,
    along,
    closest_look,
    colors,
    groups_begin,
    line,
    strips,
    ticks,
)

if TYPE_CHECKING:
    from lametta.bench.trial import Trial
    from lametta.bench.trial.runs import Index, Outputs, Run

Pictures = Callable[[int], Any]
"""From the position of a sample to its image, as Pillow has it, or as an array."""

_SIZES = (192, 64)  # pixels of a sample's picture, and of a neighbor's
_LABELED = 320  # of one that is to be labeled
_NAMED = 12  # beginnings of scenes or domains that are named
_KEYS = 35  # 1 to 9 and a to z, each for a class


def write(
    trial: "Trial",
    path: PathLike,
    *,
    title: str = "Your stream",
    command: Sequence[str] = (),
    pictures: Pictures | None = None,
    to_label: Draw | None = None,
) -> Path:
    """Write the page; ``pictures`` gives the image of a sample, where there are images."""
    outputs, run = trial.outputs, trial.shown
    asked = None if to_label is None else _asked(trial, to_label, command, pictures)
    text = template("trial.html.j2").render(
        title=title,
        advice=trial.advice,
        to_label=asked,
        table=trial.table(),
        groups=trial.group_table(),
        look=trial.look,
        flows=_flows(trial) if run is not None else None,
        samples=_samples(trial, run, pictures) if run is not None else [],
        untested=_untested(trial),
        how=_HOW,
        command=shlex.join(command),
        Markup=Markup,
        **_strips(outputs, run, trial),
    )
    write_text(path, text.rstrip("\n") + "\n")
    return Path(path)


def _asked(
    trial: "Trial", found: Draw, command: Sequence[str], pictures: Pictures | None
) -> dict[str, Any]:
    """What the page needs to ask for labels: samples, classes to choose from, the next command."""
    outputs = trial.outputs
    n_classes = outputs.probs.shape[1]
    answers = np.stack([outputs.before, *(run.after for run in trial.runs)])
    shown = []
    for row in found.rows.tolist():
        votes = Counter(answers[:, row].tolist())
        group = "" if outputs.groups is None else f"{outputs.groups[row]}: "
        one = _sample(trial, row, pictures, _LABELED)
        few = n_classes <= _KEYS  # then each class has its key
        classes = list(range(n_classes)) if few else [k for k, _ in votes.most_common(_KEYS)]
        shown.append({"key": f"{group}{one['key']}", "picture": one["picture"], "classes": classes})
    file = found.as_dict()
    about = hashlib.blake2b(json.dumps([file["samples"], found.rows.tolist()]).encode())
    names = {k: trial.class_name(k) for one in shown for k in one["classes"]}
    return {
        "why": f"{len(found.rows)} samples at random, more of those on which methods that may be "
        "best differ. Press the key of what is right; 0 if it is none of these. Every few labels "
        "tell more, and the first of them are a fair draw, too.",
        "command": shlex.join([*(command or ("lametta", "try")), "--labels", "labels.json"]),
        "draw": {"id": about.hexdigest()[:16], "names": names, "shown": shown, "file": file},
    }


_HOW = (
    "Each method saw the stream in its order, each group from its beginning, and no label. The "
    "gain is estimated from the answers alone: from how far other methods agree with the changes, "
    "whether the method itself asks for evidence, and how well answers say what the next sample is "
    "seen as, as far as these went with the gain on labeled streams. The interval is one of 90 %; "
    "where it holds 0, the estimate cannot tell whether a method helps. With labels of a few "
    "samples, drawn at random, it is measured by these. docs/try.md says how often such intervals "
    "held.",
    "A class has the same color in all strips; gray are all others. A stretch in which most would "
    "change is shown, up to 360 samples.",
)


def _strips(outputs: "Outputs", run: "Run | None", trial: "Trial") -> dict[str, Any]:
    before = outputs.before
    answers: dict[str, Index] = {"the network alone": before}
    notes = [_right(outputs, before)]
    if outputs.labels is not None:
        answers, notes = {"truth": outputs.labels.astype(np.intp)} | answers, ["", *notes]
    if run is not None:
        answers |= {run.candidate.title: run.after}
        notes.append(_right(outputs, run.after))
    shown = slice(0, 360) if run is None else closest_look(outputs, run)
    palette = colors(*(found[shown] for found in answers.values()))
    stop = min(shown.stop, len(outputs))
    where = f"Samples {shown.start + 1} to {stop} of {len(outputs):,}, one cell each"
    return {
        "legend": [
            *((trial.class_name(c), color) for c, color in palette.items()),
            ("others", OTHER),
        ],
        "strips": strips(answers, notes, shown, palette),
        "ticks": _ticks(trial, shown),
        "begins": _begins(trial),
        "lines": [] if trial.watched is None else _lines(trial.watched, outputs, shown),
        "caption": where + (", as they came." if outputs.groups is None else ", as in the file."),
    }


_LINES = (
    ("novelty", "novelty: 0 for a near-copy of the sample before", 0.0, 1.0),
    ("evidence", "evidence: nats by which the past predicts the network's answers", -0.5, 2.0),
)


def _lines(watched: "Run", outputs: "Outputs", shown: slice) -> list[tuple[str, str]]:
    """What Prudent told of each sample along the stretch that is shown, if it is not one number."""
    return [
        (what, line(along(watched, name, outputs)[shown], low, high))
        for name, what, low, high in _LINES
        if np.ptp(watched.series[name]) > 0
    ]


def _ticks(trial: "Trial", shown: slice) -> list[tuple[str, str]]:
    """What begins where in the stretch that is shown, as marks below the strips."""
    n, begins = len(trial.outputs), {"group": groups_begin(trial.outputs), **trial.begins}
    drawn = {what: ticks(n, places, shown) for what, places in begins.items()}
    return [(f"another {what} begins", svg) for what, svg in drawn.items() if svg]


def _begins(trial: "Trial") -> list[str]:
    """The same for the whole stream in words."""
    said = []
    for what, places in trial.begins.items():
        first = ", ".join(f"{place + 1:,}" for place in places[:_NAMED])
        more = f" and {len(places) - _NAMED} more" if len(places) > _NAMED else ""
        how = " (features move, and not as answers do)" if what == "domain" else ""
        if places:
            said.append(f"Where another {what} begins{how}: samples {first}{more}.")
    return said


def _right(outputs: "Outputs", found: Any) -> str:
    if outputs.labels is None:
        return ""
    return f"{np.mean(found == outputs.labels):.1%} right"


def _flows(trial: "Trial") -> Table | None:
    run = trial.shown
    if run is None or not (commonest := flows(trial.outputs.before, run.after)):
        return None
    rows, data = [], []
    for before, after, n in commonest:
        names = trial.class_name(before), trial.class_name(after)
        entries = [Entry(names[0]), Entry(names[1]), Entry(f"{n}")]
        data.append({"before": names[0], "after": names[1], "samples": n})
        if (labels := trial.outputs.labels) is not None:
            moved = (trial.outputs.before == before) & (run.after == after)
            right, was = (int((labels[moved] == c).sum()) for c in (after, before))
            entries += [Entry(f"{right}"), Entry(f"{was}")]
            data[-1] |= {"right_now": right, "right_before": was}
        rows.append(entries)
    header = ["before", "after", "samples"]
    header += ["right now", "right before"] if trial.outputs.labels is not None else []
    title = f"The commonest changes by {run.candidate.title}"
    return Table("flows", title, header, rows, pl.DataFrame(data))


def _samples(trial: "Trial", run: "Run", pictures: Pictures | None) -> list[dict[str, Any]]:
    outputs = trial.outputs
    rows = most_changed(outputs, run)
    found = []
    for row, near in zip(rows, neighbors(outputs, rows), strict=True):
        before = int(outputs.before[row])
        labels = outputs.labels
        found.append(
            _sample(trial, row, pictures, _SIZES[0])
            | {
                "sure_before": f"{outputs.probs[row, before]:.0%}",
                "after": trial.class_name(int(run.after[row])),
                "sure_after": f"{run.confidence[row]:.0%}",
                "label": "" if labels is None else trial.class_name(int(labels[row])),
                "neighbors": [_sample(trial, one, pictures, _SIZES[1]) for one in near],
            }
        )
    return found


def _sample(trial: "Trial", row: int, pictures: Pictures | None, size: int) -> dict[str, Any]:
    outputs = trial.outputs
    return {
        "key": outputs.keys[row] if outputs.keys else f"row {row}",
        "before": trial.class_name(int(outputs.before[row])),
        "picture": "" if pictures is None else _data_uri(pictures(row), size),
    }


def _data_uri(image: Any, size: int) -> str:
    from PIL import Image

    if not isinstance(image, Image.Image):
        array = np.asarray(image)
        array = array.transpose(1, 2, 0) if array.ndim == 3 and len(array) in (1, 3) else array
        array = array[..., 0] if array.ndim == 3 and array.shape[-1] == 1 else array
        if array.dtype.kind == "f":
            array = 255 * (array - array.min()) / max(float(np.ptp(array)), 1e-9)
        image = Image.fromarray(array.astype(np.uint8))
    image = image.convert("RGB")
    image.thumbnail((size, size))
    content = io.BytesIO()
    image.save(content, "JPEG", quality=80)
    return "data:image/jpeg;base64," + base64.b64encode(content.getvalue()).decode()


def _untested(trial: "Trial") -> list[tuple[str, str]]:
    """Names of methods by the reason why they were left out."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in trial.left.items():
        by_reason.setdefault(reason, []).append(name)
    return [("; ".join(names), reason) for reason, names in by_reason.items()]
