"""Output-only methods: they see features and probabilities, and nothing else."""

from lametta.correctors.lame import LAME

__all__ = ["LAME"]
