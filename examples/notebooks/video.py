# %% [markdown]
# # Video
#
# A network in PyTorch, wrapped in one line, and frames that arrive one by one. `pip install '.[torch]'` in a clone is
# all that it needs.

# %%
import numpy as np
import torch

import lametta.torch
from lametta.data import load
from lametta.torch import zoo

frames = load("embedded:digits_vid")
x, labels = torch.from_numpy(np.asarray(frames.samples[:])), np.asarray(frames.labels)
videos = np.asarray(frames.groups)
net = zoo.load("embedded:digits").net
model = lametta.torch.wrap(net, "prudent")

# %% [markdown]
# As one stream, since nobody said where a video ends: Prudent sees where scenes change.

# %%
with torch.no_grad():
    source = net(x).argmax(1).numpy()
answers = np.array([model(x[i : i + 1]).argmax(1).item() for i in range(len(x))])
print(f"the network {np.mean(source == labels):.1%}, corrected {np.mean(answers == labels):.1%}")

# %% [markdown]
# Where the track of one object is known, as a tracker gives it, `Track` takes all frames of it for one object. Its id is
# the `stream`.

# %%
tracks = lametta.torch.wrap(net, lametta.Streams(lametta.correctors.Track()))
tracked = tracks(x, stream=videos).argmax(1).numpy()
print(f"with tracks {np.mean(tracked == labels):.1%}")

# %% [markdown]
# Which videos gain, and which lose:

# %%
gains = {
    v: np.mean(tracked[videos == v] == labels[videos == v])
    - np.mean(source[videos == v] == labels[videos == v])
    for v in dict.fromkeys(videos)
}
better, worse = (sum(sign * gain > 0 for gain in gains.values()) for sign in (1, -1))
print(f"{better} of {len(gains)} videos are better, {worse} worse")
