"""The computation that the paper's authors released, written as literally as it gets."""

from typing import Any

import numpy as np


def literal_torch(features: Any, probs: Any, k: int = 5, max_iter: int = 100) -> Any:
    """The full tensor of differences, and the energy looked at after every update."""
    import torch  # or to weigh NumPy's version would load it

    unary = -torch.log(probs + 1e-10)
    x = torch.nn.functional.normalize(features, dim=1)
    distance = torch.norm(x[:, None] - x[None], dim=-1)
    neighbors = distance.topk(min(k + 1, len(x)), largest=False).indices[:, 1:]
    w = torch.zeros(len(x), len(x), device=x.device).scatter_(1, neighbors, 1.0)
    z, old = torch.softmax(-unary, dim=1), float("inf")
    for n in range(max_iter):
        pairwise = 1.0 * (w @ z)
        z = torch.softmax(-unary + pairwise, dim=1)
        terms = unary * z - 1.0 * pairwise * z + z * torch.log(z.clip(1e-20))
        energy = terms.sum().item()
        if n > 1 and abs(energy - old) <= 1e-8 * abs(old):
            break
        old = energy
    return z


def literal_numpy(features: Any, probs: Any, k: int = 5, max_iter: int = 100) -> Any:
    """The same in NumPy."""
    unary = -np.log(probs + np.float32(1e-10))
    x = features / np.maximum(np.linalg.norm(features, axis=1, keepdims=True), 1e-12)
    distance = np.linalg.norm(x[:, None] - x[None], axis=-1)
    neighbors = np.argsort(distance, axis=1)[:, 1 : k + 1]
    w = np.zeros((len(x), len(x)), x.dtype)
    np.put_along_axis(w, neighbors, 1, axis=1)
    z, old = softmax(-unary), float("inf")
    for n in range(max_iter):
        pairwise = 1.0 * (w @ z)
        z = softmax(-unary + pairwise)
        terms = unary * z - 1.0 * pairwise * z + z * np.log(np.maximum(z, 1e-20))
        energy = float(terms.sum())
        if n > 1 and abs(energy - old) <= 1e-8 * abs(old):
            break
        old = energy
    return z


def softmax(logits: Any) -> Any:
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)
