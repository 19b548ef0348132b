import itertools
import json
import os
import struct
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import lametta.stream
import torch
from lametta import LamettaError
from lametta.data import Dataset
from lametta.stream import (
    Scenario,
    as_is,
    by_class,
    by_group,
    dirichlet,
    effective_classes,
    gradual,
    iid,
    interleaved,
    mixed,
    orders,
    priors,
    ratios,
    recorded,
    recurring,
    zipf,
)
from lametta.stream._draws import below, generator, permutation, uniform
from lametta.stream.prior import _zipf_variates

ORDERS = [
    iid(),
    recorded(),
    by_class(),
    by_class(shuffle_inside=False, sequence="random"),
    by_group(),
    by_group(shuffle_inside=True, sequence="random"),
    by_group(sequence="given"),
    dirichlet(),
    dirichlet(2, slots=5, bursts=False),
    dirichlet(0.5, within_groups=True),
    interleaved(),
    interleaved(1, inside=by_group()),
    interleaved(inside=dirichlet(1)),
    mixed(),
    mixed(shuffle_inside=False),
    gradual(),
    gradual(1, shuffle_inside=False, sequence="given"),
    recurring(),
    recurring(3, shuffle_inside=False),
]
PRIORS = [as_is(), zipf(), zipf(1.5, "test"), ratios([1, 2, 1]), effective_classes(2)]
KEPT = [recorded(), *(o for o in ORDERS if getattr(o, "shuffle_inside", None) is False)]

every_order = pytest.mark.parametrize("order", ORDERS, ids=repr)
every_prior = pytest.mark.parametrize("prior", PRIORS, ids=repr)


@st.composite
def data_sets(draw):
    """Labels and groups [N]."""
    n = draw(st.integers(1, 40))
    labels = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    groups = draw(st.lists(st.sampled_from("abcd"), min_size=n, max_size=n))
    return np.array(labels), np.array(groups)


seeds = st.integers(0, 2**64)
batch_sizes = st.integers(1, 9)
sequences = st.sampled_from(["appearance", "random", "given", ("d", "a", "b", "c", "e")])


def runs(values):
    """The values, each once for as long as it stays the same."""
    return [value for value, _ in itertools.groupby(np.asarray(values).tolist())]


def make_data(n=600):
    rng = np.random.default_rng(0)
    return rng.integers(3, size=n), np.array([f"g{i}" for i in rng.integers(4, size=n)])


@settings(max_examples=400)
@given(st.sampled_from(ORDERS), data_sets(), seeds, batch_sizes)
def test_nothing_is_lost_or_doubled(order, data, seed, batch_size):
    stream = Scenario(order, batch_size=batch_size, seed=seed)(*data)
    assert sorted(stream.index) == list(range(len(data[0])))
    assert np.concatenate(list(stream)).tolist() == stream.index.tolist()
    assert len(stream) == len(stream.ids) == len(list(stream))
    for source in set(stream.ids):
        own = [len(b) for b, name in zip(stream, stream.ids, strict=True) if name == source]
        assert all(size == batch_size for size in own[:-1])
        assert 1 <= own[-1] <= batch_size


@settings(max_examples=400)
@given(st.sampled_from(ORDERS), data_sets(), seeds, batch_sizes, st.integers(1, 50))
def test_limit_cuts_what_is_in_order(order, data, seed, batch_size, limit):
    whole = Scenario(order, batch_size=batch_size, seed=seed)(*data)
    stream = Scenario(order, batch_size=batch_size, seed=seed, limit=limit)(*data)
    assert stream.index.tolist() == whole.index[:limit].tolist()
    assert stream.ids == whole.ids[: len(stream)]


@settings(max_examples=200)
@given(st.sampled_from([as_is(), zipf()]), st.booleans(), sequences, data_sets(), seeds)
def test_groups_are_contiguous(prior, shuffle, sequence, data, seed):
    labels, groups = data
    if isinstance(prior, zipf):  # it needs some samples to be able to keep its rule
        labels, groups = np.repeat(labels, 20), np.repeat(groups, 20)
    order = by_group(shuffle_inside=shuffle, sequence=sequence)
    index = Scenario(order, prior, seed=seed)(labels, groups).index
    shown = runs(groups[index])
    assert len(shown) == len(set(shown))
    if isinstance(sequence, tuple):
        assert shown == [group for group in sequence if group in shown]
    if sequence == "given" and isinstance(prior, as_is):
        assert shown == list(dict.fromkeys(groups.tolist()))
    order = by_class(shuffle_inside=shuffle, sequence="random")
    index = Scenario(order, prior, seed=seed)(labels).index
    shown = runs(labels[index])
    assert len(shown) == len(set(shown))


