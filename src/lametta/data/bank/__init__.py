"""Banks: a network's outputs of a data set, extracted once and replayed."""

from lametta.data.bank.bank import Bank
from lametta.data.bank.extraction import extract
from lametta.data.bank.images import cache_images, open_images

__all__ = ["Bank", "cache_images", "extract", "open_images"]
