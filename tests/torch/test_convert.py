"""Published files of weights: pickles and arrays under other names, whole, broken and evil."""

import os
import pickle
from collections import OrderedDict
from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from lametta import LamettaError
from lametta.torch import convert, zoo
from lametta.torch.convert import convert_msra, convert_simclr
from lametta.torch.resnet import ResNet
from lametta.torch.zoo import load
from tests.torch.nets import Evil, logits, stir

CAFFE2 = {"weight": "s", "bias": "b", "running_mean": "rm", "running_var": "riv"}
DETECTRON2 = {
    "weight": "gamma",
    "bias": "beta",
    "running_mean": "running_mean",
    "running_var": "running_var",
}


def msra_names(net, norm=CAFFE2, head="pred"):
    """The network's state under Caffe2's names."""
    blobs = {}
    for key, value in net.state_dict().items():
        *path, kind = key.split(".")
        if kind == "num_batches_tracked":
            continue
        if path == ["fc"]:
            name = f"{head}_{kind[0]}"
        elif len(path) == 1:
            name = "conv1_w" if path == ["conv1"] else f"res_conv1_bn_{norm[kind]}"
        else:
            unit = f"res{int(path[0][-1]) + 1}_{path[1]}_branch"
            unit += "1" if path[2] == "downsample" else f"2{'abc'[int(path[2][-1]) - 1]}"
            is_conv = path[2].startswith("conv") or path[-1] == "0"
            name = f"{unit}_w" if is_conv else f"{unit}_bn_{norm[kind]}"
        blobs[name] = value.numpy().copy()
    return blobs


def dump(content, path, protocol=2):
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


@pytest.fixture
def msra():
    return stir(ResNet(50, width=4, classes=6, stride_in_1x1=True))


def reload(net, file, **options):
    fresh = ResNet(50, width=4, classes=6, **options)
    fresh.load_state_dict(load_file(file) | batch_counts(net))
    return fresh.eval()


def batch_counts(net):
    return {k: v for k, v in net.state_dict().items() if k.endswith("num_batches_tracked")}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(
    ("norm", "head"), [(CAFFE2, "pred"), (DETECTRON2, "fc1000")], ids=["caffe2", "detectron2"]
)
def test_convert_msra(msra, tmp_path, protocol, wrapped, norm, head):
    blobs = msra_names(msra, norm, head)
    assert {"conv1_w", "res2_0_branch1_w", "res4_5_branch2c_w", f"{head}_b"} <= set(blobs)
    blobs["conv1_w_momentum"] = np.ones(3, np.float32)  # what training leaves
    blobs["lr"] = np.float32(0.1)
    content = {"model": blobs, "__author__": "someone"} if wrapped else blobs
    target = tmp_path / "net.safetensors"
    convert_msra(dump(content, tmp_path / "R-50.pkl", protocol), target)
    assert torch.equal(logits(reload(msra, target, stride_in_1x1=True)), logits(msra))
    assert sorted(os.listdir(tmp_path)) == ["R-50.pkl", "net.safetensors"]


def test_convert_msra_takes_a_head_that_is_a_convolution(msra, tmp_path):
    blobs = msra_names(msra)
    blobs["pred_w"] = blobs["pred_w"][:, :, None, None]
    convert_msra(dump(blobs, tmp_path / "a.pkl"), tmp_path / "a.safetensors")
    found = reload(msra, tmp_path / "a.safetensors", stride_in_1x1=True)
    assert torch.equal(logits(found), logits(msra))


def test_convert_msra_keeps_a_bias_before_a_batch_norm(msra, tmp_path):
    blobs = msra_names(msra, DETECTRON2)
    blobs["conv1_b"] = np.array([0.5, -1, 2, 0], np.float32)  # R-50.pkl has one
    convert_msra(dump(blobs, tmp_path / "a.pkl"), tmp_path / "a.safetensors")
    msra.conv1.bias = nn.Parameter(torch.from_numpy(blobs["conv1_b"]))
    found = reload(msra, tmp_path / "a.safetensors", stride_in_1x1=True)
    torch.testing.assert_close(logits(found), logits(msra), rtol=1e-3, atol=1e-3)