@settings(max_examples=200)
@given(st.sampled_from(KEPT), data_sets(), seeds)
def test_time_runs_forward_in_a_group(order, data, seed):
    values = data[0] if isinstance(order, by_class) else data[1]
    index = Scenario(order, seed=seed)(*data).index
    for value in set(values.tolist()):
        own = index[values[index] == value]
        assert own.tolist() == sorted(own)


def test_shuffled_inside_is_shuffled():
    labels, groups = make_data()
    for order in (by_group(shuffle_inside=True), by_class(), mixed(), gradual(), recurring()):
        values = labels if isinstance(order, by_class) else groups
        index = Scenario(order)(labels, groups).index
        for value in set(values.tolist()):
            rising = np.mean(np.diff(index[values[index] == value]) > 0)
            assert 0.3 < rising < 0.7


@every_order
def test_same_seed_same_stream(order):
    labels, groups = make_data()
    one, two, other = (Scenario(order, seed=s)(labels, groups) for s in (1, 1, 2))
    assert one.index.tolist() == two.index.tolist()
    assert one.fingerprint == two.fingerprint != other.fingerprint
    fixed = isinstance(order, recorded) or order in (by_group(sequence="given"), interleaved())
    assert (one.index.tolist() == other.index.tolist()) == fixed


def test_every_permutation_is_equally_likely():
    count = Counter(tuple(Scenario(seed=seed)([0, 0, 0]).index.tolist()) for seed in range(3000))
    assert len(count) == 6
    assert stats.chisquare(list(count.values())).pvalue > 0.001


@pytest.mark.parametrize(("sequence", "share"), [("appearance", 0.9), ("random", 0.5)])
def test_large_groups_come_early_by_appearance(sequence, share):
    groups = ["small"] + ["large"] * 9
    order = by_group(sequence=sequence)
    first = [Scenario(order, seed=seed)([0] * 10, groups).index[0] for seed in range(1500)]
    assert np.mean(np.array(first) > 0) == pytest.approx(share, abs=0.04)


