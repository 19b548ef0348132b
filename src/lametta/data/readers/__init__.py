"""Readers: published layouts on disk to a `Dataset`."""
