"""Draw the figures of docs/results.md: python scripts/draw_results.py results/cifar10 ...

Each folder is one that ``lametta run`` wrote, perhaps with ``--study``: what was not run is not
drawn. Files go to docs/img/<experiment>_<figure>.svg.
"""

import sys
from dataclasses import replace
from pathlib import Path

import polars as pl

from lametta.bench import read_results
from lametta.bench.figures import cross_shift
from lametta.bench.report import make_report, report_context

IMAGES = Path(__file__).parents[1] / "docs" / "img"
SHOWN = ("main", "architectures", "batch_size", "kernels", "hybrid", "runtime", "curves")


def draw(folder: str) -> None:
    """Write the figures of a folder of results."""
    results = read_results(folder)
    figures = {f.name: f for part in make_report(results).sections for f in part.figures}
    rows = results.validation.rows
    chosen = [figures[name] for name in SHOWN if name in figures]
    if not results.validation.missing:
        both = rows.filter(pl.col("method").is_in([results.source, "LAME", "TENT"]))
        chosen.append(cross_shift(both, report_context(results)))
    for figure in chosen:
        name = f"{results.experiment.name}_{figure.name}"
        svg, pdf = replace(figure, name=name).save(IMAGES)
        pdf.unlink()
        # The words are dark, and so may the page be.
        text = svg.read_text(encoding="utf-8")
        svg.write_text(text.replace("<svg ", '<svg style="background: #fff" ', 1), "utf-8")
        print(f"{svg.stat().st_size / 1024:4.0f} KiB  {svg}")


for argument in sys.argv[1:]:
    draw(argument)
