"""No state that is loaded leads to NaN, a raw error, memory that it claims, or half a load."""

import tracemalloc
import warnings

import numpy as np
import pytest

from lametta import LamettaError, Prudent, Streams, Windowed, knn, methods, rbf
from lametta.correctors import LAME, Average, Memory
from lametta.correctors.base import StatefulCorrector, filled, state_nbytes
from lametta.correctors.chain import Chain
from lametta.types import Prototypes, Stateful
from tests.conftest import make_batch

D, K = 6, 4
FEATURES, PROBS = make_batch(160, K, D)
HEAD = Prototypes(np.random.default_rng(0).normal(size=(K, D)))
LATER = make_batch(70, K, D, seed=1)


def make(name):
    if name in EXTRA:
        return EXTRA[name]()
    corrector = methods.find(name).correctors({})[0]
    if "prototypes" in getattr(corrector, "needs", ()):
        corrector.use(HEAD)
    return corrector


def neo_with_head():
    corrector = methods.find("neo").correctors({})[0]
    corrector.use(HEAD)
    return corrector


EXTRA = {
    "memory of a track": lambda: Memory("track"),
    "windowed": lambda: Windowed(size=8),
    "windowed, many classes": lambda: Windowed(LAME(knn(3)), size=8),
    "windowed, called": lambda: Windowed(LAME(rbf()), size=8),
    "neo with a head": neo_with_head,
    "t3a of all": lambda: _t3a(keep=-1),
    "t3a, released": lambda: _t3a(keep=3, released=True),
    "chain": lambda: Chain((Average(), Prudent())),
}


def _t3a(**options):
    corrector = methods.find("t3a").correctors(options)[0]
    corrector.use(HEAD)
    return corrector


def _is_stateful(name):
    method = methods.find(name)
    return all(part.is_corrector for part in method.components) and isinstance(make(name), Stateful)


NAMES = [*(name for name in methods.names() if _is_stateful(name)), *EXTRA]


@pytest.mark.parametrize("name", [name for name in NAMES if name != "chain"])
def test_every_array_has_an_invariant(name):
    corrector = make(name)
    assert isinstance(corrector, StatefulCorrector)
    assert set(corrector.invariants()) == set(corrector.init_state(D, K))


def values_of(array, rng):
    """Finite values that an array may be given, possible or not."""
    shape, dtype = array.shape, array.dtype
    if dtype.kind == "b":
        yield from (np.zeros(shape, bool), np.ones(shape, bool))
        return
    big = np.iinfo(dtype).max if dtype.kind == "i" else np.finfo(dtype).max
    small = [] if dtype.kind == "i" else [np.finfo(dtype).tiny, 1e-12, 0.3, 0.999, 1.5, -0.1]
    for value in (0, 1, -1, 5, 10**6, big, -big, *small):
        yield np.full(shape, value, dtype)
        one = array.copy()
        one[tuple(rng.integers(side) for side in shape)] = value
        yield one
    with np.errstate(over="ignore"):
        for factor in (0, -1, 2, 1000, 1e-3):
            yield (array * factor).astype(dtype)
    if array.size > 1:
        yield rng.permutation(array.ravel()).reshape(shape)
        yield np.roll(array, 1)
    yield (array + 3 * rng.normal(size=shape)).astype(dtype)
    yield rng.integers(0, 100, shape).astype(dtype)


def _each_once(arrays):
    """Those that differ: of a number or of zeros many values are the same."""
    return {(x.dtype.str, x.shape, x.tobytes()): x for x in arrays}.values()


def is_same(state, other):
    return state.keys() == other.keys() and all(
        np.array_equal(state[name], other[name]) for name in state
    )


def check_answers(corrector):
    features, probs = LATER
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for rows in (*(slice(i, i + 1) for i in range(6)), slice(6, 30), slice(30, 70)):
            found = corrector.correct(features[rows], probs[rows]).probs
            assert np.isfinite(found).all()
            assert (found >= 0).all()
            assert abs(found.sum(axis=1) - 1).max() < 1e-3