@given(data_sets(), seeds, st.integers(1, 5))
def test_recurring_by_definition(data, seed, rounds):
    labels, groups = data
    order = recurring(rounds, shuffle_inside=False, sequence=("c", "a", "d", "b"))
    expected, parts = [], {g: [] for g in "cadb"}
    for visit in range(rounds):
        for g, sizes in parts.items():
            own = np.flatnonzero(groups == g)
            part = [i for turn, i in enumerate(own) if turn * rounds // len(own) == visit]
            expected += part
            sizes.append(len(part))
    assert Scenario(order, seed=seed)(labels, groups).index.tolist() == expected
    assert all(max(sizes) - min(sizes) <= 1 for sizes in parts.values())


def test_gradual_fades_linearly():
    n, overlap = 40_000, 0.5
    domain = np.repeat([0, 1], n)
    shown = domain[Scenario(gradual(overlap, sequence="given"))(domain, domain).index]
    # A quarter of a unit before the border the change begins, a quarter after it it ends.
    at = np.linspace(0, 2, 2 * n, endpoint=False)
    expected = np.clip((at - 1) / overlap + 0.5, 0, 1)
    seen = shown.reshape(-1, 1000).mean(axis=1)
    assert np.abs(seen - expected.reshape(-1, 1000).mean(axis=1)).max() < 0.06
    abrupt = Scenario(gradual(0))(domain, domain)
    assert len(runs(domain[abrupt.index])) == 2


@given(data_sets(), seeds, batch_sizes)
def test_interleaved_by_definition(data, seed, batch_size):
    labels, groups = data
    waiting = {g: np.flatnonzero(groups == g).tolist() for g in dict.fromkeys(groups.tolist())}
    expected = []
    while any(waiting.values()):
        for g, own in waiting.items():
            if own:
                expected.append((g, own[:batch_size]))
                waiting[g] = own[batch_size:]
    stream = Scenario(interleaved(), batch_size=batch_size, seed=seed)(labels, groups)
    assert [(g, b.tolist()) for g, b in zip(stream.ids, stream, strict=True)] == expected


@given(data_sets(), seeds, st.integers(1, 4), st.booleans())
def test_sources_share_no_group(data, seed, n_sources, with_groups):
    labels, groups = data if with_groups else (data[0], None)
    units = len(labels) if groups is None else len(set(groups.tolist()))
    n_sources = min(n_sources, units)
    stream = Scenario(interleaved(n_sources), batch_size=3, seed=seed)(labels, groups)
    assert set(stream.ids) == {str(i) for i in range(n_sources)}
    owners = {}
    for name, batch in zip(stream.ids, stream, strict=True):
        for unit in batch.tolist() if groups is None else groups[batch].tolist():
            assert owners.setdefault(unit, name) == name
    counts = Counter(owners.values())
    assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("gamma", [0.1, 1, 10])
def test_dirichlet_slots_are_dirichlet_multinomial(gamma):
    n, slots, n_classes = 4, 3, 20_000
    slot = dirichlet(gamma)._slots(np.repeat(np.arange(n_classes), n), slots, generator(0))
    counts = np.array([(slot == s).reshape(-1, n).sum(axis=1) for s in range(slots)]).T
    seen = Counter(map(tuple, counts.tolist()))
    possible = [c for c in itertools.product(range(n + 1), repeat=slots) if sum(c) == n]
    expected = stats.dirichlet_multinomial([gamma] * slots, n).pmf(np.array(possible)) * n_classes
    assert sum(seen.values()) == n_classes
    assert stats.chisquare([seen[c] for c in possible], expected).pvalue > 0.001


def test_dirichlet_shows_bursts():
    labels, groups = make_data()
    one_slot = Scenario(dirichlet(1, slots=1))(labels).index
    assert len(runs(labels[one_slot])) == 3
    one_slot = Scenario(dirichlet(1, slots=1, bursts=False))(labels).index
    assert len(runs(labels[one_slot])) > 300
    index = Scenario(dirichlet(within_groups=True))(labels, groups).index
    assert runs(groups[index]) == list(dict.fromkeys(groups.tolist()))
    # The less gamma, the longer the bursts.
    lengths = [len(runs(labels[Scenario(dirichlet(g, 50))(labels).index])) for g in (1e-3, 0.1, 10)]
    assert lengths[0] < 10 < lengths[1] < lengths[2]


@pytest.mark.parametrize("a", [1.3, 2, 3.5])
def test_zipf_variates(a):
    n, top = 50_000, 20
    drawn = np.minimum(_zipf_variates(a, n, generator(1)), top)
    expected = stats.zipf(a).pmf(np.arange(1, top + 1))
    expected[-1] = 1 - expected[:-1].sum()
    assert stats.chisquare(np.bincount(drawn)[1:], expected * n).pvalue > 0.001
    assert all(v >= 1 for v in _zipf_variates(1.001, 1000, generator(2)))


@pytest.mark.parametrize(
    ("n_classes", "variant", "rate"),
    [(1000, "validation", 0.48), (32, "validation", 0.80), (1000, "test", 0.93)],
)
def test_zipf_is_accepted_as_often_as_in_the_paper(n_classes, variant, rate):
    rng, n, prior = generator(0), 50_000, zipf(2, variant)
    accepted = [prior._accepts(prior._draw(n_classes, n, rng), n) for _ in range(2000)]
    assert np.mean(accepted) == pytest.approx(rate, abs=0.03)


@pytest.mark.parametrize(
    ("variant", "x", "y", "largest", "top"),
    [("validation", 0.2, 0.8, 0.09, 0.76), ("test", 0.1, 0.9, 0.16, 0.72)],
)
def test_zipf_is_as_uneven_as_in_the_paper(variant, x, y, largest, top):
    labels = np.repeat(np.arange(1000), 50)
    medians = []
    for seed in range(300):
        index = zipf(2, variant)(labels, generator(seed))
        counts = np.sort(np.bincount(labels[index], minlength=1000))
        assert counts[-int(x * 1000) :].sum() < int(y * len(labels))
        assert 0.9 * len(labels) < counts.sum() <= len(labels)
        medians.append((counts[-1] / counts.sum(), counts[-int(x * 1000) :].sum() / counts.sum()))
    found = np.median(medians, axis=0)
    assert found[0] == pytest.approx(largest, abs=0.02)
    assert found[1] == pytest.approx(top, abs=0.02)


@pytest.mark.parametrize("variant", ["validation", "test"])
@pytest.mark.parametrize("n_classes", [1, 2, 3, 5, 9])
def test_zipf_ends_with_few_classes(variant, n_classes):
    labels = np.repeat(np.arange(n_classes) * 7, 50)  # classes that do not occur do not count
    for seed in range(20):
        shown = labels[Scenario(prior=zipf(variant=variant), seed=seed)(labels).index]
        largest = max(Counter(shown.tolist()).values())
        assert n_classes == 1 or largest < {"validation": 0.8, "test": 0.9}[variant] * len(labels)


def test_zipf_says_when_its_rule_cannot_hold():
    with pytest.raises(LamettaError, match="got 2 samples of 2 classes, in which 1000 draws"):
        Scenario(prior="zipf")([0, 1])


def test_zipf_draws_each_sample_of_a_class_alike():
    labels = np.repeat([0, 1, 2, 3], [3, 50, 50, 50])
    times = np.zeros(3)
    for seed in range(300):
        times += np.bincount(Scenario(prior=zipf(), seed=seed)(labels).index, minlength=153)[:3]
    assert times.min() > 300  # with replacement: more often than there are streams
    assert stats.chisquare(times).pvalue > 0.001


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
    st.lists(st.decimals("0.1", "9", places=1).map(float), min_size=4, max_size=4),
    seeds,
)
def test_ratios(class_sizes, shares, seed):
    labels = np.repeat(np.arange(len(class_sizes)), class_sizes)
    shares = shares[: len(class_sizes)]
    index = Scenario("recorded", ratios(shares), seed=seed)(labels).index
    assert len(set(index.tolist())) == len(index)
    counts = np.bincount(labels[index], minlength=len(class_sizes))
    assert (counts == class_sizes).any()
    scale = min(size / share for size, share in zip(class_sizes, shares, strict=True))
    assert np.all(np.abs(counts - scale * np.array(shares)) < 1 + 1e-9)


