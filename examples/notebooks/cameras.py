# %% [markdown]
# # A network of cameras, and the server
#
# Three cameras send what their models give, over HTTP and JSON, and each has a memory of its own on the server.
# `pip install '.[serve,torch]'` in a clone. On your machine the server would already run: `lametta serve`.

# %%
import json
import subprocess
import sys
import urllib.request

command = [sys.executable, "-m", "lametta", "serve", "--port", "0", "--store", "memory"]
server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
said = (json.loads(line) for line in server.stderr)
port = next(line["port"] for line in said if line["message"] == "listening")
url = f"http://127.0.0.1:{port}"

# %% [markdown]
# What the cameras see: digits that come with lametta, through a small network.

# %%
import numpy as np
import torch

from lametta.data import load
from lametta.torch import Classifier, zoo

frames = load("embedded:digits_vid").take(range(240))
output = Classifier(zoo.load("embedded:digits").net)(
    torch.from_numpy(np.asarray(frames.samples[:]))
)
features, logits = output.features.numpy(), output.logits.numpy()


def ask(camera, row):
    """The class of one frame, and as corrected."""
    tensors = {"features": features[row], "logits": logits[row]}
    inputs = [
        {"name": name, "shape": [1, len(x)], "datatype": "FP32", "data": x.tolist()}
        for name, x in tensors.items()
    ]
    wanted = [{"name": "source_label"}, {"name": "label"}]
    body = {"inputs": inputs, "outputs": wanted, "parameters": {"sequence_id": camera}}
    request = urllib.request.Request(
        f"{url}/v2/models/prudent/infer",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        outputs = {one["name"]: one["data"][0] for one in json.load(answer)["outputs"]}
    return outputs["source_label"], outputs["label"]


# %%
cameras = {"door": range(80), "yard": range(80, 160), "gate": range(160, 240)}
for camera, rows in cameras.items():
    found = np.array([ask(camera, row) for row in rows])
    before, after = (found == np.asarray(frames.labels)[rows][:, None]).mean(axis=0)
    print(f"{camera}: {before:.0%} right before, {after:.0%} after")

# %% [markdown]
# The server knows no labels. What it says of the streams without them is on its page, in `/metrics` and here:

# %%
with urllib.request.urlopen(f"{url}/status.json", timeout=30) as answer:
    print(list(json.load(answer))[:8])
server.terminate()
server.wait()
server.stderr.close()
