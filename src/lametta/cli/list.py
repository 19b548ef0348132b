"""``lametta list``: what there is."""

import importlib.util

from rich.table import Table

import lametta
from lametta.cli._console import out


def list_() -> None:
    """Show what there is: methods, affinities, poolings and array libraries."""
    table = Table("kind", "name", "what it is", box=None, header_style="bold", pad_edge=False)
    for kind, names in {
        "method": ("Source", "LAME"),
        "affinity": ("knn", "rbf", "linear"),
    }.items():
        for name in names:
            summary = (getattr(lametta, name).__doc__ or "").splitlines()[0]
            table.add_row(kind, name, summary.replace("`", ""))
    table.add_row("pooling", "mean, sum, max", "How ClassMap pools classes onto fewer.")
    for name, module in {
        "NumPy": "numpy",
        "PyTorch": "torch",
        "JAX": "jax",
        "CuPy": "cupy",
    }.items():
        state = "installed" if importlib.util.find_spec(module) else "not installed"
        table.add_row("arrays", name, state)
    out.print(table)
