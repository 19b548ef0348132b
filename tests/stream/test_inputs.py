import numpy as np
import pytest
import torch

from lametta import LamettaError
from lametta.stream import (
    Scenario,
    by_class,
    by_group,
    dirichlet,
    effective_classes,
    few_classes,
    gradual,
    iid,
    interleaved,
    label_shift,
    long_tail,
    markov,
    orders,
    ratios,
    recurring,
    tracks,
    zipf,
)
from tests.stream.cases import make_data


def test_types_of_the_input_do_not_matter():
    labels, groups = make_data(50)
    expected = Scenario("by_group")(labels, groups).fingerprint
    for same in (labels.tolist(), labels.astype(np.uint8), torch.tensor(labels)):
        assert Scenario("by_group")(same, groups).fingerprint == expected
    for same in (groups.tolist(), groups.astype(object), tuple(groups)):
        assert Scenario("by_group")(labels, same).fingerprint == expected
    numbers = np.arange(50) // 4
    one, two = (Scenario("by_group")(labels, g) for g in (numbers, numbers.astype(str)))
    assert one.fingerprint == two.fingerprint
    one, two = (Scenario(dirichlet(g), seed=s)(labels) for g, s in ((1, 3), (1.0, np.int64(3))))
    assert one.fingerprint == two.fingerprint


NEED_GROUPS = [
    *("by_group", "interleaved", "alone", "mixed", "gradual", "recurring"),
    *("severity_ramp", "each_group"),
]


@pytest.mark.parametrize("order", NEED_GROUPS)
def test_missing_groups_are_named(order):
    with pytest.raises(LamettaError, match=f"groups must be given for the order '{order}'"):
        Scenario(order)([0, 1])


