"""Data sets, class hierarchies and banks of features."""

from lametta.data.bank import Bank
from lametta.data.catalog import data_root, datasets, load
from lametta.data.classes.wordnet import ancestral_map
from lametta.data.corruption import corrupt
from lametta.data.dataset import Dataset, Sample, arrays
from lametta.data.loader import load_batches
from lametta.data.readers.folders import image_folder, video_folder

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
