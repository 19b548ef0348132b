"""A network and LAME behind it as one ONNX file, which ONNX Runtime runs without Python's help.

A small network that comes with lametta reads digits that it was not trained on, scanned anew, one
class after another. The file takes images and gives corrected probabilities.
"""

import tempfile
import warnings
from pathlib import Path

import numpy as np
import onnxruntime
import torch

import lametta
from lametta.data import load
from lametta.integrations.onnx import export
from lametta.torch import Classifier
from lametta.torch.digits import digits_net

net = digits_net()
folder = tempfile.TemporaryDirectory()
plain, corrected = (str(Path(folder.name) / f"{name}.onnx") for name in ("net", "corrected"))
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch has a newer exporter, which needs more packages
    axes = {"images": {0: "N"}}
    x = torch.zeros(2, 1, 8, 8)
    torch.onnx.export(
        net, (x,), plain, dynamo=False, input_names=["images"], dynamic_axes=axes
    )  # of your own network; or you have the file

export(corrected, model=plain, affinity=lametta.knn(5), iterations=20)  # the one line

data = load("embedded:digits_v2")
order = np.argsort(data.labels, kind="stable")
images = np.stack([data.samples[i] for i in order]).astype(np.float32).reshape(-1, 1, 8, 8)
labels = data.labels[order]

session = onnxruntime.InferenceSession(corrected, providers=["CPUExecutionProvider"])
core = lametta.Corrected(Classifier(net), lametta.LAME(max_iter=20, tol=0))
right, before, off = [], [], 0.0
for start in range(0, len(images), 64):
    batch = images[start : start + 64]
    probs, label = session.run(["corrected", "label"], {"images": batch})
    right += list(label == labels[start : start + 64])
    with torch.no_grad():
        before += list(net(torch.tensor(batch)).argmax(1).numpy() == labels[start : start + 64])
        off = max(off, float(abs(core.step(torch.tensor(batch)).probs.numpy() - probs).max()))

print(f"{len(images)} digits, one class after another")
print(f"the network: {np.mean(before):.1%} right")
print(f"with LAME:   {np.mean(right):.1%} right")
print(f"as the core computes it: {off < 1e-5}")
folder.cleanup()
