"""Tiny networks of transformers, made from configs, with processors and samples to go with them."""

import importlib
from functools import cache

import numpy as np
import torch
from PIL import Image

import lametta
from lametta.integrations import hf


def tf():
    """transformers, loaded when something of it is used: that takes a process over a second."""
    return importlib.import_module("transformers")


SIDE = 16
LAYERS = {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
SMALL = {**LAYERS, "hidden_size": 16, "num_labels": 3}
WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "bad", "good", "film", "very")
TOKENS = {"vocab_size": len(WORDS), "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
TEXTS = ["a good film", "very bad", "a very very good film", "film", "bad film", "good"]
LABELS = ["good", "bad", "very good"]


class Same:
    """A corrector that changes nothing."""

    def correct(self, features, probs, /):
        return lametta.Prediction(probs, features)

    def reset(self):
        pass


@cache
def tokenizer():
    return tf().BertTokenizer(vocab={word: i for i, word in enumerate(WORDS)})


@cache
def image_processor():
    return tf().ViTImageProcessorPil(size={"height": SIDE, "width": SIDE})


class Both:
    """What CLIPProcessor is: one object that has the other two."""

    image_processor = property(lambda self: image_processor())
    tokenizer = property(lambda self: tokenizer())

    def __call__(self):
        raise NotImplementedError


TOWERS = {
    "text_config": {**LAYERS, **TOKENS, "hidden_size": 16, "max_position_embeddings": 64},
    "vision_config": {**LAYERS, "hidden_size": 16, "image_size": SIDE, "patch_size": 8},
}


def wav2vec2():
    convolutions = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3)}
    places = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    # As wide before the classifier as after it, so that its width alone does not give it away.
    config = tf().Wav2Vec2Config(**convolutions, **places, classifier_proj_size=3, **SMALL)
    return tf().Wav2Vec2ForSequenceClassification(config)


NETWORKS = {
    "vit": lambda: tf().ViTForImageClassification(
        tf().ViTConfig(image_size=SIDE, patch_size=8, **SMALL)
    ),
    "resnet": lambda: tf().ResNetForImageClassification(
        tf().ResNetConfig(embedding_size=8, hidden_sizes=[8], depths=[1], num_labels=3)
    ),
    "wav2vec2": wav2vec2,
    "ast": lambda: tf().ASTForAudioClassification(
        tf().ASTConfig(max_length=32, num_mel_bins=16, **SMALL)
    ),
    "bert": lambda: tf().BertForSequenceClassification(tf().BertConfig(**TOKENS, **SMALL)),
    # Its head takes tokens, and reads the first.
    "roberta": lambda: tf().RobertaForSequenceClassification(tf().RobertaConfig(**TOKENS, **SMALL)),
    # It scores every token, and returns the scores of the last that is not padding.
    "llama": lambda: tf().LlamaForSequenceClassification(tf().LlamaConfig(**TOKENS, **SMALL)),
    "clip": lambda: tf().CLIPModel(tf().CLIPConfig(projection_dim=8, **TOWERS)),
    "siglip": lambda: tf().SiglipModel(tf().SiglipConfig(**TOWERS)),
}
CLASSIFIERS = [name for name in NETWORKS if name not in ("clip", "siglip")]


@cache
def network(name):
    torch.manual_seed(1)
    net = NETWORKS[name]().eval()
    with torch.no_grad():  # so that classes differ, and no bias is 0
        for parameter in net.parameters():
            parameter.mul_(1.5).add_(0.01)
    return net


def processor(name):
    if name in ("vit", "resnet"):
        return image_processor()
    if name == "wav2vec2":
        return tf().Wav2Vec2FeatureExtractor(return_attention_mask=True)
    if name == "ast":
        return tf().ASTFeatureExtractor(num_mel_bins=16, max_length=32)
    return Both() if name in ("clip", "siglip") else tokenizer()


def samples(name, n=6):
    rng = np.random.default_rng(3)
    if name in ("bert", "roberta", "llama"):
        return TEXTS[:n]
    if name in ("wav2vec2", "ast"):
        return [rng.normal(size=900 + 100 * i).astype(np.float32) for i in range(n)]
    # Half of the images are like each other, so that there is something to correct.
    noise = rng.integers(0, 256, (n, 20, 20, 3))
    mixed = [(noise[i % 2] * 0.7 + noise[i] * 0.3).astype(np.uint8) for i in range(n)]
    return [Image.fromarray(pixels) for pixels in mixed]


def pipeline(name):
    return hf.CorrectedPipeline(network(name), processor(name)).pipeline


def by_hand(name, items):
    """What the network itself gives for a padded batch."""
    make = processor(name)
    if name in ("vit", "resnet"):
        batch = make(images=items, return_tensors="pt")
    elif name in ("wav2vec2", "ast"):
        batch = make(items, sampling_rate=16000, padding=True, return_tensors="pt")
    else:
        batch = make(items, padding=True, return_tensors="pt")
    with torch.no_grad():
        return network(name)(**batch).logits
