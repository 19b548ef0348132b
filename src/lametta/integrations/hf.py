"""Classifiers of Hugging Face's transformers, corrected along their streams."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import EllipsisType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn
from torch.utils.data import Dataset

from lametta._checks import check_integer
from lametta.adapters import Source
from lametta.correctors import Streams
from lametta.integrations._hf_pipelines import (
    ZERO_SHOT,
    as_pipeline,
    collated,
    forward,
    joined,
    network,
    parameters,
    scores_of,
    task_of,
)
from lametta.integrations._hf_zero_shot import ZeroShot
from lametta.methods import as_corrector
from lametta.types import Corrector, Id, LamettaError, Prediction

if TYPE_CHECKING:
    from transformers import Pipeline, PreTrainedModel

__all__ = ["Classified", "Corrected"]


@dataclass(frozen=True)
class Classified:
    """What `Corrected.predict` gives for one batch.

    Attributes
    ----------
    labels : tuple of str
        The names of the classes, the columns of the probabilities.
    source : Prediction
        The frozen model's own prediction, with the features that it was made from.
    corrected : Prediction
        The corrected one, with the corrector's ``info``.

    Examples
    --------
    >>> import torch
    >>> own = Prediction(torch.tensor([[0.4, 0.6]]))
    >>> Classified(("cat", "dog"), own, own).labels[own.probs.argmax()]
    'dog'
    """

    labels: tuple[str, ...]
    source: Prediction
    corrected: Prediction


class Corrected:
    """A transformers pipeline for classification whose scores are corrected along streams.

    It is called as the pipeline is, with one input, a list, a dataset or a generator, and returns
    what that returns: the same labels and the same form, with corrected scores. ``stream`` says
    which stream (a camera, a user, a track) a sample belongs to; streams are never mixed.

    Parameters
    ----------
    model : transformers.Pipeline or transformers.PreTrainedModel
        A pipeline for image, audio, video, text or zero-shot-image classification, or a model of
        that kind with its ``processor``. It is not changed.
    processor : callable, optional
        The image processor, feature extractor or tokenizer of a model that comes without a
        pipeline, or a processor that has them.
    corrector : str, Corrector or Streams
        What corrects, by its name or itself; `lametta.Prudent` needs no tuning. A `lametta.Streams`
        also says how many streams are remembered, and for how long.
    head : torch.nn.Module or str, optional
        The layer that makes the logits, if it is not found. Its inputs are the features.

    Attributes
    ----------
    pipeline : transformers.Pipeline
        The one that was given, or that was made of the model and the processor.
    streams : Streams
        The memory of the streams.

    Notes
    -----
    For zero-shot classification by CLIP or its kind, the features are ``image_embeds`` and the
    logits ``logits_per_image``. The embeddings of the labels are computed once, not with each image
    as the pipeline does. SigLIP's logits go through a softmax over the labels too.

    Examples
    --------
    >>> from transformers import pipeline  # doctest: +SKIP
    >>> classify = Corrected(pipeline("image-classification"))  # doctest: +SKIP
    >>> classify("swan.jpg", stream="camera 1", top_k=1)  # doctest: +SKIP
    [{'label': 'swan', 'score': 0.91}]
    >>> classify(["a.jpg", "b.jpg"], stream=["camera 1", "camera 2"])  # doctest: +SKIP
    """

    def __init__(
        self,
        model: "Pipeline | PreTrainedModel",
        processor: object = None,
        corrector: str | Corrector | Streams = "prudent",
        *,
        head: nn.Module | str | None = None,
    ) -> None:
        self.pipeline = as_pipeline(model, processor)
        self.task = task_of(self.pipeline)
        if not isinstance(corrector, Streams):
            corrector = Streams(as_corrector(corrector))
        self.streams = corrector
        self._zero_shot: ZeroShot | None = None
        if self.task != ZERO_SHOT:
            self._model = network(self.pipeline, head)
        elif head is not None:
            raise LamettaError("head must be None for images and texts, whose cosines are logits")

    def __call__(
        self,
        inputs: object,
        *,
        stream: Id | Iterable[Id] = "default",
        top_k: int | EllipsisType | None = ...,
        batch_size: int | None = None,
        **options: object,
    ) -> Any:
        """Classify the inputs that the pipeline takes, and return results in its form.

        Parameters
        ----------
        inputs
            One input, or a list of them, which the corrector sees as one batch. For a dataset or a
            generator, the results come one after the other, corrected ``batch_size`` at a time.
        stream : str or int, or an iterable of these
            The stream of all inputs, or that of each. The inputs of a stream come in their order.
        top_k : int or None
            How many labels; by default as many as the pipeline gives.
        batch_size : int, optional
            How many samples go through the network together; by default the pipeline's own, or 1.
        **options
            What else the pipeline takes: ``candidate_labels``, ``truncation``, ``timeout``, ...
        """
        if top_k is not ... and top_k is not None:
            check_integer("top_k", top_k, 1)
        shown = {} if top_k is ... else {"top_k": top_k}
        if isinstance(inputs, Dataset | GeneratorType):
            return self._along(inputs, stream, batch_size, options, shown)
        if isinstance(inputs, list | tuple) and not inputs:
            return []
        found = self.predict(inputs, stream=stream, batch_size=batch_size, **options)
        rows = scores_of(self.pipeline, found.labels, found.corrected.probs, shown)
        if isinstance(inputs, list | tuple):
            return rows
        # For one text, the pipeline returns a list of one result unless it is given a top_k.
        return rows if self.task == "text" and isinstance(inputs, str) and not shown else rows[0]

    def predict(
        self,
        inputs: object,
        *,
        stream: Id | Iterable[Id] = "default",
        batch_size: int | None = None,
        **options: object,
    ) -> Classified:
        """Like a call, but return the probabilities of all classes, source and corrected."""
        items = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
        if not items:
            raise LamettaError("inputs must hold a sample, got none")
        size = self._batch_size(batch_size)
        ids = list(stream) if _one_for_each(stream) else stream
        if isinstance(ids, list) and len(ids) != len(items):
            raise LamettaError(
                f"stream must be one id, or one for each of {len(items)} inputs, got {len(ids)}"
            )
        ready, _ = parameters(self.pipeline, options)
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        if self.task == ZERO_SHOT:
            zero_shot = self._prompted(ready)
            labels: Sequence[str] = zero_shot.labels
            output = joined(zero_shot(part) for part in parts)
        else:
            config = self.pipeline.model.config
            labels = [config.id2label[i] for i in range(config.num_labels)]
            prepared = ([self.pipeline.preprocess(x, **ready) for x in part] for part in parts)
            output = joined(forward(self._model, collated(self.pipeline, x)) for x in prepared)
        source = Source(lambda x: x).step(output).plain()
        corrected = self.streams.correct(source.features, source.probs, ids)
        return Classified(tuple(labels), source, corrected.plain())

    def reset(self) -> None:
        """Forget all streams, and the labels of zero-shot classification."""
        self.streams.reset()
        self._zero_shot = None

    def _along(
        self,
        inputs: Any,
        stream: Id | Iterable[Id],
        batch_size: int | None,
        options: Mapping[str, object],
        shown: Mapping[str, int | None],
    ) -> Iterator[object]:
        if not hasattr(inputs, "__iter__"):  # a dataset of PyTorch, which has items and a length
            inputs = map(inputs.__getitem__, range(len(inputs)))
        samples, size = iter(inputs), self._batch_size(batch_size)
        ids = iter(stream) if _one_for_each(stream) else None
        while batch := list(islice(samples, size)):
            mine = stream if ids is None else list(islice(ids, len(batch)))
            found = self.predict(batch, stream=mine, batch_size=size, **options)
            yield from scores_of(self.pipeline, found.labels, found.corrected.probs, shown)

    def _batch_size(self, given: int | None) -> int:
        if given is None:
            return int(self.pipeline._batch_size or 1)
        check_integer("batch_size", given, 1)
        return given

    def _prompted(self, options: Mapping[str, object]) -> ZeroShot:
        asked = ZeroShot(self.pipeline, options)
        if self._zero_shot is None:
            self._zero_shot = asked
        elif asked.options != self._zero_shot.options:
            raise LamettaError(
                "candidate_labels and hypothesis_template must stay the same, since streams "
                f"remember classes, got {asked.options!r:.200} after "
                f"{self._zero_shot.options!r:.200}: call reset() before"
            )
        return self._zero_shot


def _one_for_each(stream: Id | Iterable[Id]) -> TypeGuard[Iterable[Id]]:
    return isinstance(stream, Iterable) and not isinstance(stream, str)
