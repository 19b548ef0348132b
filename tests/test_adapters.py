"""Correctors, adapters and the checks of their contracts."""

import json
import pickle
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from array_api_compat import array_namespace

import lametta
from lametta import (
    LAME,
    Corrected,
    LamettaError,
    Output,
    Prediction,
    Prudent,
    Source,
    Streams,
    Windowed,
)
from lametta._arrays import probabilities
from lametta.correctors import Average, Chain
from lametta.signals import signals
from lametta.testing import check_adapter, check_corrector, yield_checks
from tests.conftest import Library, make_batch, softmax

HEAD = np.random.default_rng(5).normal(size=(6, 4))
INPUTS = np.random.default_rng(6).normal(size=(40, 6))


def model(x):
    return Output(features=x, logits=x @ HEAD)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = torch.nn.Linear(6, 8), torch.nn.Linear(8, 4)

    @torch.no_grad()
    def forward(self, x):
        features = self.body(x).tanh()  # ReLU would put samples on one axis, where they tie
        return Output(features, self.head(features))


CORRECTORS = [LAME(), LAME(lametta.rbf(3, row_sum=5.0), weight=2.0), LAME(lametta.linear())]


@pytest.mark.slow
@pytest.mark.parametrize("corrector", CORRECTORS, ids=repr)
def test_our_correctors_keep_the_contract(corrector):
    check_corrector(corrector)


@pytest.mark.slow
@pytest.mark.parametrize("corrector", CORRECTORS, ids=repr)
def test_our_adapters_keep_the_contract(corrector):
    for adapter in (Source(model), Corrected(model, corrector)):
        check_adapter(adapter, INPUTS)
        check_adapter(Corrected(adapter, LAME()), INPUTS)
    net = Net()
    check_adapter(Corrected(net, corrector), torch.tensor(INPUTS, dtype=torch.float32))


@pytest.mark.parametrize(
    ("corrector", "traits"),
    [
        (Prudent(), (True, True, False)),
        (Average(), (True, True, True)),
        (Windowed(), (True, True, True)),
        (Streams(Average()), (True, True, True)),
        (Chain((Average(), LAME())), (True, True, False)),
        (LAME(), (False, False, False)),
    ],
    ids=repr,
)
def test_traits_are_those_of_base_and_corrector(corrector, traits):
    adapter = Corrected(model, corrector)
    assert (adapter.ordered, adapter.stateful, adapter.causal) == traits
    check_adapter(adapter, INPUTS)
    above = Corrected(Corrected(Source(model), LAME()), corrector)
    assert (above.ordered, above.stateful, above.causal) == (*traits[:2], False)
    below = Corrected(adapter, LAME())
    assert (below.ordered, below.stateful, below.causal) == (*traits[:2], False)
    check_adapter(below, INPUTS)


def test_streams_may_be_told_apart_above_what_has_no_memory():
    adapter = Corrected(Corrected(model, LAME()), Average())
    adapter.step(INPUTS[:2], stream="a")


class Bare:
    """One that returns arrays alone, as a stranger may."""

    def correct(self, features, probs):
        return probs

    def step(self, x):
        return x

    def reset(self): ...


def test_a_bare_array_is_no_prediction():
    with pytest.raises(
        LamettaError, match=r"Bare\.correct must return lametta\.Prediction, got nd"
    ):
        Corrected(model, Bare()).step(INPUTS)

    class Base(Bare):
        correct = None

    with pytest.raises(LamettaError, match=r"Base\.step must return lametta\.Prediction, got nd"):
        Corrected(Base(), LAME()).step(INPUTS)


def test_lame_corrects_as_the_function_does(library: Library):
    features, probs = map(library.array, make_batch(20, 4))
    prediction = LAME(lametta.knn(3), weight=0.5).correct(features, probs)
    result = lametta.lame(features, probs, affinity=lametta.knn(3), weight=0.5)
    assert np.array_equal(library.numpy(prediction.probs), library.numpy(result.probs))
    assert prediction.features is features
    assert prediction.info["n_iter"] == result.n_iter


def test_signals_by_definition(library: Library):
    probs, source = make_batch(30, 5, seed=1)[1], make_batch(30, 5, seed=2)[1]
    found = signals(library.array(probs), library.array(source))
    mean = probs.mean(axis=0)
    assert float(found["entropy"]) == pytest.approx(-(probs * np.log(probs)).sum() / 30)
    assert float(found["diversity"]) == pytest.approx(-(mean * np.log(mean)).sum())
    changed = np.mean(probs.argmax(axis=1) != source.argmax(axis=1))
    assert float(found["changed"]) == pytest.approx(changed)
    assert signals(library.array(probs[:0])) == {}


def test_source_is_the_softmax(library: Library):
    logits = np.random.default_rng(0).normal(size=(5, 3)) * 100
    adapter = Source(lambda x: Output(features=x, logits=x))
    prediction = adapter.step(library.array(logits))
    assert np.allclose(library.numpy(prediction.probs), softmax(logits))


