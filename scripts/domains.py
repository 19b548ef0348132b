"""Store the table of docs/adaptation.md, from results of scripts/domains.toml.

python scripts/domains.py results/domains
"""

import sys
from pathlib import Path

import polars as pl

from lametta.bench import read_cells
from lametta.bench.analysis import gains

STORED = Path(__file__).parents[1] / "docs" / "tables" / "domains.csv"
NETWORKS = {
    "digits": "digits, small CNN",
    "digits_mixup": "digits, the same with mixup",
    "digits_resnet": "digits, ResNet",
    "resnet20": "CIFAR-10, ResNet-20",
    "resnet44": "CIFAR-10, ResNet-44",
    "lite0": "10 of 1000 classes, EN-Lite0",
}


def main(folder: str) -> None:
    """Mean gains over the orders, and the worst of them, in batches of 64."""
    cells = gains(read_cells(Path(folder))).filter(pl.col("batch_size") == 64)
    stored = ["network,LAME,its worst order,Prudent,worst order"]
    for model, title in NETWORKS.items():
        shown = []
        for method in ("LAME", "Prudent"):
            found = 100 * cells.filter(model=model, method=method)["gain"].to_numpy()
            shown += [f"{found.mean():+.1f}", f"{found.min():+.1f}"]
        stored.append(",".join([f'"{title}"', *shown]))
    STORED.write_text("\n".join(stored) + "\n", encoding="utf-8")
    print(STORED.read_text(encoding="utf-8"))


if __name__ == "__main__":
    main(sys.argv[1])
