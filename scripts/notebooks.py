"""Write the notebooks: python scripts/notebooks.py [-o FOLDER].

Their sources are the programs of ``examples/notebooks``, in which ``# %%`` begins a cell and
``# %% [markdown]`` one of text, as editors know it. sphinx-gallery would run all of them whenever
the documentation is built, and is one more package; tests run them as programs.
"""

import argparse
import json
from pathlib import Path
from typing import Any

SOURCES = Path(__file__).parents[1] / "examples" / "notebooks"


def notebook(source: str) -> dict[str, Any]:
    r"""A program as a notebook of format 4, without outputs.

    Examples
    --------
    >>> made = notebook("# %% [markdown]\n# # Title\n\n# %%\nprint(1)\n")
    >>> [(cell["cell_type"], cell["source"]) for cell in made["cells"]]
    [('markdown', '# Title'), ('code', 'print(1)')]
    """
    cells = []
    for number, part in enumerate(source.split("# %%")[1:]):
        kind, _, text = part.partition("\n")
        cell: dict[str, Any] = {"id": f"cell-{number}", "metadata": {}}
        if kind.strip() == "[markdown]":
            lines = (line.removeprefix("#").removeprefix(" ") for line in text.strip().split("\n"))
            cell |= {"cell_type": "markdown", "source": "\n".join(lines)}
        else:
            cell |= {"cell_type": "code", "source": text.strip()}
            cell |= {"execution_count": None, "outputs": []}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def write(folder: Path) -> list[Path]:
    """Write all of them into a folder, which is made."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for source in sorted(SOURCES.glob("*.py")):
        written.append(folder / f"{source.stem}.ipynb")
        made = notebook(source.read_text(encoding="utf-8"))
        written[-1].write_text(json.dumps(made, indent=1) + "\n", encoding="utf-8")
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the notebooks.")
    parser.add_argument("-o", "--output", type=Path, default=Path("notebooks"))
    for path in write(parser.parse_args().output):
        print(path)


if __name__ == "__main__":
    main()
