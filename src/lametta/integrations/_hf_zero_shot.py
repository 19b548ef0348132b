"""CLIP and its kind: classes are texts, whose embeddings are made once."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from lametta.integrations._hf_pipelines import collated
from lametta.torch.model import check_ready
from lametta.types import LamettaError, Output

if TYPE_CHECKING:
    from transformers import Pipeline


class ZeroShot:
    """A network that compares images with texts, as a model whose classes are the texts.

    The embeddings of the texts, ``prototypes`` [K, d], are made with the first images. Later
    images come with a single text, since the network insists on one.
    """

    def __init__(self, pipeline: "Pipeline", options: Mapping[str, object]) -> None:
        self.pipeline = pipeline
        self.options = dict(options)
        self.labels = _checked(options.get("candidate_labels"))
        self.prototypes: torch.Tensor | None = None

    def __call__(self, images: Sequence[object]) -> Output:
        """Return embeddings [N, d] and logits [N, K] of images."""
        net = self.pipeline.model
        check_ready(net)
        one = self.options | {"candidate_labels": self.labels[:1]}
        ready = [dict(self.pipeline.preprocess(image, **one)) for image in images]
        texts = [sample.pop("text_inputs")[0] for sample in ready]
        for sample in ready:
            del sample["candidate_labels"]
        batch = collated(self.pipeline, ready)
        prototypes = self.prototypes
        if prototypes is None:  # always so if the logits are not those of prototypes
            texts = self.pipeline.preprocess(images[0], **self.options)["text_inputs"]
        with torch.no_grad():
            returned = net(**self.pipeline.ensure_tensor_on_device(**texts[0]), **batch)
            if prototypes is not None:
                logits = self._logits(prototypes, returned.image_embeds)
                return Output(returned.image_embeds, logits)
            if returned.text_embeds.ndim == 2:
                logits = self._logits(returned.text_embeds, returned.image_embeds)
                if torch.allclose(logits, returned.logits_per_image, rtol=1e-4, atol=1e-4):
                    self.prototypes = returned.text_embeds
        return Output(returned.image_embeds, returned.logits_per_image)

    def _logits(self, prototypes: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Cosines on the learned scale, computed in the order in which the networks do it."""
        net = self.pipeline.model
        logits: torch.Tensor = torch.matmul(prototypes, images.t()) * net.logit_scale.exp()
        bias = getattr(net, "logit_bias", None)
        return (logits if bias is None else logits + bias).t()


def _checked(labels: object) -> list[str]:
    listed = list(labels) if isinstance(labels, list | tuple) else []
    if not all(isinstance(x, str) for x in listed) or not 2 <= len(set(listed)) == len(listed):
        raise LamettaError(
            f"candidate_labels must be two or more different texts, got {labels!r:.200}"
        )
    return listed