def test_corrected_is_source_and_corrector():
    before = Source(model).step(INPUTS)
    after = LAME().correct(before.features, before.probs)
    for base in (model, Source(model)):
        prediction = Corrected(base, LAME()).step(INPUTS)
        assert np.array_equal(prediction.probs, after.probs)
        assert prediction.info["base_entropy"] == before.info["entropy"]
        assert prediction.info["changed"] == after.info["changed"]


def test_bad_bases_are_named():
    with pytest.raises(LamettaError, match=r"model must return lametta\.Output, got tuple"):
        Source(lambda x: (x, x)).step(INPUTS)

    class Blind(Source):
        def step(self, x):
            return Prediction(super().step(x).probs)

    with pytest.raises(LamettaError, match="base must give features .* got None"):
        Corrected(Blind(model), LAME()).step(INPUTS)


def test_adapters_show_and_pickle_what_they_were_given():
    adapter = Corrected(Source(model), LAME(lametta.knn(3)))
    assert "LAME(affinity=knn(k=3, direction='own', symmetric=" in repr(adapter)
    assert pickle.loads(pickle.dumps(adapter)) == adapter


# A contract is worth something only if breaking it is found.


@dataclass
class Running:
    """A corrector with state, and a fault to choose."""

    fault: str = ""
    seen: float = 0.0

    def correct(self, features, probs, /):
        if self.fault == "writes" and probs.flags.writeable:
            probs[...] = 1 / probs.shape[1]
        weight = self.seen / (1 + self.seen)
        probs = (1 - weight) * probs + weight / probs.shape[1]
        self.seen += len(probs)
        if self.fault == "not rows":
            probs = 2 * probs
        if self.fault == "order" and len(probs) > 1:
            probs = np.vstack([probs[1:], probs[:1]])
        if self.fault == "nan":
            probs = probs * np.nan
        if self.fault == "dtype":
            probs = np.asarray(probs, np.float64)
        if self.fault == "crash" and len(features) == 1:
            raise IndexError
        if self.fault == "shared":
            Running.common = getattr(Running, "common", 0.0) + 1
            probs = (probs + Running.common) / (probs + Running.common).sum(axis=1, keepdims=True)
        if self.fault == "info":
            return Prediction(probs, features, {"text": float("nan")})
        return Prediction(probs, features)

    def reset(self):
        if self.fault != "reset":
            self.seen = 0.0


