"""Streams: which samples arrive, in which order and batches."""

from lametta.stream.chain import markov
from lametta.stream.domains import gradual, mixed, recurring
from lametta.stream.order import Order, by_class, by_group, dirichlet, iid, orders, recorded
from lametta.stream.prior import Prior, as_is, effective_classes, long_tail, priors, ratios, zipf
from lametta.stream.scenario import Scenario, Stream, options
from lametta.stream.several import alone, few_classes, interleaved, tracks
from lametta.stream.shift import label_shift

__all__ = [
    "Order",
    "Prior",
    "Scenario",
    "Stream",
    "alone",
    "as_is",
    "by_class",
    "by_group",
    "dirichlet",
    "effective_classes",
    "few_classes",
    "gradual",
    "iid",
    "interleaved",
    "label_shift",
    "long_tail",
    "markov",
    "mixed",
    "options",
    "orders",
    "priors",
    "ratios",
    "recorded",
    "recurring",
    "tracks",
    "zipf",
]
