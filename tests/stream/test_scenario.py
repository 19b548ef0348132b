import json
import os
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import lametta.stream
from lametta import LamettaError
from lametta.cli.correct import _batches, _streams
from lametta.data import Dataset
from lametta.stream import (
    Scenario,
    alone,
    by_group,
    effective_classes,
    few_classes,
    iid,
    interleaved,
    markov,
    orders,
    priors,
    recorded,
    tracks,
)
from tests.stream.cases import (
    ORDERS,
    batch_sizes,
    data_sets,
    every_order,
    make_data,
    runs,
    seeds,
)
from tests.stream.golden import GOLDEN, golden


@pytest.mark.slow
@settings(max_examples=400)
@given(st.sampled_from(ORDERS), data_sets(), seeds, batch_sizes)
def test_nothing_is_lost_or_doubled(order, data, seed, batch_size):
    stream = Scenario(order, batch_size=batch_size, seed=seed)(*data)
    assert sorted(stream.index) == list(range(len(data[0])))
    assert np.concatenate(list(stream)).tolist() == stream.index.tolist()
    assert len(stream) == len(stream.ids) == len(list(stream))
    for camera in set(stream.ids):
        own = [len(b) for b, name in zip(stream, stream.ids, strict=True) if name == camera]
        assert all(size == batch_size for size in own[:-1])
        assert 1 <= own[-1] <= batch_size
    if isinstance(order, alone | tracks | few_classes):  # a stream has ended when another begins
        assert len(runs(stream.ids)) == len(set(stream.ids))


@pytest.mark.slow
@settings(max_examples=400)
@given(st.sampled_from(ORDERS), data_sets(), seeds, batch_sizes, st.integers(1, 50))
def test_limit_cuts_what_is_in_order(order, data, seed, batch_size, limit):
    whole = Scenario(order, batch_size=batch_size, seed=seed)(*data)
    stream = Scenario(order, batch_size=batch_size, seed=seed, limit=limit)(*data)
    assert stream.index.tolist() == whole.index[:limit].tolist()
    assert stream.ids == whole.ids[: len(stream)]


@every_order
def test_same_seed_same_stream(order):
    labels, groups = make_data()
    one, two, other = (Scenario(order, seed=s)(labels, groups) for s in (1, 1, 2))
    assert one.index.tolist() == two.index.tolist()
    assert one.fingerprint == two.fingerprint != other.fingerprint
    fixed = isinstance(order, recorded) or order in (by_group(sequence="given"), interleaved())
    assert (one.index.tolist() == other.index.tolist()) == fixed


def test_fingerprints_never_change():
    # If this fails, streams are not those of earlier versions: raise the format of the manifest.
    assert golden() == GOLDEN


@pytest.mark.slow
def test_another_process_sees_the_same_streams():
    code = "import json; from tests.stream.golden import golden; print(json.dumps(golden()))"
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


@pytest.mark.parametrize("order", [by_group(), recorded(), interleaved(2), iid()])
def test_batches_end_with_their_group_where_that_is_asked_for(order):
    rng = np.random.default_rng(0)
    groups = np.repeat(np.array(["a", "b", "c", "d"]), [5, 8, 1, 3])
    labels = rng.integers(0, 3, len(groups))
    split = Scenario(order, batch_size=4, split_groups=True)
    stream = split(labels, groups)
    assert all(len(set(groups[batch])) == 1 for batch in stream)
    plain = Scenario(order, batch_size=4)(labels, groups)
    assert sorted(stream.index) == sorted(plain.index)
    for name in set(stream.ids):  # each camera shows the same samples, in the same order
        assert np.array_equal(*(
            np.concatenate([b for i, b in zip(s.ids, s, strict=True) if i == name])
            for s in (stream, plain)
        ))  # fmt: skip
    assert Scenario(**split.parameters) == split
    assert stream.fingerprint != plain.fingerprint
    limited = Scenario(order, batch_size=4, split_groups=True, limit=7)(labels, groups)
    assert limited.index.tolist() == stream.index.tolist()[:7]


def test_split_batches_are_those_of_the_command():
    """``lametta correct`` gives the same batches for a file with whole groups."""
    groups = np.repeat(np.array(["b", "a", "c"]), [70, 64, 1])
    order = by_group(sequence="given")
    stream = Scenario(order, batch_size=64, split_groups=True)(np.zeros(135, int), groups)
    assert [batch.tolist() for batch in stream] == [
        batch.tolist() for own in _streams(135, groups) for batch in _batches(own, 64)
    ]


def test_streams_from_before_keep_their_fingerprints():
    assert "split_groups" not in Scenario().parameters
    assert Scenario(split_groups=False).parameters == Scenario().parameters
    with pytest.raises(LamettaError, match="groups must be given for split_groups, got None"):
        Scenario(split_groups=True)([0, 1])
    with pytest.raises(LamettaError, match="split_groups must be True or False, got 'no'"):
        Scenario(split_groups="no")


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


@pytest.mark.slow
def test_import_is_light():
    code = "import sys, lametta; print('lametta.stream' in sys.modules); import lametta.stream; "
    code += "print([m for m in ('torch', 'jax', 'scipy', 'typer') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split("\n")[:2] == ["False", "[]"], done.stderr


@pytest.mark.parametrize("order", [alone(), tracks(2), few_classes(size=4), markov()])
def test_only_what_the_prior_chose_arrives(order):
    labels = np.arange(60) % 3
    chosen = Scenario("recorded", effective_classes(1))(labels).index
    stream = Scenario(order, effective_classes(1))(labels, labels)
    assert sorted(stream.index.tolist()) == chosen.tolist()
