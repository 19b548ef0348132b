"""What correctors with memory share, and that the checks find where it is broken."""

import copy
import pickle
from dataclasses import dataclass, replace

import jax
import numpy as np
import pytest
import torch
from safetensors.numpy import load, save

from lametta import LAME, LamettaError, correctors, methods
from lametta.correctors import Average, StatefulCorrector, advance
from lametta.testing import check_corrector, yield_checks
from lametta.types import Stateful
from tests.conftest import Library, make_batch

FEATURES, PROBS = make_batch(12, 4)


@dataclass
class Faulty(Average):
    """Averages, and has a fault to choose."""

    fault: str = ""

    def correct(self, features, probs, /):
        if self.fault == "takes all":
            features, probs = np.nan_to_num(features), np.nan_to_num(probs)
            probs = probs / probs.sum(axis=1, keepdims=True)
        if self.fault == "early":
            self._state = self._state or self._first(features.shape[1], probs.shape[1])
            self._state["total"] = self._state["total"] + probs[0]
        if self.fault == "grows aside":
            self.seen = [*getattr(self, "seen", []), *range(len(probs) * 100)]
        return super().correct(features, probs)

    def reset(self):
        self.seen = []
        super().reset()

    def update(self, state, features, probs):
        rows, info = super().update(state, features, probs)
        if self.fault == "grows":
            state["log"] = np.zeros(len(state.get("log", [])) + 1)
        if self.fault == "looks ahead":
            rows = np.repeat(rows.mean(axis=0, keepdims=True), len(rows), axis=0)
        return rows, info

    def state_dict(self):
        if self.fault == "text":
            return {"total": "many"}
        if self.fault == "view":
            return self._state
        return super().state_dict()

    def load_state_dict(self, state, /):
        if self.fault in ("loads a view", "loads all"):
            self._state = dict(state) if self.fault == "loads a view" else copy.deepcopy(state)
        elif self.fault != "loads nothing":
            super().load_state_dict(state)


def test_a_corrector_without_fault_passes():
    check_corrector(Faulty())


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("takes all", "NaN features: must be refused"),
        ("early", "NaN features: what is refused must change no state"),
        ("grows", r"load_state_dict\(\) must take what state_dict\(\) gave"),
        ("grows aside", "the state must not grow along the stream"),
        ("looks ahead", "or the method not say that it is causal"),
        ("text", r"state_dict\(\)\['total'\] must be an array of numbers"),
        ("view", r"state_dict\(\) must give a copy"),
        ("loads a view", r"load_state_dict\(\) must continue where state_dict\(\) was"),
        ("loads nothing", r"load_state_dict\(\) must continue where state_dict\(\) was"),
        ("loads all", "a state without 'sizes': must be refused"),
    ],
)
def test_a_fault_is_found(fault, message):
    with pytest.raises(AssertionError, match=message):
        check_corrector(Faulty(fault))


def test_one_failure_hides_no_other():
    failed = []
    for check in yield_checks(Faulty("grows")):
        try:
            check(Faulty("grows"))
        except AssertionError:
            failed.append(check.__name__)
    assert failed == [
        "check_state_can_be_stored",
        "check_state_is_bounded",
        "check_rejected_input_keeps_state",
    ]


class Claims(LAME):
    stateful = True


def test_state_has_to_be_storable_where_it_is_claimed():
    with pytest.raises(AssertionError, match="must have state_dict"):
        check_corrector(Claims())


class Batchwise(LAME):
    causal = True


@pytest.mark.filterwarnings("ignore:LAME gets one sample")
def test_a_causal_claim_is_checked_without_state_too():
    with pytest.raises(AssertionError, match="batches of 1 must give the answers of one batch"):
        check_corrector(Batchwise())


def test_state_goes_through_a_file():
    corrector = Average()
    assert corrector.state_dict() == {}
    corrector.correct(FEATURES[:5], PROBS[:5])
    stored = load(save(corrector.state_dict()))
    other = Average()
    other.load_state_dict(stored)
    expected, found = (one.correct(FEATURES[5:], PROBS[5:]).probs for one in (corrector, other))
    assert np.array_equal(expected, found)
    other.load_state_dict({})
    assert np.array_equal(other.correct(FEATURES, PROBS).probs[0], PROBS[0])


def test_copies_have_their_own_state():
    corrector = Average()
    corrector.correct(FEATURES, PROBS)
    before = corrector.state_dict()["total"]
    for other in (copy.deepcopy(corrector), pickle.loads(pickle.dumps(corrector))):
        other.correct(FEATURES, PROBS)
        assert np.array_equal(corrector.state_dict()["total"], before)
    assert replace(corrector).state_dict() == {}
    assert corrector == Average()
    assert repr(corrector) == "Average()"


def test_advance_changes_nothing_and_says_the_same():
    corrector, template, state = Average(), Average(), {}
    template.correct(FEATURES[::-1], PROBS[::-1])
    own = template.state_dict()
    for rows in (slice(0, 1), slice(1, 7), slice(7, 12)):
        before = copy.deepcopy(state)
        new, found = advance(template, state, FEATURES[rows], PROBS[rows])
        assert np.array_equal(found.probs, corrector.correct(FEATURES[rows], PROBS[rows]).probs)
        assert all(np.array_equal(state[name], before[name]) for name in before | state)
        state = new
    assert np.array_equal(state["total"], corrector.state_dict()["total"])
    assert np.array_equal(template.state_dict()["total"], own["total"])


