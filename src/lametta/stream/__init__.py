"""Streams: who sees which sample in which order."""
