"""The cells that experiments make, and the ids that results are found by."""

import json
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lametta import LamettaError
from lametta.bench.experiment import Experiment, bundled, canonical, load
from lametta.bench.experiment.references import check_selected
from tests.bench.tiny import SELECTED, tiny


def test_configurations_are_a_product_in_the_order_of_the_file(experiment):
    assert experiment.configurations("Source") == ({},)
    assert experiment.configurations("LAME") == tuple(
        {"weight": 1.0, "affinity": a, "k": k} for a in ("knn", "rbf") for k in (1, 3, 5)
    )
    assert experiment.configs("TENT") == ['{"lr": 0.001}', '{"lr": 0.01}']
    released = load(bundled("released"))
    assert [(p["affinity"], p.get("k")) for p in released.configurations("LAME, grid")] == [
        ("knn", 1), ("knn", 3), ("knn", 5), ("rbf", 2), ("rbf", 4), ("linear", None),
    ]  # fmt: skip


def keys(cells):
    return [(c.method, c.config, c.model, c.scenario, c.seed, c.batch_size, c.live) for c in cells]


def test_validation_cells_by_brute_force(experiment):
    cells = experiment.validation_cells()
    expected = {
        (method, config, "net", scenario, seed, 64, False)
        for method in ("Source", "LAME", "TENT", "Fixed")
        for config in experiment.configs(method)
        for scenario in ("iid", "sorted")
        for seed in (0, 1)
    }
    assert len(cells) == len(expected) == (1 + 6 + 2 + 1) * 4
    assert set(keys(cells)) == expected
    assert len({cell.id for cell in cells}) == len(cells)
    for cell in cells:
        assert len(cell.id) == 16
        assert set(cell.id) <= set("0123456789abcdef")
        assert cell.kind == experiment.methods[cell.method].kind
        assert cell.params == json.loads(cell.config)
        assert json.loads(json.dumps(asdict(cell))) == asdict(cell)


def test_study_cells(experiment):
    main = experiment.study_cells("main", SELECTED)
    assert len(main) == 4 * 2 * 3
    assert {cell.params["k"] for cell in main if cell.method == "LAME"} == {3}
    assert {cell.config for cell in main if cell.method == "Fixed"} == {'{"lr": 0.1}'}
    sizes = experiment.study_cells("sizes", SELECTED)
    assert [cell.batch_size for cell in sizes] == [16, 16, 64, 64]
    cost = experiment.study_cells("cost", {})
    assert [cell.live for cell in cost] == [True, True]
    # A cell of two studies, and of the validation, is one cell.
    both = experiment.test_cells(SELECTED)
    assert len(both) == len(set(both)) == len({c.id for c in both}) == 24 + 4 - 2 + 2
    assert set(both) == {*main, *sizes, *cost}
    assert {cell for cell in both if cell.method == "Source" and cell.seed < 2} & set(
        experiment.validation_cells()
    )


def cost_cells(**changes):
    content = tiny(**{f"studies__cost__{key}": value for key, value in changes.items()})
    return Experiment.model_validate(content).study_cells("cost", {})


def test_timed_studies_run_the_networks():
    """Of themselves if the figure shows times, as in files from before there was the key."""
    assert [cell.live for cell in cost_cells()] == [True, True]
    assert cost_cells(timed=True) == cost_cells(timed=True, figure="boxes") == cost_cells()
    for untimed in (cost_cells(figure="boxes"), cost_cells(figure="boxes", timed=False)):
        assert [cell.live for cell in untimed] == [False, False]
        assert not {cell.id for cell in untimed} & {cell.id for cell in cost_cells()}


def test_what_is_selected_has_to_fit(experiment):
    with pytest.raises(LamettaError, match="selected must have LAME, which has 6 .*got TENT"):
        experiment.study_cells("main", {"TENT": {"lr": 0.01}})
    with pytest.raises(LamettaError, match="selected must fit TENT, got lrr: .*mean 'lr'"):
        check_selected(experiment, SELECTED | {"TENT": {"lrr": 1}})