def test_convert_msra_reads_python_2(tmp_path):
    # As Python 2 wrote array([1., 2.], float32): bytes as a string, protocol 2.
    data = np.array([1, 2], "<f4").tobytes()
    stored = (
        b"\x80\x02}U\x01wcnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01K\x02\x85cnumpy\ndtype\nU\x02f4K\x00K\x01\x87R"
        b"(K\x03U\x01<NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89U\x08" + data + b"tbs."
    )
    (tmp_path / "two.pkl").write_bytes(stored)
    found = convert._unpickle(tmp_path / "two.pkl")
    assert np.array_equal(found["w"], np.array([1, 2], np.float32))


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f2", ">f8", "i8", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 3, 4, 5)])
def test_arrays_survive_the_unpickler(tmp_path, dtype, order, shape):
    array = np.arange(np.prod(shape)).reshape(shape).astype(dtype, order=order)
    found = convert._unpickle(dump({"a": array, "b": array.T}, tmp_path / "a.pkl"))
    assert found["a"].dtype == array.dtype
    assert np.array_equal(found["a"], array)
    assert np.array_equal(found["b"], array.T)


def test_a_converted_file_loads_by_its_preset(msra, tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "ResNet", partial(ResNet, width=4, classes=6))
    path = dump({"model": msra_names(msra, DETECTRON2)}, tmp_path / "R-50.pkl")
    convert_msra(path, tmp_path / "net.safetensors")
    loaded = load("paper:resnet50_msra", weights=tmp_path / "net.safetensors")
    assert torch.equal(logits(loaded.net), logits(msra))
    with pytest.raises(LamettaError, match="cannot read .* as weights: "):
        load("paper:resnet50_msra", weights=path)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_runs_something_is_refused(msra, tmp_path, protocol):
    content = msra_names(msra) | {"conv1_w": Evil(tmp_path / "ran")}
    path = dump(content, tmp_path / "evil.pkl", protocol)
    with pytest.raises(
        LamettaError, match=r"path must hold NumPy arrays alone, got \w+\.mkdir in '.*evil.pkl'"
    ):
        convert_msra(path, tmp_path / "net.safetensors")
    assert os.listdir(tmp_path) == ["evil.pkl"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"a": OrderedDict()}, "NumPy arrays alone, got collections.OrderedDict"),
        ({"a": torch.float32}, "NumPy arrays alone, got torch"),
        ({"a": np.array([None])}, "arrays of numbers alone, got dtype 'O8'"),
        ({"a": np.zeros(2, [("x", "f4")])}, "arrays of numbers alone, got dtype 'V4'"),
        ([1, 2], "path must hold a dict of arrays, got list"),
        ({}, r"ResNet of depth 18 or .* with its head, got 0 of its arrays, blocks \[0, 0, 0, 0\]"),
    ],
    ids=["class", "dtype", "objects", "fields", "list", "empty"],
)
def test_other_pickles_are_refused(tmp_path, content, message):
    with pytest.raises(LamettaError, match=message):
        convert_msra(dump(content, tmp_path / "odd.pkl"), tmp_path / "net.safetensors")


def test_broken_pickles_are_named(tmp_path):
    with pytest.raises(LamettaError, match="no such file: '.*absent.pkl'"):
        convert_msra(tmp_path / "absent.pkl", tmp_path / "net.safetensors")
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps({"a": np.ones(9)}, 2)[:-20])
    with pytest.raises(LamettaError, match="path must be a pickle of NumPy arrays, got '.*cut"):
        convert_msra(tmp_path / "cut.pkl", tmp_path / "net.safetensors")


@pytest.mark.slow
def test_parts_of_a_network_are_refused(msra, tmp_path):
    def convert(blobs):
        convert_msra(dump(blobs, tmp_path / "part.pkl"), tmp_path / "net.safetensors")

    blobs = msra_names(msra)
    folded = {k: v for k, v in blobs.items() if not k.endswith(("_rm", "_riv"))}
    with pytest.raises(LamettaError, match="path must hold the batch norms' statistics, .* none"):
        convert(folded)
    with pytest.raises(LamettaError, match=r"a ResNet-50, .* 1 missing \(layer2.1.bn2.running_mea"):
        convert({k: v for k, v in blobs.items() if k != "res3_1_branch2b_bn_rm"})
    with pytest.raises(LamettaError, match=r"1 of another shape \(layer2.1.bn2.running_mean \[3\]"):
        convert(blobs | {"res3_1_branch2b_bn_rm": np.ones(3, np.float32)})
    with pytest.raises(LamettaError, match="with its head, got 266"):
        convert({k: v for k, v in blobs.items() if k != "pred_w"})
    for name, bad, message in (
        ("res2_0_branch1_w", None, "res2_0_branch1_w as floats of 4 dimensions, got NoneType"),
        ("pred_w", np.ones(3), r"pred_w as floats of 2 or 4 dimensions, got \(3,\)"),
        ("pred_b", np.ones(6, int), r"pred_b as floats of 1 dimensions, got \(6,\)"),
        ("conv1_b", np.ones(3), r"conv1_b of shape \(4,\), got \(3,\)"),
    ):
        with pytest.raises(LamettaError, match=f"path must hold {message}"):
            convert(blobs | {name: bad})
    assert os.listdir(tmp_path) == ["part.pkl"]


