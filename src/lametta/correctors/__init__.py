"""Output-only methods: they see features and probabilities, and nothing else."""

from lametta.correctors._state import Remembering, advance
from lametta.correctors.average import Average
from lametta.correctors.cofa import COFA
from lametta.correctors.label_shift import LabelShift
from lametta.correctors.lame import LAME
from lametta.correctors.majority import Majority
from lametta.correctors.memory import Memory
from lametta.correctors.oatta import OATTA
from lametta.correctors.product import Product
from lametta.correctors.prudent import Prudent
from lametta.correctors.roid import ROID
from lametta.correctors.smoothing import Smoothing
from lametta.correctors.streams import Streams
from lametta.correctors.track import Track
from lametta.correctors.windowed import Windowed

__all__ = [
    "COFA",
    "LAME",
    "OATTA",
    "ROID",
    "Average",
    "LabelShift",
    "Majority",
    "Memory",
    "Product",
    "Prudent",
    "Remembering",
    "Smoothing",
    "Streams",
    "Track",
    "Windowed",
    "advance",
]
