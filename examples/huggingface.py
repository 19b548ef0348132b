"""A pipeline of Hugging Face's transformers, corrected along the streams of two scanners.

To need no download, a small ResNet is made from a config and trained on handwritten digits for a
moment. Then other digits come, scanned anew: low ones from one scanner, high ones from the other,
each digit for a while.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import ResNetConfig, ResNetForImageClassification, ViTImageProcessor, pipeline

from lametta.data import load
from lametta.integrations import hf


def images(name: str) -> tuple[list[Image.Image], Any]:
    """Images of digits, the zeros first, and their labels."""
    data = load(f"embedded:{name}")
    order = np.argsort(data.labels, kind="stable")
    pixels = np.stack([np.reshape(data.samples[i], (8, 8)) for i in order])
    pixels = (255 / pixels.max() * pixels).clip(0, 255).astype(np.uint8)
    return [Image.fromarray(x).convert("RGB") for x in pixels], data.labels[order]


torch.manual_seed(0)
processor: Any = ViTImageProcessor(size={"height": 16, "width": 16})
config = ResNetConfig(embedding_size=16, hidden_sizes=[32], depths=[1], layer_type="basic")
config.id2label = {i: f"a {i}" for i in range(10)}
network: Any = ResNetForImageClassification  # its constructor has no types
net = network(config)
photos, labels = images("digits_val")
x, y = processor(images=photos, return_tensors="pt")["pixel_values"], torch.tensor(labels)
optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
for _ in range(10):
    for rows in torch.split(torch.randperm(len(y)), 64):
        optimizer.zero_grad()
        net(pixel_values=x[rows], labels=y[rows]).loss.backward()
        optimizer.step()

pipe = pipeline("image-classification", model=net.eval(), image_processor=processor)
classify = hf.CorrectedPipeline(pipe)  # the one line

scans, labels = images("digits_v2")
scanners = ["low" if label < 5 else "high" for label in labels]
found = classify.predict(scans, stream=scanners, batch_size=64)
print(f"{len(scans)} scans")
for name, prediction in ("as it was", found.source), ("corrected", found.corrected):
    right = np.mean(prediction.probs.argmax(1).numpy() == labels)
    print(f"{name}: {right:.1%} right")

print("the next scan:", classify(scans[-1], stream="high", top_k=2))
