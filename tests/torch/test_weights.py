"""Files of weights: their layouts, and what is said of those that do not fit or run something."""

from collections import OrderedDict

import pytest
import torch
from safetensors.torch import save_file

from lametta import LamettaError
from lametta.preprocess import Preprocess
from lametta.torch.zoo import load
from tests.torch.nets import Evil, Tiny, logits, stir


@pytest.mark.parametrize("layout", ["flat", "state_dict", "module", "safetensors"])
def test_torch_names_load_weights(layout, user_module, tmp_path):
    net = stir(Tiny())
    state = net.state_dict()
    file = tmp_path / ("net.safetensors" if layout == "safetensors" else "net.th")
    if layout == "safetensors":
        save_file(state, file)
    elif layout == "module":  # as in resnet20-12fca82f.th
        prefixed = OrderedDict((f"module.{key}", value) for key, value in state.items())
        torch.save({"state_dict": prefixed, "best_prec1": 91.7}, file)
    else:
        torch.save(state if layout == "flat" else {"state_dict": state}, file)
    loaded = load("torch:user_nets:tiny", weights=str(file))
    assert not loaded.net.training
    assert loaded.name == "torch:user_nets:tiny"
    assert loaded.preprocess == Preprocess()
    assert torch.equal(logits(loaded.net), logits(net))


def test_older_files_without_batch_counts_load(user_module, tmp_path):
    net = stir(Tiny())
    state = {k: v for k, v in net.state_dict().items() if "num_batches" not in k}
    torch.save(state, tmp_path / "old.pth")
    found = load("torch:user_nets:tiny", weights=tmp_path / "old.pth").net
    assert torch.equal(logits(found), logits(net))


def test_weights_that_do_not_fit_are_named(user_module, tmp_path):
    file = tmp_path / "other.pth"
    state = Tiny(classes=7).state_dict()
    state["extra"] = state.pop("conv.bias")
    torch.save(state, file)
    with pytest.raises(
        LamettaError,
        match=r"weights must fit Tiny, got '.*other.pth': 1 missing \(conv.bias\); "
        r"1 unexpected \(extra\); 2 of another shape \(fc.weight \[7, 5\] for \[4, 5\], ",
    ):
        load("torch:user_nets:tiny", weights=file)


@pytest.mark.parametrize("content", [[1, 2], {"state_dict": 3}, {"epoch": 3, "fc": torch.ones(1)}])
def test_files_without_tensors_are_named(user_module, tmp_path, content):
    torch.save(content, tmp_path / "odd.pth")
    with pytest.raises(LamettaError, match="weights must hold a dict of tensors, got '.*odd.pth'"):
        load("torch:user_nets:tiny", weights=tmp_path / "odd.pth")


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_weights_run_nothing(user_module, tmp_path, suffix):
    file = tmp_path / f"evil{suffix}"
    torch.save({"state_dict": Evil(tmp_path / "ran")}, file)
    with pytest.raises(LamettaError, match="cannot read .* as weights: ") as raised:
        load("torch:user_nets:tiny", weights=file)
    assert "arbitrary code" not in str(raised.value)  # PyTorch's advice is to run it
    assert not (tmp_path / "ran").exists()
