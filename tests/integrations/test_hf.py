"""Pipelines of transformers, corrected: the real library, with tiny networks made from configs."""

import contextlib
import copy
import io
import re
import runpy
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset

import lametta
from lametta import LamettaError
from lametta._arrays import softmax
from lametta.correctors import Average, StatefulCorrector
from lametta.correctors.base import give_prototypes
from lametta.integrations import hf
from lametta.methods import as_corrector
from lametta.torch.model import pooled
from lametta.types import Prototypes
from tests.integrations.hf_networks import (
    CLASSIFIERS,
    LABELS,
    NETWORKS,
    SIDE,
    SMALL,
    TEXTS,
    TOKENS,
    Both,
    Same,
    by_hand,
    image_processor,
    network,
    pipeline,
    processor,
    samples,
    tf,
    tokenizer,
)

ROOT = Path(__file__).parents[2]


# Against the core


@pytest.mark.slow
@pytest.mark.parametrize("corrector", [lametta.Prudent(), lametta.LAME()], ids=["prudent", "lame"])
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_equals_the_core_bit_for_bit(name, corrector):
    items = samples(name)
    classify = hf.CorrectedPipeline(network(name), processor(name), corrector)
    found = classify.predict(items, batch_size=len(items))
    logits = by_hand(name, items)
    assert torch.equal(found.source.probs, logits.softmax(1))
    wanted = corrector.correct(found.source.features, logits.softmax(1))
    corrector.reset()
    assert torch.equal(found.corrected.probs, wanted.probs)
    assert found.labels == ("LABEL_0", "LABEL_1", "LABEL_2")


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_features_are_what_the_last_layer_sees(name):
    items, net = samples(name), network(name)
    found = hf.CorrectedPipeline(net, processor(name)).predict(items, batch_size=len(items))
    layers = [layer for layer in net.modules() if getattr(layer, "out_features", None) == 3]
    assert torch.allclose(layers[-1](found.source.features), by_hand(name, items), atol=1e-5)
    assert found.source.features.shape == (6, layers[-1].in_features)


def test_the_last_layer_is_found_among_others_of_its_width():
    config = tf().RobertaConfig(**TOKENS, **{**SMALL, "num_labels": SMALL["hidden_size"]})
    net = tf().RobertaForSequenceClassification(config).eval()
    found = hf.CorrectedPipeline(net, tokenizer()).predict(TEXTS[0])
    again = net.classifier.out_proj(found.source.features).softmax(1)
    assert torch.allclose(again, found.source.probs, atol=1e-6)


def test_features_are_the_mean_of_tokens_where_their_scores_are_averaged():
    head, tokens = torch.nn.Linear(4, 3), torch.randn(2, 5, 4)
    found = pooled(head, tokens, head(tokens).mean(1))
    assert torch.equal(found, tokens.mean(1))
    assert torch.equal(pooled(head, tokens, head(tokens)[:, 2]), tokens[:, 2])


def test_a_batch_size_changes_nothing_for_the_corrector():
    items = samples("vit")
    classify = hf.CorrectedPipeline(network("vit"), image_processor(), lametta.LAME())
    whole, parts = (classify.predict(items, batch_size=size).corrected.probs for size in (6, 4))
    assert torch.allclose(whole, parts, atol=1e-6)
    assert not torch.allclose(whole, classify.predict(items).source.probs, atol=1e-3)


# The form of a pipeline's results


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_k": None}], ids=str)
@pytest.mark.parametrize("name", ["vit", "wav2vec2", "bert"])
def test_returns_what_the_pipeline_returns(name, options):
    own, items = pipeline(name), samples(name, 3)
    same = hf.CorrectedPipeline(own, corrector=Same())
    for inputs in (items, items[0], items[:1]):
        assert flat(same(inputs, **options)) == flat(own(inputs, **options))
    for along in (iter_of, Items, Counted):
        assert flat(list(same(along(items), **options))) == flat(own(items, **options))


def flat(results):
    """The results with scores rounded, since another softmax made them."""
    if isinstance(results, dict):
        return {"label": results["label"], "score": pytest.approx(results["score"], abs=1e-6)}
    return [flat(result) for result in results]


def iter_of(items):
    yield from items


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, i):
        return self.items[i]