def ids(content):
    experiment = Experiment.model_validate(content)
    cells = experiment.validation_cells() + experiment.test_cells(SELECTED)
    return {replace(cell, id=""): cell.id for cell in cells}


def test_renamed_methods_keep_the_cells():
    """ROID's prior correction was stored as roid; ROID itself must not find its results."""
    kinds = ("prior_correction", "adabn+prior_correction", "roid")
    first, hybrid, roid = (
        next(id_ for cell, id_ in found.items() if cell.kind == kind)
        for kind in kinds
        for found in [ids(tiny(methods__LAME={"kind": kind}, validation=None))]
    )
    assert (first, hybrid) == ("ef8ae749a9aa0ea6", "4d05dcb7b41d4451")
    assert roid not in (first, hybrid)


def test_renamed_layers_keep_the_cells():
    old, new = (
        ids(tiny(methods__TENT__params={"layers": name}, methods__TENT__grid={"lr": [0.01, 0.1]}))
        for name in ("everything", "norms")
    )
    assert old == new
    other = ids(tiny(methods__TENT__params={"layers": "all"}, methods__TENT__grid={"lr": [0.01]}))
    assert not any("all" in cell.config for cell in old)
    assert any("all" in cell.config for cell in other)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "other", "title": "Another title"},
        {"models__net__label": "A network", "models__net__training": "by hand"},
        {"scenarios__iid__label": "Shuffled", "studies__main__title": "Everything"},
        {"scenarios__iid__order": {"kind": "iid"}, "scenarios__iid__prior": "as_is"},
        {"scenarios__sorted__order": {"kind": "by_class", "shuffle_inside": True}},
        {"scenarios__sorted__split_groups": False},
        {"methods__LAME__params": {"weight": 1}, "datasets__digits__pooling": "mean"},
    ],
    ids=str,
)
def test_what_is_only_shown_or_said_otherwise_keeps_the_cells(changes):
    assert ids(tiny(**changes)) == ids(tiny())


@pytest.mark.parametrize(
    ("changes", "others"),
    [
        ({"models__net__zoo": "efficientnet_lite0"}, {"iid", "sorted", "timed"}),
        ({"models__net": {"zoo": "torch:a:b", "weights": "c"}}, {"iid", "sorted", "timed"}),
        ({"datasets__digits__part": [0, 2]}, {"iid", "sorted", "timed"}),
        ({"datasets__digits__pooling": "sum"}, {"iid", "sorted", "timed"}),
        ({"scenarios__iid__limit": 100}, {"iid"}),
        ({"scenarios__sorted__order": {"kind": "by_class", "sequence": "random"}}, {"sorted"}),
        ({"scenarios__sorted__split_groups": True}, {"sorted"}),
        ({"scenarios__timed__prior": {"kind": "zipf", "a": 3}}, {"timed"}),
    ],
    ids=lambda value: str(sorted(value) if isinstance(value, set) else value),
)
def test_what_results_depend_on_makes_other_cells(changes, others):
    before, after = ids(tiny()), ids(tiny(**changes))
    assert before.keys() == after.keys()
    assert {cell.scenario for cell in before if before[cell] != after[cell]} == others
    assert all(before[cell] != after[cell] for cell in before if cell.scenario in others)


def test_ids_stay_what_they_are(experiment):
    """Results on disk are found by them: they may change with the format of results alone."""
    first, *_, last = experiment.validation_cells()
    assert (first.id, last.id) == ("834e21fb3181b3f1", "3420a4db9eeb9edf")


_params = st.dictionaries(
    st.text(max_size=5),
    st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.text(max_size=5),
)


@given(_params, st.randoms())
def test_canonical(params, random):
    text = canonical(params)
    assert json.loads(text) == params
    items = list(params.items())
    random.shuffle(items)
    assert canonical(dict(items)) == text
    floats = {k: float(v) if type(v) is int else v for k, v in items}
    assert canonical(floats) == text
    assert canonical(json.loads(text)) == text
    assert canonical(params | {"another": 1}) != text


def test_booleans_are_no_numbers():
    assert canonical([True, 1, 1.0, 0.5, (2.0,)]) == "[true, 1, 1, 0.5, [2]]"
