"""Data sets, class hierarchies and banks of features."""

from lametta.data.bank import Bank
from lametta.data.catalog import data_root, datasets, load
from lametta.data.corrupt import corrupt
from lametta.data.dataset import Dataset, Sample
from lametta.data.folders import arrays, image_folder, video_folder
from lametta.data.hierarchy import ancestral_map
from lametta.data.loader import load_batches

__all__ = [
    "Bank",
    "Dataset",
    "Sample",
    "ancestral_map",
    "arrays",
    "corrupt",
    "data_root",
    "datasets",
    "image_folder",
    "load",
    "load_batches",
    "video_folder",
]
