"""The parts of a transformers pipeline that a correction uses, whatever it classifies."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING

import torch
from torch import nn

from lametta._checks import extra, import_optional
from lametta.torch.head import find_head
from lametta.torch.model import Classifier, Inputs
from lametta.torch.outputs import check_one_of_many
from lametta.types import LamettaError, Output

if TYPE_CHECKING:
    from transformers import Pipeline, PreTrainedModel

TASKS = ("image", "audio", "text", "video", "zero-shot-image")
ZERO_SHOT = "zero-shot-image"

# By the name of the network's input: what is classified, and the pipeline's name of its processor.
_INPUTS = {
    "pixel_values": ("image", "image_processor"),
    "input_values": ("audio", "feature_extractor"),
    "input_features": ("audio", "feature_extractor"),
    "input_ids": ("text", "tokenizer"),
}


def transformers() -> ModuleType:
    """Import the library, or say what to install."""
    return import_optional("transformers", extra("hf"), "lametta.integrations.hf")


def task_of(pipeline: object) -> str:
    """What a pipeline classifies."""
    hf = transformers()
    for task in TASKS:
        kind = "".join(word.title() for word in task.split("-"))
        if isinstance(pipeline, getattr(hf, f"{kind}ClassificationPipeline")):
            return task
    raise LamettaError(
        f"model must be a pipeline for {', '.join(TASKS[:-1])} or {TASKS[-1]} classification, or a "
        f"model with its processor, got {type(pipeline).__name__}"
    )


def as_pipeline(model: object, processor: object) -> "Pipeline":
    """Return the pipeline that was given, or make one of a model and its processor."""
    hf = transformers()
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
        parts = {name: getattr(processor, name, None) for name in ("image_processor", "tokenizer")}
        if None in parts.values():
            raise LamettaError(
                f"processor must have an image_processor and a tokenizer for {type(model).__name__}"
                f", got {type(processor).__name__}"
            )
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


def _check_one_of_many(pipeline: "Pipeline") -> None:
    """Raise unless the pipeline chooses one of several classes."""
    check_one_of_many(pipeline.model.config)
    chosen = pipeline._postprocess_params.get("function_to_apply")
    chosen = str(getattr(chosen, "value", chosen))
    if chosen == "sigmoid":
        raise LamettaError(
            "model must choose one class of several, since corrected rows sum to 1, got one that "
            "says yes or no to each: function_to_apply='sigmoid'"
        )
    if chosen == "none":
        raise LamettaError("model must give scores after a softmax, got function_to_apply='none'")


def network(pipeline: "Pipeline", head: nn.Module | str | None) -> Classifier:
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


def collated(pipeline: "Pipeline", ready: Sequence[Mapping[str, object]]) -> dict[str, object]:
    """One batch from preprocessed samples, padded to the longest, on the network's device."""
    batch = dict(ready[0])
    if len(ready) > 1:
        other = pipeline.feature_extractor or pipeline.image_processor
        collate = transformers().pipelines.base.pad_collate_fn(pipeline.tokenizer, other)
        batch = collate(list(ready))
    placed: dict[str, object] = pipeline.ensure_tensor_on_device(**batch)
    return placed


def forward(model: Classifier, batch: dict[str, object]) -> Output:
    """Features and logits of one batch."""
    # A cache would only help to generate text.
    if "use_cache" in inspect.signature(model.net.forward).parameters:
        batch["use_cache"] = False
    return model(Inputs((), batch))


def joined(outputs: Iterable[Output]) -> Output:
    """The outputs of several batches as those of one."""
    features, logits = zip(*((part.features, part.logits) for part in outputs), strict=True)
    return Output(torch.cat(features), torch.cat(logits))


def parameters(
    pipeline: "Pipeline", options: Mapping[str, object]
) -> tuple[dict[str, object], dict[str, object]]:
    """Options of preprocessing and of scoring: those given, and else the pipeline's own."""
    if "function_to_apply" in options:
        raise LamettaError("function_to_apply must be left out: scores are probabilities")
    # The pipeline will get probabilities as its scores, and must not take a softmax of them.
    done = {} if task_of(pipeline) == ZERO_SHOT else {"function_to_apply": "none"}
    try:
        before, _, after = pipeline._sanitize_parameters(**options, **done)
    except TypeError as error:
        raise LamettaError(f"options must be those of the pipeline: {error}") from None
    return {**pipeline._preprocess_params, **before}, {**pipeline._postprocess_params, **after}


def scores_of(
    pipeline: "Pipeline",
    labels: Sequence[str],
    probs: torch.Tensor,
    shown: Mapping[str, int | None],
) -> list[object]:
    """The labels and scores of each row, in the form in which the pipeline gives its own.

    A row of NaN, of a stream that was refused, has no labels: its result is an empty list.
    """
    if bool((refused := probs.isnan().any(1)).any()):
        rest = iter(scores_of(pipeline, labels, probs[~refused], shown))
        return [[] if left_out else next(rest) for left_out in refused.tolist()]
    if task_of(pipeline) == ZERO_SHOT:  # whose own scoring would take a softmax
        ranked = (
            sorted(zip(row, labels, strict=True), key=lambda one: -one[0]) for row in probs.tolist()
        )
        most = shown.get("top_k")
        return [[{"score": score, "label": label} for score, label in row[:most]] for row in ranked]
    _, options = parameters(pipeline, shown)
    ready = transformers().modeling_outputs.SequenceClassifierOutput
    return [pipeline.postprocess(ready(logits=row[None]), **options) for row in probs.cpu()]