class Counted(IterableDataset):
    """It knows how many it has, and gives none by its number."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        return iter(self.items)


def test_videos_are_read_as_by_the_pipeline(tmp_path):
    av = pytest.importorskip("av")
    paths = [str(tmp_path / f"{i}.mp4") for i in range(2)]
    for path, image in zip(paths, samples("vit", 2), strict=True):
        with av.open(path, "w") as file:
            stream = file.add_stream("mpeg4", rate=4, options={})
            stream.width = stream.height = 32
            frame = av.VideoFrame.from_image(image.resize((32, 32)))
            packets = [packet for _ in range(4) for packet in stream.encode(frame)]
            file.mux([*packets, *stream.encode()])
    config = tf().VideoMAEConfig(image_size=SIDE, patch_size=8, num_frames=4, **SMALL)
    sides = {"size": {"shortest_edge": SIDE}, "crop_size": {"height": SIDE, "width": SIDE}}
    own = tf().VideoClassificationPipeline(
        model=tf().VideoMAEForVideoClassification(config).eval(),
        image_processor=tf().VideoMAEImageProcessorPil(**sides),
    )
    same = hf.CorrectedPipeline(own, corrector=Same())
    asked = {"num_frames": 4, "top_k": 2}
    assert flat(same(paths, batch_size=2, **asked)) == flat(own(paths, **asked))
    features = same.predict(paths, num_frames=4).source.features
    assert features.shape == (2, SMALL["hidden_size"])


def test_texts_come_in_pairs_and_with_the_tokenizers_options():
    same, own = hf.CorrectedPipeline(pipeline("bert"), corrector=Same()), pipeline("bert")
    pair = {"text": TEXTS[0], "text_pair": TEXTS[1]}
    assert flat(same(pair)) == flat(own(pair))
    cut = {"truncation": True, "max_length": 4}
    assert flat(same(TEXTS[2], **cut)) == flat(own(TEXTS[2], **cut))
    assert flat(same(TEXTS[2], **cut)) != flat(own(TEXTS[2]))


def test_scores_are_the_corrected_probabilities():
    items = samples("vit")
    classify = hf.CorrectedPipeline(network("vit"), image_processor())
    found = classify.predict(items, stream="a", batch_size=6)
    rows = classify(items, stream="b", batch_size=6)
    for row, probs in zip(rows, found.corrected.probs.tolist(), strict=True):
        assert [one["score"] for one in row] == sorted(probs, reverse=True)
        assert {one["label"]: one["score"] for one in row} == dict(
            zip(found.labels, probs, strict=True)
        )


# Streams


def test_streams_are_kept_apart():
    items, ids = samples("vit"), ["door", "yard", 3, "door", "yard", "door"]
    together = hf.CorrectedPipeline(network("vit"), image_processor())
    rows = together(items, stream=ids)
    alone = hf.CorrectedPipeline(network("vit"), image_processor())
    for one in dict.fromkeys(ids):
        mine = [i for i, stream in enumerate(ids) if stream == one]
        assert alone([items[i] for i in mine], stream=one) == [rows[i] for i in mine]
    assert together.streams.ids == ["door", "yard", 3]
    assert len(alone(items[0], stream=np.int64(3))) == 3
    assert alone.streams.ids[-1] == 3


def test_streams_of_a_generator_are_read_along():
    items, ids = samples("vit"), ["door", "yard"] * 3
    corrector = Average()
    along = hf.CorrectedPipeline(network("vit"), image_processor(), corrector)
    results = along(iter_of(items), stream=iter(ids), batch_size=4)
    assert along.streams.ids == []  # nothing is done before it is asked for
    whole = hf.CorrectedPipeline(network("vit"), image_processor(), corrector)
    assert list(results) == [
        [{**one, "score": pytest.approx(one["score"], abs=1e-6)} for one in row]
        for row in whole(items, stream=ids)
    ]
    with pytest.raises(LamettaError, match="one for each of 2 inputs, got 1"):
        list(along(iter_of(items[:2]), stream=iter(["door"]), batch_size=2))


def test_bounds_of_streams_and_reset():
    streams = lametta.Streams(Average(), most=1)
    classify = hf.CorrectedPipeline(network("vit"), image_processor(), streams)
    first = classify(samples("vit")[:2], stream=["a", "b"])
    assert classify.streams is streams
    assert streams.ids == ["b"]
    assert classify(samples("vit")[0], stream="b") != first[0]
    classify.reset()
    assert classify(samples("vit")[0], stream="b") == first[0]


# Images and texts


def zero_shot_by_hand(name, items, labels=LABELS):
    padding = {"padding": "max_length", "max_length": 64} if name == "siglip" else {"padding": True}
    texts = [f"This is a photo of {label}." for label in labels]
    batch = {
        **image_processor()(images=items, return_tensors="pt"),
        **tokenizer()(texts, return_tensors="pt", truncation=True, **padding),
    }
    with torch.no_grad():
        return network(name)(**batch)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_zero_shot_equals_the_core_bit_for_bit(name):
    items, corrector = samples("clip"), lametta.Prudent()
    classify = hf.CorrectedPipeline(network(name), Both())
    wanted = zero_shot_by_hand(name, items)
    for _ in range(2):  # with all texts, then with their prototypes
        found = classify.predict(items, candidate_labels=LABELS, batch_size=6)
        assert torch.equal(found.source.features, wanted.image_embeds)
        assert torch.equal(found.source.probs, wanted.logits_per_image.softmax(1))
        core = corrector.correct(wanted.image_embeds, wanted.logits_per_image.softmax(1))
        assert torch.equal(found.corrected.probs, core.probs)
    assert found.labels == tuple(LABELS)


@dataclass
class ByHead(StatefulCorrector):
    """What the head says of the features, if it was given whole."""

    needs = frozenset({"prototypes"})

    def init_state(self, d, k):
        return {}

    def update(self, state, features, probs):
        return softmax(np, self.prototypes.logits(features)), {}


@pytest.mark.parametrize("name", ["vit", "clip", "siglip"])
def test_correctors_are_given_prototypes(name):
    options = {} if name == "vit" else {"candidate_labels": LABELS}
    made = image_processor() if name == "vit" else Both()
    classify = hf.CorrectedPipeline(network(name), made, ByHead())
    for _ in range(2):
        found = classify.predict(samples("vit"), batch_size=6, **options)
        assert torch.allclose(found.corrected.probs, found.source.probs, atol=1e-5)
    if options:  # other texts are other prototypes
        classify.reset()
        found = classify.predict(samples("vit"), batch_size=6, candidate_labels=LABELS[:2])
        assert torch.allclose(found.corrected.probs, found.source.probs, atol=1e-5)


@pytest.mark.parametrize("name", ["clip", "siglip"])
@pytest.mark.parametrize("method", ["neo", "t3a", "tda", "oga", "stata", "transclip"])
def test_methods_of_the_field_correct_zero_shot_models(method, name):
    items, net = samples("clip"), network(name)
    wanted = zero_shot_by_hand(name, items)
    bias = getattr(net, "logit_bias", torch.zeros(()))
    head = Prototypes(
        wanted.text_embeds * net.logit_scale.exp().detach(), bias.detach().expand(len(LABELS))
    )
    core = as_corrector(method)
    give_prototypes(core, head, "the test")
    classify = hf.CorrectedPipeline(net, Both(), method)
    for _ in range(2):
        found = classify.predict(items, candidate_labels=LABELS, batch_size=6)
        expected = core.correct(wanted.image_embeds, wanted.logits_per_image.softmax(1)).probs
        assert torch.allclose(found.corrected.probs, expected, atol=1e-6)
    assert not torch.allclose(found.corrected.probs, found.source.probs, atol=1e-4)


def test_a_method_that_can_do_without_prototypes_needs_no_cosines(monkeypatch):
    net = network("clip")
    forward = type(net).forward

    def doubled(self, *args, **kwargs):
        returned = forward(self, *args, **kwargs)
        returned.logits_per_image = returned.logits_per_image * 2
        return returned

    monkeypatch.setattr(type(net), "forward", doubled)
    asked = {"candidate_labels": LABELS, "batch_size": 6}
    found = hf.CorrectedPipeline(net, Both(), "neo").predict(samples("clip"), **asked)
    core = as_corrector("neo").correct(found.source.features, found.source.probs)
    assert torch.equal(found.corrected.probs, core.probs)
    with pytest.raises(LamettaError, match="corrector must need no prototypes"):
        hf.CorrectedPipeline(net, Both(), "t3a").predict(samples("clip"), **asked)


def test_a_head_without_prototypes_is_refused_at_once():
    net = copy.deepcopy(network("vit"))
    net.classifier = torch.nn.Sequential(net.classifier, torch.nn.ReLU())
    with pytest.raises(LamettaError, match="needs prototypes, .* which is no linear layer"):
        hf.CorrectedPipeline(net, image_processor(), ByHead(), head="classifier")


def test_zero_shot_returns_what_the_pipeline_returns():
    own, items = pipeline("clip"), samples("clip", 2)
    same = hf.CorrectedPipeline(own, corrector=Same())
    asked = {"candidate_labels": LABELS, "hypothesis_template": "a {} film"}
    assert flat(same(items, **asked)) == flat(own(items, **asked))
    assert flat(same(items[0], **asked)) == flat(own(items[0], **asked))
    assert same(items[0], top_k=1, **asked) == same(items[0], **asked)[:1]


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_texts_are_embedded_once(name):
    seen = []
    net = network(name)
    hook = net.text_model.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["input_ids"])), with_kwargs=True
    )
    classify = hf.CorrectedPipeline(net, Both())
    for item in samples("clip", 3):
        classify(item, candidate_labels=LABELS)
    hook.remove()
    assert seen == [3, 1, 1]


def test_a_network_of_another_formula_is_asked_each_time(monkeypatch):
    net = network("clip")
    forward = type(net).forward

    def doubled(self, *args, **kwargs):
        returned = forward(self, *args, **kwargs)
        returned.logits_per_image = returned.logits_per_image * 2
        return returned

    monkeypatch.setattr(type(net), "forward", doubled)
    items = samples("clip")
    classify = hf.CorrectedPipeline(net, Both())
    wanted = zero_shot_by_hand("clip", items).logits_per_image.softmax(1)
    for _ in range(2):
        found = classify.predict(items, candidate_labels=LABELS, batch_size=6)
        assert torch.equal(found.source.probs, wanted)


def test_labels_stay_until_a_reset():
    classify, item = hf.CorrectedPipeline(network("clip"), Both()), samples("clip")[0]
    classify(item, candidate_labels=LABELS)
    for labels in (LABELS[::-1], LABELS[:2]):
        with pytest.raises(LamettaError, match=r"candidate_labels .* stay the same"):
            classify(item, candidate_labels=labels)
    classify.reset()
    assert len(classify(item, candidate_labels=LABELS[:2])) == 2


# What is refused


def test_a_callable_of_ones_own_may_be_the_processor():
    def pixels(images, return_tensors):
        assert return_tensors == "pt"
        x = torch.tensor(np.asarray(images)[:SIDE, :SIDE]).permute(2, 0, 1)[None] / 255
        return tf().BatchFeature({"pixel_values": x})

    rows = hf.CorrectedPipeline(network("resnet"), pixels)(samples("resnet"), batch_size=3, top_k=1)
    assert [len(row) for row in rows] == [1] * 6


def test_pipelines_for_other_things_are_refused():
    generator = tf().TextGenerationPipeline.__new__(tf().TextGenerationPipeline)
    with pytest.raises(LamettaError, match=r"zero-shot-image classification.*TextGenerationPip"):
        hf.CorrectedPipeline(generator)
    with pytest.raises(LamettaError, match=r"model must be a transformers pipeline.*got Linear"):
        hf.CorrectedPipeline(torch.nn.Linear(2, 2), processor=len)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "yes or no to each: multi_label"),
        ({"problem_type": "regression"}, "got one for regression"),
        ({"num_labels": 1}, "got one for regression, or of a single class"),
    ],
)
def test_models_that_do_not_choose_one_class_are_refused(change, message):
    config = tf().BertConfig(**TOKENS, **{**SMALL, **change})
    net = tf().BertForSequenceClassification(config).eval()
    with pytest.raises(LamettaError, match=message):
        hf.CorrectedPipeline(net, tokenizer())


@pytest.mark.parametrize("function", ["sigmoid", "none"])
def test_pipelines_of_other_scores_are_refused(function):
    own = tf().TextClassificationPipeline(
        model=network("bert"), tokenizer=tokenizer(), function_to_apply=function
    )
    with pytest.raises(LamettaError, match=f"function_to_apply='{function}'"):
        hf.CorrectedPipeline(own)
    with pytest.raises(LamettaError, match="function_to_apply must be left out"):
        hf.CorrectedPipeline(pipeline("bert"))("good", function_to_apply=function)


def test_a_model_without_head_is_refused():
    with pytest.raises(
        LamettaError, match=r"head must be given for ViTModel.*loaded with its head"
    ):
        hf.CorrectedPipeline(network("vit").vit, image_processor())
    named = hf.CorrectedPipeline(network("vit"), image_processor(), head="classifier")
    assert named(samples("vit")[0]) == hf.CorrectedPipeline(network("vit"), image_processor())(
        samples("vit")[0]
    )
    with pytest.raises(LamettaError, match="head must be None"):
        hf.CorrectedPipeline(network("clip"), Both(), head="visual_projection")


def test_arguments_are_checked():
    net, make = network("vit"), image_processor()
    for processor_ in (None, type(make)):
        with pytest.raises(LamettaError, match="processor must be what makes the model's inputs"):
            hf.CorrectedPipeline(net, processor_)
    with pytest.raises(LamettaError, match="processor must be None for a pipeline"):
        hf.CorrectedPipeline(pipeline("vit"), make)
    with pytest.raises(LamettaError, match="must have an image_processor and a tokenizer"):
        hf.CorrectedPipeline(network("clip"), make)
    with pytest.raises(LamettaError, match="corrector must have correct and reset"):
        hf.CorrectedPipeline(net, make, 3)
    assert hf.CorrectedPipeline(net, make, "average").streams.corrector == Average()
    with pytest.raises(LamettaError, match="net must be in eval mode"):
        hf.CorrectedPipeline(NETWORKS["vit"]().train(), make)(samples("vit"))
    classify, items = hf.CorrectedPipeline(net, make), samples("vit")
    for options, message in [
        ({"top_k": 0}, "top_k must be an integer >= 1, got 0"),
        ({"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        ({"stream": ["a"]}, "one for each of 6 inputs, got 1"),
        ({"stream": [None] * 6}, "stream must be a text or an integer"),
        ({"stream": None}, "stream must be a text or an integer"),
        ({"candidate_labels": LABELS}, "options must be those of the pipeline: .*candidate_labels"),
    ]:
        with pytest.raises(LamettaError, match=message):
            classify(items, **options)
    assert classify.streams.ids == []
    assert classify([]) == []
    with pytest.raises(LamettaError, match="inputs must hold a sample"):
        classify.predict([])
    for labels in (None, "good", ["good"], ["good", "good"], ["good", 1]):
        with pytest.raises(LamettaError, match="candidate_labels must be two or more different"):
            hf.CorrectedPipeline(network("clip"), Both())(items, candidate_labels=labels)


def test_says_what_to_install(monkeypatch):
    made = network("vit"), image_processor()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(LamettaError, match=r"pip install '\.\[hf\]' in a clone"):
        hf.CorrectedPipeline(*made)


# The page and the example


def test_the_page_runs_from_top_to_bottom(monkeypatch, tmp_path):
    """With small networks of the same kinds in place of those of the hub."""
    tasks = {"image": "vit", "text": "bert", "audio": "wav2vec2", "zero-shot-image": "clip"}
    made = {f"{task}-classification": name for task, name in tasks.items()}
    assert tf().pipeline  # loading it puts another module in the place of ours
    there = sys.modules["transformers"]
    monkeypatch.setattr(there, "pipeline", lambda task, model=None: pipeline(made[task]))
    for auto, thing in (
        (tf().AutoModelForImageClassification, network("vit")),
        (tf().AutoImageProcessor, image_processor()),
    ):
        monkeypatch.setattr(auto, "from_pretrained", lambda name, thing=thing: thing)
    monkeypatch.chdir(tmp_path)
    for i, image in enumerate(samples("vit", 3)):
        image.save(f"frame{i + 1}.jpg")
    text = (ROOT / "docs" / "integrations" / "huggingface.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```(?:\s*```text\n(.*?)```)?", text, flags=re.DOTALL)
    assert len(blocks) == 8
    space = {"sound": samples("wav2vec2")[0]}
    for code, output in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "huggingface.md", "exec"), space)
        assert printed.getvalue() == output
    assert len(space["results"]) == 3


@pytest.mark.slow(3)
def test_the_example_gains(capsys):
    runpy.run_path(str(ROOT / "examples" / "huggingface.py"))
    before, after = map(float, re.findall(r"([\d.]+)% right", capsys.readouterr().out))
    assert after > before + 5


def test_nan_costs_its_own_stream_alone(monkeypatch):
    classify, items = (
        hf.CorrectedPipeline(network("vit"), image_processor(), Average()),
        samples("vit")[:2],
    )
    expected = classify(items[1], stream="b")
    classify.reset()
    forward = hf._forward

    def broken(model, batch):
        output = forward(model, batch)
        output.features[0] = float("nan")
        return output

    monkeypatch.setattr(hf, "_forward", broken)
    with pytest.warns(UserWarning, match="stream 'a' is left out"):
        first, second = classify(items, stream=["a", "b"], batch_size=2)
    assert first == []
    assert [row["label"] for row in second] == [row["label"] for row in expected]


def test_the_name_that_it_had_before():
    assert hf.Corrected is hf.CorrectedPipeline
