"""Output-only methods: they see features and probabilities, and nothing else."""

from lametta.correctors._state import advance
from lametta.correctors.average import Average
from lametta.correctors.lame import LAME
from lametta.correctors.windowed import Windowed

__all__ = ["LAME", "Average", "Windowed", "advance"]