def test_a_good_corrector_with_state_passes():
    check_corrector(Running())
    check_adapter(Corrected(model, Running()), INPUTS)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("not rows", "rows must sum to 1"),
        ("nan", "probs must be finite"),
        ("order", "permuting a batch must permute"),
        ("reset", r"reset\(\) and a replay"),
        ("shared", r"reset\(\) and a replay"),
        ("dtype", "probs must stay"),
        ("crash", "batch of 1: raised IndexError"),
        ("info", r"info\['text'\] must be a number"),
    ],
)
def test_a_broken_corrector_is_found(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_corrector(Running(fault))


def test_a_corrector_that_writes_is_found():
    with pytest.raises(AssertionError, match="inputs must not be changed"):
        check_adapter(Corrected(lambda x: Output(x, x), Writer()), INPUTS)


class Writer(LAME):
    def correct(self, features, probs, /):
        prediction = super().correct(features, probs)
        features[...] = 0
        return prediction


def test_a_corrector_that_pickles_badly_is_found():
    class Method(Running):
        def __reduce__(self):
            return Running, (self.fault, 0.0)

        def __deepcopy__(self, memo):
            return Method(self.fault, self.seen)

    with pytest.raises(AssertionError, match="a copy in mid-stream must continue alike"):
        check_corrector(Method())


def test_an_adapter_that_changes_the_model_is_found():
    @dataclass
    class Drifting:
        model: Net

        def step(self, x, /):
            prediction = Source(self.model).step(x)
            with torch.no_grad():
                self.model.head.bias += 0.1 * self.drift
            return prediction

        drift: float = 0.0

        def reset(self):
            pass

    inputs = torch.tensor(INPUTS, dtype=torch.float32)
    check_adapter(Drifting(Net()), inputs)
    with pytest.raises(AssertionError, match="reset"):
        check_adapter(Drifting(Net(), drift=1.0), inputs)


@dataclass
class Refuses(LAME):
    message: str = ""

    def correct(self, features, probs, /):
        if len(features) < 3:
            raise LamettaError(self.message)
        return super().correct(features, probs)


@pytest.mark.slow
def test_errors_must_name_the_argument():
    check_corrector(Refuses(message="features must have 3 rows, got fewer"))
    with pytest.raises(AssertionError, match="the error must name the argument"):
        check_corrector(Refuses(message="no"))


class Remembers:
    """Answers with the mean of all samples so far: order matters, and it says so."""

    ordered = True

    def __init__(self):
        self.reset()

    def correct(self, features, probs, /):
        xp = array_namespace(probs)
        rows = []
        for i in range(probs.shape[0]):
            self.total = probs[i, :] if self.n == 0 else self.total + probs[i, :]
            self.n += 1
            rows.append(self.total / xp.sum(self.total))
        return Prediction(xp.astype(xp.stack(rows), probs.dtype) if rows else probs, features)

    def reset(self):
        self.n, self.total = 0, None


@pytest.mark.slow
def test_a_corrector_that_says_so_may_depend_on_the_order():
    check_corrector(Remembers())
    silent = Remembers()
    silent.ordered = False
    with pytest.raises(AssertionError, match="or the method say that it is ordered"):
        check_corrector(silent)


def test_checks_come_one_by_one_and_one_failure_hides_no_other():
    names = [check.__name__ for check in yield_checks(LAME())]
    assert len(set(names)) == len(names)
    assert {"check_rows", "check_permutation_equivariance", "check_batch_of_1"} <= set(names)
    failed = []
    for check in yield_checks(Running("dtype")):
        try:
            check(Running("dtype"))
        except AssertionError:
            failed.append(check.__name__)
    assert failed[:3] == ["check_half_precision", "check_numpy_is_kept", "check_torch_is_kept"]


def test_one_logit_is_refused():
    with pytest.raises(LamettaError, match=r"logits must have a column for each of two .*\[0, z\]"):
        Source(lambda x: Output(x, x[:, :1])).step(np.ones((4, 3)))
    with pytest.raises(LamettaError, match="logits must have a column for each of two classes"):
        probabilities("logits", np.ones((4, 1)))


def test_tensors_without_values_are_refused():
    x, q = torch.ones(4, 3, device="meta"), torch.ones(4, 2, device="meta")
    for corrector in (LAME(), Prudent()):
        with pytest.raises(LamettaError, match="features must have values, got .* meta device"):
            corrector.correct(x, q)


def test_the_source_is_kept_beside_the_correction():
    features, probs = make_batch(12, 4)
    adapter = Corrected(lambda x: Output(x, np.log(probs), returned="all of it"), Prudent())
    found = Corrected(adapter, LAME()).step(features)
    np.testing.assert_allclose(found.source, probs, atol=1e-6)
    assert found.returned == "all of it"


def test_info_is_plain_numbers():
    features = INPUTS
    for convert in (np.asarray, torch.tensor):
        for corrector in (LAME(), Prudent()):
            adapter = Corrected(lambda x: Output(x, x[:, :4]), corrector)
            found = adapter.step(convert(features))
            kinds = {type(value) for value in found.plain().info.values()}
            assert kinds <= {float, int, bool}
            json.dumps(dict(found.info))


def test_streams_have_memories_of_their_own():
    features = INPUTS[:12]
    adapter, ids = Corrected(model, Prudent()), ["a", "b"] * 6
    adapter.step(features)  # of no stream
    found = adapter.step(features, stream=ids)
    for one in (0, 1):
        alone = Corrected(model, Prudent()).step(features[one::2])
        np.testing.assert_array_equal(found.probs[one::2], alone.probs)
    assert adapter.streams.ids == ["a", "b"]
    given = Corrected(model, lametta.Streams(Prudent(), most=3))
    given.step(features)
    given.step(features, stream=7)
    assert given.corrector.ids == ["default", 7]
    state = adapter.state_dict()
    twin = Corrected(model, Prudent())
    twin.load_state_dict(state)
    for stream in (None, "a"):
        expected, continued = (one.step(features, stream=stream).probs for one in (adapter, twin))
        np.testing.assert_array_equal(continued, expected)
    adapter.reset()
    assert adapter.state_dict() == {}
    assert not adapter.streams.ids
    expected = LAME().correct(features, adapter.step(features, stream="a").probs)
    adapter.reset()
    above = Corrected(adapter, LAME()).step(features, stream="a")  # of the same stream, as below
    np.testing.assert_array_equal(above.probs, expected.probs)

    class Together(Source):
        stateful = True

    with pytest.raises(LamettaError, match="stream must be left out, since Together under the"):
        Corrected(Together(model), LAME()).step(features, stream="a")
    with pytest.raises(LamettaError, match="state must be empty for LAME"):
        Corrected(model, LAME()).load_state_dict(state)
    with pytest.raises(LamettaError, match="names of corrector or streams, got 'x'"):
        adapter.load_state_dict({"x": np.ones(1)})


def test_one_sample_at_a_time_is_nothing_for_lame():
    features, probs = make_batch(12, 4)
    lame = LAME()
    lame.correct(features[:4], probs[:4])
    lame.correct(features[:1], probs[:1])  # may be the last of a stream
    with pytest.warns(UserWarning, match="LAME gets one sample at a time, and corrects nothing"):
        lame.correct(features[1:2], probs[1:2])
    for i in range(2, 12):  # said once
        lame.correct(features[i : i + 1], probs[i : i + 1])