def test_ratios_are_decimal_and_take_mappings():
    labels = np.repeat([0, 1, 2], [10, 70, 5])
    index = Scenario(prior=ratios({0: 0.1, 1: 0.7}))(labels).index
    assert np.bincount(labels[index]).tolist() == [10, 70]
    assert ratios({0: 0.5, 2: 1}) == ratios([0.5, 0, 1]) == ratios(np.array([0.5, 0, 1]))
    assert ratios({"1": 2}) == ratios([0, 2])
    assert hash(ratios([1, 2])) == hash(ratios((1, 2)))


@given(data_sets(), seeds)
def test_effective_classes(data, seed):
    labels, _ = data
    present = len(set(labels.tolist()))
    for n in range(1, present + 1):
        index = Scenario(prior=effective_classes(n), seed=seed)(labels).index
        kept = set(labels[index].tolist())
        assert len(kept) == n
        assert len(index) == sum(label in kept for label in labels.tolist())


@given(seeds, st.integers(1, 2**40))
def test_below(seed, limit):
    drawn = below(generator(seed), np.full(50, limit))
    assert drawn.min() >= 0
    assert drawn.max() < limit
    # The largest number there is must not round up to the limit.
    highest = SimpleNamespace(
        bit_generator=SimpleNamespace(random_raw=lambda n: np.full(n, 2**64 - 1, np.uint64))
    )
    assert below(highest, np.array([limit])) == limit - 1


def test_uniform_and_permutation():
    assert stats.kstest(uniform(generator(0), 10_000), "uniform").pvalue > 0.001
    assert sorted(permutation(generator(0), 100)) == list(range(100))
    assert uniform(generator(3), 5).tolist() == generator(3).random(5).tolist()


@every_order
@every_prior
def test_only_raw_integers_are_drawn(order, prior):
    labels, groups = make_data()
    rng = SimpleNamespace(bit_generator=np.random.PCG64(0))  # no distributions of NumPy
    chosen = prior(labels, rng)
    assert chosen.tolist() == sorted(chosen)
    order(labels[chosen], groups[chosen], rng)