def test_rows_come_back_as_they_went_in(library: Library):
    expected = np.cumsum(PROBS, axis=0) / np.arange(1, 13)[:, None]
    for dtype in ("float32", "float64", *library.halves):
        features, probs = library.array(FEATURES, dtype), library.array(PROBS, dtype)
        prediction = Average().correct(features, probs)
        assert type(prediction.probs) is type(probs)
        assert prediction.probs.dtype == probs.dtype
        assert prediction.features is features
        slack = 2e-2 if dtype in library.halves else 1e-6
        assert np.allclose(library.numpy(prediction.probs), expected, atol=slack)
        assert set(prediction.info) == {"entropy", "diversity", "changed"}


def test_another_byte_order_and_gradients():
    found = Average().correct(FEATURES.astype(">f4"), PROBS.astype(">f4")).probs
    assert found.dtype == ">f4"
    tensor = torch.tensor(PROBS, requires_grad=True)
    found = Average().correct(tensor, tensor).probs
    assert not found.requires_grad


@pytest.mark.parametrize(
    ("features", "probs", "message"),
    [
        (FEATURES[0], PROBS, r"features must be 2-D \[N, d\], got shape \(16,\)"),
        (FEATURES, PROBS[:5], "one row for each sample, got 12 and 5 rows"),
        (FEATURES, PROBS * np.nan, "probs must be finite, got NaN"),
        (FEATURES + np.inf, PROBS, "features must be finite, got infinity"),
        (FEATURES, PROBS * 2, "probs must have rows that sum to 1, got 2 in row"),
        (FEATURES, -PROBS, "probs must be >= 0"),
        (FEATURES, PROBS.astype(int), "probs must be of a floating dtype, got int64"),
        (FEATURES, PROBS.tolist(), "probs must be an array"),
        (FEATURES, torch.tensor(PROBS), "must come from one array library"),
        (FEATURES[:, 1:], PROBS, "features must have 16 columns as before in this stream, got 15"),
        (FEATURES, np.ones((12, 1)), "probs must have 4 columns as before in this stream, got 1"),
    ],
)
def test_what_is_wrong_is_named(features, probs, message):
    corrector = Average()
    corrector.correct(FEATURES, PROBS)
    with pytest.raises(LamettaError, match=message):
        corrector.correct(features, probs)
    assert np.allclose(corrector.state_dict()["total"], PROBS.sum(axis=0))


def test_traced_arrays_have_no_values():
    with pytest.raises(LamettaError, match="features must have values, got .*Tracer"):
        jax.jit(lambda x: Average().correct(x, x).probs)(jax.numpy.asarray(PROBS))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total": None}, "state must hold sizes, total, got sizes"),
        ({"more": np.zeros(1)}, "state must hold sizes, total, got sizes, total, more"),
        ({"total": np.zeros(5)}, r"state\['total'\] must be float64 of shape \(4,\), got .*\(5,\)"),
        ({"total": np.zeros(4, np.float32)}, r"state\['total'\] must be float64 .* got float32"),
        ({"total": np.full(4, np.inf)}, r"state\['total'\] must be finite"),
        ({"sizes": None}, r"state\['sizes'\] must be the integers d and K, got None"),
        ({"sizes": np.array([0, 4])}, r"state\['sizes'\] must be the integers d and K"),
        ({"sizes": np.array([4, 2**62])}, r"state\['sizes'\] must be d and K of a stream"),
    ],
)
def test_what_is_wrong_with_a_state_is_named(change, message):
    corrector = Average()
    corrector.correct(FEATURES, PROBS)
    state = {**corrector.state_dict(), **change}
    with pytest.raises(LamettaError, match=message):
        corrector.load_state_dict({name: x for name, x in state.items() if x is not None})
    with pytest.raises(LamettaError, match="state must be arrays by name, got list"):
        corrector.load_state_dict([])
    assert np.allclose(corrector.state_dict()["total"], PROBS.sum(axis=0))


def test_the_base_class_says_what_it_is():
    assert isinstance(Average(), Stateful)
    assert not isinstance(methods.find("lame").components[0].factory(), Stateful)
    method = methods.find("average")
    assert (method.ordered, method.stateful, method.causal) == (True, True, True)
    assert not methods.find("lame").causal
    assert methods.find("source").causal
    assert not methods.find("average+lame").causal


def test_a_subclass_that_lacks_a_hook_is_told_which():
    @dataclass
    class Empty(StatefulCorrector):
        pass

    @dataclass
    class Begun(StatefulCorrector):
        def init_state(self, d, k):
            return {}

    for corrector, message in (
        (Empty(), r"Empty must have init_state\(d, k\)"),
        (Begun(), "Begun must have update or update_one"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            corrector.correct(np.ones((1, 2)), np.array([[0.5, 0.5]]))


def test_the_hooks_of_a_stranger_are_called():
    @dataclass
    class Sum(StatefulCorrector):
        def init_state(self, d, k):
            return {"total": np.zeros(k)}

        def update(self, state, features, probs):
            state["total"] += probs.sum(axis=0)
            return np.repeat(state["total"][None] / state["total"].sum(), len(probs), axis=0), {
                "n": 1
            }

        def check_state(self, state):
            super().check_state(state)
            if (state["total"] < 0).any():
                raise LamettaError("state['total'] must be >= 0")

    corrector = Sum()
    prediction = corrector.correct(np.ones((2, 3)), np.array([[0.9, 0.1], [0.3, 0.7]]))
    assert np.allclose(prediction.probs, [[0.6, 0.4]] * 2)
    assert prediction.info["n"] == 1
    state = corrector.state_dict()
    with pytest.raises(LamettaError, match="must be >= 0"):
        corrector.load_state_dict({**state, "total": -state["total"]})


def test_the_name_of_before_stays():
    assert correctors.Remembering is StatefulCorrector
