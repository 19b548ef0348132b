"""Correctors: output-only methods on features and probabilities."""

from lametta.correctors.averages import Average, Majority, Product, Smoothing
from lametta.correctors.base import BatchCorrector, Remembering, StatefulCorrector, advance
from lametta.correctors.chain import Chain
from lametta.correctors.cofa import COFA
from lametta.correctors.label_shift import ROID, LabelShift, PriorCorrection
from lametta.correctors.lame import LAME
from lametta.correctors.logged import Logged
from lametta.correctors.neo import NEO
from lametta.correctors.oatta import OATTA
from lametta.correctors.oga import OGA
from lametta.correctors.prudent import Memory, Prudent
from lametta.correctors.shadow import Shadow
from lametta.correctors.stata import StatA
from lametta.correctors.streams import Streams
from lametta.correctors.t3a import T3A
from lametta.correctors.tda import TDA
from lametta.correctors.track import Track
from lametta.correctors.transclip import TransCLIP
from lametta.correctors.windowed import Windowed

__all__ = [
    "COFA",
    "LAME",
    "NEO",
    "OATTA",
    "OGA",
    "ROID",
    "T3A",
    "TDA",
    "Average",
    "BatchCorrector",
    "Chain",
    "LabelShift",
    "Logged",
    "Majority",
    "Memory",
    "PriorCorrection",
    "Product",
    "Prudent",
    "Remembering",
    "Shadow",
    "Smoothing",
    "StatA",
    "StatefulCorrector",
    "Streams",
    "Track",
    "TransCLIP",
    "Windowed",
    "advance",
]