GOLDEN = {
    "iid": "21407bfadc307d0a",
    "recorded": "0ab91eb775746be7",
    "by_class": "0a787bf7c09022de",
    "by_group": "ed995a23f337780c",
    "dirichlet": "44a14dccedb8bdb9",
    "interleaved": "1f6d32a9cf0d5d27",
    "mixed": "ff93c52ffb6493dc",
    "gradual": "80cb21d7e5999568",
    "recurring": "6f8621732104e4bc",
    "zipf": "8d831003193a8569",
    "zipf test": "969f58ccbe61784f",
    "ratios": "0ee70c244755c9cc",
    "effective": "0428bc766242c27e",
}


def golden():
    """Fingerprints of a fixed data set in every order, and of some priors."""
    labels = (np.arange(500) ** 2 // 7) % 20
    groups = [f"video {i // 25 % 7}" for i in range(500)]
    keys = [f"{i:04}.jpg" for i in range(500)]
    scenarios = {name: Scenario(name, seed=3, limit=400) for name in orders()}
    scenarios["zipf"] = Scenario("by_group", "zipf", batch_size=16)
    scenarios["zipf test"] = Scenario("dirichlet", zipf(variant="test"), batch_size=16)
    scenarios["ratios"] = Scenario(prior=ratios({3: 0.5, 4: 0.25}))
    scenarios["effective"] = Scenario(gradual(sequence="given"), effective_classes(5))
    return {
        name: scenario(labels, groups, keys=keys).fingerprint[:16]
        for name, scenario in scenarios.items()
    }


def test_fingerprints_never_change():
    # If this fails, streams are not those of earlier versions: raise the format of the manifest.
    assert golden() == GOLDEN


def test_another_process_sees_the_same_streams():
    code = "import json; from tests.stream.test_stream import golden; print(json.dumps(golden()))"
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
        cwd=Path(__file__).parents[2],
    )
    assert json.loads(done.stdout) == GOLDEN, done.stderr


def test_fingerprint_by_definition():
    labels, groups = [4, 0, 4], ["ä", "b", "ä"]
    stream = Scenario("interleaved", batch_size=1, seed=5)(labels, groups, keys=["x", "y", "z"])
    manifest = json.loads(json.dumps(stream.manifest))
    assert manifest["labels_sha256"] == sha256(struct.pack("<3q", *labels)).hexdigest()
    assert manifest["groups_sha256"] == sha256("ä\0b\0ä\0".encode()).hexdigest()
    assert manifest["keys_sha256"] == sha256(b"x\0y\0z\0").hexdigest()
    content = json.dumps(manifest, sort_keys=True).encode()
    for name, position in (("ä", 0), ("b", 1), ("ä", 2)):
        content += f"\n{name}\0{1}\0".encode() + struct.pack("<q", position)
    assert stream.fingerprint == sha256(content).hexdigest()


def test_fingerprint_tells_all_apart():
    labels, groups, keys = [0, 1, 0, 1], ["a", "a", "b", "b"], ["w", "x", "y", "z"]
    fingerprints = [
        scenario(*data).fingerprint
        for scenario, data in [
            (Scenario(), (labels, groups)),
            (Scenario(seed=1), (labels, groups)),
            (Scenario(batch_size=2), (labels, groups)),
            (Scenario(limit=4), (labels, groups)),
            (Scenario("mixed"), (labels, groups)),
            (Scenario(), ([0, 1, 1, 1], groups)),
            (Scenario(), (labels, ["a", "a", "a", "b"])),
            (Scenario(), (labels,)),
        ]
    ]
    fingerprints += [Scenario()(labels, groups, keys=k).fingerprint for k in (keys, keys[::-1])]
    assert len(set(fingerprints)) == len(fingerprints) == 10


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


@every_order
@every_prior
def test_parameters_make_an_equal_scenario(order, prior):
    scenario = Scenario(order, prior, batch_size=16, seed=4, limit=100)
    again = Scenario(**json.loads(json.dumps(scenario.parameters)))
    assert again == scenario
    assert hash(again) == hash(scenario)


def test_names_and_mappings():
    assert Scenario() == Scenario("iid", "as_is") == Scenario(iid(), as_is())
    slots = {"kind": "dirichlet", "gamma": 0.3, "slots": 4}
    assert Scenario(slots).order == dirichlet(0.3, 4)
    inner = {"kind": "interleaved", "sources": 2, "inside": slots}
    assert Scenario(inner).order == interleaved(2, inside=dirichlet(0.3, 4))
    assert Scenario({"kind": "by_group", "sequence": ["b", "a"]}).order.sequence == ("b", "a")
    assert Scenario(prior={"kind": "ratios", "shares": {"1": 2}}).prior == ratios([0, 2])
    for table in (orders(), priors()):
        for name, summary in table.items():
            assert summary.endswith("."), name