@pytest.mark.slow(2)
@pytest.mark.parametrize("length", [2, 40])
@pytest.mark.parametrize("name", NAMES)
def test_any_array_may_be_anything(name, length):
    """Either it is refused and nothing changes, or all later answers are probabilities."""
    rng = np.random.default_rng(length)
    corrector = make(name)
    for start in range(0, length, 16):
        corrector.correct(FEATURES[start : start + 16], PROBS[start : start + 16])
    state, n_refused = corrector.state_dict(), 0
    for key, array in state.items():
        for value in _each_once(values_of(array, rng)):
            try:
                corrector.load_state_dict({**state, key: value})
            except LamettaError:
                n_refused += 1
                assert is_same(corrector.state_dict(), state), key
                continue
            if key.endswith("sizes") and value[0] != D:  # of another stream, to which this is none
                with pytest.raises(LamettaError, match="as before in this stream"):
                    check_answers(corrector)
                corrector.load_state_dict(state)
                continue
            try:
                check_answers(corrector)
            except (Exception, AssertionError) as error:
                raise AssertionError(f"{name} with {key} = {value}") from error
            corrector.load_state_dict(state)
    assert n_refused


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("claim", [(2**31, K), (D, 2**31), (2**31, 2**31), (D, 2**62), (D, 10**5)])
def test_a_claimed_size_is_not_allocated(name, claim):
    corrector = make(name)
    corrector.correct(FEATURES[:5], PROBS[:5])
    state = corrector.state_dict()
    sizes = {key: np.array(claim) for key in state if key.endswith("sizes")}
    tracemalloc.start()
    try:
        corrector.load_state_dict({**state, **sizes})
    except LamettaError:
        assert is_same(corrector.state_dict(), state)
    else:  # a state without features does not depend on how many there are
        assert claim[1] == K
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 20e6


def test_how_much_a_state_takes_is_known_before():
    for name in NAMES:
        corrector = make(name)
        expected = state_nbytes(corrector, D, K)
        corrector.correct(FEATURES[:5], PROBS[:5])
        assert expected == sum(x.nbytes for x in corrector.state_dict().values()), name
    assert state_nbytes(make("oatta"), D, 10**6) > 4 * 10**12
    assert state_nbytes(object(), D, K) == 0
    assert not filled((10**6, 10**6)).strides[0]


def test_parts_of_a_chain_have_one_size():
    chain = make("chain")
    other = Chain((Average(), Prudent()))
    chain.correct(FEATURES[:3], PROBS[:3])
    other.correct(FEATURES[:3], np.full((3, 5), 0.2))
    before = chain.state_dict()
    mixed = {
        key: (x if key.startswith("0.") else other.state_dict()[key]) for key, x in before.items()
    }
    with pytest.raises(LamettaError, match="state must be of one d and K in all parts"):
        chain.load_state_dict(mixed)
    assert is_same(chain.state_dict(), before)


class Moody(Average):
    """One whose second load in a row fails, as where memory has run out meanwhile."""

    n_loads = 0

    def load_state_dict(self, state, /):
        type(self).n_loads += 1
        if type(self).n_loads == 2:
            raise MemoryError
        super().load_state_dict(state)


def test_a_chain_loads_all_or_nothing():
    chain = Chain((Average(), Moody()))
    chain.correct(FEATURES[:3], PROBS[:3])
    before = chain.state_dict()
    chain.correct(FEATURES[3:9], PROBS[3:9])
    after = chain.state_dict()
    with pytest.raises(MemoryError):
        chain.load_state_dict(before)
    assert is_same(chain.state_dict(), after)
    with pytest.raises(LamettaError, match="state"):
        chain.load_state_dict({0: np.zeros(1)})
    assert is_same(chain.state_dict(), after)


def test_streams_load_all_or_nothing():
    streams = Streams(Average())
    streams.correct(FEATURES[:3], PROBS[:3], "a")
    before = streams.state_dict()
    for bad in ({**before, '"b"/sizes': np.array([1, 2])}, {**before, 7: np.zeros(1)}):
        with pytest.raises(LamettaError, match="state"):
            streams.load_state_dict(bad)
        assert is_same(streams.state_dict(), before)
    streams.load_state_dict(before)
    with pytest.raises(LamettaError, match="as before in stream 'a'"):
        streams.correct(FEATURES[:2], np.full((2, 5), 0.2), ["b", "a"])
    assert streams.ids == ["a"]
