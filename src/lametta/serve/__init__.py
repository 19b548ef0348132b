"""Inference server for correctors, with per-stream state."""
