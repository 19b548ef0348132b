"""`lametta.preprocess.Preprocess`, by the name that it has had here."""

from lametta.preprocess import Preprocess

__all__ = ["Preprocess"]
