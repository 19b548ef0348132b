"""``wrap`` on the image classifiers of transformers, made small from their configs."""

import numpy as np
import pytest
import torch
from PIL import Image

from lametta.torch import wrap

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2]}
STAGES = {"depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16]}
TWO = {"hidden_sizes": [8, 16], "depths": [1, 1]}
HEADS = {"num_attention_heads": [1, 1, 2, 2]}
FAMILIES = {
    "Beit": VIT,
    "Bit": {**TWO, "embedding_size": 8, "num_groups": 4},
    "CLIP": {"vision_config": VIT},
    "ConvNext": {**TWO, "num_stages": 2},
    "ConvNextV2": {**TWO, "num_stages": 2},
    "Data2VecVision": VIT,
    "DeiT": VIT,
    "Dinov2": {**VIT, "mlp_ratio": 2},
    "FocalNet": {
        "image_size": 32,
        "embed_dim": 16,
        "depths": [1, 1],
        "hidden_sizes": [16, 32],
        "focal_levels": [1, 1],
        "focal_windows": [3, 3],
    },
    "Levit": {
        "image_size": 64,
        "hidden_sizes": [16, 24, 32],
        "num_attention_heads": [1, 2, 2],
        "depths": [1, 1, 1],
        "key_dim": [4, 4, 4],
    },
    "MobileNetV1": {"depth_multiplier": 0.25},
    "MobileNetV2": {"depth_multiplier": 0.35},
    "MobileViT": {
        "image_size": 64,
        "hidden_sizes": [16, 24, 32],
        "neck_hidden_sizes": [8, 8, 16, 24, 32, 32, 40],
    },
    "PoolFormer": STAGES,
    "Pvt": {**STAGES, **HEADS, "image_size": 32},
    "PvtV2": {**STAGES, **HEADS, "image_size": 32},
    "RegNet": {**TWO, "embedding_size": 8, "groups_width": 8},
    "ResNet": {**TWO, "embedding_size": 8},
    "Segformer": {**STAGES, **HEADS, "decoder_hidden_size": 16},
    "Siglip": {"vision_config": VIT},
    "SwiftFormer": {"embed_dims": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "Swin": {**SWIN, "window_size": 4},
    "Swinv2": {**SWIN, "window_size": 4},
    "ViT": VIT,
    "ViTMSN": VIT,
}


def make(family):
    import transformers  # here, since it takes every worker more than a second

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family], num_labels=5)
    return getattr(transformers, f"{family}ForImageClassification")(config).eval()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_families_of_transformers(family):
    net = make(family)
    side = FAMILIES[family].get("image_size", 32)
    x = torch.randn(6, 3, side, side, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = net(x).logits
    assert torch.allclose(wrap(net, "source")(x), logits.softmax(1), atol=1e-5)
    model = wrap(net, "lame")
    probs = model(x)
    features = model.prediction.features
    assert features.ndim == 2
    assert features.shape[1] <= 1280
    assert torch.allclose(model(pixel_values=x).logits.softmax(1), probs, atol=1e-5)
    adapted = wrap(net, "tent+lame")
    assert torch.allclose(adapted(x).sum(1), torch.ones(6), atol=1e-5)
    adapted.reset()
    with torch.no_grad():
        assert torch.equal(net(x).logits, logits)


@pytest.mark.slow
def test_a_pipeline_takes_a_wrapped_model():
    import transformers

    model = wrap(make("ViT"), "lame")
    assert model.config is model.net.config
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    processor = transformers.ViTImageProcessorPil(size={"height": 32, "width": 32})
    classify = transformers.pipeline(
        "image-classification", model=model, image_processor=processor, device="cpu"
    )
    rng = np.random.default_rng(0)
    pixels = rng.integers(255, size=(8, 40, 40, 3), dtype=np.uint8)
    images = [Image.fromarray(image) for image in pixels]
    found = classify(images, batch_size=8, top_k=5)
    probs = model(processor(images, return_tensors="pt")["pixel_values"])
    for row, scores in zip(probs, found, strict=True):
        by_label = {score["label"]: score["score"] for score in scores}
        expected = {f"LABEL_{i}": pytest.approx(float(p), abs=1e-5) for i, p in enumerate(row)}
        assert by_label == expected
    with pytest.raises(AttributeError, match="nothing"):
        model.nothing  # noqa: B018
