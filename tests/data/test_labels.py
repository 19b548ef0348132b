"""Labels and class maps: lined up by name, sent along the map, or refused."""

import json

import numpy as np
import pytest

from lametta import ClassMap, LamettaError
from lametta.data import Bank, arrays
from lametta.data.bank.bank import map_labels
from lametta.data.dataset import match_labels
from tests.conftest import shared

PETS = ("cat", "cow", "dog")


def pets_bank(**header):
    """Three samples a pet whose highest logit is among the pet's columns: right is 100 %."""
    labels = np.repeat([0, 1, 2], 3)
    logits = np.eye(6)[2 * labels + np.arange(9) % 2]  # columns 0, 1 are the cat's, 2, 3 the cow's
    return Bank(np.eye(9), logits, labels, header={"classes": list(PETS)} | header)


def right(bank):
    index = np.arange(len(bank))
    return (bank(index).logits.argmax(axis=1) == bank.labels).mean()


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_a_map_of_another_order_is_lined_up_by_name(tmp_path, order):
    mapping = {PETS[i]: [2 * i, 2 * i + 1] for i in order}
    ClassMap(mapping, n_source=6).save(tmp_path / "map.json")
    bank = pets_bank()
    mapped = bank.mapped(ClassMap.load(tmp_path / "map.json"))
    assert right(mapped) == 1
    assert mapped.header["classes"] == list(mapping)
    assert [mapped.classes.names[i] for i in mapped.labels] == [PETS[i] for i in bank.labels]
    assert mapped.mapped(None) is bank
    again = mapped.mapped(ClassMap({PETS[i]: [2 * i] for i in range(3)}, n_source=6))
    assert again.labels.tolist() == bank.labels.tolist()


def test_a_map_with_more_targets_than_classes():
    mapping = {"horse": [5], "dog": [4], "cow": [2, 3], "cat": [0, 1]}
    assert pets_bank().mapped(ClassMap(mapping)).labels.tolist() == [3] * 3 + [2] * 3 + [1] * 3


def test_names_that_do_not_fit_are_named():
    classes = ClassMap({"kitten": [0, 1], "cow": [2, 3], "puppy": [4, 5]}, n_source=6)
    message = "class_map must have the classes of the labels as targets, got kitten, cow, puppy"
    with pytest.raises(LamettaError, match=f"{message} without cat, dog"):
        pets_bank().mapped(classes)
    with pytest.raises(LamettaError, match=f"{message} without cat, dog"):
        arrays(np.zeros((3, 1)), [0, 1, 2], classes=PETS).mapped(classes)
    with pytest.raises(LamettaError, match=f"{message} without cat, dog"):
        map_labels(np.arange(3), {"classes": list(PETS)}, classes, 6)


def test_labels_of_the_networks_own_classes_go_the_way_of_the_map():
    header = {"classes": [f"n{i}" for i in range(6)], "class_map": None}
    bank = Bank(np.eye(3), np.eye(3, 6), np.array([0, 2, 5]), header=header)
    mapped = bank.mapped(ClassMap({"b": [2, 5], "a": [0]}, n_source=6))
    assert mapped.labels.tolist() == [1, 0, 0]
    message = r"a target for the class of every label, got none for n2 \(1 of 3 labels\)"
    with pytest.raises(LamettaError, match=message):
        bank.mapped(ClassMap({"b": [5], "a": [0]}, n_source=6))
    # Labels that a map led to already are not the network's, however many there are.
    led = {"classes": list("abcdef"), "class_map": ClassMap([[i] for i in range(6)]).to_dict()}
    with pytest.raises(LamettaError, match="got x without a, c"):
        map_labels(np.array([0, 2]), led, ClassMap({"x": [0, 2]}), 6)


def test_numbers_are_no_names():
    own = [str(i) for i in range(4)]
    through = match_labels(np.array([0, 1, 3]), own, ClassMap([1, 1, -1, 0]), 4)
    assert through.tolist() == [1, 1, 0]
    as_they_are = match_labels(np.array([0, 1]), ("b", "a"), ClassMap([[2], [0, 1]]))
    assert as_they_are.tolist() == [0, 1]
    with pytest.raises(LamettaError, match="got 0, 1 without"):
        match_labels(np.array([0]), ("b", "a", "c"), ClassMap([[2], [0, 1]]))


def test_banks_without_names_take_labels_as_targets():
    bank = Bank(np.eye(3), np.eye(3), np.array([0, 1, 1]))
    assert bank.mapped(ClassMap([0, 1, 1])).labels.tolist() == [0, 1, 1]
    with pytest.raises(LamettaError, match=r"labels must lie in 0\.\.0, got 0\.\.1"):
        bank.mapped(ClassMap([[0, 1, 2]]))
    assert Bank(np.eye(3), np.eye(3)).mapped(ClassMap([0, 1, 1])).labels is None
    # Names on one side alone do not say whether labels are of the targets or of the network.
    with pytest.raises(LamettaError, match="labels must have names of classes .* a, b, got none"):
        bank.mapped(ClassMap({"a": [0], "b": [1, 2]}))


def test_data_sets_are_lined_up_and_reduced_likewise():
    data = arrays(np.arange(3)[:, None], [0, 1, 2], classes=PETS)
    mapped = data.mapped(ClassMap({"dog": [4, 5], "cat": [0], "cow": [2]}, n_source=6))
    assert (mapped.labels.tolist(), mapped.classes) == ([1, 2, 0], ("dog", "cat", "cow"))
    mapped = data.mapped(ClassMap({"rest": [2], "tame": [0]}, n_source=3))
    assert (mapped.labels.tolist(), mapped.keys) == ([1, 0], ("0", "2"))
    assert mapped.class_map.names == mapped.classes == ("rest", "tame")


def test_a_real_bank_scores_the_same_in_any_order():
    classes = json.loads(shared("reference", "imagenet_wnids.json").read_text())
    bank = Bank.open(shared("data", "banks", "imagenette_val500_lite0.npz"))
    present = sorted({int(label) for label in bank.labels})
    named = Bank(
        bank.features,
        bank.logits,
        np.searchsorted(present, bank.labels),
        header={"classes": [classes[i] for i in present]},
    )
    scores = {
        right(named.mapped(ClassMap({classes[i]: [i] for i in order}, n_source=1000)))
        for order in (present, present[::-1], present[5:] + present[:5])
    }
    assert len(scores) == 1
    assert scores.pop() > 0.7


@pytest.mark.parametrize("name", ["x", "y", "groups"])
def test_masked_arrays_are_refused(name):
    given = {"x": np.zeros(3), "y": np.zeros(3, int), "groups": np.zeros(3, int)}
    given[name] = np.ma.masked_array(given[name], [0, 1, 1])
    with pytest.raises(LamettaError, match=f"{name} must be an array without a mask, .* 2 masked"):
        arrays(**given)


def test_masks_of_banks_and_positions_are_refused():
    masked = np.ma.masked_array(np.eye(3), np.eye(3))
    with pytest.raises(LamettaError, match="logits must be an array without a mask"):
        Bank(np.eye(3), masked)
    with pytest.raises(LamettaError, match="index must be an array without a mask"):
        Bank(np.eye(3), np.eye(3))(np.ma.masked_array([0, 1], [0, 1]))


def test_a_map_of_more_classes_than_there_are_is_refused():
    with pytest.raises(LamettaError, match="class_map must map 2 classes, got 6"):
        match_labels(np.array([0, 1]), ["a", "b"], ClassMap({"x": [0, 5], "y": [1]}), 2)
