"""lametta for PyTorch: any classifier, wrapped in one line."""

try:
    import torch as _torch  # noqa: F401
except ModuleNotFoundError as error:
    from lametta._packages import extra

    raise ModuleNotFoundError(
        f"lametta.torch needs {error.name!r}: pip install {extra('torch')}", name=error.name
    ) from None

from lametta.torch.adapt import NetworkAdapter
from lametta.torch.model import Classifier
from lametta.torch.rivals import GradientAdapter, adabn, pseudo_label, shot_im, tent
from lametta.torch.wrapped import Wrapped, wrap

__all__ = [
    "Classifier",
    "GradientAdapter",
    "NetworkAdapter",
    "Wrapped",
    "adabn",
    "pseudo_label",
    "shot_im",
    "tent",
    "wrap",
]
