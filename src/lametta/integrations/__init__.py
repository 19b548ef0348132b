"""Integrations, one library each, which is imported only when its module is."""