def simclr_names(net, end=":0"):
    """The network's state under TensorFlow's names, numbered as SimCLR's code makes them."""
    state = net.state_dict()
    order = ["conv1"]
    for stage, count in enumerate((3, 4, 6, 3), 1):
        for i in range(count):
            block = f"layer{stage}.{i}."
            first = [block + "downsample.0"] if i == 0 else []
            order += [*first, block + "conv1", block + "conv2", block + "conv3"]
    variables = {}
    for number, conv in enumerate(order):
        norm = conv.replace("downsample.0", "downsample.1").replace("conv", "bn")
        at = f"_{number}" if number else ""
        kernel = np.einsum("oihw->hwio", state[f"{conv}.weight"].numpy())
        variables[f"base_model/conv2d{at}/kernel{end}"] = kernel
        for theirs, ours in (
            ("gamma", "weight"),
            ("beta", "bias"),
            ("moving_mean", "running_mean"),
            ("moving_variance", "running_var"),
        ):
            name = f"base_model/batch_normalization{at}/{theirs}{end}"
            variables[name] = state[f"{norm}.{ours}"].numpy()
    head = "head_supervised/linear_layer/dense"
    variables[f"{head}/kernel{end}"] = state["fc.weight"].numpy().T
    variables[f"{head}/bias{end}"] = state["fc.bias"].numpy()
    return variables


@pytest.fixture
def simclr():
    return stir(ResNet(50, width=4, classes=6, same_pool=True))


@pytest.mark.slow
@pytest.mark.parametrize("end", [":0", ""])
def test_convert_simclr(simclr, tmp_path, end):
    variables = simclr_names(simclr, end)
    variables["global_step"] = np.array(3)
    variables[f"base_model/conv2d_3/kernel/Momentum{end}"] = np.ones(3)
    # A file's order says nothing: conv2d_10 comes before conv2d_2 in most.
    np.savez(tmp_path / "r50.npz", **dict(sorted(variables.items())))
    convert_simclr(tmp_path / "r50.npz", tmp_path / "net.safetensors")
    found = reload(simclr, tmp_path / "net.safetensors", same_pool=True)
    assert torch.equal(logits(found), logits(simclr))
    assert torch.equal(found.fc.bias, simclr.fc.bias)


@pytest.mark.slow
def test_simclr_files_that_are_not_whole_are_refused(simclr, tmp_path):
    def convert(variables):
        np.savez(tmp_path / "part.npz", **variables)
        convert_simclr(tmp_path / "part.npz", tmp_path / "net.safetensors")

    variables = simclr_names(simclr)
    bias = "head_supervised/linear_layer/dense/bias:0"
    with pytest.raises(LamettaError, match=r"a ResNet-50, .* 1 missing \(fc.bias\)"):
        convert({k: v for k, v in variables.items() if k != bias})
    with pytest.raises(LamettaError, match="53 or 104 or 155, got 54 and 53 in '.*part.npz'"):
        convert(variables | {"base_model/conv2d_53/kernel:0": np.ones((1, 1, 2, 2))})
    swapped = dict(variables)
    one, two = "base_model/conv2d_1/kernel:0", "base_model/conv2d_2/kernel:0"
    swapped[one], swapped[two] = variables[two], variables[one]
    with pytest.raises(LamettaError, match=r"2 of another shape \(layer1.0.conv1.weight \[16, 4"):
        convert(swapped)
    with pytest.raises(LamettaError, match=r"kernel:0 as floats of 4 dimensions, got \(3,\)"):
        convert(variables | {one: np.ones(3)})


def test_npz_files_run_nothing(tmp_path):
    evil = np.array([Evil(tmp_path / "ran")], dtype=object)
    np.savez(tmp_path / "evil.npz", **{"base_model/conv2d/kernel:0": evil})
    for name, wrong in (
        ("evil.npz", "path must be an .npz of arrays, got"),
        ("absent.npz", "no such file:"),
    ):
        with pytest.raises(LamettaError, match=f"{wrong} '.*{name}'"):
            convert_simclr(tmp_path / name, tmp_path / "net.safetensors")
    assert not (tmp_path / "ran").exists()
