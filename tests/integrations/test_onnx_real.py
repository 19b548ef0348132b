"""Networks as torch exports them, held against `lametta.torch.Classifier`."""

import re
import runpy
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

import lametta
from lametta.integrations.onnx import OnnxModel
from lametta.integrations.onnx import export as export_lame
from lametta.torch import Classifier, zoo
from tests.conftest import shared
from tests.integrations.exported import export, export_lite0
from tests.torch.test_families import FAMILIES, make


def check(output, expected, tol):
    assert output.features.std(axis=0).mean() > 1e-2  # or any would be equal
    np.testing.assert_allclose(output.features, expected.features.numpy(), rtol=0, atol=tol)
    np.testing.assert_allclose(output.logits, expected.logits.numpy(), rtol=0, atol=tol)


def check_prototypes(model, classifier):
    expected = classifier.prototypes
    np.testing.assert_allclose(model.prototypes.weight, expected.weight.numpy(), atol=1e-6)
    np.testing.assert_allclose(model.prototypes.bias, expected.bias.numpy(), atol=1e-6)


@pytest.mark.slow(3)
def test_efficientnet_on_photographs(tmp_path, made_once):
    photos = sorted(shared("data", "imagenette-val500").rglob("*.JPEG"))[::100]
    assert len(photos) == 5
    loaded = zoo.load("efficientnet_lite0")
    path = made_once("lite0", export_lite0) / "net.onnx"
    prepare = loaded.preprocess
    options = {"interpolation": prepare.interpolation, "scale": prepare.scale}
    options |= {"mean": prepare.mean, "std": prepare.std}
    model = OnnxModel(path, preprocess=options, threads=1)
    assert (model.metadata.d, model.metadata.n_classes) == (1280, 1000)
    x = torch.stack([prepare(Image.open(photo)) for photo in photos])
    expected = Classifier(loaded.net)(x)
    check_prototypes(model, Classifier(loaded.net))
    check(model(x.numpy()), expected, 1e-4)
    check(model(x), expected, 1e-4)
    files = [photo.read_bytes() for photo in photos]
    check(model(files), expected, 1e-4)
    ours = lametta.Corrected(model, lametta.LAME()).step(files).probs
    theirs = lametta.Corrected(Classifier(loaded.net), lametta.LAME()).step(x).probs
    np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)
    joined = tmp_path / "joined.onnx"
    export_lame(joined, model=path, affinity=lametta.knn(2))
    one = onnxruntime.SessionOptions()
    one.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(joined, one, providers=["CPUExecutionProvider"])
    core = lametta.LAME(lametta.knn(2), max_iter=20, tol=0)
    expected = lametta.Corrected(model, core).step(files).probs
    np.testing.assert_allclose(session.run(None, {"x": x.numpy()})[0], expected, atol=1e-5)


@pytest.mark.slow(3)
@pytest.mark.parametrize("family", ["CLIP", "ConvNext", "ResNet", "Swin", "ViT"])
def test_families_of_transformers(tmp_path, family):
    net = make(family)
    side = FAMILIES[family].get("image_size", 32)
    x = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    model = OnnxModel(export(net, x[:2], tmp_path / "net.onnx"), threads=1)
    check(model(x), Classifier(net)(x), 1e-5)
    check_prototypes(model, Classifier(net))


@pytest.mark.slow
def test_the_example_gains(capsys):
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "onnx_export.py"))
    shown = capsys.readouterr().out
    alone, corrected = map(float, re.findall(r"([\d.]+)% right", shown))
    assert alone + 5 < corrected
    assert shown.endswith("as the core computes it: True\n")
