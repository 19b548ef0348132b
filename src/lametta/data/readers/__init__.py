"""Readers: from files in their published layouts to a `Dataset`."""
