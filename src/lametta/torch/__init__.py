"""lametta for PyTorch: any classifier, wrapped in one line."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    from lametta._checks import extra

    raise ModuleNotFoundError(
        f"lametta.torch needs {error.name!r}: pip install {extra('torch')}", name=error.name
    ) from None

from lametta.preprocess import Preprocess
from lametta.torch.adapt import (
    GradientAdapter,
    GradientMethod,
    LossMethod,
    NetworkAdapter,
    NetworkMethod,
    own,
)
from lametta.torch.aetta import AETTA
from lametta.torch.features import measure_features
from lametta.torch.fisher import measure_fisher
from lametta.torch.methods import (
    CMF,
    EATA,
    EMABN,
    ETA,
    MEMO,
    NOTE,
    ROID,
    SAR,
    SHOTIM,
    TENT,
    TTBN,
    AdaBN,
    AlphaBN,
    CoTTA,
    DeYO,
    HalfBN,
    PeTTA,
    PrudentBN,
    PseudoLabel,
    RDumb,
    RoTTA,
    SoTTA,
)
from lametta.torch.model import Classifier
from lametta.torch.network import Batch, Network, Outputs
from lametta.torch.probation import Probation
from lametta.torch.wrapped import Wrapped, wrap

# As they were called before each method had the name that its paper gives it.
tent, shot_im, pseudo_label, adabn = TENT, SHOTIM, PseudoLabel, AdaBN

__all__ = [
    "AETTA",
    "CMF",
    "EATA",
    "EMABN",
    "ETA",
    "MEMO",
    "NOTE",
    "ROID",
    "SAR",
    "SHOTIM",
    "TENT",
    "TTBN",
    "AdaBN",
    "AlphaBN",
    "Batch",
    "Classifier",
    "CoTTA",
    "DeYO",
    "GradientAdapter",
    "GradientMethod",
    "HalfBN",
    "LossMethod",
    "Network",
    "NetworkAdapter",
    "NetworkMethod",
    "Outputs",
    "PeTTA",
    "Preprocess",
    "Probation",
    "PrudentBN",
    "PseudoLabel",
    "RDumb",
    "RoTTA",
    "SoTTA",
    "Wrapped",
    "adabn",
    "measure_features",
    "measure_fisher",
    "own",
    "pseudo_label",
    "shot_im",
    "tent",
    "wrap",
]
