"""What the scripts that draw share: colors, and a corrector along a stream."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rcParams
from numpy.typing import NDArray

import lametta
from lametta.data import load
from lametta.torch import Classifier
from lametta.torch.digits import digits_net

IMAGES = Path(__file__).parents[1] / "docs" / "img"
# Ten classes, told apart by hue and by lightness.
CLASSES = (
    *("#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951"),
    *("#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"),
)
INK, FAINT = "#1f2933", "#c3c9d1"
METHODS = {"source": "#7b8794", "LAME": "#d9480f", "Prudent": "#1864ab"}

rcParams.update(
    {
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.spines.right": False,
        "axes.spines.top": False,
        "font.size": 9,
        "svg.hashsalt": "lametta",
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
)


def digits(name: str, network: str = "digits") -> tuple[Any, NDArray[Any], NDArray[Any]]:
    """An embedded data set, and a small network's features and probabilities of it."""
    import torch

    data = load(f"embedded:{name}", "")
    with torch.inference_mode():
        output = Classifier(digits_net(network))(torch.as_tensor(data.samples))
    return data, output.features.numpy(), softmax(output.logits.double().numpy())


def softmax(logits: NDArray[Any]) -> NDArray[Any]:
    """Probabilities [N, K]."""
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def answers(
    corrector: lametta.Corrector,
    features: NDArray[Any],
    probs: NDArray[Any],
    batches: Iterable[NDArray[Any]],
) -> NDArray[Any]:
    """The classes [N] that a corrector gives along a stream."""
    corrector.reset()
    found = np.full(len(probs), -1)
    for batch in batches:
        found[batch] = np.argmax(corrector.correct(features[batch], probs[batch]).probs, axis=1)
    return found


def save(figure: Any, name: str) -> None:
    """Write a figure; on white, since its words are dark and so may the page be."""
    IMAGES.mkdir(exist_ok=True)
    path = IMAGES / name
    figure.savefig(path, metadata={"Date": None}, facecolor="white")
    print(f"{path.stat().st_size / 1024:4.0f} KiB  {path}")
