"""Draw the road that data take through lametta, for docs/design.md: python scripts/draw_road.py."""

from drawing import IMAGES, INK

WIDTH, HEIGHT = 760, 500
BLUE, GREEN, ORANGE, GRAY = "#e7f0fb", "#e6f5ec", "#fdefe3", "#f1f3f5"
TITLE = "The road of data through lametta"
DESCRIPTION = (
    "A data set gives inputs, labels and groups. A scenario turns labels, groups and a seed into "
    "batches of positions. Inputs of a batch go through a model to an output of features and "
    "logits, and through an adapter to a prediction. Labels go another way and meet predictions in "
    "the benchmark's cell alone, from which rows go to Parquet files and a report. A server takes "
    "requests with a stream's name, loads that stream's memory, and calls the same corrector."
)

parts: list[str] = []


def box(x: int, y: int, width: int, title: str, *lines: str, fill: str = BLUE) -> None:
    height = 30 + 15 * len(lines)
    parts.append(
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" fill="{fill}" '
        f'stroke="{INK}" stroke-opacity=".35"/>'
        f'<text x="{x + width / 2}" y="{y + 20}" text-anchor="middle" font-weight="600">'
        f"{title}</text>"
    )
    for i, line in enumerate(lines):
        parts.append(
            f'<text x="{x + width / 2}" y="{y + 37 + 15 * i}" text-anchor="middle" '
            f'font-size="11.5">{line}</text>'
        )


def arrow(path: str, label: str = "", x: int = 0, y: int = 0, *, dashed: bool = False) -> None:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    parts.append(
        f'<path d="{path}" fill="none" stroke="{INK}" stroke-width="1.4" '
        f'marker-end="url(#tip)"{dash}/>'
    )
    if label:
        parts.append(f'<text x="{x}" y="{y}" font-size="11.5" font-style="italic">{label}</text>')


def heading(y: int, text: str, x: int = 14) -> None:
    parts.append(f'<text x="{x}" y="{y}" font-size="11.5" opacity=".65">{text}</text>')


heading(22, "BENCHMARK: what arrives when")
box(14, 36, 150, "data set", "x, y, group", "folders, videos, yours", fill=GRAY)
box(280, 36, 170, "Scenario", "order, prior, seed", "&#8594; batches of positions", fill=GRAY)
arrow("M164 66H278", "y, group", 196, 58)

heading(142, "PREDICTION: no label gets in here", x=100)
box(14, 158, 150, "Model", "torch, ONNX, or a bank", "of stored outputs")
box(250, 158, 150, "Output", "features [N, d]", "logits [N, K]")
box(478, 158, 130, "Corrector", "LAME, Prudent, ...", "yours")
box(640, 158, 106, "Prediction", "probs [N, K]", "info")
arrow("M164 188H248")
arrow("M400 188H476", "class map", 408, 180)
arrow("M608 188H638")
arrow("M365 96V122H89V156", "x of the batch", 215, 117)
parts.append(
    f'<path d="M14 226q0 10 10 10h574q10 0 10 -10" fill="none" stroke="{INK}" '
    'stroke-opacity=".5"/>'
    f'<text x="311" y="252" text-anchor="middle" font-size="11.5">'
    "Adapter: step(x) &#8594; Prediction, reset(). "
    "Corrected(model, corrector), tent(model), ...</text>"
)

heading(292, "JUDGMENT: labels come in here, and only here")
box(
    *(478, 306, 268, "cell"),
    *("one method on one stream: rows, course,", "times; written whole or not at all"),
    fill=GREEN,
)
box(250, 306, 170, "results", "one Parquet file a cell", "metrics, selection", fill=GREEN)
box(14, 306, 150, "report.html", "figures, tables", fill=GREEN)
arrow("M693 218V304", "probs", 699, 270)
arrow("M450 66H752V330H748", "y", 738, 80, dashed=True)
arrow("M478 336H422")
arrow("M250 336H166")

heading(404, "SERVICE: the same corrector, one memory for each stream")
box(14, 418, 190, "request", "features, probs, stream's name", "JSON or binary, HTTP", fill=ORANGE)
box(280, 418, 140, "Streams", "a corrector for", "each name, in order", fill=ORANGE)
box(478, 418, 120, "store", "folder or Redis", "snapshot and log", fill=ORANGE)
box(640, 418, 106, "answer", "probs, label", "signals", fill=ORANGE)
arrow("M204 448H278")
arrow("M420 448H476", "state", 432, 440)
arrow("M598 448H638", "", 0, 0)

(IMAGES / "road.svg").write_text(
    f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
    f'height="{HEIGHT}" font-family="system-ui, sans-serif" font-size="13" fill="{INK}" role="img">'
    f"<title>{TITLE}</title><desc>{DESCRIPTION}</desc>"
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    f'orient="auto"><path d="M0 0L8 4L0 8z" fill="{INK}"/></marker></defs>'
    f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{"".join(parts)}</svg>\n',
    encoding="utf-8",
)
