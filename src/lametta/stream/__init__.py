"""Streams: which samples arrive, in which order and batches."""

from lametta.stream.chain import markov
from lametta.stream.domains import gradual, mixed, recurring, severity_ramp
from lametta.stream.nested import each_group, repeated
from lametta.stream.order import (
    Order,
    balanced_dirichlet,
    by_class,
    by_group,
    dirichlet,
    iid,
    orders,
    recorded,
)
from lametta.stream.prior import Prior, as_is, effective_classes, long_tail, priors, ratios, zipf
from lametta.stream.scenario import Scenario, Stream, options
from lametta.stream.several import alone, few_classes, interleaved, tracks
from lametta.stream.shift import imbalanced, label_shift

__all__ = [
    "Order",
    "Prior",
    "Scenario",
    "Stream",
    "alone",
    "as_is",
    "balanced_dirichlet",
    "by_class",
    "by_group",
    "dirichlet",
    "each_group",
    "effective_classes",
    "few_classes",
    "gradual",
    "iid",
    "imbalanced",
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
    "repeated",
    "severity_ramp",
    "tracks",
    "zipf",
]
