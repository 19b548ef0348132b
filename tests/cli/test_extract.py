"""``lametta extract``: the bank it writes, and what it says."""

import os
import sys
import time
from contextlib import ExitStack
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from lametta._files import file_lock
from lametta.cli._predictions import read
from lametta.cli.extract import extract
from lametta.data.bank import Bank
from lametta.data.bank.extraction import weights_hash
from lametta.preprocess import Preprocess
from lametta.torch import zoo
from tests import processes
from tests.data.bank.conftest import Net, image

app = typer.Typer()
app.command()(extract)


class Deep(Net):
    """A network of two linear layers, of 9 and of 4 outputs."""

    def __init__(self):
        super().__init__()
        self.first, self.fc = torch.nn.Linear(6, 9), torch.nn.Linear(9, 4)

    def forward(self, x):
        return self.fc(self.first(self.bn(self.conv(x)).relu().mean((2, 3))).relu())


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """A folder of 12 photos in 4 classes, and a network by name."""
    module = ModuleType("user_nets")

    def build():
        torch.manual_seed(1)
        return Net(), Preprocess(resize=None, crop=None)

    module.net, module.wide, module.deep = build, lambda: Net(7), Deep
    monkeypatch.setitem(sys.modules, "user_nets", module)
    for i in range(12):
        folder = tmp_path / "photos" / "abcd"[i % 4]
        folder.mkdir(parents=True, exist_ok=True)
        image(i).save(folder / f"{i}.png")
    return tmp_path / "photos"


def invoke(photos, *more, output="bank.safetensors", name="torch:user_nets:net"):
    arguments = ["--model", name, "--data", photos, "-o", photos.parent / output, "--workers", 0]
    return CliRunner().invoke(app, [str(argument) for argument in [*arguments, *more]])


def test_the_command(photos, tmp_path):
    result = invoke(photos, "--batch-size", 5)
    assert result.exit_code == 0, result.output
    bank = Bank.open(tmp_path / "bank.safetensors")
    assert bank.header["model"] == "torch:user_nets:net"
    assert bank.header["weights_hash"] == weights_hash(zoo.load("torch:user_nets:net").net)
    assert bank.header["preprocess"]["mean"] == list(Preprocess().mean)
    right = (np.asarray(bank.logits).argmax(axis=1) == bank.labels).mean()
    assert f"{right:.2%}" in result.output
    assert "12 in " in result.output
    again = invoke(photos, "--batch-size", 5)
    assert again.exit_code == 0, again.output
    assert "0 in " in again.output


def test_the_command_scores_in_the_classes_of_the_labels_alone(photos):
    result = invoke(photos, name="torch:user_nets:wide")
    assert result.exit_code == 0, result.output
    assert "accuracy" not in result.output


def test_the_command_can_be_stopped(photos, tmp_path, monkeypatch):
    whole = invoke(photos, "--batch-size", 5, output="whole.safetensors")
    assert whole.exit_code == 0, whole.output
    calls, forward = [], Net.forward

    def stop(self, x):
        calls.append(len(x))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return forward(self, x)

    monkeypatch.setattr(Net, "forward", stop)
    stopped = invoke(photos, "--batch-size", 5)
    assert stopped.exit_code == 130
    assert "run the same command again to go on" in stopped.stderr
    result = invoke(photos, "--batch-size", 5)
    assert result.exit_code == 0, result.output
    assert calls == [5, 5, 5, 2]
    assert "7 in " in result.output
    bank, expected = (tmp_path / f"{name}.safetensors" for name in ("bank", "whole"))
    assert bank.read_bytes() == expected.read_bytes()


def test_the_command_on_broken_images(photos, tmp_path):
    (photos / "b" / "[1].png").write_bytes((photos / "b" / "1.png").read_bytes()[:50])
    result = invoke(photos, "--batch-size", 3)
    assert result.exit_code == 2
    assert "cannot read image" in result.stderr
    result = invoke(photos, "--batch-size", 3, "--skip-broken", "--dtype", "float16")
    assert result.exit_code == 2  # a part of it is stored as float32
    assert "was made with dtype 'float32', not 'float16'; delete" in " ".join(result.stderr.split())
    result = invoke(photos, "--skip-broken", "--dtype", "float16", "--restart")
    assert result.exit_code == 0, result.output
    assert "1 (b/[1].png)" in result.output
    bank = Bank.open(tmp_path / "bank.safetensors")
    assert (len(bank), bank.logits.dtype) == (12, np.float16)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--model", "resnet"], "--model must be one of"),
        (["--data", "nothing"], "no such folder, file or data set: 'nothing'"),
        (["--data", "imagenet_vall"], "or data set: 'imagenet_vall'; did you mean 'imagenet_val'?"),
        (
            ["--data", "folder:nothing", "--root", "."],
            "no such file or folder: ",
        ),
        (
            ["--data", "embedded:digit"],
            "data set: 'embedded:digit'; did you mean 'embedded:digits_",
        ),
        (["--fps", "2"], "--fps must be given for video files alone, got 2.0 for"),
        (["--map", "none.json"], "no such file: 'none.json'"),
        (["--data", "imagenet_val", "--root", "nowhere"], "no such data folder: 'nowhere'"),
        (
            ["--data", "imagenet_val"],
            "--root must be a folder, given or named by LAMETTA_DATA, got",
        ),
        (["--weights", "none.pth"], "no such weights file: 'none.pth'"),
        (["--device", "toaster"], "--device must be one that torch can use"),
        (["--batch-size", "0"], "--batch-size must be an integer >= 1"),
        (["-o", "bank.npz"], "--output must end in .safetensors"),
        (["-o", "no/such/bank.safetensors"], "no such folder: 'no/such'"),
    ],
)
def test_the_command_names_bad_input(photos, more, message, monkeypatch):
    monkeypatch.delenv("LAMETTA_DATA", raising=False)
    result = invoke(photos, *more)
    assert result.exit_code == 2, result.output
    assert message in " ".join(result.stderr.split())