@dataclass(frozen=True)
class backward:  # noqa: N801
    step: int = 1

    def __call__(self, labels, groups, rng, /):
        return np.arange(len(labels))[:: -self.step]


def test_an_order_of_your_own():
    stream = Scenario(backward(2))([0, 0, 0])
    assert stream.index.tolist() == [2, 0]
    assert stream.manifest["scenario"]["order"] == {"kind": "backward", "step": 2}


def test_a_stream_of_a_data_set():
    data = Dataset("tiny", np.arange(6.0)[:, None], np.arange(6) % 2, ("a", "b"), tuple("uvwxyz"))
    stream = Scenario("by_class", batch_size=3)(data.labels, data.groups, keys=data.keys)
    for batch in stream:
        assert batch.dtype == np.int64
        assert len(set(data.take(batch).labels.tolist())) == 1
        assert torch.from_numpy(batch).tolist() == batch.tolist()
        batch[:] = 0  # does not reach the stream
    assert sorted(stream.index) == list(range(6))
    with pytest.raises(ValueError, match="read-only"):
        stream.index[0] = 1


NEED_GROUPS = ["by_group", "interleaved", "mixed", "gradual", "recurring"]


@pytest.mark.parametrize("order", NEED_GROUPS)
def test_missing_groups_are_named(order):
    with pytest.raises(LamettaError, match=f"groups must be given for the order '{order}'"):
        Scenario(order)([0, 1])


def test_groups_are_asked_for_only_where_needed():
    for order in set(orders()) - set(NEED_GROUPS):
        Scenario(order)([0, 1])
    with pytest.raises(LamettaError, match="groups must be given for the order 'dirichlet'"):
        Scenario(dirichlet(within_groups=True))([0, 1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Scenario("sorted"), "order must be of a kind in .*'iid'.* got 'sorted'"),
        (lambda: Scenario({"gamma": 1}), "order must be of a kind in .* got None"),
        (lambda: Scenario(iid), "order must be a name, .* got <class .*iid"),
        (lambda: Scenario(len), "order must be a name, .* got <built-in"),
        (lambda: Scenario(prior="iid"), "prior must be of a kind in .*'as_is'.* got 'iid'"),
        (lambda: Scenario(prior="ratios"), "prior 'ratios' must be given shares, got none"),
        (lambda: Scenario({"kind": "dirichlet", "alpha": 1}), "options in .*'gamma'.* got 'alpha'"),
        (lambda: Scenario(batch_size=0), "batch_size must be an integer >= 1, got 0"),
        (lambda: Scenario(seed=-1), "seed must be an integer >= 0, got -1"),
        (lambda: Scenario(seed=1.5), "seed must be an integer >= 0, got 1.5"),
        (lambda: Scenario(limit=True), "limit must be an integer >= 1, got True"),
        (lambda: dirichlet(0), "gamma must be a finite number > 0, got 0"),
        (lambda: dirichlet(slots=0), "slots must be an integer >= 1, got 0"),
        (lambda: by_group(shuffle_inside="false"), "shuffle_inside must be True or False, got 'fa"),
        (lambda: by_class(sequence="size"), "sequence must be one of .* got 'size'"),
        (lambda: recurring(sequence=("a", "a")), "sequence must name each group once"),
        (lambda: gradual(1.5), "overlap must be a number from 0 to 1, got 1.5"),
        (lambda: interleaved(inside=interleaved()), "inside must be an order of one source"),
        (lambda: interleaved(inside="iid"), "inside must be an order of one source, got 'iid'"),
        (lambda: zipf(1), "a must be a number > 1 and <= 100, got 1"),
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


def test_public_names():
    names = {
        "Order",
        "Prior",
        "Scenario",
        "Stream",
        "options",
        "orders",
        "priors",
        *orders(),
        *priors(),
    }
    assert sorted(lametta.stream.__all__) == sorted(names)


def test_import_is_light():
    code = "import sys, lametta; print('lametta.stream' in sys.modules); import lametta.stream; "
    code += "print([m for m in ('torch', 'jax', 'scipy', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["False", "[]"], done.stderr
