# %% [markdown]
# # First steps
#
# A network that was trained on clean digits sees others, and its predictions are corrected as they come. All of it
# comes with lametta: `pip install '.[torch]'` in a clone.

# %%
import numpy as np

import lametta
from lametta.data import load
from lametta.torch import Classifier, zoo

frames = load("embedded:digits_vid")  # 112 short videos, one after another
model = Classifier(zoo.load("embedded:digits").net)
print(len(frames), "frames,", len(set(frames.groups)), "videos,", len(frames.classes), "classes")

# %% [markdown]
# A corrector sees what the network gives, features and probabilities, and nothing else.

# %%
import torch

output = model(torch.from_numpy(np.asarray(frames.samples[:])))
features, probs = output.features.numpy(), output.logits.softmax(1).numpy()
labels = np.asarray(frames.labels)


def right(answers):
    return f"{np.mean(answers.argmax(axis=1) == labels):.1%} right"


print("the network:    ", right(probs))

# %% [markdown]
# *LAME* lets similar samples of a batch agree. *Prudent* remembers the stream, and corrects as far as the evidence in it
# goes; here it gets one frame at a time.


# %%
def corrected(corrector, size):
    """The answers to this stream in batches of a size."""
    batches = np.split(np.arange(len(labels)), range(size, len(labels), size))
    return np.concatenate([corrector.correct(features[b], probs[b]).probs for b in batches])


print("LAME, 64 each:  ", right(corrected(lametta.LAME(), 64)))
print("Prudent, 1 by 1:", right(corrected(lametta.Prudent(), 1)))

# %% [markdown]
# In any order there is nothing in the stream to go by. LAME then costs accuracy, and Prudent keeps still.

# %%
mixed = np.random.default_rng(0).permutation(len(labels))
labels, features, probs = labels[mixed], features[mixed], probs[mixed]
print("LAME, 64 each:  ", right(corrected(lametta.LAME(), 64)))
print("Prudent, 1 by 1:", right(corrected(lametta.Prudent(), 1)))
