"""Hugging Face pipelines, corrected along streams: image, audio, text, video, zero-shot CLIP."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import EllipsisType, GeneratorType, ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import nn
from torch.utils.data import Dataset

from lametta._checks import ONE_OF_SEVERAL, check_integer, extra, import_optional
from lametta.adapters import Source
from lametta.correctors import Streams
from lametta.correctors.base import give_prototypes, lacks_prototypes, wants_prototypes
from lametta.methods import as_corrector
from lametta.torch.model import Classifier, Inputs, check_one_of_many, check_ready, find_head
from lametta.types import Corrector, Id, LamettaError, Output, Prediction, Prototypes

if TYPE_CHECKING:
    from transformers import Pipeline, PreTrainedModel

__all__ = ["Classified", "Corrected", "CorrectedPipeline"]

_TASKS = ("image", "audio", "text", "video", "zero-shot-image")
_ZERO_SHOT = "zero-shot-image"

# By the name of the network's input: what is classified, and the pipeline's name of its processor.
_INPUTS = {
    "pixel_values": ("image", "image_processor"),
    "input_values": ("audio", "feature_extractor"),
    "input_features": ("audio", "feature_extractor"),
    "input_ids": ("text", "tokenizer"),
}


@dataclass(frozen=True)
class Classified:
    """Predictions of a batch by `CorrectedPipeline.predict`: the source's and the corrected ones.

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


class CorrectedPipeline:
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
    >>> classify = CorrectedPipeline(pipeline("image-classification"))  # doctest: +SKIP
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
        self.pipeline = _as_pipeline(model, processor)
        self.task = _task_of(self.pipeline)
        if not isinstance(corrector, Streams):
            corrector = Streams(as_corrector(corrector))
        self.streams = corrector
        self._zero_shot: _ZeroShot | None = None
        self._needs_texts = lacks_prototypes(self.streams)
        self._takes_texts = self.task == _ZERO_SHOT and wants_prototypes(self.streams)
        if self.task != _ZERO_SHOT:
            self._model = _classifier(self.pipeline, head)
            if wants_prototypes(self.streams):
                none = f"the head of {type(self._model.net).__name__}, which is no linear layer"
                give_prototypes(self.streams, self._model.prototypes, none)
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
        rows = _scores(self.pipeline, found.labels, found.corrected.probs, shown)
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
        ready, _ = _pipeline_params(self.pipeline, options)
        parts = [items[start : start + size] for start in range(0, len(items), size)]
        labels, output = self._output(parts, ready)
        source = Source(lambda x: x).step(output).plain()
        corrected = self.streams.correct(source.features, source.probs, ids)
        return Classified(tuple(labels), source, corrected.plain())

    def _output(
        self, parts: list[list[Any]], ready: Mapping[str, Any]
    ) -> tuple[Sequence[str], Output]:
        """The labels, and what the network gives for all parts of a batch."""
        if self.task == _ZERO_SHOT:
            return self._zero_shot_output(parts, ready)
        config = self.pipeline.model.config
        prepared = ([self.pipeline.preprocess(x, **ready) for x in part] for part in parts)
        output = _concatenate(_forward(self._model, _collate(self.pipeline, x)) for x in prepared)
        return [config.id2label[i] for i in range(config.num_labels)], output

    def _zero_shot_output(
        self, parts: list[list[Any]], ready: Mapping[str, Any]
    ) -> tuple[Sequence[str], Output]:
        """The same by texts as classes; correctors that take their embeddings get them once."""
        zero_shot = self._prompted(ready)
        output = _concatenate(zero_shot(part) for part in parts)
        if self._takes_texts and not zero_shot.is_used:
            if self._needs_texts or zero_shot.prototypes is not None:
                self.streams.use(zero_shot.head())
            zero_shot.is_used = True
        return zero_shot.labels, output

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
            yield from _scores(self.pipeline, found.labels, found.corrected.probs, shown)

    def _batch_size(self, given: int | None) -> int:
        if given is None:
            return int(self.pipeline._batch_size or 1)
        check_integer("batch_size", given, 1)
        return given

    def _prompted(self, options: Mapping[str, object]) -> "_ZeroShot":
        asked = _ZeroShot(self.pipeline, options)
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


Corrected = CorrectedPipeline
"""The name that it had before."""


