"""Network methods, one file each."""

from lametta.torch.methods.adabn import AdaBN
from lametta.torch.methods.pseudo_label import PseudoLabel
from lametta.torch.methods.shot_im import SHOTIM
from lametta.torch.methods.tent import TENT

__all__ = ["SHOTIM", "TENT", "AdaBN", "PseudoLabel"]
