"""Correctors: output-only methods on features and probabilities."""

from lametta.correctors.averages import Average, Majority, Product, Smoothing
from lametta.correctors.base import Remembering, StatefulCorrector, advance
from lametta.correctors.chain import Chain
from lametta.correctors.cofa import COFA
from lametta.correctors.label_shift import ROID, LabelShift, PriorCorrection
from lametta.correctors.lame import LAME
from lametta.correctors.oatta import OATTA
from lametta.correctors.prudent import Memory, Prudent
from lametta.correctors.streams import Streams
from lametta.correctors.track import Track
from lametta.correctors.windowed import Windowed

__all__ = [
    "COFA",
    "LAME",
    "OATTA",
    "ROID",
    "Average",
    "Chain",
    "LabelShift",
    "Majority",
    "Memory",
    "PriorCorrection",
    "Product",
    "Prudent",
    "Remembering",
    "Smoothing",
    "StatefulCorrector",
    "Streams",
    "Track",
    "Windowed",
    "advance",
]
