"""Data sets, class hierarchies and banks of features."""

from lametta.data.dataset import Dataset, Sample

__all__ = ["Dataset", "Sample"]