@pytest.mark.slow
def test_who_waits_says_for_whom(tmp_path):
    command = ["extract", "--model", "embedded:digits", "--data", "embedded:digits_val"]
    command += ["-o", tmp_path / "bank.safetensors"]
    with ExitStack() as stack:
        with file_lock(tmp_path / "bank.safetensors.lock"):
            waiting = stack.enter_context(processes.Program("-m", "lametta", *command))
            end = time.monotonic() + 120
            while not (said := waiting.stderr()).endswith("\n"):
                assert time.monotonic() < end
                time.sleep(0.01)
            assert said.startswith(f"waiting for process {os.getpid()} on ")
            assert said.endswith(f"which holds {tmp_path / 'bank.safetensors.lock'}\n")
        assert waiting.wait().returncode == 0
    assert len(Bank.open(tmp_path / "bank.safetensors")) == 450


def test_the_head_may_be_named(photos, tmp_path):
    deep = "torch:user_nets:deep"
    torch.manual_seed(1)
    assert invoke(photos, name=deep).exit_code == 0
    assert Bank.open(tmp_path / "bank.safetensors").features.shape == (12, 9)
    torch.manual_seed(1)
    result = invoke(photos, "--head", "first", name=deep, output="first.safetensors")
    assert result.exit_code == 0, result.output
    bank = Bank.open(tmp_path / "first.safetensors")
    assert (bank.features.shape, bank.logits.shape) == ((12, 6), (12, 4))
    assert bank.header["head"] == "first"
    assert bank.prototypes is None  # of a layer that does not make the logits
    assert Bank.open(tmp_path / "bank.safetensors").prototypes.weight.shape == (4, 9)
    assert bank.labels is not None  # four folders are the network's four classes
    torch.manual_seed(1)
    other = invoke(photos, name=deep, output="first.safetensors")
    assert other.exit_code == 2
    assert "head" in other.stderr
    wrong = invoke(photos, "--head", "fist", name=deep)
    assert wrong.exit_code == 2
    assert "--head must name a module of net, got 'fist'" in " ".join(wrong.stderr.split())


def test_precision_is_part_of_what_a_bank_is(photos, tmp_path):
    assert invoke(photos).exit_code == 0
    result = invoke(photos, "--precision", "bf16")
    assert result.exit_code == 2  # never the rows of the other
    assert "precision" in result.output
    result = invoke(photos, "--precision", "bf16", output="bf16.safetensors")
    assert result.exit_code == 0, result.output
    plain, bf16 = (Bank.open(tmp_path / f"{name}.safetensors") for name in ("bank", "bf16"))
    assert bf16.header["precision"] == "bf16"
    assert "precision" not in plain.header
    assert np.abs(np.asarray(plain.logits) - np.asarray(bf16.logits)).max() > 0
    np.testing.assert_allclose(plain.logits, bf16.logits, atol=0.02)
    assert "--precision must be one of" in invoke(photos, "--precision", "fp8").output


def test_names_of_a_models_classes_go_with_its_bank(photos, tmp_path, monkeypatch):
    called = dict(enumerate(("lynx", "fox", "owl", "elk")))
    for names, wanted in ((called, list(called.values())), ({0: "LABEL_0", 1: "b"}, None)):
        net = Net()
        net.config = SimpleNamespace(id2label=names)
        built = net, Preprocess(resize=None, crop=None)
        monkeypatch.setattr(sys.modules["user_nets"], "net", lambda built=built: built)
        result = invoke(photos, "--data", photos / "a", "--restart")  # a folder without labels
        assert result.exit_code == 0, result.output
        path = tmp_path / "bank.safetensors"
        assert Bank.open(path).header.get("class_names") == wanted
        assert read(path, None).classes == tuple(wanted or ())
