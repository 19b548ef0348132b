"""Streams: which samples arrive, in which order and in which batches."""

from lametta.stream._table import options, orders, priors
from lametta.stream.domains import gradual, mixed, recurring
from lametta.stream.order import Order, by_class, by_group, dirichlet, iid, recorded
from lametta.stream.parallel import interleaved
from lametta.stream.prior import Prior, as_is, effective_classes, ratios, zipf
from lametta.stream.scenario import Scenario, Stream

__all__ = [
    "Order",
    "Prior",
    "Scenario",
    "Stream",
    "as_is",
    "by_class",
    "by_group",
    "dirichlet",
    "effective_classes",
    "gradual",
    "iid",
    "interleaved",
    "mixed",
    "options",
    "orders",
    "priors",
    "ratios",
    "recorded",
    "recurring",
    "zipf",
]