class _ZeroShot:
    """A network that compares images with texts, as a model whose classes are the texts.

    The embeddings of the texts, ``prototypes`` [K, d], are made with the first images. Later
    images come with a single text, since the network insists on one.
    """

    def __init__(self, pipeline: "Pipeline", options: Mapping[str, object]) -> None:
        self.pipeline = pipeline
        self.options = dict(options)
        self.labels = _check_labels(options.get("candidate_labels"))
        self.prototypes: torch.Tensor | None = None
        self.is_used = False  # by a corrector that needs prototypes

    def __call__(self, images: Sequence[object]) -> Output:
        """Return embeddings [N, d] and logits [N, K] of images."""
        net = self.pipeline.model
        check_ready(net)
        one = self.options | {"candidate_labels": self.labels[:1]}
        ready = [dict(self.pipeline.preprocess(image, **one)) for image in images]
        texts = [sample.pop("text_inputs")[0] for sample in ready]
        for sample in ready:
            del sample["candidate_labels"]
        batch = _collate(self.pipeline, ready)
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

    def head(self) -> Prototypes:
        """What makes logits of embeddings, once the embeddings of the texts are known."""
        net = self.pipeline.model
        if self.prototypes is None:
            raise LamettaError(
                "corrector must need no prototypes where the logits are no cosines of texts and "
                f"images, got one that does for {type(net).__name__}"
            )
        weight = self.prototypes * net.logit_scale.detach().exp()
        bias = getattr(net, "logit_bias", None)
        return Prototypes(weight, None if bias is None else bias.detach().expand(len(weight)))

    def _logits(self, prototypes: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        """Cosines on the learned scale, computed in the order in which the networks do it."""
        net = self.pipeline.model
        logits: torch.Tensor = torch.matmul(prototypes, images.t()) * net.logit_scale.exp()
        bias = getattr(net, "logit_bias", None)
        return (logits if bias is None else logits + bias).t()


def _check_labels(labels: object) -> list[str]:
    listed = list(labels) if isinstance(labels, list | tuple) else []
    if not all(isinstance(x, str) for x in listed) or not 2 <= len(set(listed)) == len(listed):
        raise LamettaError(
            f"candidate_labels must be two or more different texts, got {labels!r:.200}"
        )
    return listed


def _transformers() -> ModuleType:
    """Import the library, or say what to install."""
    return import_optional("transformers", extra("hf"), "lametta.integrations.hf")


def _task_of(pipeline: object) -> str:
    """What a pipeline classifies."""
    hf = _transformers()
    for task in _TASKS:
        kind = "".join(word.title() for word in task.split("-"))
        if isinstance(pipeline, getattr(hf, f"{kind}ClassificationPipeline")):
            return task
    raise LamettaError(
        f"model must be a pipeline for {', '.join(_TASKS[:-1])} or {_TASKS[-1]} classification, or "
        f"a model with its processor, got {type(pipeline).__name__}"
    )


def _as_pipeline(model: object, processor: object) -> "Pipeline":
    """Return the pipeline that was given, or make one of a model and its processor."""
    hf = _transformers()
    if isinstance(model, hf.Pipeline):
        if processor is not None:
            raise LamettaError("processor must be None for a pipeline, which has its own, got one")
        return model
    if not isinstance(model, nn.Module) or not hasattr(model, "config"):
        raise LamettaError(
            "model must be a transformers pipeline, or a model with its processor, got "
            f"{type(model).__name__}"
        )
    if not callable(processor) or isinstance(processor, type):
        raise LamettaError(
            "processor must be what makes the model's inputs, a tokenizer, an image processor or a "
            f"feature extractor, got {processor!r:.100}"
        )
    if hasattr(model, "get_text_features") and hasattr(model, "get_image_features"):  # as CLIP
        parts = _parts_of(processor, model)
        return hf.ZeroShotImageClassificationPipeline(model=model, device=model.device, **parts)
    name = getattr(model, "main_input_name", None)
    if name not in _INPUTS:
        raise LamettaError(
            f"model must take one of {', '.join(_INPUTS)}, got {type(model).__name__}, which takes "
            f"{name}: give a pipeline"
        )
    task, word = _INPUTS[name]
    part = getattr(processor, word, processor)  # it may be the tokenizer, say, or have it
    kind = getattr(hf, f"{task.title()}ClassificationPipeline")
    return kind(model=model, device=model.device, **{word: part})


def _parts_of(processor: object, model: nn.Module) -> dict[str, object]:
    """What prepares images and texts for a zero-shot model."""
    parts = {name: getattr(processor, name, None) for name in ("image_processor", "tokenizer")}
    if None in parts.values():
        raise LamettaError(
            f"processor must have an image_processor and a tokenizer for {type(model).__name__}, "
            f"got {type(processor).__name__}"
        )
    return parts


def _check_one_of_many(pipeline: "Pipeline") -> None:
    """Raise unless the pipeline chooses one of several classes."""
    check_one_of_many(pipeline.model.config)
    chosen = pipeline._postprocess_params.get("function_to_apply")
    chosen = str(getattr(chosen, "value", chosen))
    if chosen == "sigmoid":
        raise LamettaError(
            "model must choose one class of several, got function_to_apply='sigmoid', which says "
            f"yes or no to each; {ONE_OF_SEVERAL}"
        )
    if chosen == "none":
        raise LamettaError("model must give scores after a softmax, got function_to_apply='none'")


def _classifier(pipeline: "Pipeline", head: nn.Module | str | None) -> Classifier:
    """The pipeline's network as a `lametta.Model`; it has to choose one of several classes."""
    _check_one_of_many(pipeline)
    model = pipeline.model
    return Classifier(model, _last_layer(model) if head is None else head)


def _last_layer(net: "PreTrainedModel") -> nn.Module:
    """The layer that gives as many numbers as there are classes, outside of the base model."""
    n_classes, base = net.config.num_labels, getattr(net, "base_model_prefix", "")
    layers: dict[str, nn.Module] = {
        name: layer
        for name, layer in net.named_modules()
        if getattr(layer, "out_features", None) == n_classes and base not in name.split(".")
    }
    if len(layers) == 1:
        return next(iter(layers.values()))
    try:
        head = find_head(net, None)
    except LamettaError as error:
        raise LamettaError(
            f"{error}. Was the model loaded with its head, as AutoModelFor...Classification does?"
        ) from None
    inside = [layer for layer in layers.values() if any(layer is m for m in head.modules())]
    return inside[-1] if inside else head  # the last of several that fit


def _collate(pipeline: "Pipeline", ready: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """One batch from preprocessed samples, padded to the longest, on the network's device."""
    batch = dict(ready[0])
    if len(ready) > 1:
        other = pipeline.feature_extractor or pipeline.image_processor
        collate = _transformers().pipelines.base.pad_collate_fn(pipeline.tokenizer, other)
        batch = collate(list(ready))
    placed: dict[str, object] = pipeline.ensure_tensor_on_device(**batch)
    return placed


def _forward(model: Classifier, batch: dict[str, object]) -> Output:
    """Features and logits of one batch."""
    # A cache would only help to generate text.
    if "use_cache" in inspect.signature(model.net.forward).parameters:
        batch["use_cache"] = False
    return model(Inputs((), batch))


def _concatenate(outputs: Iterable[Output]) -> Output:
    """The outputs of several batches as those of one."""
    features, logits = zip(*((part.features, part.logits) for part in outputs), strict=True)
    return Output(torch.cat(features), torch.cat(logits))


def _pipeline_params(
    pipeline: "Pipeline", options: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Options of preprocessing and of scoring: those given, and else the pipeline's own."""
    if "function_to_apply" in options:
        raise LamettaError("function_to_apply must be left out: scores are probabilities")
    # The pipeline will get probabilities as its scores, and must not take a softmax of them.
    done = {} if _task_of(pipeline) == _ZERO_SHOT else {"function_to_apply": "none"}
    try:
        before, _, after = pipeline._sanitize_parameters(**options, **done)
    except TypeError as error:
        raise LamettaError(f"options must be those of the pipeline: {error}") from None
    return {**pipeline._preprocess_params, **before}, {**pipeline._postprocess_params, **after}


def _scores(
    pipeline: "Pipeline",
    labels: Sequence[str],
    probs: torch.Tensor,
    shown: Mapping[str, int | None],
) -> list[object]:
    """The labels and scores of each row, in the form in which the pipeline gives its own.

    A row of NaN, of a stream that was refused, has no labels: its result is an empty list.
    """
    if bool((refused := probs.isnan().any(1)).any()):
        rest = iter(_scores(pipeline, labels, probs[~refused], shown))
        return [[] if left_out else next(rest) for left_out in refused.tolist()]
    if _task_of(pipeline) == _ZERO_SHOT:  # whose own scoring would take a softmax
        ranked = (
            sorted(zip(row, labels, strict=True), key=lambda one: -one[0]) for row in probs.tolist()
        )
        most = shown.get("top_k")
        return [[{"score": score, "label": label} for score, label in row[:most]] for row in ranked]
    _, options = _pipeline_params(pipeline, shown)
    ready = _transformers().modeling_outputs.SequenceClassifierOutput
    return [pipeline.postprocess(ready(logits=row[None]), **options) for row in probs.cpu()]