def test_groups_are_asked_for_only_where_needed():
    for order in set(orders()) - set(NEED_GROUPS):
        Scenario(order)([0, 1] * 10)
    with pytest.raises(LamettaError, match="groups must be given for the order 'dirichlet'"):
        Scenario(dirichlet(within_groups=True))([0, 1])
    with pytest.raises(LamettaError, match="groups must be given for the order 'markov'"):
        Scenario(markov(stay_domain=1))([0, 1])
    with pytest.raises(LamettaError, match="groups must be given for the prior 'long_tail'"):
        Scenario(prior=long_tail(1, 5))([0, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scenario("sorted"), "order must be one of 'iid', .* got 'sorted'"),
        (lambda: Scenario({"gamma": 1}), "order must be one of 'iid', .* got None"),
        (lambda: Scenario(iid), "order must be a name, .* got <class .*iid"),
        (lambda: Scenario(len), "order must be a name, .* got <built-in"),
        (lambda: Scenario(prior="iid"), "prior must be one of 'as_is', .* got 'iid'"),
        (lambda: Scenario(prior="ratios"), "prior 'ratios' must be given shares, got none"),
        (
            lambda: Scenario({"kind": "dirichlet", "alpha": 1}),
            "alpha is no option of dirichlet, w",
        ),
        (lambda: Scenario(batch_size=0), "batch_size must be an integer >= 1, got 0"),
        (lambda: Scenario(seed=-1), "seed must be an integer >= 0, got -1"),
        (lambda: Scenario(seed=1.5), "seed must be an integer >= 0, got 1.5"),
        (lambda: Scenario(limit=True), "limit must be an integer >= 1, got True"),
        (lambda: dirichlet(0), "gamma must be a finite number > 0, got 0"),
        (lambda: dirichlet(slots=0), "slots must be an integer >= 1, got 0"),
        (lambda: by_group(shuffle_inside="false"), "shuffle_inside must be True or False, got 'fa"),
        (lambda: by_class(sequence="size"), "sequence must be one of .* got 'size'"),
        (lambda: recurring(sequence=("a", "a")), "sequence must name each group once"),
        (lambda: gradual(1.5), "overlap must be a finite number >= 0 and <= 1, got 1.5"),
        (lambda: interleaved(inside=interleaved()), "inside must be an order of one stream"),
        (lambda: markov(1.5), "stay must be 'iid' or from 0 to 1, got 1.5"),
        (lambda: markov(stay_domain="1"), "stay_domain must be 'iid' or from 0 to 1, got '1'"),
        (lambda: label_shift("sine"), "shape must be one of .*'sinusoidal'.* got 'sine'"),
        (lambda: label_shift(contrast=2), "contrast must be a finite number >= 0 and <= 1, got 2"),
        (lambda: label_shift(period=0), "period must be an integer >= 1, got 0"),
        (lambda: tracks(0), "length must be an integer >= 1, got 0"),
        (lambda: few_classes(3, 2), "most must be >= least, 3, got 2"),
        (lambda: few_classes(size=0), "size must be an integer >= 1, got 0"),
        (lambda: long_tail(0.5), "imbalance must be a finite number >= 1, got 0.5"),
        (
            lambda: Scenario(interleaved(1, inside=tracks()))([0, 1], ["a", "b"]),
            "inside must be an order of one stream, got tracks",
        ),
        (lambda: interleaved(inside="iid"), "inside must be an order of one stream, got 'iid'"),
        (lambda: zipf(1), "a must be a finite number > 1 and <= 100, got 1"),
        (lambda: zipf(variant="train"), "variant must be one of .* got 'train'"),
        (lambda: ratios([0, 0]), "shares must be > 0 for at least one class"),
        (lambda: ratios([1, -1]), "shares must be finite numbers >= 0, got -1"),
        (lambda: ratios({"cat": 1}), "shares must be of classes numbered from 0, got .'cat'."),
        (lambda: ratios({}), "shares must be > 0 for at least one class"),
        (lambda: ratios("12"), "shares must be a sequence or a mapping, got '12'"),
        (lambda: effective_classes(0), "n must be an integer >= 1, got 0"),
        (lambda: Scenario()([]), "labels must be integers .* got float64 of shape .0,."),
        (lambda: Scenario()([[1]]), "labels must be integers .* got int64 of shape .1, 1."),
        (lambda: Scenario()([0.5]), "labels must be integers .* got float64 of shape .1,."),
        (lambda: Scenario()([0, 1], ["a"]), r"groups must be text .* \[2\], got .* shape .1,."),
        (lambda: Scenario()([0], [0.5]), "groups must be text or integers, .* got float64"),
        (lambda: Scenario()([0], keys=["a", "b"]), "keys must have one entry a label, 1, got 2"),
        (lambda: Scenario()([0], keys=[1]), "keys must be text, got 1"),
        (lambda: Scenario(interleaved(3))([0, 1]), "sources must be <= 2 samples, got 3"),
        (lambda: Scenario(interleaved(2))([0, 1], [5, 5]), "sources must be <= 1 groups, got 2"),
        (lambda: Scenario(prior=effective_classes(3))([0, 1]), "n must be <= 2, .* got 3"),
        (lambda: Scenario(prior=ratios([1, 1, 1]))([0, 1]), "of classes in labels, got class 2"),
        (
            lambda: Scenario(by_group(sequence=("a",)))([0, 1], ["a", "b"]),
            "sequence must name every group, got none for 'b'",
        ),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(LamettaError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scenario()(torch.ones(3, requires_grad=True)), "labels must be an array"),
        (lambda: Scenario()([[0], [1, 2]]), "labels must be an array"),
        (lambda: Scenario()([0, 1], [[0], [1, 2]]), "groups must be an array"),
        (lambda: Scenario()([0, 1], keys=3), "keys must have one entry a label, 2, got 3"),
        (lambda: by_group(sequence=np.arange(3)), "sequence must be one of"),
        (lambda: interleaved(inside=int), "inside must be an order of one stream"),
        (lambda: interleaved(inside=len), "inside must be an order of one stream"),
        (lambda: ratios(np.array(3)), "shares must be a sequence or a mapping"),
        (lambda: ratios({10**9: 1.0}), "shares must be of classes <= 1000000, got 1000000000"),
        (lambda: recurring(10**30), "rounds must be a finite number >= 1 and <= 1e.09, got 1000"),
        (lambda: recurring(10**17), "rounds must be a finite number >= 1 and <= 1e.09, got 1000"),
        (lambda: dirichlet(slots=10**30), "slots must be a finite number >= 1 and <= 1e.09"),
    ],
)
def test_strange_input_is_refused_in_our_own_words(make, message):
    with pytest.raises(LamettaError, match=message):
        make()
